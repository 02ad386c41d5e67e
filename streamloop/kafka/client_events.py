"""What librdkafka says among the messages and through its error callback, and what follows from it.

What it is for: the end of a partition, positions that are out of range, topics that are gone, and errors of
which most cure themselves: these are counted and logged once a minute. It must never raise: it runs inside
the Consumer's calls. Called by the poller's thread alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError

from streamloop.engine.events import EndOfPartition, TopicPartition
from streamloop.errors import StreamLoopError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.engine.events import Event
    from streamloop.kafka.slots import Slots
    from streamloop.kafka.starts import Starts

__all__ = ["ClientEvents", "FatalConsumerError"]

log = logging.getLogger("streamloop.poller")

SAY_AGAIN: Final = 60.0
"""Seconds after which an error that goes on is logged again."""
MOST_SAID: Final = 100
"""Different errors that are remembered as logged."""
# librdkafka's own codes, by their numbers: the client shows them as private names.
PARTITION_EOF: Final = -191
UNKNOWN_TOPIC: Final = -188
UNKNOWN_PARTITION: Final = -190
AUTO_OFFSET_RESET: Final = -140
FATAL: Final = -150
ALL_BROKERS_DOWN: Final = -187

TOPIC_GONE: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC, UNKNOWN_PARTITION}
)


class FatalConsumerError(StreamLoopError):
    """librdkafka gave the Consumer up: a fenced group.instance.id, a group protocol that nobody offers."""


class ClientEvents:
    """Takes librdkafka's events for one poller, named ``name``. ``emit`` adds an event for the engine."""

    def __init__(
        self,
        slots: Slots,
        starts: Starts,
        *,
        name: str,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._slots = slots
        self._starts = starts
        self._name = name
        self._emit = emit
        self._clock = clock
        self._said: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        """Errors by librdkafka's name."""
        self.detail = ""
        """What keeps the Consumer from working, in words."""
        self.fatal: FatalConsumerError | None = None
        """What it can't work on after."""
        self.unsupported = False
        """The broker has no group.protocol=consumer."""

    def take(self, message: Any) -> None:
        """An event of librdkafka's among the messages."""
        error = message.error()
        code = error.code()
        if code == PARTITION_EOF:
            self._end_of_partition(message)
            return
        self.counts[error.name()] += 1
        if code in (FATAL, KafkaError.FENCED_INSTANCE_ID) or error.fatal():
            self._take_fatal(error)
        elif code in (AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._starts.broke(TopicPartition(message.topic(), message.partition()))
        elif code in TOPIC_GONE:
            self._topic_gone(message.topic(), error.str())
        elif code == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            self.detail = (
                "the group's members use another assignment strategy, so this one gets nothing: set their "
                "partition.assignment.strategy to cooperative-sticky, or use group_protocol=consumer"
            )
            self.say("inconsistent", logging.WARNING, self.detail, kind="inconsistent_group_protocol")
        else:
            self.say(error.name(), logging.WARNING, error.str(), kind="consumer_error")

    def _end_of_partition(self, message: Any) -> None:
        slots = self._slots
        slot = slots.by_name.get(TopicPartition(message.topic(), message.partition()))
        if slot is None or not slot.open or slot.unresolved is not None or not slot.moved:
            return
        offset = message.offset()
        if slot.born == slots.call and offset != slot.position:
            # It may be from before the epoch, and would pass over what lies between: have it said again.
            slot.moved = False
            slots.unsettled = True
            return
        slot.position = max(slot.position, offset)
        self._emit(EndOfPartition(slot.name, slot.epoch, offset))

    def _topic_gone(self, topic: str | None, text: str) -> None:
        if topic is None:
            return
        detail = f"topic {topic}: {text}; it is waited for"
        self.say(f"gone {topic}", logging.WARNING, detail, kind="topic_missing")
        self._starts.gone(topic, detail)

    def _take_fatal(self, error: Any) -> None:
        text = error.str()
        if "ConsumerGroupHeartbeat" in text and "not supported" in text:
            self.unsupported = True
        advice = ""
        if self.unsupported:
            advice = " (the broker has no group.protocol=consumer: set group_protocol to auto or classic)"
        elif "instance" in text:
            advice = " (each member needs a group.instance.id of its own)"
        self.fatal = self.fatal or FatalConsumerError(f"Consumer {self._name}: {text}{advice}")

    def client_error(self, error: Any) -> None:
        """librdkafka's error callback, inside a call of ours: most of it cures itself."""
        self.counts[error.name()] += 1
        if error.fatal():
            return  # it comes among the messages too
        if error.code() == ALL_BROKERS_DOWN:
            self.say("down", logging.WARNING, f"no broker can be reached: {error.str()}", kind="brokers_down")
        else:
            self.say(error.name(), logging.INFO, error.str(), kind="client_error")

    def say(self, key: str, level: int, text: str, *, kind: str) -> None:
        """Log it, unless it was logged within the last minute."""
        now = self._clock()
        if now - self._said.get(key, -SAY_AGAIN) >= SAY_AGAIN:
            if len(self._said) > MOST_SAID:
                self._said.clear()
            self._said[key] = now
            log.log(level, "%s: %s", self._name, text, extra={"kind": kind})
