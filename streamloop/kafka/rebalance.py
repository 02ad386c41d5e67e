"""The three callbacks of a rebalance: partitions come, are about to leave, or have left already.

What it is for: epochs are opened and ended here, at the moment at which librdkafka says so, on the poller's
thread inside poll(), consume() or close(). A callback must never raise: librdkafka would assign the partition
all the same and not call again. None waits without a bound, and no commit is ever synchronous: with the
broker gone that took 45 s.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from confluent_kafka import KafkaException

from streamloop.engine.events import Revoking, TopicPartition
from streamloop.kafka.slots import listed
from streamloop.kafka.starts import differs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import confluent_kafka

    from streamloop.engine.events import Event
    from streamloop.kafka.commits import CommitBook
    from streamloop.kafka.positions import PositionLookup, Question
    from streamloop.kafka.slots import Slot, Slots
    from streamloop.kafka.starts import Starts

__all__ = ["Rebalance", "Shell"]

log = logging.getLogger("streamloop.poller")

PARTING_IDENTITY_WAIT: Final = 0.5
"""Seconds that the revoke callback waits to learn whether a topic was recreated, when it has something to
commit: on a recreated topic the old position would be taken for one of the new log."""
STATE: Final = -172
"""librdkafka's 'erroneous state': of an incremental call, that the group rebalances eagerly."""


class Shell(Protocol):
    """What the poller does for its assignment."""

    def emit(self, event: Event) -> None:
        """Add an event to the next delivery."""

    def flush(self) -> None:
        """Deliver what was added."""

    def serve(self, timeout: float) -> None:
        """Carry out commands; wait for some, at most so many seconds, when there are none."""

    def engine_silent(self) -> bool:
        """Whether the engine's event loop does not turn."""

    def send_parting(self, leaving: dict[TopicPartition, int], recreated: frozenset[str]) -> None:
        """Commit the newest positions of partitions that leave."""

    def touch(self) -> None:
        """A callback runs: this thread is alive."""


class Rebalance:
    """The callbacks of one Consumer. ``revoke_wait``: seconds that leaving partitions get to become quiet."""

    def __init__(
        self,
        shell: Shell,
        slots: Slots,
        starts: Starts,
        *,
        name: str,
        lookup: PositionLookup,
        commits: CommitBook,
        revoke_wait: float,
        clock: Callable[[], float],
    ) -> None:
        self._shell = shell
        self._slots = slots
        self._starts = starts
        self._name = name
        self._lookup = lookup
        self._commits = commits
        self._revoke_wait = revoke_wait
        self._clock = clock
        self.ever = False
        """A callback has run: the group's protocol is settled."""
        self.assigned = False
        """The group has given this member an assignment, if only an empty one, since the last loss."""
        self.failure: BaseException | None = None
        """What a callback could not do; the poller raises it once the Consumer's call has returned."""
        self.counts: Counter[str] = Counter({"assigned": 0, "revoked": 0, "lost": 0})

    def on_assign(self, consumer: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        """Partitions came."""
        self._guarded(self._assign, consumer, partitions)

    def on_revoke(self, consumer: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        """Partitions are about to leave."""
        self._guarded(self._revoke, consumer, partitions)

    def on_lost(self, consumer: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        """Partitions have left already: others may have them."""
        self._guarded(self._lost, consumer, partitions)

    def _guarded(
        self,
        act: Callable[[Any, Sequence[confluent_kafka.TopicPartition]], None],
        consumer: Any,
        partitions: Sequence[confluent_kafka.TopicPartition],
    ) -> None:
        self._shell.touch()
        self.ever = True
        try:
            act(consumer, partitions)
        except BaseException as error:  # noqa: BLE001 - the poller raises it once the call has returned
            self.failure = self.failure or error
        self._shell.flush()
        self._shell.touch()

    def _assign(self, consumer: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        self.counts["assigned"] += 1
        names = [TopicPartition(each.topic, each.partition) for each in partitions]
        self._slots.close(
            [self._slots.by_name[name] for name in names if name in self._slots.by_name], lost=True
        )
        slots = [self._starts.open_epoch(name) for name in names]
        log.info(
            "%s: assigned %s",
            self._name,
            listed(names) or "nothing",
            extra={"kind": "assigned", "partitions": [f"{t}/{p}" for t, p in names]},
        )
        if slots:
            self._starts.look_up(consumer, slots)
        # One whose start is not known yet is not given to the Consumer: at a made-up position it could stop
        # without a word (out of range), and at a logical one the broker's late answer undoes a later seek.
        ready = [slot for slot in slots if self._starts.known_offset(slot) is not None]
        at = [slot.at(offset) for slot in ready if (offset := self._starts.known_offset(slot)) is not None]
        try:
            consumer.incremental_assign(at)
        except KafkaException as error:
            if error.args[0].code() != STATE:
                raise
            consumer.assign(at)
        # An application's pause survives revoke and assign on the same client: nothing is believed.
        for slot in self._slots.by_name.values():
            slot.paused = None
        for slot in ready:
            slot.placed = slot.fresh = True
        self._starts.begin_known(ready)
        self._slots.settle(consumer)
        self.assigned = True

    def _revoke(self, consumer: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        self.counts["revoked"] += 1
        names = [TopicPartition(each.topic, each.partition) for each in partitions]
        leaving = [self._slots.by_name[name] for name in names if name in self._slots.by_name]
        log.info(
            "%s: revoked %s",
            self._name,
            listed(names) or "nothing",
            extra={"kind": "revoked", "partitions": [f"{t}/{p}" for t, p in names]},
        )
        known = [slot for slot in leaving if slot.open]
        if known:
            question = self._lookup.identities({slot.name.topic for slot in known})
            self._shell.emit(Revoking([(slot.name, slot.epoch) for slot in known]))
            self._shell.flush()
            self._await_quiet(known)
            epochs = {slot.name: slot.epoch for slot in known}
            if self._commits.has_parting(epochs):
                question.wait(PARTING_IDENTITY_WAIT)
            self._shell.send_parting(epochs, self._recreated(question, known))
        self._unassign(consumer, partitions)
        self._slots.close(leaving, lost=False)

    def _await_quiet(self, leaving: Sequence[Slot]) -> None:
        deadline = self._clock() + self._revoke_wait
        while not all(slot.quiet for slot in leaving):
            left = deadline - self._clock()
            if left <= 0:
                busy = [slot.name for slot in leaving if not slot.quiet]
                log.warning(
                    "%s: after %g s handlers of %s still run: their messages are handled again elsewhere",
                    self._name,
                    self._revoke_wait,
                    listed(busy),
                    extra={"kind": "revoke_wait_over"},
                )
                return
            if self._shell.engine_silent():
                return
            self._shell.serve(min(left, 0.05))
            self._shell.touch()

    def _recreated(self, question: Question, slots: Sequence[Slot]) -> frozenset[str]:
        answer = question.identities()
        if answer is None:
            return frozenset()
        return frozenset(
            slot.name.topic for slot in slots if differs(slot.topic_id, answer.topics.get(slot.name.topic))
        )

    def _lost(self, consumer: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        self.counts["lost"] += 1
        names = [TopicPartition(each.topic, each.partition) for each in partitions]
        log.warning(
            "%s: lost %s: the group went on without this member, and what it handled is handled again",
            self._name,
            listed(names) or "nothing",
            extra={"kind": "lost", "partitions": [f"{t}/{p}" for t, p in names]},
        )
        lost = [self._slots.by_name[name] for name in names if name in self._slots.by_name]
        self._unassign(consumer, partitions)
        self._slots.close(lost, lost=True)

    def _unassign(self, consumer: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        """Give the Consumer's partitions back; also when it has none of them: the group waits for that."""
        mine = []
        for each in partitions:
            slot = self._slots.by_name.get(TopicPartition(each.topic, each.partition))
            if slot is not None and slot.placed:
                mine.append(slot.ref)
        try:
            consumer.incremental_unassign(mine)
        except KafkaException as error:
            if error.args[0].code() != STATE:
                raise
            consumer.unassign()
