"""A topic that a handler publishes to for the first time is looked at: a missing one is told at once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamloop import Message, StreamLoop
from streamloop.kafka.publish_targets import PublishTargets
from streamloop.kafka.topic_admin import BrokersUnreachableError
from streamloop.kafka.topics import Commands, TopicFacts, Untold
from streamloop.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Iterable


class Admin:
    """Answers in turn; the last answer stays."""

    commands = Commands("b:9092")

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def describe(self, names: Iterable[str], _timeout: float, *, configs: bool) -> dict[str, Any]:
        assert not configs
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(names, answer)


def looked(*answers: Any) -> list[str]:
    """The topics that were found missing."""
    missing: list[str] = []
    targets = PublishTargets(Admin(*answers), missing.append, threading.Event(), made_within=0.01)  # type: ignore[arg-type]
    targets._look("parcels", "charge")
    return missing


THERE = TopicFacts("parcels", "id", 1)


def test_a_missing_topic_is_told_with_the_handler_and_the_command(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert looked(None) == ["parcels"]
    assert "the handler charge publishes to topic parcels, which does not exist" in caplog.text
    assert "kafka-topics.sh --bootstrap-server b:9092 --create --topic parcels" in caplog.text


@pytest.mark.parametrize(
    "answers",
    [
        (THERE,),
        (None, THERE),  # the broker makes topics by itself
        (Untold("denied"),),
        (BrokersUnreachableError("away"),),
        (None, BrokersUnreachableError("away")),
    ],
)
def test_one_that_is_there_or_can_not_be_told_is_not(
    answers: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert looked(*answers) == []
    assert caplog.text == ""


def test_each_topic_is_looked_at_once_with_the_handler_that_publishes_to_it() -> None:
    asked: list[tuple[str, str]] = []
    loop: StreamLoop[None] = StreamLoop("billing", retry_topics=())

    @loop.consumer("orders", name="charge")
    async def charge(message: Message) -> None:
        await message.publish("parcels", b"1")

    @loop.consumer("refunds", name="refund")
    async def refund(message: Message) -> None:
        await message.publish("parcels", b"1")
        await message.publish("mails", b"1")

    with Harness(loop) as kafka:
        assert loop._run is not None
        assert loop._run.parts is not None
        loop._run.parts.core.first_use = lambda topic, consumer: asked.append((topic, consumer))
        for topic in ("orders", "orders", "refunds"):
            kafka.send(topic, b"x")
            kafka.run()
    assert asked == [("parcels", "charge"), ("mails", "refund")]
