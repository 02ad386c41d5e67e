"""Health, status and metrics of a run, on librdkafka's mock broker: what each says, from any thread."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from streamloop import Skip, StreamLoop, __version__
from streamloop.engine.events import Reason
from tests.broker.loops.inprocess import QUICK, Running
from tests.mock_cluster import MockCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_ZERO = {
    "loop_processed_total",
    "loop_retried_total",
    "loop_dead_letter_total",
    "loop_redelivered_total",
    "loop_cancel_ignored_total",
    "loop_publish_failures_total",
    "loop_drain_timeouts_total",
    "loop_held_partitions",
    "loop_breaker_state",
    "loop_inflight",
    "loop_inflight_bytes",
    "loop_processing_duration_seconds_count",
    "loop_processing_duration_seconds_sum",
}
"""Each of these is there with a series at 0 before anything has happened."""


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


def produce(mock: MockCluster, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": mock.bootstrap, "log_level": 0})
    for value in values:
        producer.produce("orders", value, partition=0)
    assert producer.flush(10) == 0


class Observed:
    """A loop whose handler does what its value says, and one message of which may be held back."""

    def __init__(self, mock: MockCluster, **settings: Any) -> None:
        mock.create_topic("orders")
        self.release = threading.Event()
        self.loop: StreamLoop[Any] = StreamLoop("billing", brokers=mock.bootstrap, **{**QUICK, **settings})

        @self.loop.consumer("orders", name="charge", retry_topics=[], in_place_attempts=2, ordering="none")
        def handle(value: bytes) -> None:
            if value == b"wait":
                self.release.wait(60)
            elif value == b"fail":
                raise ConnectionError("no")
            elif value == b"skip":
                raise Skip("not ours")


def test_before_and_after_a_run_there_is_nothing_to_see(mock: MockCluster) -> None:
    loop = Observed(mock).loop
    for _ in range(2):
        assert not loop.health().live
        assert loop.health().reasons == ("the loop is not running",)
        assert loop.status() is None
        assert loop.metrics() == {}
        loop.run(max_runtime=0.2)


def test_every_counter_is_there_at_0_from_the_start(mock: MockCluster) -> None:
    observed = Observed(mock)
    with Running(observed.loop) as running:
        running.until(lambda: len(running.status().partitions) > 0 if observed.loop.status() else False)
        running.until(lambda: not any(part.held for part in running.status().partitions))
        metrics = observed.loop.metrics()
        for name in AT_ZERO:
            assert metrics[name], name
            assert set(metrics[name].values()) == {0}, name
        reasons = {dict(labels)["reason"] for labels in metrics["loop_held_partitions"]}
        assert reasons == {reason.value for reason in Reason}
        assert running.metric("loop_build_info", version=__version__) == 1
        ours = [each for name, each in metrics.items() if name.startswith("loop_")]
        assert all(dict(labels)["group"] == "billing" for each in ours for labels in each)


def test_outcomes_failures_and_durations_are_counted(mock: MockCluster) -> None:
    observed = Observed(mock)
    produce(mock, b"fine", b"fine", b"skip", b"fail")
    with Running(observed.loop) as running:
        running.until(lambda: running.counts()["acked"] == 4)
        processed = observed.loop.metrics()["loop_processed_total"]
        by_topic = {
            (dict(labels)["topic"], dict(labels)["outcome"]): value for labels, value in processed.items()
        }
        assert {outcome: value for (topic, outcome), value in by_topic.items() if topic == "orders"} == {
            "acked": 2,
            "skipped": 1,
            "retried": 0,
            "dead_lettered": 1,
        }
        assert running.metric("loop_failed_total", type="builtins.ConnectionError") == 2
        assert running.metric("loop_retried_total") == 1
        assert running.metric("loop_dead_letter_total", consumer="charge") == 1
        assert running.metric("loop_processing_duration_seconds_count") == 5
        assert running.metric("loop_errors_total") >= 0


def test_what_runs_and_what_holds_the_position_is_shown(mock: MockCluster) -> None:
    observed = Observed(mock, member="member-7")
    produce(mock, b"fine", b"wait", b"fine")
    with Running(observed.loop) as running:
        running.until(lambda: running.counts()["acked"] == 2)
        part = running.partition("orders", 0)
        assert part is not None
        assert (part.consumer, part.committable, part.position, part.gap) == ("charge", 1, 3, 2)
        assert part.holder is not None
        assert (part.holder.offset, part.holder.state, part.holder.attempt) == (1, "PROCESSING", 1)
        assert part.holder.age is not None
        assert part.holder.age >= 0
        status = running.status()
        assert (status.group, status.member, status.state) == ("billing", "member-7", "running")
        [consumer] = status.consumers
        assert (consumer.running, consumer.waiting, consumer.topics) == (1, 0, ("orders",))
        assert running.metric("loop_running_handlers", consumer="charge") == 1
        assert running.metric("loop_commit_gap", topic="orders", partition="0") == 2
        assert running.metric("loop_backlog", state="buffered") >= 1
        json.dumps(asdict(status))  # plain values all the way down
        observed.release.set()


def test_partition_series_vanish_with_the_partition(mock: MockCluster) -> None:
    observed = Observed(mock)
    seen: list[dict[Any, float]] = []

    @observed.loop.on_shutdown
    async def look() -> None:
        seen.append(observed.loop.metrics().get("loop_commit_gap", {}))

    with Running(observed.loop) as running:
        running.until(lambda: running.partition("orders", 0) is not None)
        assert observed.loop.metrics()["loop_commit_gap"]
        running.stop()
    assert seen == [{}]


def test_a_pause_is_visible_and_its_time_is_counted(mock: MockCluster) -> None:
    observed = Observed(mock)
    with Running(observed.loop) as running:
        running.until(lambda: running.partition("orders", 0) is not None)
        observed.loop.pause("orders")
        running.until(lambda: set(running.held("orders", 0)) == {"operator"})
        assert "orders was paused at this member by loop.pause()" in running.held("orders", 0)["operator"]
        assert running.metric("loop_held_partitions", reason="operator") == 1
        running.until(lambda: running.metric("loop_held_partition_seconds_total", reason="operator") > 0)
        assert running.status().held_seconds["operator"] > 0
        observed.loop.resume()
        running.until(lambda: running.held("orders", 0) == {})
        assert running.stop().held_seconds["operator"] > 0


def test_H4_a_failed_engine_publisher_or_poller_is_not_live_and_says_why(mock: MockCluster) -> None:
    observed = Observed(mock)
    with Running(observed.loop) as running:
        running.until(lambda: observed.loop.health().ready)
        run = observed.loop._run
        assert run is not None
        assert run.parts is not None
        poller = run.parts.pollers[0]
        poller.failure = RuntimeError("broken")
        assert not observed.loop.health().live
        assert observed.loop.health().reasons == ("Consumer source has failed: broken",)
        poller.failure = None
        assert observed.loop.health().live
        run.parts.core.outcome.failure = ValueError("a bug")
        assert observed.loop.health().reasons[0] == "the engine has failed: ValueError('a bug')"
        result = running.wait()
    assert result.exit_code == 1


def test_H1_while_it_drains_it_lives_and_is_not_ready(mock: MockCluster) -> None:
    observed = Observed(mock)
    produce(mock, b"wait")
    with Running(observed.loop) as running:
        running.until(lambda: running.metric("loop_inflight") == 1)
        assert observed.loop.health().ready
        observed.loop.stop()
        running.until(lambda: running.status().state == "draining")
        health = observed.loop.health()
        assert (health.live, health.ready, health.reasons) == (True, False, ("draining",))
        observed.release.set()
        assert running.wait().exit_code == 0


def test_a_drain_that_was_cut_short_is_counted(mock: MockCluster) -> None:
    observed = Observed(mock, drain_timeout=0.1)
    produce(mock, b"wait")
    counted: list[float] = []

    @observed.loop.on_shutdown
    async def look() -> None:
        counted.extend(observed.loop.metrics()["loop_drain_timeouts_total"].values())

    with Running(observed.loop) as running:
        running.until(lambda: running.metric("loop_inflight") == 1)
        assert running.stop().exit_code == 3
        observed.release.set()
    assert counted == [1]
