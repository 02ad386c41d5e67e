"""Finds where partitions start, and where they go on when the broker does not have their position.

What it is for: from a partition that came (or broke) to the number that it starts at, without blocking the
poller: what is not known is asked for, on another thread, until it is. It must never guess, and never let a
partition start before its number is known. Called by the poller's thread alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from confluent_kafka import KafkaException

from streamloop.engine.events import Assigned, Reason, TopicPartition
from streamloop.engine.metadata import Identity, is_of_recreated
from streamloop.kafka.positions import Move, Need, Unresolved, Wait, out_of_range
from streamloop.kafka.slots import listed
from streamloop.kafka.topics import UNKNOWN_ID, Untold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from streamloop.engine.events import Event
    from streamloop.kafka.positions import PositionLookup, Question, StartPolicy
    from streamloop.kafka.slots import Slot, Slots

__all__ = ["Starts", "differs"]

log = logging.getLogger("streamloop.poller")

COMMITTED_TIMEOUT: Final = 5.0
"""Seconds that committed() gets in the callback."""
COMMITTED_AGAIN: Final = 0.25
"""Seconds that it gets outside of it the first time; then twice as many, up to 2, for slow links."""
COMMITTED_AGAIN_LONGEST: Final = 2.0
IDENTITY_WAIT: Final = 2.0
"""Seconds that the callback waits for the ids of topics."""
IDENTITY_PATIENCE: Final = 30.0
"""Seconds after which an id that nobody tells is 'unknown'."""


@dataclass(slots=True)
class _Asked:
    """The one question that is out, and whom it is about."""

    question: Question
    kind: Need
    start: Literal["earliest", "latest"] | int
    slots: list[Slot]


class Starts:
    """The starts of one Consumer's partitions.

    ``intake``: the Consumer's number. ``policy`` says where a topic's partitions start. ``jitter``: a factor
    around 1 for waits. ``emit`` adds an event to the next delivery.
    """

    def __init__(
        self,
        slots: Slots,
        *,
        intake: int,
        name: str,
        lookup: PositionLookup,
        policy: Callable[[str], StartPolicy],
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        jitter: Callable[[], float],
        group: str = UNKNOWN_ID,
    ) -> None:
        self._slots = slots
        self._intake = intake
        self._name = name
        self._lookup = lookup
        self._policy = policy
        self._emit = emit
        self._clock = clock
        self._jitter = jitter
        self._group = group
        self._asked: _Asked | None = None
        self._seen: set[str] = set()
        """Topics of which something was assigned before."""
        self._undecided: dict[TopicPartition, int | None] = {}
        """Partitions of a first assignment whose start is not committed yet, and what it was found to be."""
        self._had: dict[TopicPartition, str] = {}
        """The topic id under which this process last had the partition."""
        self._gone: dict[str, Wait] = {}
        """Topics that do not exist while their partitions are ours, and when to look for them again."""
        self.out_of_range: Counter[str] = Counter()
        """Decisions about positions that the broker did not have."""

    # ------------------------------------------------------------------------------------------ new epochs

    def open_epoch(self, name: TopicPartition) -> Slot:
        """A partition came: open its epoch, to find its start."""
        if name.topic not in self._seen:
            self._undecided.setdefault(name, None)
        later = name.topic in self._seen and name not in self._undecided
        return self._slots.open_epoch(
            name, Unresolved(Wait(self._jitter), self._clock(), self._policy(name.topic), later=later)
        )

    def look_up(self, consumer: Any, slots: Sequence[Slot]) -> None:
        """In the callback: find what can be found within its bounds."""
        topics = {slot.name.topic for slot in slots}
        question = self._lookup.identities(topics)
        self._take_committed(consumer, slots, COMMITTED_TIMEOUT)
        question.wait(IDENTITY_WAIT)
        self._take_identities(question, slots)
        self._seen |= topics

    def known_offset(self, slot: Slot) -> int | None:
        """The committed offset, if all is known to start there now."""
        return slot.unresolved.committed_start() if slot.unresolved is not None else None

    def begin_known(self, slots: Sequence[Slot]) -> None:
        """Tell the engine of these: their start is known, and the Consumer was assigned there."""
        for slot in slots:
            offset = self.known_offset(slot)
            if offset is not None:
                self._begin(slot, offset)

    def reset(self, topic: str, topic_id: str) -> None:
        """The topic is another one of the same name: end its epochs, and start its partitions anew."""
        slots = [slot for slot in self._slots.by_name.values() if slot.name.topic == topic and slot.open]
        self._restart([slot for slot in slots if slot.topic_id != topic_id])

    def _restart(self, slots: Sequence[Slot]) -> None:
        """End these epochs and open new ones, at the beginning of a topic that was recreated."""
        if not slots:
            return
        log.warning(
            "%s: topic %s was recreated: what was handled of the old one means nothing there, and %s start "
            "at its beginning",
            self._name,
            slots[0].name.topic,
            listed([slot.name for slot in slots]),
            extra={"kind": "topic_recreated", "topic": slots[0].name.topic},
        )
        self._slots.close(slots, lost=True)
        for slot in slots:
            new = self.open_epoch(slot.name)
            assert new.unresolved is not None
            new.unresolved.anew = True
            new.placed, new.paused = slot.placed, slot.paused

    # --------------------------------------------------------------------------------------------- answers

    def _take_committed(self, consumer: Any, slots: Sequence[Slot], timeout: float) -> None:
        if not slots:
            return
        now = self._clock()
        try:
            answers = consumer.committed([slot.ref for slot in slots], timeout=timeout)
        except KafkaException as error:
            for slot in slots:
                self._ask_again(slot, now, str(error.args[0]))
            return
        by_name = {TopicPartition(each.topic, each.partition): each for each in answers}
        for slot in slots:
            unresolved, answer = slot.unresolved, by_name.get(slot.name)
            assert unresolved is not None
            if answer is None or answer.error is not None:
                self._ask_again(slot, now, str(answer.error) if answer is not None else "no answer")
                continue
            unresolved.has_committed = True
            unresolved.wait.worked()
            if answer.offset >= 0:
                unresolved.committed = answer.offset
                unresolved.metadata = answer.metadata or ""
                self._compare(slot, unresolved)

    def _take_identities(self, question: Question, slots: Iterable[Slot]) -> None:
        now = self._clock()
        answer = question.identities()
        for slot in slots:
            unresolved, topic = slot.unresolved, slot.name.topic
            assert unresolved is not None
            told = Untold("no answer in time") if answer is None else answer.topics.get(topic)
            if told is None or isinstance(told, Untold):
                patient = now - unresolved.since < IDENTITY_PATIENCE
                if told is None or answer is None or patient:
                    reason = f"topic {topic} does not exist" if told is None else told.reason
                    self._ask_again(slot, now, reason)
                    continue
                told = UNKNOWN_ID
            assert answer is not None
            unresolved.wait.worked()
            unresolved.topic_id = told
            unresolved.cluster_id = answer.cluster_id
            if differs(self._had.get(slot.name, UNKNOWN_ID), told):
                unresolved.anew = True
            self._compare(slot, unresolved)

    def _compare(self, slot: Slot, unresolved: Unresolved) -> None:
        """Once both are known: a commit of an earlier topic of this name says nothing about this one."""
        if unresolved.anew or unresolved.committed is None or unresolved.topic_id is None:
            return
        identity = Identity(unresolved.cluster_id, unresolved.topic_id, self._group)
        if is_of_recreated(unresolved.metadata, identity, unresolved.committed):
            unresolved.anew = True
            log.warning(
                "%s: the committed offset %d of %s/%s was committed for an earlier topic of that name: "
                "this one starts at its beginning",
                self._name,
                unresolved.committed,
                slot.name.topic,
                slot.name.partition,
                extra={"kind": "topic_recreated", "topic": slot.name.topic, "partition": slot.name.partition},
            )

    def _ask_again(self, slot: Slot, now: float, reason: str) -> None:
        unresolved = slot.unresolved
        assert unresolved is not None
        unresolved.wait.failed(now)
        if not unresolved.said:
            unresolved.said = True
            log.warning(
                "%s: %s/%s is held until its start is known (%s); trying again",
                self._name,
                slot.name.topic,
                slot.name.partition,
                reason,
                extra={"kind": "assigning", "topic": slot.name.topic, "partition": slot.name.partition},
            )

    def _begin(self, slot: Slot, offset: int) -> None:
        """The start is known and the Consumer is there: tell the engine."""
        unresolved = slot.unresolved
        assert unresolved is not None
        assert unresolved.topic_id is not None
        committed = unresolved.committed is not None and not unresolved.anew and unresolved.out_at is None
        slot.unresolved = None
        slot.position = offset
        slot.topic_id = unresolved.topic_id
        slot.open = True
        if slot.topic_id != UNKNOWN_ID:
            self._had[slot.name] = slot.topic_id
        if committed:
            self._undecided.pop(slot.name, None)
        else:
            # Nothing is handled before the number is committed: after a crash it must not be found anew.
            slot.own |= {Reason.ASSIGNING}
            self._undecided[slot.name] = offset
        self._emit(
            Assigned(
                self._intake,
                slot.name,
                slot.epoch,
                offset,
                committed,
                unresolved.metadata if committed else "",
                unresolved.cluster_id,
                slot.topic_id,
            )
        )
        self._slots.tell_holds(slot)
        self._slots.unsettled = True

    def confirmed(self, name: TopicPartition, epoch: int) -> None:
        """The broker has a position of this epoch."""
        slot = self._slots.find(name, epoch)
        if slot is not None and Reason.ASSIGNING in slot.own and slot.unresolved is None:
            slot.own -= {Reason.ASSIGNING}
            self._undecided.pop(name, None)
            self._slots.unsettled = True

    def resolve(self, consumer: Any) -> None:
        """Take what was answered and ask what is due; never waits longer than one committed() does."""
        now = self._clock()
        asked = self._asked
        if asked is not None:
            if not asked.question.done:
                return
            self._asked = None
            self._take_answer(asked, now)
        waiting = [
            s
            for s in self._slots.by_name.values()
            if s.unresolved is not None and s.unresolved.wait.until <= now
        ]
        if waiting:
            self._advance(consumer, waiting)
        if self._asked is None:
            self._ask_for_gone(now)

    def _take_answer(self, asked: _Asked, now: float) -> None:
        slots = [s for s in asked.slots if self._slots.by_name.get(s.name) is s and s.unresolved is not None]
        if asked.kind is Need.IDENTITY:
            self._take_identities(asked.question, slots)
            self._look_for_gone(asked.question, now)
            return
        answer = asked.question.offsets()
        for slot in slots:
            unresolved = slot.unresolved
            assert unresolved is not None
            found = answer.found.get(slot.name) if answer is not None else None
            if isinstance(found, int) and found >= 0:
                unresolved.offsets[asked.start] = found
                unresolved.wait.worked()
            else:
                self._ask_again(slot, now, found.reason if isinstance(found, Untold) else "no answer")

    def _advance(self, consumer: Any, waiting: Sequence[Slot]) -> None:
        asks: dict[tuple[Need, Any], list[Slot]] = {}
        for slot in waiting:
            assert slot.unresolved is not None
            asks.setdefault(slot.unresolved.need(slot.name), []).append(slot)
        for (need, start), slots in asks.items():
            if need is Need.NOTHING:
                for slot in slots:
                    self._decide(consumer, slot)
            elif need is Need.COMMITTED:
                failures = max(s.unresolved.wait.failures for s in slots if s.unresolved is not None)
                timeout = min(COMMITTED_AGAIN_LONGEST, COMMITTED_AGAIN * 2 ** min(failures, 10))
                self._take_committed(consumer, slots, timeout)
            elif self._asked is None:
                if need is Need.IDENTITY:
                    question = self._lookup.identities({s.name.topic for s in slots} | self._gone.keys())
                else:
                    question = self._lookup.offsets([s.name for s in slots], start)
                self._asked = _Asked(question, need, start, slots)

    def _decide(self, consumer: Any, slot: Slot) -> None:
        """All is known: put the Consumer there, and say so."""
        unresolved = slot.unresolved
        assert unresolved is not None
        if unresolved.out_at is not None:
            self._decide_out_of_range(consumer, slot, unresolved)
            return
        if unresolved.committed is not None and not unresolved.anew:
            offset = unresolved.committed
        else:
            earlier = None if unresolved.anew else self._undecided.get(slot.name)
            start = unresolved.start(slot.name)
            offset = unresolved.offsets[start] if earlier is None else earlier
            log.info(
                "%s: %s/%s starts at %d (%s)",
                self._name,
                slot.name.topic,
                slot.name.partition,
                offset,
                start,
                extra={"kind": "start", "topic": slot.name.topic, "partition": slot.name.partition},
            )
        if self._slots.place(consumer, slot, offset):
            self._begin(slot, offset)
        else:
            unresolved.wait.failed(self._clock())

    # ---------------------------------------------------------------------------------------- out of range

    def broke(self, name: TopicPartition) -> None:
        """The broker does not have the position of this partition: find out what it has."""
        slot = self._slots.by_name.get(name)
        if slot is None or slot.unresolved is not None:
            return
        slot.unresolved = Unresolved(
            Wait(self._jitter), self._clock(), self._policy(name.topic), out_at=slot.position
        )
        self._slots.unsettled = True

    def _decide_out_of_range(self, consumer: Any, slot: Slot, unresolved: Unresolved) -> None:
        if unresolved.anew:
            assert unresolved.topic_id is not None
            self.reset(slot.name.topic, unresolved.topic_id)
            return
        oldest, end = unresolved.offsets["earliest"], unresolved.offsets["latest"]
        decision = out_of_range(slot.name, slot.position, oldest, end, unresolved.policy)
        if not self._slots.place(consumer, slot, decision.offset):
            unresolved.wait.failed(self._clock())
            return
        if decision.move is Move.STAY:
            slot.unresolved = None
            self._slots.unsettled = True
            return
        self.out_of_range[decision.move.value] += 1
        log.warning(
            "%s: the position %d of %s/%s is not in its log, which has %d to %d: going on at %d "
            "(out_of_range=%s), %d offsets %s",
            self._name,
            slot.position,
            slot.name.topic,
            slot.name.partition,
            oldest,
            end,
            decision.offset,
            unresolved.policy.out_of_range,
            abs(decision.offset - slot.position),
            "are skipped" if decision.offset > slot.position else "come again",
            extra={
                "kind": "out_of_range",
                "topic": slot.name.topic,
                "partition": slot.name.partition,
                "from": slot.position,
                "to": decision.offset,
            },
        )
        if decision.move is Move.SKIP_AHEAD:
            slot.unresolved = None
            slot.position = decision.offset
            self._slots.unsettled = True
            return
        self._slots.close([slot], lost=True)
        new = self._slots.open_epoch(slot.name, unresolved)
        new.placed, new.paused = slot.placed, slot.paused
        self._begin(new, decision.offset)

    # ----------------------------------------------------------------------------------------- topics gone

    def gone(self, topic: str, detail: str) -> None:
        """The topic does not exist: hold its partitions and look for it now and then."""
        slots = [slot for slot in self._slots.by_name.values() if slot.name.topic == topic]
        if slots and topic not in self._gone:
            log.warning("%s: %s", self._name, detail, extra={"kind": "topic_gone", "topic": topic})
            wait = Wait(self._jitter)
            wait.failed(self._clock())
            self._gone[topic] = wait
        for slot in slots:
            self._slots.hold(slot, Reason.TOPIC_GONE, detail)

    def _ask_for_gone(self, now: float) -> None:
        present = {slot.name.topic for slot in self._slots.by_name.values()}
        for topic in [topic for topic in self._gone if topic not in present]:
            del self._gone[topic]
        due = {topic for topic, wait in self._gone.items() if wait.until <= now}
        if due:
            self._asked = _Asked(self._lookup.identities(due), Need.IDENTITY, "earliest", [])

    def _look_for_gone(self, question: Question, now: float) -> None:
        answer = question.identities()
        for topic, wait in list(self._gone.items()):
            told = answer.topics.get(topic) if answer is not None else None
            if not isinstance(told, str):
                wait.failed(now)
                continue
            del self._gone[topic]
            slots = [slot for slot in self._slots.by_name.values() if slot.name.topic == topic]
            self._restart([slot for slot in slots if slot.open and differs(slot.topic_id, told)])
            for slot in [slot for slot in slots if self._slots.by_name.get(slot.name) is slot]:
                self._slots.release(slot, Reason.TOPIC_GONE)
                slot.moved = slot.unresolved is not None  # its fetcher may have stopped: put it there again


def differs(known: str, told: str | Untold | None) -> bool:
    """Both ids are known, and they are not the same."""
    return isinstance(told, str) and UNKNOWN_ID not in (known, told) and known != told
