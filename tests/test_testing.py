"""The harness itself: what a user's test sees of its messages, of time, and of its own mistakes."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime

import pytest

from streamloop import ConfigurationError, Message, Reject, Retry, Skip, StreamLoop, Unavailable
from streamloop.testing import (
    Harness,
    HarnessError,
    Outcome,
    StandsStillError,
    StillWaitingError,
    partition_of,
)
from streamloop.testing.broker import murmur2
from tests.loops import billing


class DeclinedError(Exception):
    pass


async def accept(order: dict[str, int]) -> None:
    if order["amount"] < 0:
        raise DeclinedError(f"order {order['id']}")


async def fail(value: bytes) -> None:
    raise ValueError("bad luck")


async def do_nothing(value: bytes) -> None:
    return


# ------------------------------------------------------------------------------------------- what came of it


def test_a_declined_card_is_dead_lettered() -> None:
    with Harness(billing(accept, permanent=[DeclinedError])) as kafka:
        kafka.send("orders", {"id": 1, "amount": -5}, key="c1")
        kafka.send("orders", {"id": 2, "amount": 5}, key="c2")
        kafka.run()
        [dead] = kafka.dead_letters("orders")
        assert dead.error_class == f"{__name__}.DeclinedError"
        assert dead.error_message == "order 1"
        assert dead.attempt == 1
        assert dead.json() == {"id": 1, "amount": -5}
        assert dead.original == ("orders", partition_of(b"c1", 4), 0)
        assert dead.not_before is None
        assert kafka.committed("orders") == {partition_of(b"c1", 4): 1, partition_of(b"c2", 4): 1}
        assert kafka.pending() == []


def test_each_message_has_its_outcome_and_its_states() -> None:
    async def handle(value: str) -> None:
        await asyncio.sleep(3)
        if value == "skip":
            raise Skip("not ours")
        if value == "reject":
            raise Reject("never")

    with Harness(billing(handle)) as kafka:
        good, skipped, rejected = (kafka.send("orders", value) for value in ("good", "skip", "reject"))
        kafka.run()
        assert [each.outcome for each in kafka.outcomes("orders")] == [
            Outcome.ACKED,
            Outcome.SKIPPED,
            Outcome.DEAD_LETTERED,
        ]
        assert kafka.outcome(good).path == ("FETCHED", "PROCESSING", "SUCCEEDED", "ACKED")
        assert kafka.outcome(skipped).outcome == "skipped"
        assert kafka.outcome(rejected).error_class == "streamloop.outcomes.Reject"
        assert kafka.outcome(rejected).path[-3:] == ("ROUTING_DEAD", "DEAD_LETTERED", "ACKED")
        assert [attempt.duration for attempt in kafka.outcome(good).attempts] == [3.0]


def test_a_message_that_keeps_failing_is_followed_through_all_its_retries() -> None:
    with Harness(billing(fail)) as kafka:
        sent = kafka.send("orders", b"x", key="c1")
        began = time.monotonic()
        kafka.run()
        assert time.monotonic() - began < 20
        assert kafka.elapsed >= 30 + 300 + 1800
        outcome = kafka.outcome(sent)
        assert outcome.outcome is Outcome.DEAD_LETTERED
        assert [attempt.number for attempt in outcome.attempts] == [1, 2, 3, 4, 5, 6]
        assert outcome.read_from == ("orders", *kafka.retry_topics("orders"))
        assert [each.topic for each in kafka.retries("orders")] == kafka.retry_topics("orders")
        starts = [attempt.started for attempt in outcome.attempts]
        assert 29.99 <= starts[3] - starts[2] < 31  # headers are in whole milliseconds
        assert 1799.99 <= starts[5] - starts[4] < 1801
        [dead] = kafka.dead_letters()
        assert dead.topic == kafka.dead_letter_topic("orders")
        assert dead.attempt == 6


def test_what_a_handler_publishes_is_there_to_see() -> None:
    async def handle(value: bytes, message: Message) -> None:
        await message.publish("audit", {"seen": 1}, key="k", headers={"by": "test"})

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        [record] = kafka.published("audit")
        assert kafka.published() == [record]
        assert (record.json(), record.key, record.headers) == ({"seen": 1}, b"k", (("by", b"test"),))
        assert record.header("by") == "test"
        assert record.header("missing") is None
        assert kafka.published("elsewhere") == []


def test_what_is_published_to_a_topic_of_the_loop_is_handled_too() -> None:
    seen = []

    async def handle(value: str, message: Message) -> None:
        seen.append(value)
        if value == "first":
            await message.publish("orders", "second")

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", "first")
        kafka.run()
    assert seen == ["first", "second"]


# --------------------------------------------------------------------------------------------------- time


def test_advance_lets_exactly_so_much_time_pass() -> None:
    async def handle(value: bytes) -> None:
        raise Retry(after=10)

    with Harness(billing(handle)) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.advance(9.5)
        assert kafka.elapsed == pytest.approx(9.5)
        assert len(kafka.outcome(sent).attempts) == 1
        [waiting] = kafka.pending()
        assert str(waiting) == "orders/0/0: BACKOFF, due in 0.5 s"
        kafka.advance(0.5)
        assert len(kafka.outcome(sent).attempts) == 2


def test_run_stops_when_what_a_test_waits_for_is_there() -> None:
    with Harness(billing(fail)) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run(until=lambda: len(kafka.retries()) == 2)
        assert len(kafka.outcome(sent).attempts) == 4
        assert [each.state for each in kafka.pending()] == ["UNREAD"]
        assert 290 < kafka.elapsed + 300 - 30 <= 302


def test_run_says_what_still_waits_at_its_limit() -> None:
    async def handle(value: bytes) -> None:
        raise Unavailable("payments")

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", b"x")
        with pytest.raises(
            StillWaitingError, match=r"after 600 s .*1 messages(.|\n)*orders/0/0: BACKOFF, due in"
        ):
            kafka.run(limit=600)


def test_the_clock_starts_where_the_test_says_and_headers_follow_it() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    with Harness(billing(fail, in_place_attempts=1), starts_at=start) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.advance(31)
        assert kafka.now == pytest.approx(start.timestamp() + 31)
        assert sent.timestamp == start.timestamp() * 1000
        first, second = kafka.retries("orders")
        assert first.not_before == sent.timestamp + 30_000
        assert second.timestamp == pytest.approx(sent.timestamp + 30_000, abs=1)
        assert first.header("streamloop-failed-at") == "2030-01-01T00:00:00.000Z"


def test_the_same_seed_gives_the_same_back_offs() -> None:
    def starts(seed: int) -> list[float]:
        with Harness(billing(fail), seed=seed, starts_at=datetime(2030, 1, 1, tzinfo=UTC)) as kafka:
            sent = kafka.send("orders", b"x")
            kafka.run()
            return [round(attempt.started, 3) for attempt in kafka.outcome(sent).attempts]

    assert starts(1) == starts(1)
    assert starts(1) != starts(2)


def test_threads_are_waited_for() -> None:
    def handle(value: bytes) -> None:
        threading.Event().wait(0.02)

    with Harness(billing(handle)) as kafka:
        sent = [kafka.send("orders", b"x") for _ in range(8)]
        kafka.run()
        assert {kafka.outcome(each).outcome for each in sent} == {Outcome.ACKED}


def test_what_a_handler_does_in_a_thread_is_waited_for() -> None:
    async def handle(value: bytes) -> None:
        await asyncio.to_thread(threading.Event().wait, 0.02)

    with Harness(billing(handle, timeout=5)) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).outcome is Outcome.ACKED


def test_a_handler_that_never_waits_meets_its_time_out() -> None:
    async def handle(value: bytes) -> None:
        while True:  # noqa: ASYNC110 - it is the point
            await asyncio.sleep(0)

    with Harness(billing(handle, timeout=0.5, in_place_attempts=1, retry_topics=())) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).error_class.endswith("HandlerTimeout")


def test_a_thread_that_does_not_come_back_is_shown_with_its_stack() -> None:
    wait = threading.Event()

    def handle(value: bytes) -> None:
        wait.wait()

    try:
        with Harness(billing(handle, timeout=3600), patience=0.2) as kafka:
            kafka.send("orders", b"x")
            with pytest.raises(StandsStillError, match=r"charge \(orders/0/0\)(.|\n)*wait\.wait\(\)"):
                kafka.run()
            wait.set()
            kafka.run()
    finally:
        wait.set()


# --------------------------------------------------------------------------------------- the loop around it


def test_hooks_run_and_share_the_state() -> None:
    loop: StreamLoop[list[str]] = StreamLoop("billing", state=[])

    @loop.on_startup
    async def connect() -> None:
        await asyncio.sleep(5)
        loop.state.append("connected")

    @loop.on_shutdown
    async def close() -> None:
        loop.state.append("closed")

    @loop.consumer("orders")
    async def handle(value: str) -> None:
        loop.state.append(value)

    with Harness(loop) as kafka:
        kafka.send("orders", "x")
        kafka.run()
    assert loop.state == ["connected", "x", "closed"]


def test_what_on_startup_raises_is_raised() -> None:
    loop = billing(do_nothing)

    @loop.on_startup
    async def connect() -> None:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"), Harness(loop):
        pytest.fail("it must not start")
    assert loop.status() is None


def test_an_on_startup_that_never_ends_is_bounded() -> None:
    loop = billing(do_nothing)

    @loop.on_startup
    async def connect() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError), Harness(loop, startup_timeout=3):
        pytest.fail("it must not start")


def test_status_health_and_pause_of_the_loop_work() -> None:
    loop = billing(do_nothing)
    assert loop.health().live is False
    with Harness(loop, partitions=2) as kafka:
        assert loop.health().live
        assert loop.health().ready
        loop.pause("orders", 0)
        kafka.advance(0.1)
        for partition in (0, 1):
            kafka.send("orders", b"x", partition=partition)
        kafka.run()
        status = loop.status()
        assert status is not None
        assert [each.name for each in status.consumers] == ["charge"]
        [held] = [each for each in status.partitions if each.held]
        assert (held.topic, held.partition, list(held.held)) == ("orders", 0, ["operator"])
        assert kafka.committed("orders") == {0: 0, 1: 1}
        loop.resume()
        kafka.run()
        assert kafka.committed("orders") == {0: 1, 1: 1}
        assert any(name.startswith("loop_") for name in loop.metrics())
    assert loop.status() is None


def test_settings_given_to_the_harness_come_before_all_others() -> None:
    with Harness(billing(fail, in_place_attempts=5), in_place_attempts=1, retry_topics=()) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert len(kafka.outcome(sent).attempts) == 1
    with Harness(billing(fail, in_place_attempts=5), retry_topics=()) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert len(kafka.outcome(sent).attempts) == 5


def test_topics_that_are_read_instead_of_the_declared_ones_have_both_names() -> None:
    with Harness(billing(do_nothing), topics={"orders": "orders-v2"}) as kafka:
        assert kafka.send("orders", b"x").topic == "orders-v2"
        kafka.run()
        assert kafka.committed("orders") == kafka.committed("orders-v2") == {0: 1}


@pytest.mark.parametrize(("start", "expected"), [("latest", ["after"]), ("earliest", ["before", "after"])])
def test_R18_a_start_is_committed_before_anything_is_handled(start: str, expected: list[str]) -> None:
    seen = []

    async def handle(value: str) -> None:
        seen.append(value)

    with Harness(billing(handle), start=start, partitions=1) as kafka:
        kafka.send("orders", "before")
        kafka.crash()  # nothing had run yet, so no start was committed
        kafka.run()
        kafka.crash(restart=False)
        kafka.send("orders", "after")
        kafka.start()
        kafka.run()
        assert seen == expected


def test_start_at_a_time_begins_with_the_first_message_of_that_time() -> None:
    seen = []

    async def handle(value: str) -> None:
        seen.append(value)

    noon = 1_767_268_800_000
    with Harness(billing(handle), start=noon, partitions=1) as kafka:
        for name, stamp in (("before", noon - 1), ("at", noon), ("after", noon + 1)):
            kafka.send("orders", name, timestamp=stamp)
        kafka.crash()
        kafka.run()
        assert seen == ["at", "after"]


def test_start_stop_says_that_there_is_no_committed_offset() -> None:
    with pytest.raises(HarnessError, match="orders, which has no committed offset"):
        Harness(billing(do_nothing), start="stop").start()


def test_bad_settings_are_said_as_in_production() -> None:
    with pytest.raises(ConfigurationError, match="concurrency"), Harness(billing(do_nothing), concurrency=0):
        pytest.fail("it must not start")


# ----------------------------------------------------------------------------------------- a test's mistakes


def test_an_unknown_topic_is_named_with_those_that_exist() -> None:
    with Harness(billing(do_nothing, dead_letter=False, retry_topics=())) as kafka:
        for call in (
            lambda: kafka.send("order", b"x"),
            lambda: kafka.committed("order"),
            lambda: kafka.outcomes("order"),
            lambda: kafka.retries("order"),
        ):
            with pytest.raises(HarnessError, match="no handler of this loop reads 'order': it reads orders"):
                call()
        with pytest.raises(HarnessError, match="dead_letter=False"):
            kafka.dead_letters("orders")
        with pytest.raises(HarnessError, match="partitions 0 to 3, and no 7"):
            kafka.send("orders", b"x", partition=7)
        with pytest.raises(HarnessError, match="has no partition 7"):
            kafka.revoke("orders", 7)
        kafka.revoke("orders", 1)
        with pytest.raises(HarnessError, match="orders/1 is not assigned"):
            kafka.lose("orders", 1)
        sent = kafka.send("orders", b"x", partition=1)
        with pytest.raises(HarnessError, match="was not read yet"):
            kafka.outcome(sent)


def test_a_harness_outside_of_with_says_so() -> None:
    kafka = Harness(billing(do_nothing))
    with pytest.raises(HarnessError, match="with Harness"):
        kafka.send("orders", b"x")
    with pytest.raises(HarnessError, match="whole number"):
        Harness(billing(do_nothing), partitions=0)


def test_a_test_that_runs_an_event_loop_is_told_why_it_can_not() -> None:
    async def test() -> None:
        with pytest.raises(HarnessError, match="plain def"), Harness(billing(do_nothing)):
            pytest.fail("it must not start")

    asyncio.run(test())


def test_an_error_that_no_handler_raised_is_not_swallowed() -> None:
    loop = billing(do_nothing)

    @loop.on_startup
    async def start() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)

    with Harness(loop) as kafka, pytest.raises(HarnessError, match="no handler raised") as caught:
        kafka.advance(2)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_a_test_raises_is_raised_and_the_loop_is_put_away() -> None:
    loop = billing(do_nothing)
    with pytest.raises(KeyError, match="mine"), Harness(loop):
        raise KeyError("mine")
    assert loop.status() is None


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # of Kafka's own UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_placed_as_java_clients_do(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32
