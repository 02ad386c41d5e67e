"""The core with engine and runners: back-pressure, several consumers, middleware, failures of ours."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from streamloop import Message, Reject, Retry, StreamLoop
from streamloop.engine.engine import Engine
from streamloop.lifecycle import Run
from streamloop.testing import Harness, HarnessError, Outcome, partition_of
from tests.loops import billing

if TYPE_CHECKING:
    from collections.abc import Callable


async def do_nothing(value: bytes) -> None:
    return


# --------------------------------------------------------------------------------------- the operator's hold


def test_a_partition_that_comes_while_an_operator_holds_it_is_held_before_anything_of_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []

    async def handle(value: str) -> None:
        started.append(value)

    loop = billing(handle)
    with Harness(loop, partitions=2) as kafka:
        kafka.revoke("orders")
        loop.pause("orders", 1)
        for partition in range(2):
            kafka.send("orders", str(partition), partition=partition)
        with monkeypatch.context() as late:
            late.setattr(Run, "_apply_operator", lambda *_: None)  # the next tick would come too late
            kafka.assign("orders")
            kafka.advance(60)
        assert started == ["0"]
        status = loop.status()
        assert status is not None
        assert {each.partition: set(each.held) for each in status.partitions if each.topic == "orders"} == {
            0: set(),
            1: {"operator"},
        }
        loop.resume()
        kafka.run()
        assert started == ["0", "1"]


# --------------------------------------------------------------------------------- back-pressure and stalls


def test_B6_handlers_of_25_s_stop_neither_intake_nor_commits_nor_other_keys() -> None:
    async def handle(value: str) -> None:
        await asyncio.sleep(25 if value == "slow" else 0.01)

    with Harness(billing(handle), partitions=3) as kafka:
        for partition in range(3):
            kafka.send("orders", "fast", partition=partition, key=f"f{partition}")
            kafka.send("orders", "slow", partition=partition, key=f"s{partition}")
        for second in range(1, 20):
            kafka.advance(1)
            fast = kafka.send("orders", "fast", partition=second % 3, key="another")
            kafka.advance(0.1)
            assert kafka.outcome(fast).outcome is Outcome.ACKED
        assert kafka.committed("orders") == {0: 1, 1: 1, 2: 1}
        assert {each.state for each in kafka.pending()} == {"PROCESSING"}
        kafka.run()
        assert kafka.pending() == []
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}


def test_B7_five_percent_that_always_fail_do_not_slow_the_others() -> None:
    async def handle(value: str) -> None:
        if int(value) % 20 == 0:
            raise ValueError("always")

    loop = billing(handle)
    with Harness(loop, high_watermark_messages=200, seed=7) as kafka:
        for number in range(4000):
            kafka.send("orders", str(number), key=str(number))
        kafka.advance(25)
        outcomes = kafka.outcomes()
        healthy = [each for each in outcomes if int(each.value or b"0") % 20]
        assert len(healthy) == 3800
        assert {each.outcome for each in healthy} == {Outcome.ACKED}
        assert max(each.attempts[0].started for each in healthy) < kafka.now - 5
        status = loop.status()
        assert status is not None
        assert status.intakes[0].peak_messages <= 200
        assert status.intakes[0].buffered == 0
        assert len(kafka.retries()) == 200
        kafka.run()
        assert len(kafka.dead_letters()) == 200
        assert kafka.pending() == []


def test_B8_one_slow_key_lets_the_others_go_on_until_the_gap_limit_which_names_it() -> None:
    async def handle(value: str) -> None:
        await asyncio.sleep(600 if value == "slow" else 0)

    loop = billing(handle, timeout=700)
    with Harness(loop, gap_limit=50, partitions=1, high_watermark_messages=20) as kafka:
        kafka.send("orders", "slow", key="s")
        for number in range(200):
            kafka.send("orders", "fast", key=str(number))
        kafka.advance(5)
        acked = [each for each in kafka.outcomes() if each.outcome is Outcome.ACKED]
        assert 50 <= len(acked) <= 50 + 20
        status = loop.status()
        assert status is not None
        [partition] = status.partitions[:1]
        assert "orders/0 takes no new messages: offset 0 (PROCESSING" in partition.held["gap"]
        assert "gap_limit=50" in partition.held["gap"]
        assert partition.holder is not None
        assert (partition.holder.offset, partition.holder.state) == (0, "PROCESSING")
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}
        assert kafka.committed("orders") == {0: 201}


def test_B1_what_is_buffered_never_exceeds_the_high_watermark() -> None:
    async def handle(value: bytes) -> None:
        await asyncio.sleep(1)

    loop = billing(handle, concurrency=5)
    with Harness(loop, high_watermark_messages=30) as kafka:
        for _ in range(200):
            kafka.send("orders", b"x")
        kafka.run()
        status = loop.status()
        assert status is not None
        assert status.intakes[0].peak_messages == 30
        assert len(kafka.outcomes()) == 200


def test_D10_processing_and_back_off_may_take_longer_than_the_longest_poll_interval() -> None:
    async def handle(value: str) -> None:
        if value == "long":
            await asyncio.sleep(400)
            raise Retry(after=400)

    loop = billing(handle, timeout=1000, in_place_attempts=2, retry_topics=())
    with Harness(loop) as kafka:
        long = kafka.send("orders", "long", key="k")
        for _ in range(10):
            kafka.advance(100)
            other = kafka.send("orders", "short", key="k2")
            kafka.advance(1)
            assert kafka.outcome(other).outcome is Outcome.ACKED
        kafka.run()
        assert len(kafka.outcome(long).attempts) == 2
        assert kafka.exit_code is None


# ---------------------------------------------------------------------------------------- several consumers


def test_several_consumers_of_one_loop_have_their_own_plans_and_do_not_disturb_each_other() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")
    seen: list[str] = []

    @loop.consumer("orders", "refunds", in_place_attempts=1, retry_topics=())
    async def charge(value: str, message: Message) -> None:
        seen.append(message.topic)
        if value == "bad":
            raise ValueError("bad")

    @loop.consumer("mails", retry_topics=(60,), in_place_attempts=2, concurrency=1)
    def mail(value: bytes) -> None:
        raise OSError("smtp")

    @loop.consumer("events", batch=True)
    async def store(values: list[str]) -> None:
        await asyncio.sleep(1)

    with Harness(loop) as kafka:
        sent = [
            kafka.send("orders", "bad", key="k"),
            kafka.send("refunds", "good", key="k"),
            kafka.send("mails", b"m"),
            kafka.send("events", "e"),
        ]
        kafka.run()
        assert [str(kafka.outcome(each).outcome) for each in sent] == [
            "dead_lettered",
            "acked",
            "dead_lettered",
            "acked",
        ]
        assert [len(kafka.outcome(each).attempts) for each in sent] == [1, 1, 3, 1]
        assert [each.topic for each in kafka.dead_letters()] == ["orders.billing.dlq", "mails.billing.dlq"]
        status = loop.status()
        assert status is not None
        counts = {each.name: each.counts for each in status.consumers}
        assert counts["charge"]["succeeded"] == 1
        assert counts["charge"]["dead_lettered"] == 1
        assert counts["mail"]["failed_attempts"] == 3
    assert sorted(seen) == ["orders", "refunds"]


# -------------------------------------------------------------------------------------------- middleware


def test_middleware_goes_around_each_attempt_the_first_declared_outermost() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")
    events: list[str] = []

    def middleware(name: str) -> Callable[..., Any]:
        async def around(message: Message, call_next: Callable[[], Any]) -> Any:
            events.append(f"{name} before {message.attempt}")
            try:
                return await call_next()
            finally:
                events.append(f"{name} after")

        return around

    loop.middleware(middleware("outer"))
    loop.middleware(middleware("inner"))

    @loop.consumer("orders", retry_topics=(), in_place_attempts=2)
    async def charge(value: str) -> None:
        events.append(value)
        if len(events) < 6:
            raise ValueError("once")

    with Harness(loop) as kafka:
        kafka.send("orders", "x")
        kafka.run()
    once = ["inner before {0}", "x", "inner after", "outer after"]
    assert events == [each.format(attempt) for attempt in (1, 2) for each in ("outer before {0}", *once)]


def test_middleware_may_decide_and_its_failure_is_the_messages() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")

    @loop.middleware
    async def gate(message: Message, call_next: Callable[[], Any]) -> Any:
        if message.header("forbidden"):
            raise Reject("forbidden")
        if message.header("swallow"):
            try:
                return await call_next()
            except ValueError:
                return None
        return await call_next()

    @loop.consumer("orders", retry_topics=(), in_place_attempts=1)
    async def charge(value: bytes) -> None:
        raise ValueError("bad")

    with Harness(loop) as kafka:
        kafka.send("orders", b"1", headers={"forbidden": "1"})
        kafka.send("orders", b"2", headers={"swallow": "1"})
        kafka.send("orders", b"3")
        kafka.run()
        assert [str(each.outcome) for each in kafka.outcomes()] == ["dead_lettered", "acked", "dead_lettered"]


def test_plain_middleware_goes_around_plain_handlers_and_batches_get_the_list() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")
    seen: list[object] = []

    @loop.middleware
    def around(message: Any, call_next: Callable[[], Any]) -> Any:
        seen.append([each.value for each in message] if isinstance(message, list) else message.value)
        return call_next()

    @loop.consumer("orders")
    def one(value: bytes) -> None:
        return

    @loop.consumer("events")
    def many(messages: list[Message]) -> list[Exception | None]:
        return [Reject("no") for _ in messages]

    with Harness(loop, partitions=1) as kafka:
        kafka.send("orders", b"1")
        kafka.send("events", b"2")
        kafka.send("events", b"3")
        kafka.run()
        assert len(kafka.dead_letters("events")) == 2
        assert kafka.dead_letters("orders") == []
    assert sorted(seen, key=str) == [[b"2", b"3"], b"1"]


# ------------------------------------------------------------------------------------------- failures of ours


def test_a_failure_of_the_engine_decides_and_commits_nothing_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Engine, event: object) -> None:
        raise ZeroDivisionError("a bug")

    loop = billing(do_nothing)
    kafka = Harness(loop, partitions=1)
    monkeypatch.setattr(Engine, "_finished", broken)
    kafka.start()
    kafka.send("orders", b"x")
    with pytest.raises(HarnessError, match="the engine has failed") as caught:
        kafka.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert kafka.committed("orders") == {0: 0}
    kafka.crash(restart=False)


def test_a_routed_message_is_logged_once_with_where_it_goes(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(value: bytes) -> None:
        raise Reject("bad \x1b[31m value")

    with Harness(billing(handle)) as kafka, caplog.at_level(logging.INFO, "streamloop"):
        sent = kafka.send("orders", b"x", key="k")
        kafka.run()
    [record] = [each for each in caplog.records if getattr(each, "kind", "") == "routed"]
    text = record.getMessage()
    assert text.startswith(f"orders/{sent.partition}/0: streamloop.outcomes.Reject: bad")
    assert "\x1b" not in text
    assert text.endswith("to orders.billing.dlq")
    assert sent.partition == partition_of(b"k", 4)
