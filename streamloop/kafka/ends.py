"""Where the assigned partitions end, for their lag: what librdkafka has learned from its fetches, and asking.

What it is for: each fetch's answer bears the partition's end, so that it costs nothing to know as long as a
partition flows. A partition that is held is not fetched, and just then its lag matters: its end is asked for
on another thread every few seconds. It must never wait for a broker, and never guess: what is not known is
left out. Called by the poller's thread; ``known`` is replaced whole and may be read by any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamloop.engine.events import TopicPartition
    from streamloop.kafka.positions import PositionLookup, Question
    from streamloop.kafka.slots import Slots

__all__ = ["End", "Ends"]

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what librdkafka knows."""
ASK_EVERY: Final = 5.0
"""Seconds between two questions about partitions that are not fetched."""


class End(NamedTuple):
    """What is known of one partition.

    ``offset``: the offset after its last message. ``behind_since``: since when the Consumer stands at
    ``position``, before that end (the poller's clock), or None. ``stamp``: the timestamp of the last message
    that was taken (epoch ms), or None.
    """

    epoch: int
    offset: int
    position: int
    behind_since: float | None
    stamp: int | None


class Ends:
    """The ends of one Consumer's partitions. ``stamps``: timestamps of the last messages taken."""

    def __init__(
        self, slots: Slots, stamps: Mapping[TopicPartition, int], *, clock: Callable[[], float]
    ) -> None:
        self.known: dict[TopicPartition, End] = {}
        """A snapshot, replaced whole."""
        self.lookup: PositionLookup | None = None
        """Who is asked about partitions that are not fetched; None: nobody."""
        self._slots = slots
        self._stamps = stamps
        self._clock = clock
        self._next_look = 0.0
        self._next_ask = 0.0
        self._question: Question | None = None
        self._asked_of: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, tuple[int, int]] = {}
        """By partition: the epoch of the question, and the end that was answered."""

    def look(self, consumer: Any, now: float) -> None:
        """Take what is known now; at most once a second. Never waits."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY
        self._take_answer()
        known: dict[TopicPartition, End] = {}
        silent: dict[TopicPartition, int] = {}
        for name, slot in self._slots.by_name.items():
            if not slot.open or slot.unresolved is not None:
                continue
            try:
                end = consumer.get_watermark_offsets(slot.ref, cached=True)[1]
            except KafkaException:
                end = -1
            epoch, told = self._told.get(name, (slot.epoch, -1))
            if slot.paused or end < 0:
                silent[name] = slot.epoch
            if epoch == slot.epoch:
                end = max(end, told)
            if end < 0:
                continue
            end = max(end, slot.position)
            known[name] = End(
                slot.epoch,
                end,
                slot.position,
                self._behind(name, slot.epoch, slot.position, end, now),
                self._stamps.get(name),
            )
        self.known = known
        if silent:
            self._ask(silent, now)

    def _behind(self, name: TopicPartition, epoch: int, position: int, end: int, now: float) -> float | None:
        if end <= position:
            return None
        before = self.known.get(name)
        if before is not None and before.epoch == epoch and before.position == position:
            return before.behind_since if before.behind_since is not None else now
        return now

    def _ask(self, silent: dict[TopicPartition, int], now: float) -> None:
        if self.lookup is None or self._question is not None or now < self._next_ask:
            return
        self._next_ask = now + ASK_EVERY
        self._asked_of = silent
        self._question = self.lookup.offsets(silent, "latest")

    def _take_answer(self) -> None:
        question = self._question
        if question is None or not question.done:
            return
        self._question = None
        answer = question.offsets()
        self._told = {
            name: (self._asked_of[name], found)
            for name, found in (answer.found if answer is not None else {}).items()
            if isinstance(found, int) and found >= 0
        }
