"""One run of a loop, on librdkafka's mock broker: how it starts, what ends it, with what exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from streamloop import Fatal, StreamLoop
from streamloop.errors import ConfigurationError, StreamLoopError
from streamloop.lifecycle import DRAIN_TIMED_OUT, FATAL, WATCHDOG, RunResult, _End
from tests.broker.loops.inprocess import QUICK, Running
from tests.mock_cluster import MockCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = "127.0.0.1:9"
"""Nothing listens there."""


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


def produce(mock: MockCluster, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": mock.bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(10) == 0


def loop_of(
    mock: MockCluster, handler: Callable[..., Any], *, topic: str = "orders", **settings: Any
) -> StreamLoop[Any]:
    loop: StreamLoop[Any] = StreamLoop("billing", brokers=mock.bootstrap, **{**QUICK, **settings})
    mock.create_topic(topic)
    loop.consumer(topic, retry_topics=[], in_place_attempts=1, ordering="none")(handler)
    return loop


async def nothing(value: bytes) -> None:
    pass


class TestEnd:
    def test_the_first_reason_stays_and_a_worse_exit_code_is_said_with_it(self) -> None:
        end = _End()
        end.because("SIGTERM received")
        end.because("stop() was called")
        assert (end.reason, end.exit_code) == ("SIGTERM received", 0)
        end.because("the drain was cut short", DRAIN_TIMED_OUT)
        assert end.reason == "the drain was cut short (after: SIGTERM received)"
        assert end.exit_code == DRAIN_TIMED_OUT

    @pytest.mark.parametrize("first", [FATAL, DRAIN_TIMED_OUT, WATCHDOG])
    def test_the_first_failure_decides_the_exit_code(self, first: int) -> None:
        end = _End()
        end.because("first", first)
        end.because("second", FATAL)
        end.because("third", WATCHDOG)
        assert (end.reason, end.exit_code) == ("first", first)


class TestStart:
    def test_a_loop_without_a_handler_or_a_broker_is_a_mistake_and_nothing_starts(self) -> None:
        with pytest.raises(ConfigurationError, match=r"no handler.*@loop\.consumer"):
            StreamLoop("billing", brokers=NOBODY).run()
        loop: StreamLoop[Any] = StreamLoop("billing")
        loop.consumer("orders")(nothing)
        with pytest.raises(ConfigurationError, match="brokers is not set"):
            loop.run()
        assert not loop.health().live

    def test_settings_that_contradict_each_other_are_raised_before_anything_starts(
        self, mock: MockCluster
    ) -> None:
        loop = loop_of(mock, nothing, revoke_wait=200)
        with pytest.raises(ConfigurationError, match="revoke_wait is 200s"):
            loop.run()

    def test_a_loop_runs_once_at_a_time_and_can_run_again(self, mock: MockCluster) -> None:
        loop = loop_of(mock, nothing)
        with Running(loop) as running:
            running.until(lambda: loop.health().ready)
            with pytest.raises(StreamLoopError, match="this loop runs already"):
                loop.run(handle_signals=False)
            assert running.stop().exit_code == 0
        assert loop.run(max_runtime=0.2).reason == "bound reached: max_runtime"

    def test_run_inside_an_event_loop_says_what_to_call(self, mock: MockCluster) -> None:
        loop = loop_of(mock, nothing)

        async def main() -> None:
            with pytest.raises(StreamLoopError, match=r"await loop\.run_async\(\)"):
                loop.run()

        asyncio.run(main())

    def test_run_async_runs_on_an_event_loop_of_the_caller_s(self, mock: MockCluster) -> None:
        seen: list[bytes] = []

        async def handle(value: bytes) -> None:
            seen.append(value)

        loop = loop_of(mock, handle)
        produce(mock, "orders", b"a", b"b")

        async def main() -> RunResult:
            return await loop.run_async(max_messages=2)

        result = asyncio.run(main())
        assert (result.exit_code, result.reason) == (0, "bound reached: max_messages")
        assert sorted(seen) == [b"a", b"b"]

    def test_cancelling_run_async_drains(self, mock: MockCluster) -> None:
        started, ended = threading.Event(), threading.Event()

        async def handle(value: bytes) -> None:
            started.set()
            await asyncio.sleep(0.3)
            ended.set()

        loop = loop_of(mock, handle)
        produce(mock, "orders", b"a")

        async def main() -> RunResult:
            task = asyncio.ensure_future(loop.run_async())
            assert await asyncio.to_thread(started.wait, 30)
            task.cancel()
            return await task

        result = asyncio.run(main())
        assert (result.exit_code, result.reason) == (0, "cancelled")
        assert ended.is_set()

    def test_H5_a_stop_while_it_waits_for_a_broker_is_not_kept_by_the_question(self) -> None:
        loop: StreamLoop[Any] = StreamLoop("billing", brokers=NOBODY)
        loop.consumer("orders")(nothing)
        with Running(loop) as running:
            running.until(lambda: loop.health().reasons == ("waiting for the broker",))
            assert loop.health().live
            assert not loop.health().ready
            assert running.stop(timeout=5).exit_code == 0  # the question may take 10 s

    def test_H5_max_runtime_counts_while_it_waits_for_a_broker(self) -> None:
        loop: StreamLoop[Any] = StreamLoop("billing", brokers=NOBODY)
        loop.consumer("orders")(nothing)
        with Running(loop, max_runtime=0.1) as running:
            result = running.wait(5)
        assert result.exit_code == FATAL
        assert result.reason == (
            "max_runtime is over, and the loop could not start. No Kafka broker has answered yet."
        )


class TestHooks:
    def hooked(self, mock: MockCluster, **settings: Any) -> tuple[StreamLoop[Any], list[str]]:
        did: list[str] = []

        async def handle(value: bytes) -> None:
            did.append("handled")

        loop = loop_of(mock, handle, **settings)

        @loop.on_shutdown
        async def last() -> None:
            did.append("shutdown")

        return loop, did

    def test_a_startup_function_that_fails_ends_the_run_with_1_after_the_shutdown_functions(
        self, mock: MockCluster
    ) -> None:
        loop, did = self.hooked(mock)
        produce(mock, "orders", b"a")

        @loop.on_startup
        async def connect() -> None:
            raise ConnectionError("no database")

        result = loop.run()
        assert result.exit_code == FATAL
        assert "on_startup function" in result.reason
        assert "connect failed" in result.reason
        assert did == ["shutdown"]

    def test_a_startup_function_that_does_not_end_is_named(self, mock: MockCluster) -> None:
        loop, did = self.hooked(mock, startup_timeout=0.1)

        @loop.on_startup
        async def connect() -> None:
            await asyncio.sleep(3600)

        result = loop.run()
        assert result.exit_code == FATAL
        assert "connect did not end within 0.1 s" in result.reason
        assert did == ["shutdown"]

    def test_a_shutdown_function_that_fails_makes_the_exit_code_1(self, mock: MockCluster) -> None:
        loop, did = self.hooked(mock)

        @loop.on_shutdown
        async def broken() -> None:
            raise OSError("disk full")

        result = loop.run(max_runtime=0.3)
        assert result.exit_code == FATAL
        assert result.reason.endswith("(after: bound reached: max_runtime)")
        assert did == []  # in reverse order: what was declared before it is not reached

    def test_a_stop_during_startup_subscribes_to_nothing(self, mock: MockCluster) -> None:
        loop, did = self.hooked(mock)
        produce(mock, "orders", b"a")

        @loop.on_startup
        async def stopped_meanwhile() -> None:
            loop.stop()

        @loop.on_shutdown
        async def look() -> None:
            status = loop.status()
            assert status is not None
            assert [intake.protocol for intake in status.intakes] == ["", ""]

        result = loop.run()
        assert (result.exit_code, result.reason) == (0, "stop() was called")
        assert did == ["shutdown"]


class TestStop:
    def test_H1_running_handlers_end_and_waiting_ones_do_not_start(self, mock: MockCluster) -> None:
        started, ended = [], []

        async def handle(value: bytes) -> None:
            started.append(value)
            await asyncio.sleep(0.5)
            ended.append(value)

        loop = loop_of(mock, handle, concurrency=2)
        produce(mock, "orders", *[b"%d" % n for n in range(6)])
        with Running(loop) as running:
            running.until(lambda: len(started) == 2)
            result = running.stop()
        assert result.exit_code == 0
        assert len(started) == len(ended) == 2
        assert result.counts["handle"]["acked"] == 2

    def test_H1_a_handler_that_heeds_its_cancellation_ends_the_drain_with_3(self, mock: MockCluster) -> None:
        started = threading.Event()
        cancelled = threading.Event()

        async def handle(value: bytes) -> None:
            started.set()
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.set()

        loop = loop_of(mock, handle, drain_timeout=0.2)
        produce(mock, "orders", b"a")
        with Running(loop) as running:
            running.until(started.is_set)
            result = running.stop()
        assert result.exit_code == DRAIN_TIMED_OUT
        assert result.reason.startswith(
            "the drain was cut short: 0.2 s are over; 1 handler still runs: handle (orders/0/0)"
        )
        assert cancelled.is_set()
        assert result.hanging == ()
        assert result.counts["handle"]["acked"] == 0

    def test_H2_what_hangs_is_in_the_result_with_its_stack(self, mock: MockCluster) -> None:
        started, release = threading.Event(), threading.Event()

        def handle(value: bytes) -> None:
            started.set()
            release.wait(60)

        loop = loop_of(mock, handle, drain_timeout=0.2)
        produce(mock, "orders", b"a")
        with Running(loop) as running:
            running.until(started.is_set)
            result = running.stop()
            release.set()
        assert result.exit_code == DRAIN_TIMED_OUT
        [hanging] = result.hanging
        assert "handle (orders/0/0)" in hanging
        assert "release.wait(60)" in hanging

    def test_H2_a_handler_that_was_given_up_is_not_waited_for_again(self, mock: MockCluster) -> None:
        release = threading.Event()

        def handle(value: bytes) -> None:
            if value == b"hang":
                release.wait(60)

        loop = loop_of(mock, handle, timeout=0.2, kill_after=0.2, drain_timeout=50)
        produce(mock, "orders", b"hang", b"fine")
        with Running(loop) as running:
            result = running.wait(30)
            release.set()
        assert result.exit_code == WATCHDOG
        assert result.reason == "handler handle did not come back within kill_after of its timeout"
        assert result.counts["handle"]["acked"] == 1

    def test_D8_fatal_is_1_and_names_the_message(self, mock: MockCluster) -> None:
        async def handle(value: bytes) -> None:
            raise Fatal("the disk is full")

        loop = loop_of(mock, handle)
        produce(mock, "orders", b"a")
        result = loop.run()
        assert result.exit_code == FATAL
        assert result.reason == (
            "stopped at orders/0/0: fatal error streamloop.outcomes.Fatal: the disk is full"
        )

    def test_H1_H7_signals_drain_and_their_handlers_are_restored(self, mock: MockCluster) -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

        async def handle(value: bytes) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)

        loop = loop_of(mock, handle)
        produce(mock, "orders", b"a")
        result = loop.run()
        assert (result.exit_code, result.reason) == (0, "SIGTERM received")
        assert result.counts["handle"]["acked"] == 1
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    def test_H7_a_second_signal_does_not_wait_for_handlers(self, mock: MockCluster) -> None:
        async def handle(value: bytes) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(3600)

        loop = loop_of(mock, handle, drain_timeout=100, timeout=200)
        produce(mock, "orders", b"a")
        result = loop.run()
        assert result.exit_code == DRAIN_TIMED_OUT
        assert result.reason == (
            "the drain was cut short: a second signal came; 1 handler still runs: handle (orders/0/0) "
            "(after: SIGTERM received)"
        )
        assert result.counts["handle"]["acked"] == 0
