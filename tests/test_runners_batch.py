"""Batch handlers: how batches are made, what each message comes to, and what one bad message does."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from streamloop import Ack, Message, Reject, Retry, Skip
from streamloop.testing import Harness, Outcome
from tests.loops import billing

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

Returned = list[Ack | Exception | None]


def test_a_batch_is_full_at_its_size() -> None:
    sizes: list[int] = []

    async def handle(values: list[bytes]) -> None:
        sizes.append(len(values))

    with Harness(billing(handle, batch=True, batch_size=4, batch_linger=1), partitions=1) as kafka:
        for _ in range(10):
            kafka.send("orders", b"x")
        kafka.run()
        assert kafka.committed("orders") == {0: 10}
    assert sizes[:2] == [4, 4]
    assert sum(sizes) == 10


def test_a_batch_that_is_not_full_waits_for_the_linger() -> None:
    async def handle(values: list[bytes]) -> None:
        return

    with Harness(billing(handle, batch=True, batch_size=4, batch_linger=2), partitions=1) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.advance(1)
        late = kafka.send("orders", b"y")
        kafka.run()
        starts = [kafka.outcome(each).attempts[0].started for each in (sent, late)]
        assert starts[0] == starts[1] == pytest.approx(sent.timestamp / 1000 + 2, abs=0.1)


def test_messages_of_one_key_are_in_order_within_and_between_batches() -> None:
    seen: list[tuple[str, ...]] = []

    async def handle(values: list[str], messages: list[Message]) -> None:
        assert [message.value for message in messages] == [value.encode() for value in values]
        seen.append(tuple(values))
        await asyncio.sleep(1)

    with Harness(billing(handle, batch=True, batch_size=3), partitions=1) as kafka:
        for number in range(8):
            kafka.send("orders", f"a{number}", key="a")
            kafka.send("orders", f"b{number}", key="b")
        kafka.run()
    for key in "ab":
        values = [value for batch in seen for value in batch if value[0] == key]
        assert values == [f"{key}{number}" for number in range(8)]


def test_a_key_is_in_one_batch_at_a_time() -> None:
    running: set[str] = set()

    async def handle(values: list[str], messages: list[Message]) -> None:
        keys = {(message.key or b"").decode() for message in messages}
        assert not keys & running
        running.update(keys)
        await asyncio.sleep(1)
        running.difference_update(keys)

    with Harness(billing(handle, batch=True, batch_size=3, batch_linger=0)) as kafka:
        for number in range(30):
            kafka.send("orders", str(number), key=str(number % 5))
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}


def test_batches_run_at_the_same_time_up_to_the_concurrency() -> None:
    running = most = 0

    async def handle(values: list[bytes]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    with Harness(billing(handle, batch=True, batch_size=2, concurrency=3)) as kafka:
        for _ in range(24):
            kafka.send("orders", b"x")
        kafka.run()
    assert most == 3


def test_D15_one_bad_record_in_a_batch_is_the_only_one_that_is_retried_or_dead_lettered() -> None:
    calls: list[list[str]] = []

    async def handle(values: list[str]) -> Returned:
        calls.append(values)
        outcomes: dict[str, Ack | Exception | None] = {
            "bad": Reject("bad"),
            "again": Retry(after=1),
            "skip": Skip("not ours"),
            "acked": Ack(),
        }
        return [outcomes.get(value) for value in values]

    loop = billing(handle, batch=True, in_place_attempts=2, retry_topics=())
    with Harness(loop, partitions=1) as kafka:
        sent = {
            value: kafka.send("orders", value)
            for value in ("good", "bad", "again", "skip", "acked", "also good")
        }
        kafka.run()
        assert {value: str(kafka.outcome(each).outcome) for value, each in sent.items()} == {
            "good": "acked",
            "bad": "dead_lettered",
            "again": "dead_lettered",
            "skip": "skipped",
            "acked": "acked",
            "also good": "acked",
        }
        assert len(kafka.outcome(sent["good"]).attempts) == 1
        assert len(kafka.outcome(sent["again"]).attempts) == 2
        assert kafka.committed("orders") == {0: 6}
    assert calls == [list(sent), ["again"]]


def test_D7_one_undecodable_record_in_a_batch_fails_alone() -> None:
    calls: list[list[dict[str, int]]] = []

    async def handle(orders: list[dict[str, int]]) -> None:
        calls.append(orders)

    with Harness(billing(handle, batch=True), partitions=1) as kafka:
        for value in (b'{"id": 1}', b"{", None, b'{"id": 2}'):
            kafka.send("orders", value)
        kafka.run()
        assert [each.outcome for each in kafka.outcomes()] == [
            "acked",
            "dead_lettered",
            "dead_lettered",
            "acked",
        ]
        assert {each.attempt for each in kafka.dead_letters()} == {1}
        assert len(kafka.dead_letters()) == 2
    assert calls == [[{"id": 1}, {"id": 2}]]


def test_what_a_batch_handler_raises_is_the_failure_of_all() -> None:
    async def handle(values: list[bytes]) -> None:
        raise Reject("all of them")

    with Harness(billing(handle, batch=True)) as kafka:
        for _ in range(3):
            kafka.send("orders", b"x")
        kafka.run()
        assert [each.error_message for each in kafka.dead_letters()] == ["all of them"] * 3


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([None], "1 outcomes for 2 messages"),
        ("ok", "a str"),
        ([True, False], "a bool for message 0"),
        ([None, Reject], "the class Reject for message 1"),
    ],
)
def test_a_wrong_return_is_the_failure_of_all_and_says_what_is_wrong(returned: object, said: str) -> None:
    async def handle(values: list[bytes]) -> object:
        return returned

    with Harness(billing(handle, batch=True, in_place_attempts=1, retry_topics=()), partitions=1) as kafka:
        kafka.send("orders", b"x")
        kafka.send("orders", b"y")
        kafka.run()
        for dead in kafka.dead_letters():
            assert dead.error_class == "streamloop.errors.OutcomeError"
            assert said in dead.error_message
        assert len(kafka.dead_letters()) == 2


def test_T2_a_context_variable_of_one_batch_never_reaches_the_next() -> None:
    seen: list[str] = []

    async def handle(values: list[str]) -> None:
        seen.append(tenant.get())
        tenant.set(values[0])
        await asyncio.sleep(0.1)
        assert tenant.get() == values[0]

    with Harness(billing(handle, batch=True, batch_size=1, concurrency=1), partitions=1) as kafka:
        for number in range(4):
            kafka.send("orders", str(number))
        kafka.run()
    assert seen == ["nobody"] * 4


def test_a_time_out_fails_the_whole_batch_and_what_it_returns_after_it_counts() -> None:
    calls = 0

    async def handle(values: list[str]) -> Returned:
        nonlocal calls
        calls += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if calls == 1:
                raise
        return [Reject("late") if value == "bad" else None for value in values]

    loop = billing(handle, batch=True, timeout=5, in_place_attempts=2, retry_topics=())
    with Harness(loop, partitions=1) as kafka:
        good, bad = kafka.send("orders", "good"), kafka.send("orders", "bad")
        kafka.run()
        for sent in (good, bad):
            first = kafka.outcome(sent).attempts[0].failure
            assert first is not None
            assert first.error_class.endswith("HandlerTimeout")
        assert kafka.outcome(good).outcome is Outcome.ACKED
        assert kafka.outcome(bad).outcome is Outcome.DEAD_LETTERED
        status = loop.status()
        assert status is not None
        assert status.consumers[0].counts["cancel_ignored"] == 1


def test_a_swallowed_cancellation_is_not_seen_by_the_next_batch() -> None:
    seen: list[int] = []

    async def handle(values: list[str]) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        if values == ["first"]:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return
        async with asyncio.timeout(3):
            await asyncio.sleep(1)

    loop = billing(handle, batch=True, batch_size=1, concurrency=1, timeout=5)
    with Harness(loop, partitions=1) as kafka:
        kafka.send("orders", "first")
        kafka.send("orders", "second")
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}
    assert seen == [0, 0]


def test_a_batch_of_messages_gets_them_undecoded() -> None:
    seen: list[bytes | None] = []

    async def handle(messages: list[Message]) -> None:
        seen.extend(message.value for message in messages)

    with Harness(billing(handle), partitions=1) as kafka:
        kafka.send("orders", b"{")
        kafka.send("orders", None)
        kafka.run()
        assert kafka.committed("orders") == {0: 2}
    assert seen == [b"{", None]


def test_plain_functions_run_in_a_thread_each_and_may_return_outcomes() -> None:
    names: list[str] = []

    def handle(values: list[str]) -> Returned:
        names.append(threading.current_thread().name)
        assert tenant.get() == "nobody"
        tenant.set("somebody")
        return [Reject("bad") if value == "bad" else None for value in values]

    with Harness(billing(handle, batch=True, batch_size=2), partitions=1) as kafka:
        for value in ("good", "bad", "good", "good"):
            kafka.send("orders", value)
        kafka.run()
        assert len(kafka.dead_letters()) == 1
        assert kafka.committed("orders") == {0: 4}
    assert len(names) == 2
    assert threading.main_thread().name not in names


def test_H2_a_plain_batch_function_that_blocks_is_named_with_its_stack() -> None:
    release = threading.Event()

    def handle(values: list[bytes]) -> None:
        release.wait()

    try:
        with Harness(billing(handle, batch=True, batch_linger=0, timeout=0.1, kill_after=0.2)) as kafka:
            kafka.send("orders", b"x")
            kafka.run()
            assert kafka.exit_code == 70
            [running] = kafka.running()
            assert "release.wait()" in running.stack
    finally:
        release.set()


@pytest.mark.parametrize("threaded", [False, True])
def test_publish_on_success_of_each_message_is_confirmed_or_fails_that_message_alone(threaded: bool) -> None:
    async def on_loop(values: list[str], messages: list[Message]) -> Returned:
        return handle(values, messages)

    def handle(values: list[str], messages: list[Message]) -> Returned:
        for value, message in zip(values, messages, strict=True):
            message.publish_on_success("refused" if value == "refused" else "audit", value)
        return [Reject("bad") if value == "bad" else None for value in values]

    loop = billing(handle if threaded else on_loop, batch=True, in_place_attempts=1, retry_topics=())
    with Harness(loop, partitions=1) as kafka:
        kafka.refuse("refused")
        for value in ("good", "bad", "refused", "also good"):
            kafka.send("orders", value)
        kafka.run()
        assert [each.value for each in kafka.published()] == [b"good", b"also good"]
        assert {(each.value, each.error_class) for each in kafka.dead_letters()} == {
            (b"bad", "streamloop.outcomes.Reject"),
            (b"refused", "streamloop.errors.PublishError"),
        }


@pytest.mark.parametrize("threaded", [False, True])
def test_publish_on_success_to_a_topic_that_takes_nothing_fails_only_what_waits_for_it(
    threaded: bool,
) -> None:
    async def on_loop(values: list[str], messages: list[Message]) -> None:
        handle(values, messages)

    def handle(values: list[str], messages: list[Message]) -> None:
        for value, message in zip(values, messages, strict=True):
            message.publish_on_success(value, value)

    loop = billing(
        handle if threaded else on_loop, batch=True, timeout=0.3, in_place_attempts=1, retry_topics=()
    )
    with Harness(loop, partitions=1) as kafka:
        kafka.block("blocked")
        for value in ("audit", "blocked"):
            kafka.send("orders", value)
        kafka.run()
        assert [each.value for each in kafka.published()] == [b"audit"]
        [dead] = kafka.dead_letters()
        assert (dead.value, dead.error_class.split(".")[-1]) == (b"blocked", "HandlerTimeout")


def test_a_batch_is_asked_to_stop_when_all_of_it_has_left() -> None:
    asked: list[list[bool]] = []

    async def handle(messages: list[Message]) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            asked.append([message.cancelled.is_set() for message in messages])
            raise

    with Harness(billing(handle, timeout=100, batch_linger=0), partitions=2) as kafka:
        kafka.send("orders", b"x", partition=0)
        kafka.send("orders", b"y", partition=1)
        kafka.advance(1)
        kafka.lose("orders", 0)
        assert asked == []
        assert len(kafka.running()) == 2
        kafka.lose("orders", 1)
        assert asked == [[True, True]]
