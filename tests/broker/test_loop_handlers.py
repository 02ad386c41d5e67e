"""What handlers can do, once each on a real broker: publish, batches, hooks, middleware, order, status."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from streamloop import Ack, Message, Retry, StreamLoop, Unavailable
from tests.broker.loops.inprocess import QUICK, Running, loop_on
from tests.realkafka.client import Record, json_records, unique_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster

DESIGNED = {
    "loop_processed_total",
    "loop_failed_total",
    "loop_retried_total",
    "loop_dead_letter_total",
    "loop_backlog",
    "loop_inflight",
    "loop_inflight_bytes",
    "loop_iterations_total",
    "loop_held_partitions",
    "loop_assigned_partitions",
    "loop_rebalances_total",
    "loop_commits_total",
    "loop_commit_gap",
    "loop_breaker_state",
    "loop_redelivered_total",
    "loop_publish_failures_total",
    "loop_cancel_ignored_total",
    "loop_drain_timeouts_total",
}


@dataclass
class Order:
    id: int
    amount: int


def test_what_a_handler_publishes_is_there_before_its_message_is_acknowledged(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source, invoices, audit = topic(2), topic(4, name=None), topic(1)
    kafka.produce(source, json_records([{"id": n, "amount": n} for n in range(20)], key="id"))
    loop = loop_on(kafka, group, retry_topics=[])

    @loop.consumer(source)
    async def charge(order: Order, message: Message) -> None:
        await message.publish(
            invoices, {"order": order.id}, key=str(order.id), headers={"attempt": str(message.attempt)}
        )
        message.publish_on_success(audit, f"order {order.id}")
        if order.id == 7 and message.attempt == 1:
            raise ConnectionError("after it has published")

    with Running(loop, until_end=True) as running:
        assert running.wait().exit_code == 0
    invoiced = kafka.read_all(invoices)
    assert sorted(int(r.key or b"") for r in invoiced) == sorted([*range(20), 7])
    assert {r.value for r in invoiced if r.key == b"7"} == {b'{"order":7}'}
    assert [r.header("attempt") for r in invoiced if r.key == b"7"] == [b"1", b"2"]
    assert sorted(r.value or b"" for r in kafka.read_all(audit)) == sorted(b"order %d" % n for n in range(20))
    # Keys are placed as Java clients place them: the fixture's own producer does it so, too.
    again = dict(
        zip(range(20), kafka.produce(invoices, [Record(b"", b"%d" % n) for n in range(20)]), strict=True)
    )
    assert all(again[int(r.key or b"")][0] == r.partition for r in invoiced)


@pytest.mark.parametrize("kind", ["async", "thread", "on_success"])
def test_a_publish_to_a_topic_that_does_not_exist_is_told_at_once_and_in_the_time_out(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    group: str,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, parcels = topic(), unique_name("parcels")
    kafka.produce(source, [b"1"])
    loop = loop_on(kafka, group, retry_topics=[], in_place_attempts=1, timeout=4, member="m")
    if kind == "thread":

        @loop.consumer(source, name="send")
        def in_thread(message: Message) -> None:
            message.publish_and_wait(parcels, b"x")

    else:

        @loop.consumer(source, name="send")
        async def send(message: Message) -> None:
            if kind == "on_success":
                message.publish_on_success(parcels, b"x")
            else:
                await message.publish(parcels, b"x")

    def waits() -> bool:
        [consumer] = running.status().consumers
        return [each.waits_for for each in consumer.oldest] == [f"{parcels} (no such topic)"]

    with caplog.at_level("WARNING"), Running(loop) as running:
        running.until(lambda: running.loop.status() is not None and waits(), what="the status to say it")
        assert f"the handler send publishes to topic {parcels}, which does not exist" in caplog.text
        running.until(lambda: running.counts()["dead_lettered"] == 1, what="the dead letter")
        assert "takes nothing" not in caplog.text  # the client itself would say so after half a minute
    [dead] = kafka.read_all(f"{source}.{group}.dlq")
    message = (dead.header("streamloop-error-message") or b"").decode()
    assert parcels in message
    if kind != "thread":
        assert message == (
            f"the handler send did not end within 4 s (timeout); it waited for its publish to {parcels} "
            "(no such topic)"
        )


def test_a_plain_function_publishes_from_its_thread(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source, target = topic(), topic()
    kafka.produce(source, [b"a", b"b"])
    loop = loop_on(kafka, group, retry_topics=[])

    @loop.consumer(source, ordering="partition")
    def copy(value: bytes, message: Message) -> None:
        message.publish_and_wait(target, value, key=b"k")

    with Running(loop, until_end=True) as running:
        assert running.wait().exit_code == 0
    assert [r.value for r in kafka.read_all(target)] == [b"a", b"b"]


def test_several_consumers_hooks_state_and_middleware_of_one_loop(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    orders, clicks = topic(2), topic(1)
    kafka.produce(orders, [b"1", b"2", b"3"])
    kafka.produce(clicks, [b"x", b"y"])

    class State:
        def __init__(self) -> None:
            self.did: list[str] = []

    loop: StreamLoop[State] = StreamLoop(group, state=State(), brokers=kafka.bootstrap, **QUICK)
    threads: set[int] = set()

    @loop.on_startup
    async def open_pool() -> None:
        loop.state.did.append("startup")

    @loop.on_shutdown
    async def close_first() -> None:
        loop.state.did.append("shutdown 1")

    @loop.on_shutdown
    async def close_second() -> None:
        loop.state.did.append("shutdown 2")

    @loop.middleware
    async def around(message: Message, call_next: Callable[[], Any]) -> None:
        loop.state.did.append(f"before {message.value!r}")
        await call_next()
        loop.state.did.append(f"after {message.value!r}")

    @loop.consumer(orders, retry_topics=[])
    async def order(value: str) -> None:
        threads.add(threading.get_ident())
        loop.state.did.append(f"order {value}")

    @loop.consumer(clicks, retry_topics=[])
    async def click(value: bytes, message: Message) -> None:
        loop.state.did.append(f"click {value.decode()}")

    with Running(loop, until_end=True) as running:
        result = running.wait()
    assert result.exit_code == 0
    assert {name: counts["acked"] for name, counts in result.counts.items()} == {"order": 3, "click": 2}
    did = loop.state.did
    assert did[0] == "startup"
    assert did[-2:] == ["shutdown 2", "shutdown 1"]
    assert sorted(did[1:-2]) == sorted(
        [f"{when} {v!r}" for v in (b"1", b"2", b"3", b"x", b"y") for when in ("before", "after")]
        + [f"order {v}" for v in "123"]
        + [f"click {v}" for v in "xy"]
    )
    assert len(threads) == 1
    assert kafka.lag(group, orders) == kafka.lag(group, clicks) == 0


def test_D15_in_a_batch_only_the_bad_records_are_retried_or_dead_lettered(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    total = 60
    kafka.produce(source, [Record(b"%d" % n, b"%d" % n) for n in range(total)] + [Record(b"\xff", b"bad")])
    loop = loop_on(kafka, group, in_place_attempts=2, retry_topics=["300ms"])
    sizes: list[int] = []
    handled: dict[int, int] = defaultdict(int)

    @loop.consumer(source, batch=True, batch_size=20, batch_linger=0.1)
    async def store(values: list[str], messages: list[Message]) -> list[Ack | Exception | None]:
        sizes.append(len(values))
        outcomes: list[Ack | Exception | None] = []
        for value, message in zip(values, messages, strict=True):
            handled[int(value)] += 1
            if value == "13":
                outcomes.append(ValueError("for ever"))
            elif value == "14" and message.attempt < 3:
                outcomes.append(Retry(after=0.01, reason="locked"))
            else:
                outcomes.append(None)
        return outcomes

    with Running(loop) as running:
        running.until(lambda: running.counts()["dead_lettered"] == 2, what="two dead letters")
        running.until(lambda: handled[14] == 3, what="the third attempt")
        running.until(lambda: kafka.lag(group, source) == 0, what="the commit")
        assert running.stop().exit_code == 0
    assert max(sizes) > 1
    assert max(sizes) <= 20
    assert {n: count for n, count in handled.items() if count != 1} == {13: 3, 14: 3}
    assert {r.value for r in kafka.read_all(f"{source}.{group}.dlq")} == {b"13", b"\xff"}


def test_D14_strict_order_retries_in_place_and_nothing_of_its_key_overtakes(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, [Record(b"%d" % n, b"ab"[n % 2 : n % 2 + 1]) for n in range(10)])
    loop = loop_on(kafka, group, strict_order=True, in_place_attempts=6)
    order: dict[bytes, list[int]] = defaultdict(list)
    others_done_first = False

    @loop.consumer(source)
    async def handle(value: bytes, message: Message) -> None:
        nonlocal others_done_first
        if value == b"2" and message.attempt < 6:
            raise ConnectionError("not yet")
        if value == b"2":
            others_done_first = len(order[b"b"]) == 5
        order[message.key or b""].append(int(value))

    with Running(loop, until_end=True) as running:
        assert running.wait().exit_code == 0
    assert order == {b"a": [0, 2, 4, 6, 8], b"b": [1, 3, 5, 7, 9]}
    assert others_done_first
    assert kafka.topic_exists(f"{source}.{group}.dlq")
    assert not any(f"{source}.{group}.retry" in name for name in kafka.topics())


def test_D13_an_unavailable_dependency_holds_its_consumer_spends_no_attempt_and_others_go_on(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    orders, clicks = topic(), topic()
    kafka.produce(orders, [b"%d" % n for n in range(30)])
    loop = loop_on(kafka, group, unavailable_cap=0.3, retry_topics=[], in_place_attempts=1)
    down = True
    attempts: list[int] = []
    clicked: list[bytes] = []

    @loop.consumer(orders, ordering="none")
    async def charge(value: bytes, message: Message) -> None:
        if down:
            raise Unavailable("payments")
        attempts.append(message.attempt)

    @loop.consumer(clicks)
    async def click(value: bytes) -> None:
        clicked.append(value)

    with Running(loop) as running:
        running.until(lambda: "breaker" in running.held(orders, 0), what="the partition to be held")
        assert running.metric("loop_breaker_state", consumer="charge") == 1
        assert running.metric("loop_breaker_state", consumer="click") == 0
        assert loop.health().live
        kafka.produce(clicks, [b"x"])
        running.until(lambda: clicked == [b"x"], what="the other consumer")
        down = False
        running.until(lambda: len(attempts) == 30, what="what waited")
        running.until(lambda: running.held(orders, 0) == {}, what="the release")
    assert attempts == [1] * 30
    assert kafka.read_all(f"{orders}.{group}.dlq") == []


def test_health_status_and_metrics_of_a_run(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    loop = loop_on(kafka, group, retry_topics=["10m"], in_place_attempts=1, member="member-7")
    release = threading.Event()

    @loop.consumer(source, concurrency=5)
    def handle(value: bytes) -> None:
        if value == b"wait":
            release.wait(60)
        elif value == b"fail":
            raise ConnectionError("no")

    assert loop.health().live is False
    assert loop.status() is None
    with Running(loop) as running:
        running.until(lambda: len(running.status().partitions) == 6 if loop.status() else False)
        first = loop.metrics()
        assert DESIGNED - {"loop_failed_total"} <= set(first)
        series = first["loop_processed_total"]
        assert {dict(labels)["outcome"]: value for labels, value in series.items()} == {
            "acked": 0,
            "skipped": 0,
            "retried": 0,
            "dead_lettered": 0,
        }
        kafka.produce(source, [Record(b"fine", b"1", (), 0), Record(b"fail", b"2", (), 0)])
        kafka.produce(source, [Record(b"wait", b"3", (), 1)])
        running.until(lambda: running.counts()["routed"] == 1 and running.counts()["acked"] == 2)
        running.until(lambda: running.metric("loop_running_handlers", consumer="handle") == 1)
        assert loop.health().ready
        assert loop.health().reasons == ()

        status = running.status()
        assert (status.group, status.member, status.state) == (group, "member-7", "running")
        assert [intake.group for intake in status.intakes] == [group, f"{group}.retry"]
        assert {intake.protocol for intake in status.intakes} == {"consumer"}
        [consumer] = status.consumers
        assert (consumer.name, consumer.topics, consumer.running) == ("handle", (source,), 1)
        waiting = running.partition(source, 1)
        assert waiting is not None
        assert waiting.holder is not None
        assert (waiting.holder.offset, waiting.holder.state, waiting.buffered) == (0, "PROCESSING", 1)

        metrics = loop.metrics()
        assert running.metric("loop_failed_total", type="builtins.ConnectionError") == 1
        assert running.metric("loop_processed_total", outcome="acked") == 1
        assert running.metric("loop_processed_total", outcome="retried") == 1
        assert running.metric("loop_assigned_partitions") == 6
        assert running.metric("loop_backlog", state="buffered") >= 1
        assert running.metric("loop_inflight_bytes") > 0
        running.until(lambda: running.metric("loop_commits_total", result="ok") > 0, what="a commit")
        assert running.metric("loop_rebalances_total", event="assigned") >= 2
        for name, each in metrics.items():
            for labels in each:
                assert dict(labels).get("group", group) == group, name
                assert ("group" in dict(labels)) == name.startswith(("loop_", "process_")), name
                assert not {"key", "offset", "message"} & set(dict(labels)), name
        release.set()
        running.until(lambda: kafka.lag(group, source) == 0, what="the commit of all")
        assert running.stop().exit_code == 0
    assert loop.health().live is False
    assert loop.metrics() == {}


def test_B4_an_operator_s_pause_holds_until_it_is_resumed(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    loop = loop_on(kafka, group, retry_topics=[])
    seen: list[int] = []

    @loop.consumer(source)
    async def handle(value: bytes, message: Message) -> None:
        seen.append(message.partition)

    with Running(loop) as running:
        running.until(lambda: running.partition(source, 1) is not None)
        loop.pause(source, 1)
        running.until(lambda: "operator" in running.held(source, 1), what="the hold")
        kafka.produce(source, [Record(b"x", None, (), 1), Record(b"x", None, (), 0)])
        running.until(lambda: seen == [0], what="the other partition")
        loop.resume(source, 1)
        running.until(lambda: seen == [0, 1], what="what was paused")
