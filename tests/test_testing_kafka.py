"""The harness's Kafka: topics that refuse, rebalances, crashes, drains."""

from __future__ import annotations

import asyncio

import pytest

from streamloop import Fatal, Reject, StreamLoop
from streamloop.testing import (
    Harness,
    HarnessError,
    Outcome,
)
from tests.loops import billing


class DeclinedError(Exception):
    pass


async def accept(order: dict[str, int]) -> None:
    if order["amount"] < 0:
        raise DeclinedError(f"order {order['id']}")


async def fail(value: bytes) -> None:
    raise ValueError("bad luck")


# ----------------------------------------------------------------------------------------- topics that refuse


def test_D2_a_blocked_dead_letter_topic_holds_the_partition_and_skips_nothing() -> None:
    with Harness(billing(fail, in_place_attempts=1, retry_topics=()), partitions=1) as kafka:
        kafka.block(kafka.dead_letter_topic("orders"), "the topic is missing")
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.committed("orders") == {0: 0}
        assert kafka.dead_letters("orders") == []
        behind = kafka.send("orders", b"y")
        kafka.advance(60)
        waiting, unread = kafka.pending()
        assert "held (publish_blocked)" in str(waiting)
        assert "the topic is missing" in str(waiting)
        assert (unread.offset, unread.state) == (behind.offset, "UNREAD")
        kafka.unblock(kafka.dead_letter_topic("orders"))
        kafka.run()
        assert [each.value for each in kafka.dead_letters("orders")] == [b"x", b"y"]
        assert kafka.outcome(sent).outcome is Outcome.DEAD_LETTERED
        assert kafka.committed("orders") == {0: 2}


def test_D5_what_is_too_large_loses_headers_first() -> None:
    async def handle(value: bytes) -> None:
        raise Reject("x" * 1000)

    with Harness(billing(handle)) as kafka:
        kafka.limit_size(kafka.dead_letter_topic("orders"), 1400)
        kafka.send("orders", b"v" * 900, headers={"mine": "m"})
        kafka.run()
        [dead] = kafka.dead_letters("orders")
        assert dead.value == b"v" * 900
        assert dead.user_headers == (("mine", b"m"),)
        assert dead.error_message == ""
        assert dead.original[0] == "orders"


def test_D5_what_can_not_fit_is_held_and_tried_again() -> None:
    async def handle(value: bytes) -> None:
        raise Reject("no")

    with Harness(billing(handle)) as kafka:
        target = kafka.dead_letter_topic("orders")
        kafka.limit_size(target, 500)
        kafka.send("orders", b"v" * 900)
        kafka.run()
        [waiting] = kafka.pending()
        assert "raise its max.message.bytes" in waiting.why
        kafka.limit_size(target, None)
        kafka.advance(31)
        assert [each.error_message for each in kafka.dead_letters("orders")] == ["no"]
        assert kafka.pending() == []


def test_a_record_that_is_refused_is_held_with_the_reason() -> None:
    with Harness(billing(fail, in_place_attempts=1, retry_topics=())) as kafka:
        target = kafka.dead_letter_topic("orders")
        kafka.refuse(target, "null key in a compacted topic")
        kafka.send("orders", b"x")
        kafka.run()
        assert "refuses this record (null key in a compacted topic)" in kafka.pending()[0].why
        kafka.accept(target)
        kafka.advance(31)
        assert len(kafka.dead_letters("orders")) == 1


# --------------------------------------------------------------------------------------- rebalances, crashes


def test_R7_revoke_waits_for_running_handlers_and_commits_them() -> None:
    async def handle(value: bytes) -> None:
        await asyncio.sleep(2)

    with Harness(billing(handle), partitions=1) as kafka:
        sent = [kafka.send("orders", b"x", key="k") for _ in range(3)]
        kafka.advance(1)
        kafka.revoke("orders", 0)
        assert kafka.committed("orders") == {0: 1}
        kafka.run()
        assert [each.why for each in kafka.pending()] == ["its partition is not assigned"] * 2
        kafka.assign("orders", 0)
        kafka.run()
        assert [len(kafka.outcome(each).attempts) for each in sent] == [1, 1, 1]
        assert kafka.committed("orders") == {0: 3}


def test_R6_what_is_lost_acknowledges_nothing_and_comes_again() -> None:
    ran = []

    async def handle(value: str) -> None:
        ran.append(value)
        await asyncio.sleep(2)

    with Harness(billing(handle), partitions=1) as kafka:
        sent = kafka.send("orders", "x")
        kafka.advance(1)
        kafka.lose("orders")
        kafka.run()
        assert kafka.committed("orders") == {0: 0}
        kafka.assign("orders")
        kafka.run()
        assert ran == ["x", "x"]
        assert kafka.outcome(sent).path.count("REVOKED") == 1
        assert kafka.outcome(sent).outcome is Outcome.ACKED


def test_R8_after_a_crash_only_what_was_not_acknowledged_comes_again() -> None:
    seen: list[str] = []

    async def handle(value: str) -> None:
        seen.append(value)
        if value == "0" and len(seen) <= 100:
            await asyncio.sleep(20)

    with Harness(billing(handle), partitions=1) as kafka:
        for number in range(100):
            kafka.send("orders", str(number))
        kafka.advance(5)
        assert kafka.committed("orders") == {0: 0}
        kafka.crash()
        kafka.run()
        assert seen[100:] == ["0"]
        assert kafka.committed("orders") == {0: 100}
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}


def test_a_crash_cancels_and_on_shutdown_does_not_run() -> None:
    events: list[str] = []
    loop: StreamLoop[None] = StreamLoop("billing")

    @loop.on_startup
    async def start() -> None:
        events.append("start")

    @loop.on_shutdown
    async def end() -> None:
        events.append("end")

    @loop.consumer("orders")
    async def handle(value: bytes) -> None:
        await asyncio.sleep(1000)

    with Harness(loop, timeout=2000) as kafka:
        kafka.send("orders", b"x")
        kafka.advance(1)
        kafka.crash(restart=False)
        assert events == ["start"]
        with pytest.raises(HarnessError, match="does not run"):
            kafka.run()
        kafka.start()
        kafka.run()
    assert events == ["start", "start", "end"]
    assert kafka.exit_code == 0


def test_a_running_handler_is_drained_at_the_end() -> None:
    done = []

    async def handle(value: bytes) -> None:
        await asyncio.sleep(3)
        done.append(value)

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", b"x")
        kafka.advance(1)
    assert done == [b"x"]
    assert kafka.committed("orders") == {0: 1}
    assert (kafka.exit_code, kafka.exit_reason) == (0, "stopped")


def test_a_drain_that_takes_too_long_is_cut_short() -> None:
    async def handle(value: bytes) -> None:
        await asyncio.sleep(300)

    with Harness(billing(handle, timeout=400), drain_timeout=5) as kafka:
        kafka.send("orders", b"x")
        kafka.advance(1)
    assert kafka.committed("orders") == {0: 0}
    assert kafka.exit_code == 3
    assert kafka.elapsed == pytest.approx(6, abs=0.2)


def test_a_fatal_error_ends_the_loop_and_commits_nothing_of_that_message() -> None:
    async def handle(value: bytes) -> None:
        raise Fatal("the disk is gone")

    with Harness(billing(handle), partitions=1) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.exit_code == 1
        assert "orders/0/0" in kafka.exit_reason
        assert "the disk is gone" in kafka.exit_reason
        assert kafka.outcome(sent).outcome is Outcome.HALTED
        assert kafka.committed("orders") == {0: 0}
