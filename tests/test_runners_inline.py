"""Cheap plain functions on the event loop."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from streamloop import Message, Reject
from streamloop.testing import Harness, Outcome
from tests.loops import billing

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def test_functions_run_on_the_event_loop_in_order_and_leak_nothing() -> None:
    seen: list[tuple[str, str, bool]] = []

    def handle(value: str) -> None:
        asyncio.get_running_loop()
        seen.append((value, tenant.get(), threading.current_thread() is threading.main_thread()))
        tenant.set(value)

    with Harness(billing(handle, runner="inline"), partitions=1) as kafka:
        for number in range(5):
            kafka.send("orders", str(number))
        kafka.run()
        assert kafka.committed("orders") == {0: 5}
    assert seen == [(str(number), "nobody", True) for number in range(5)]


def test_what_fails_is_retried_and_what_can_not_be_decoded_is_dead_lettered() -> None:
    def handle(order: dict[str, int]) -> None:
        raise ValueError("again")

    with Harness(billing(handle, runner="inline", in_place_attempts=2, retry_topics=())) as kafka:
        retried, broken = kafka.send("orders", {"id": 1}), kafka.send("orders", b"{")
        kafka.run()
        assert len(kafka.outcome(retried).attempts) == 2
        assert kafka.outcome(broken).attempts == ()
        assert kafka.outcome(broken).outcome is Outcome.DEAD_LETTERED


def test_a_returned_outcome_means_the_same_as_raised() -> None:
    def handle(value: bytes) -> object:
        return Reject("returned")

    with Harness(billing(handle, runner="inline")) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert [each.error_message for each in kafka.dead_letters()] == ["returned"]


def test_publish_on_success_is_confirmed_before_acknowledging_while_others_go_on() -> None:
    seen: list[str] = []

    def handle(value: str, message: Message) -> None:
        seen.append(value)
        if value == "publishes":
            message.publish_on_success("audit", value)

    with Harness(billing(handle, runner="inline"), partitions=1) as kafka:
        kafka.block("audit")
        kafka.send("orders", "publishes")
        kafka.send("orders", "other")
        kafka.advance(2)
        assert seen == ["publishes", "other"]
        assert kafka.committed("orders") == {0: 0}
        assert [each.offset for each in kafka.pending()] == [0]
        kafka.unblock("audit")
        kafka.run()
        assert kafka.committed("orders") == {0: 2}
        assert [each.value for each in kafka.published()] == [b"publishes"]


@pytest.mark.parametrize("refused", [True, False])
def test_publish_on_success_that_does_not_come_through_fails_the_message(refused: bool) -> None:
    def handle(value: bytes, message: Message) -> None:
        message.publish_on_success("audit", value)

    loop = billing(handle, runner="inline", timeout=5, in_place_attempts=1, retry_topics=())
    with Harness(loop) as kafka:
        if refused:
            kafka.refuse("audit")
        else:
            kafka.block("audit")
        kafka.send("orders", b"x")
        kafka.run()
        expected = "streamloop.errors.PublishError" if refused else "streamloop.runners.base.HandlerTimeout"
        assert [each.error_class for each in kafka.dead_letters()] == [expected]
        assert kafka.running() == []


@pytest.mark.parametrize("name", ["publish", "publish_and_wait"])
def test_publishes_that_can_not_work_here_say_what_to_use(name: str) -> None:
    def handle(value: bytes, message: Message) -> None:
        getattr(message, name)("audit", b"x")

    with Harness(billing(handle, runner="inline", in_place_attempts=1, retry_topics=())) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert "publish_on_success" in kafka.dead_letters()[0].error_message
