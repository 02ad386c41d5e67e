"""Plain functions in threads: they really run in parallel, can't be interrupted, and leak nothing."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from streamloop import Message, PublishError, Reject
from streamloop.testing import Harness, Outcome
from tests.loops import billing

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

BOUND = 20.0
"""Real seconds that a test waits for a thread at most."""


def test_functions_run_in_daemon_threads_of_our_own_and_in_parallel() -> None:
    together = threading.Barrier(4, timeout=BOUND)
    threads: set[threading.Thread] = set()

    def handle(value: bytes) -> None:
        threads.add(threading.current_thread())
        together.wait()

    with Harness(billing(handle, concurrency=4)) as kafka:
        for _ in range(8):
            kafka.send("orders", b"x")
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}
    assert len(threads) == 4
    assert all(thread.daemon and thread.name.startswith("streamloop-charge-") for thread in threads)
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive()


def test_T2_a_context_variable_of_one_message_never_reaches_the_next_in_that_thread() -> None:
    seen: list[str] = []

    def handle(value: str) -> None:
        seen.append(tenant.get())
        tenant.set(value)

    with Harness(billing(handle, concurrency=1)) as kafka:
        for number in range(5):
            kafka.send("orders", str(number))
        kafka.run()
    assert seen == ["nobody"] * 5


def test_messages_of_one_key_are_handled_in_order() -> None:
    seen: list[str] = []

    def handle(value: str) -> None:
        seen.append(value)

    with Harness(billing(handle)) as kafka:
        for number in range(50):
            kafka.send("orders", str(number), key="k")
        kafka.run()
    assert seen == [str(number) for number in range(50)]


def test_a_function_that_raises_is_retried_and_dead_lettered_as_its_plan_says() -> None:
    def handle(value: str) -> None:
        if value == "reject":
            raise Reject("never")
        raise ValueError("again")

    with Harness(billing(handle, in_place_attempts=2, retry_topics=(30,))) as kafka:
        rejected, retried = kafka.send("orders", "reject"), kafka.send("orders", "x")
        kafka.run()
        assert len(kafka.outcome(rejected).attempts) == 1
        assert len(kafka.outcome(retried).attempts) == 3
        assert len(kafka.dead_letters()) == 2


def test_a_returned_outcome_means_the_same_as_raised() -> None:
    def handle(value: bytes) -> object:
        return Reject("returned")

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert [each.error_message for each in kafka.dead_letters()] == ["returned"]


def test_at_its_time_out_a_function_is_asked_through_message_cancelled_and_its_return_counts() -> None:
    def handle(value: bytes, message: Message) -> None:
        assert message.cancelled.wait(BOUND)

    loop = billing(handle, timeout=0.1)
    with Harness(loop) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).outcome is Outcome.ACKED
        status = loop.status()
        assert status is not None
        counts = status.consumers[0].counts
        assert (counts["timeouts"], counts["cancel_ignored"]) == (1, 1)


def test_lane_and_place_stay_taken_until_the_function_is_back() -> None:
    back = threading.Event()
    seen: list[str] = []

    def handle(value: str) -> None:
        seen.append(value)
        if value == "slow":
            assert back.wait(BOUND)

    with Harness(billing(handle, timeout=0.1, concurrency=1), partitions=1) as kafka:
        kafka.send("orders", "slow", key="a")
        kafka.send("orders", "other", key="b")
        kafka.advance(0.5)
        assert seen == ["slow"]
        back.set()
        kafka.run()
    assert seen == ["slow", "other"]


def test_H2_a_function_that_blocks_is_named_with_its_stack_and_commits_nothing() -> None:
    release = threading.Event()

    def handle(value: bytes) -> None:
        release.wait()

    loop = billing(handle, timeout=0.1, kill_after=0.2)
    try:
        with Harness(loop, partitions=1) as kafka:
            kafka.send("orders", b"x")
            kafka.run()
            assert kafka.exit_code == 70
            assert "handler charge did not come back" in kafka.exit_reason
            assert loop.health().live is False
            [running] = kafka.running()
            assert (running.consumer, running.given_up, running.asked_to_stop) == ("charge", True, True)
            assert "release.wait()" in running.stack
            assert kafka.committed("orders") == {0: 0}
    finally:
        release.set()


def test_publish_and_wait_is_confirmed_when_it_returns() -> None:
    seen: list[int] = []

    def handle(value: bytes, message: Message) -> None:
        message.publish_and_wait("audit", {"a": 1}, key="k")
        seen.append(len(kafka.published("audit")))

    with Harness(billing(handle)) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
    assert seen == [1]


def test_publish_and_wait_that_is_refused_raises_in_the_function() -> None:
    caught: list[str] = []

    def handle(value: bytes, message: Message) -> None:
        with pytest.raises(PublishError) as error:
            message.publish_and_wait("audit", b"x")
        caught.append(str(error.value))

    with Harness(billing(handle)) as kafka:
        kafka.refuse("audit", "too old")
        kafka.send("orders", b"x")
        kafka.run()
    assert caught == ["publish to audit: too old"]


def test_a_topic_that_takes_nothing_does_not_keep_the_thread_beyond_the_time_out() -> None:
    def handle(value: bytes, message: Message) -> None:
        message.publish_and_wait("audit", b"x")

    with Harness(billing(handle, timeout=0.2, in_place_attempts=1, retry_topics=())) as kafka:
        kafka.block("audit")
        kafka.send("orders", b"x")
        kafka.run()
        [dead] = kafka.dead_letters()
        assert dead.error_class == "streamloop.errors.PublishError"
        assert "audit: not confirmed when the handler was asked to stop" in dead.error_message
        kafka.unblock("audit")
        kafka.run()
        assert kafka.published() == []


def test_publish_on_success_is_confirmed_before_the_message_is_acknowledged() -> None:
    def handle(value: str, message: Message) -> None:
        message.publish_on_success("audit", value)
        if value == "bad":
            raise Reject("bad")

    with Harness(billing(handle, timeout=5), partitions=1) as kafka:
        kafka.block("audit")
        kafka.send("orders", "bad")
        kafka.send("orders", "good")
        kafka.advance(0.2)
        kafka.advance(1)
        assert kafka.committed("orders") == {0: 1}
        kafka.unblock("audit")
        kafka.run()
        assert kafka.committed("orders") == {0: 2}
        assert [each.value for each in kafka.published()] == [b"good"]


def test_publish_without_await_says_what_to_use() -> None:
    def handle(value: bytes, message: Message) -> None:
        message.publish("audit", b"x")  # type: ignore[unused-coroutine]

    with Harness(billing(handle, in_place_attempts=1, retry_topics=())) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert "publish_on_success" in kafka.dead_letters()[0].error_message


def test_what_left_before_its_thread_was_free_is_not_started() -> None:
    release = threading.Event()
    seen: list[str] = []

    def handle(value: str) -> None:
        seen.append(value)
        assert release.wait(BOUND)

    with Harness(billing(handle, concurrency=1), partitions=2, revoke_wait=0.1) as kafka:
        kafka.send("orders", "running", partition=0)
        kafka.advance(0.1)
        kafka.send("orders", "waiting", partition=1)
        kafka.advance(0.1)
        kafka.revoke("orders", 1)
        release.set()
        kafka.run()
        assert seen == ["running"]
        kafka.assign("orders", 1)
        kafka.run()
    assert seen == ["running", "waiting"]
