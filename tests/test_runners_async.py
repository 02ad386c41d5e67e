"""Coroutine handlers: contexts, time-outs, cancellation, concurrency, and what they publish."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from streamloop import Message, PublishError, Reject, Retry
from streamloop.testing import Harness, Outcome
from tests.loops import billing

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


# ---------------------------------------------------------------------------------------------- concurrency


def test_what_comes_while_all_workers_wait_gets_a_worker_of_its_own() -> None:
    running: set[str] = set()
    most = 0

    async def handle(value: str) -> None:
        nonlocal most
        running.add(value)
        most = max(most, len(running))
        await asyncio.sleep(10)
        running.discard(value)

    with Harness(billing(handle)) as kafka:
        for number in range(5):
            kafka.send("orders", str(number))
            kafka.advance(1)
            assert len(running) == number + 1
        kafka.run()
    assert most == 5


def test_no_more_handlers_run_than_the_concurrency_allows() -> None:
    running = most = 0

    async def handle(value: bytes) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    with Harness(billing(handle, concurrency=7)) as kafka:
        for _ in range(50):
            kafka.send("orders", b"x")
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}
        assert kafka.elapsed == pytest.approx(8, abs=2)
    assert most == 7


def test_messages_of_one_key_are_handled_one_after_the_other_in_order() -> None:
    seen: list[tuple[str, str]] = []

    async def handle(value: str, message: Message) -> None:
        key = (message.key or b"").decode()
        seen.append((key, f"begin {value}"))
        await asyncio.sleep(0.3 if key == "a" else 0.1)
        seen.append((key, f"end {value}"))

    with Harness(billing(handle)) as kafka:
        for number in range(5):
            for key in ("a", "b", "c"):
                kafka.send("orders", str(number), key=key)
        kafka.run()
    for key in ("a", "b", "c"):
        steps = [what for each, what in seen if each == key]
        assert steps == [f"{what} {number}" for number in range(5) for what in ("begin", "end")]
    assert seen.index(("b", "end 0")) < seen.index(("a", "end 0"))


# ------------------------------------------------------------------------------------------------- contexts


def test_T2_a_context_variable_of_one_message_never_reaches_the_next() -> None:
    seen: list[str] = []

    async def handle(value: str) -> None:
        seen.append(tenant.get())
        tenant.set(value)
        await asyncio.sleep(0.1)
        assert tenant.get() == value
        tenant.set(f"{value} again")
        if value == "1":
            raise Retry(after=0)

    with Harness(billing(handle, concurrency=1, retry_topics=())) as kafka:
        for number in range(5):
            kafka.send("orders", str(number))
        kafka.run()
    assert seen == ["nobody"] * (5 + 2)


def test_T2_a_handler_that_never_waits_leaks_nothing_either() -> None:
    seen: list[str] = []

    async def handle(value: str) -> None:
        seen.append(tenant.get())
        tenant.set(value)

    with Harness(billing(handle, concurrency=1)) as kafka:
        for number in range(5):
            kafka.send("orders", str(number))
        kafka.run()
    assert seen == ["nobody"] * 5


def test_T2_tasks_that_a_handler_starts_have_its_context() -> None:
    seen: list[str] = []

    async def look() -> None:
        await asyncio.sleep(0.1)
        seen.append(tenant.get())

    async def handle(value: str) -> None:
        tenant.set(value)
        async with asyncio.TaskGroup() as group:
            group.create_task(look())
            group.create_task(look())

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", "a", partition=0)
        kafka.send("orders", "b", partition=1)
        kafka.run()
        assert sorted(seen) == ["a", "a", "b", "b"]
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}


# -------------------------------------------------------------------- what asyncio gives inside of a handler


def test_asyncio_timeout_works_in_a_handler_and_leaves_nothing_behind() -> None:
    counts: list[int] = []

    async def handle(value: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.sleep(60)
        counts.append(task.cancelling())

    with Harness(billing(handle, concurrency=1)) as kafka:
        kafka.send("orders", "a")
        kafka.send("orders", "b")
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}
        assert [each.attempts[0].duration for each in kafka.outcomes()] == [0.5, 0.5]
    assert counts == [0] * 4


def test_a_failure_in_a_task_group_is_classified_by_what_is_in_it() -> None:
    async def refuse() -> None:
        raise Reject("one of them")

    async def handle(value: bytes) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(10))
            group.create_task(refuse())

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        [dead] = kafka.dead_letters()
        assert (dead.error_class, dead.attempt) == ("streamloop.outcomes.Reject", 1)


# ------------------------------------------------------------------------------------------------ time-outs


def test_a_time_out_is_a_failed_attempt_of_its_own_class() -> None:
    async def handle(value: bytes) -> None:
        await asyncio.sleep(60)

    with Harness(billing(handle, timeout=5, in_place_attempts=2, retry_topics=())) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        outcome = kafka.outcome(sent)
        assert [each.duration for each in outcome.attempts] == [pytest.approx(5, abs=0.1)] * 2
        assert outcome.error_class == "streamloop.runners.base.HandlerTimeout"
        assert "charge did not end within 5 s" in kafka.dead_letters()[0].error_message


def test_a_return_after_the_time_out_counts_as_what_it_returned() -> None:
    async def handle(value: bytes, message: Message) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            assert message.cancelled.is_set()
            await asyncio.sleep(1)

    loop = billing(handle, timeout=5)
    with Harness(loop) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).outcome is Outcome.ACKED
        assert len(kafka.outcome(sent).attempts) == 1
        status = loop.status()
        assert status is not None
        counts = status.consumers[0].counts
        assert (counts["timeouts"], counts["cancel_ignored"]) == (1, 1)


def test_an_exception_after_the_time_out_counts_as_that_failure() -> None:
    async def handle(value: bytes) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise Reject("while cleaning up")

    with Harness(billing(handle, timeout=5)) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert [each.error_message for each in kafka.dead_letters()] == ["while cleaning up"]


def test_a_swallowed_cancellation_is_not_seen_by_the_next_message() -> None:
    seen: list[int] = []

    async def handle(value: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        if value == "first":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return
        async with asyncio.timeout(10):
            await asyncio.sleep(1)

    with Harness(billing(handle, timeout=5, concurrency=1), partitions=1) as kafka:
        kafka.send("orders", "first")
        kafka.send("orders", "second")
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}
    assert seen == [0, 0]


def test_a_cancellation_of_the_handlers_own_making_is_an_ordinary_failure() -> None:
    async def handle(value: bytes) -> None:
        raise asyncio.CancelledError

    with Harness(billing(handle, in_place_attempts=2, retry_topics=())) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert len(kafka.outcome(sent).attempts) == 2
        assert kafka.outcome(sent).error_class == "asyncio.exceptions.CancelledError"


def test_H2_a_handler_that_ignores_cancellation_is_named_with_its_stack_and_commits_nothing() -> None:
    async def handle(value: bytes) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    loop = billing(handle, timeout=5, kill_after=10)
    with Harness(loop, partitions=1) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert kafka.elapsed == pytest.approx(15, abs=0.3)
        assert (kafka.exit_code, kafka.exit_reason) == (
            70,
            "handler charge did not come back within kill_after of its timeout",
        )
        assert loop.health().live is False
        assert any("charge did not come back" in reason for reason in loop.health().reasons)
        assert kafka.committed("orders") == {0: 0}
        [running] = list(kafka.running())
        assert running.given_up
        assert "await asyncio.sleep(60)" in running.stack


def test_revoked_handlers_are_cancelled_when_their_time_is_over_and_the_lane_waits_for_them() -> None:
    events: list[str] = []

    async def handle(value: str, message: Message) -> None:
        events.append(f"begin {value}")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            assert message.cancelled.is_set()
            events.append(f"cancelled {value}")
            if len(events) == 2:
                await asyncio.sleep(30)
                events.append(f"gone {value}")
            raise

    with Harness(billing(handle, timeout=100), revoke_wait=5, partitions=1) as kafka:
        kafka.send("orders", "x", key="k")
        kafka.advance(1)
        kafka.revoke("orders", 0)
        assert kafka.elapsed == pytest.approx(6, abs=0.2)
        assert events == ["begin x", "cancelled x"]
        kafka.assign("orders", 0)
        kafka.advance(20)
        assert events == ["begin x", "cancelled x"]
        kafka.advance(20)
        assert events == ["begin x", "cancelled x", "gone x", "begin x"]


# ------------------------------------------------------------------------------------------------ publishing


def test_a_message_is_acknowledged_only_after_its_publish_was_confirmed() -> None:
    async def handle(value: bytes, message: Message) -> None:
        await message.publish("audit", b"seen")

    with Harness(billing(handle), partitions=1) as kafka:
        kafka.block("audit")
        kafka.send("orders", b"x")
        kafka.advance(10)
        assert kafka.committed("orders") == {0: 0}
        assert [each.state for each in kafka.pending()] == ["PROCESSING"]
        kafka.unblock("audit")
        kafka.run()
        assert kafka.committed("orders") == {0: 1}
        assert [each.value for each in kafka.published("audit")] == [b"seen"]


def test_a_publish_that_the_broker_refuses_fails_the_message() -> None:
    caught: list[str] = []

    async def handle(value: bytes, message: Message) -> None:
        try:
            await message.publish("audit", b"seen")
        except PublishError as error:
            caught.append(str(error))
            raise

    with Harness(billing(handle, in_place_attempts=2, retry_topics=())) as kafka:
        kafka.refuse("audit", "null key in a compacted topic")
        kafka.send("orders", b"x")
        kafka.run()
        [dead] = kafka.dead_letters()
        assert dead.error_class == "streamloop.errors.PublishError"
        assert kafka.published() == []
    assert caught == ["publish to audit: null key in a compacted topic"] * 2


def test_a_publish_to_a_topic_that_takes_nothing_ends_with_the_time_out() -> None:
    async def handle(value: bytes, message: Message) -> None:
        await message.publish("audit", b"seen")

    with Harness(billing(handle, timeout=5, in_place_attempts=1, retry_topics=())) as kafka:
        kafka.block("audit")
        kafka.send("orders", b"x")
        kafka.run()
        assert kafka.dead_letters()[0].error_class.endswith("HandlerTimeout")
        kafka.unblock("audit")
        kafka.run()
        assert kafka.published() == []


def test_publish_on_success_is_sent_when_the_handler_has_returned_and_not_when_it_raised() -> None:
    async def handle(value: str, message: Message) -> None:
        message.publish_on_success("audit", f"{value} 1")
        message.publish_on_success("audit", f"{value} 2", key="k")
        await asyncio.sleep(1)
        if value == "bad":
            raise Reject("bad")

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", "bad")
        kafka.send("orders", "good")
        kafka.advance(0.5)
        assert kafka.published() == []
        kafka.run()
        assert [each.value for each in kafka.published()] == [b"good 1", b"good 2"]


@pytest.mark.parametrize("waits", [True, False])
def test_publish_on_success_is_confirmed_before_the_message_is_acknowledged(waits: bool) -> None:
    async def handle(value: bytes, message: Message) -> None:
        message.publish_on_success("audit", b"seen")
        if waits:
            await asyncio.sleep(1)

    with Harness(billing(handle, timeout=30), partitions=1) as kafka:
        kafka.block("audit")
        kafka.send("orders", b"x")
        kafka.advance(10)
        assert kafka.committed("orders") == {0: 0}
        # Others go on meanwhile.
        kafka.send("orders", b"y")
        kafka.advance(1)
        assert len([each for each in kafka.pending() if each.state == "PROCESSING"]) == 2
        kafka.unblock("audit")
        kafka.run()
        assert kafka.committed("orders") == {0: 2}


@pytest.mark.parametrize("waits", [True, False])
def test_publish_on_success_to_a_topic_that_takes_nothing_ends_with_the_time_out(waits: bool) -> None:
    async def handle(value: bytes, message: Message) -> None:
        message.publish_on_success("audit", b"seen")
        if waits:
            await asyncio.sleep(1)

    with Harness(billing(handle, timeout=5, in_place_attempts=1, retry_topics=())) as kafka:
        kafka.block("audit")
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).error_class.endswith("HandlerTimeout")
        assert kafka.outcome(sent).attempts[0].duration == pytest.approx(5, abs=0.1)


def test_publish_on_success_that_is_refused_fails_the_message() -> None:
    async def handle(value: bytes, message: Message) -> None:
        message.publish_on_success("audit", b"seen")

    with Harness(billing(handle, in_place_attempts=1, retry_topics=())) as kafka:
        kafka.refuse("audit")
        kafka.send("orders", b"x")
        kafka.run()
        assert kafka.dead_letters()[0].error_class == "streamloop.errors.PublishError"


# -------------------------------------------------------------------------------------------- odd handlers


@pytest.mark.parametrize("waits", [True, False])
def test_an_outcome_that_is_returned_means_the_same_as_raised(waits: bool) -> None:
    async def handle(value: bytes) -> object:
        if waits:
            await asyncio.sleep(1)
        return Reject("returned")

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert [each.error_message for each in kafka.dead_letters()] == ["returned"]


@pytest.mark.parametrize("returned", [1, "text", [Reject("in a list")], ValueError("returned")])
def test_anything_else_that_is_returned_is_an_acknowledgement(returned: object) -> None:
    async def handle(value: bytes) -> object:
        return returned

    with Harness(billing(handle)) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).outcome is Outcome.ACKED


@pytest.mark.parametrize("error", [StopIteration("mine"), StopAsyncIteration("mine"), GeneratorExit("mine")])
def test_an_exception_that_ends_generators_is_a_failure_like_any_other(error: BaseException) -> None:
    async def handle(value: bytes) -> None:
        raise error

    with Harness(billing(handle, in_place_attempts=1, retry_topics=())) as kafka:
        sent = kafka.send("orders", b"x")
        after = kafka.send("orders", b"y")
        kafka.run()
        assert kafka.outcome(sent).outcome is Outcome.DEAD_LETTERED
        assert kafka.outcome(after).outcome is Outcome.DEAD_LETTERED


@pytest.mark.parametrize("waits", [True, False])
def test_an_exit_in_a_handler_is_fatal_and_does_not_end_the_worker(waits: bool) -> None:
    async def handle(value: bytes) -> None:
        if waits:
            await asyncio.sleep(1)
        raise SystemExit(3)

    with Harness(billing(handle), partitions=1) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert kafka.exit_code == 1
        assert "SystemExit" in kafka.exit_reason
        assert kafka.committed("orders") == {0: 0}
