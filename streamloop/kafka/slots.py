"""The partitions that one Consumer has: their epochs, what holds them, and where the Consumer stands.

What it is for: one :class:`Slot` for each assignment of a partition, and making the Consumer's pauses and
positions what they should be. It must never wait for the brokers, and never take the client's word for what
is paused. Called by the poller's thread alone, also inside a rebalance callback.

Epochs: each assignment of a partition gets a number that is never used again. It is open from the Assigned
event to the Closed one; a message without an open epoch is dropped, a commit of another epoch is not sent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaException

from streamloop.engine.events import Closed, HoldChanged, Reason, Sought, TopicPartition
from streamloop.kafka.topics import UNKNOWN_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamloop.engine.events import Event
    from streamloop.kafka.commits import CommitBook
    from streamloop.kafka.positions import Unresolved

__all__ = ["Slot", "Slots", "listed"]

log = logging.getLogger("streamloop.poller")

LAST_FETCH: Final = 1.0
"""Seconds after which a fetch that was sent before a pause is answered (fetch.wait.max.ms is 500)."""
WAKE_UP_TIMEOUT: Final = 1.0
"""Seconds; the answer takes one round trip. A shorter one would end the connection on a slow link."""


@dataclass(slots=True)
class Slot:
    """One assignment of one partition."""

    name: TopicPartition
    epoch: int
    position: int = -1
    """The next offset that is expected."""
    open: bool = False
    """The engine knows of it: what is fetched may be delivered."""
    born: int = 0
    """Number of the Consumer call in which the epoch began."""
    topic_id: str = UNKNOWN_ID
    unresolved: Unresolved | None = None
    reasons: frozenset[Reason] = frozenset()
    """The engine's reasons to hold it."""
    own: frozenset[Reason] = frozenset()
    """The poller's."""
    placed: bool = False
    """The Consumer has it assigned."""
    fresh: bool = False
    """It was just assigned: its fetcher certainly runs."""
    paused: bool | None = None
    """Whether the Consumer has it paused; None: not known."""
    moved: bool = True
    """The Consumer is where ``position`` says; False: a move failed and is tried again."""
    token: int = 0
    """Of the engine's seek that is under way; 0: none."""
    quiet: bool = False
    """It is leaving, and nothing of it runs any more."""

    @property
    def held(self) -> bool:
        return bool(self.reasons or self.own or self.unresolved is not None or not self.moved)

    def at(self, offset: int) -> confluent_kafka.TopicPartition:
        return confluent_kafka.TopicPartition(self.name.topic, self.name.partition, offset)

    @property
    def ref(self) -> confluent_kafka.TopicPartition:
        return confluent_kafka.TopicPartition(self.name.topic, self.name.partition)


class Slots:
    """The assigned partitions of one Consumer, by name. ``emit`` adds an event to the next delivery."""

    def __init__(
        self,
        name: str,
        emit: Callable[[Event], None],
        commits: CommitBook,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._emit = emit
        self._commits = commits
        self._clock = clock
        self._epochs = count(1)
        self._asleep_since: float | None = None
        """Since when everything that the Consumer has is paused."""
        self.by_name: dict[TopicPartition, Slot] = {}
        self.hold_all: dict[Reason, str] = {}
        """Reasons that hold every partition, and what there is to say about them."""
        self.stopped = False
        """Nothing is fetched any more, or not now: all are paused, for no reason that anybody is told."""
        self.unsettled = False
        """The Consumer's pauses may not be what they should be."""
        self.call = 0
        """Number of the Consumer's call that runs, or ran last."""
        self.pauses = 0
        self.resumes = 0

    # ---------------------------------------------------------------------------------------------- epochs

    def open_epoch(self, name: TopicPartition, unresolved: Unresolved) -> Slot:
        """A partition came; its start is not known yet."""
        slot = Slot(name, next(self._epochs), born=self.call, unresolved=unresolved)
        self.by_name[name] = slot
        self.unsettled = True
        return slot

    def close(self, slots: Sequence[Slot], *, lost: bool) -> None:
        """End these epochs."""
        slots = [slot for slot in slots if self.by_name.get(slot.name) is slot]
        for slot in slots:
            del self.by_name[slot.name]
        self._commits.forget({slot.name: slot.epoch for slot in slots})
        known = [(slot.name, slot.epoch) for slot in slots if slot.open]
        if known:
            self._emit(Closed(known, lost))
        for slot in slots:
            slot.open = False

    def close_all(self) -> None:
        """The Consumer is gone: end what is still open."""
        self.close(list(self.by_name.values()), lost=True)

    def epochs(self) -> dict[TopicPartition, int]:
        """The epochs that are open now."""
        return {name: slot.epoch for name, slot in self.by_name.items() if slot.open}

    def find(self, name: TopicPartition, epoch: int) -> Slot | None:
        """The open slot of this epoch, if it is still the partition's."""
        slot = self.by_name.get(name)
        return slot if slot is not None and slot.epoch == epoch and slot.open else None

    # ---------------------------------------------------------------------------------- holding and moving

    def hold(self, slot: Slot, reason: Reason, detail: str) -> None:
        """Add a reason of the poller's own, and tell the engine."""
        if reason not in slot.own:
            slot.own |= {reason}
            self.unsettled = True
            if slot.open:
                self._emit(HoldChanged(slot.name, slot.epoch, reason, held=True, detail=detail))

    def release(self, slot: Slot, reason: Reason) -> None:
        """End a reason of the poller's own, and tell the engine."""
        if reason in slot.own:
            slot.own -= {reason}
            self.unsettled = True
            if slot.open:
                self._emit(HoldChanged(slot.name, slot.epoch, reason, held=False))

    def hold_every(self, reason: Reason, detail: str) -> None:
        """Hold every partition, those that come later too."""
        if reason not in self.hold_all:
            self.hold_all[reason] = detail
            self._tell_every(reason, detail, held=True)

    def release_every(self, reason: Reason) -> None:
        """End a reason that holds every partition."""
        if self.hold_all.pop(reason, None) is not None:
            self._tell_every(reason, "", held=False)

    def _tell_every(self, reason: Reason, detail: str, *, held: bool) -> None:
        self.unsettled = True
        for slot in self.by_name.values():
            if slot.open:
                self._emit(HoldChanged(slot.name, slot.epoch, reason, held, detail))

    def tell_holds(self, slot: Slot) -> None:
        """Tell the engine of what holds every partition, for one that it has just learned of."""
        for reason, detail in self.hold_all.items():
            self._emit(HoldChanged(slot.name, slot.epoch, reason, held=True, detail=detail))

    def seek(self, consumer: Any, slot: Slot, offset: int, token: int) -> None:
        """Go on from ``offset``, and tell the engine once that is so; what was prefetched is thrown away."""
        slot.position = offset
        slot.token = token
        self._move(consumer, slot)

    def _move(self, consumer: Any, slot: Slot) -> None:
        slot.moved = self.place(consumer, slot, slot.position)
        self.unsettled = True
        if slot.moved and slot.token:
            self._emit(Sought(slot.name, slot.epoch, slot.token))
            slot.token = 0

    def settle(self, consumer: Any) -> None:
        """Make the Consumer's pauses, and the moves that failed, what they should be."""
        placed = [slot for slot in self.by_name.values() if slot.placed]
        for slot in placed:
            if not slot.moved and slot.unresolved is None:
                self._move(consumer, slot)
        everything = self.stopped or bool(self.hold_all)
        pause = [s for s in placed if s.paused is not True and (everything or s.held)]
        resume = [s for s in placed if s.paused is not False and not (everything or s.held)]
        for slot in resume:
            # A pause (ours, or librdkafka's own in a rebalance) may have thrown an error away that stopped
            # the fetcher, and then nothing would ever come: a seek tells, and starts it again.
            if not slot.fresh:
                self._move(consumer, slot)
        try:
            if pause:
                consumer.pause([slot.ref for slot in pause])
            if resume:
                consumer.resume([slot.ref for slot in resume])
        except KafkaException:
            log.debug("%s: could not pause or resume; trying again", self._name, exc_info=True)
            self.unsettled = True
            return
        for slot in placed:
            slot.fresh = False
            slot.paused = everything or slot.held
        self.pauses += len(pause)
        self.resumes += len(resume)
        self.unsettled = any(not slot.moved for slot in placed)
        self._wake_up(consumer, placed, resume)

    def _wake_up(self, consumer: Any, placed: Sequence[Slot], resumed: Sequence[Slot]) -> None:
        """Wake librdkafka's threads: with all paused they sleep for up to a second, and a resume does not
        wake them. Any request to the partitions' leaders does. Not before the last fetch has certainly been
        answered: the broker would answer this one after it.
        """
        now = self._clock()
        since = self._asleep_since
        asleep = all(slot.paused for slot in placed)
        self._asleep_since = None if not asleep else now if since is None else since
        if not resumed or since is None or now - since < LAST_FETCH:
            return
        try:
            consumer.offsets_for_times([slot.at(0) for slot in resumed], timeout=WAKE_UP_TIMEOUT)
        except KafkaException:
            log.debug("%s: woken without an answer", self._name, exc_info=True)

    def place(self, consumer: Any, slot: Slot, offset: int) -> bool:
        """Have the Consumer go on from ``offset``. False: it can't be told now (a rebalance is under way)."""
        at = slot.at(offset)
        if slot.placed:
            try:
                consumer.seek(at)
                return True
            except KafkaException:
                pass  # its fetcher does not run: after an out-of-range error only an assignment starts it
            try:
                consumer.incremental_unassign([slot.ref])
            except KafkaException:
                log.debug("%s: %s was not assigned", self._name, at, exc_info=True)
            slot.placed = False
        try:
            consumer.incremental_assign([at])
        except KafkaException:
            log.debug("%s: could not assign %s", self._name, at, exc_info=True)
            return False
        slot.placed = slot.fresh = True
        slot.paused = None
        self.unsettled = True
        return True


def listed(names: Sequence[TopicPartition], most: int = 10) -> str:
    """For logs: the first names, and how many more there are."""
    shown = ", ".join(f"{topic}/{partition}" for topic, partition in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
