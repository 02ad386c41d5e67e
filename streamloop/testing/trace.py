"""What became of each message: its states in order, its attempts, and its outcome.

The engine and the runners work on records of the harness's own class, which note each change of their state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from streamloop.engine.record import Record
from streamloop.engine.retry import Kind
from streamloop.engine.states import State
from streamloop.kafka.headers import read_routing

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.engine.retry import Failure
    from streamloop.testing.broker import KafkaRecord, RecordView
    from streamloop.testing.clock import Clock

LEADER_EPOCH = 0


class Outcome(StrEnum):
    """What became of a message."""

    ACKED = "acked"
    SKIPPED = "skipped"
    DEAD_LETTERED = "dead_lettered"
    HALTED = "halted"
    """A fatal error: the loop stopped at it, and it is not acknowledged."""
    PENDING = "pending"
    """None of these yet: it waits, runs, is in a retry topic, or its partition has left."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of the handler. ``started`` in epoch seconds, ``duration`` in seconds (virtual time).

    ``failure`` is None when it returned.
    """

    number: int
    started: float
    duration: float
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """One message over all its deliveries. ``topic``, ``partition`` and ``offset`` are the original's.

    ``path``: the states that it went through. ``read_from``: the topic of each delivery.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    outcome: Outcome
    attempts: tuple[Attempt, ...]
    path: tuple[str, ...]
    read_from: tuple[str, ...]
    last_failure: Failure | None
    """Of its last attempt that failed, or of its decoding."""

    @property
    def error_class(self) -> str:
        """The last failure's qualified class name, or ''."""
        return "" if self.last_failure is None else self.last_failure.error_class


class TracedRecord(Record):
    """A record that notes what happens to it."""

    __slots__ = (
        "_failure",
        "_fresh",
        "_running",
        "_state",
        "attempts_made",
        "clock",
        "last_failure",
        "path",
        "read",
    )

    def __init__(self, read: KafkaRecord, size: int, message: RecordView, clock: Clock) -> None:
        self.clock = clock
        self.read = read
        self.path: list[State] = []
        self.attempts_made: list[Attempt] = []
        self.last_failure: Failure | None = None
        self._running: tuple[int, float] | None = None
        """Number and start of the attempt that runs."""
        self._failure: Failure | None = None
        self._fresh: Failure | None = None
        """A failure that belongs to no attempt yet."""
        super().__init__(read.offset, read.key, size, LEADER_EPOCH, message)

    @property
    def is_taken(self) -> bool:
        """The engine has not dropped it at once."""
        return hasattr(self, "part") or len(self.path) > 1

    @property
    def state(self) -> State:
        """Where it is."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        if state is State.PROCESSING:
            # What fails before its handler is called, and is tried again, is counted before it begins.
            number = self.attempt if self._fresh is None else self.attempt - 1
            self._running = (number, self.clock.wall())
        elif self._running is not None and state is not State.REVOKED:
            number, started = self._running
            self._running = None
            self.attempts_made.append(Attempt(number, started, self.clock.wall() - started, self._fresh))
            self._fresh = None
            if state is State.ACKED:  # the engine makes both steps at once
                self.path.append(State.SUCCEEDED)
        self._state = state
        self.path.append(state)

    @property
    def failure(self) -> Failure | None:
        """What the runner says of its last attempt; the engine takes it."""
        return self._failure

    @failure.setter
    def failure(self, failure: Failure | None) -> None:
        self._failure = failure
        if failure is not None:
            self._fresh = self.last_failure = failure


class Journal:
    """All records that were delivered, by the message that they are deliveries of."""

    def __init__(self, group: str, is_source: Callable[[str], bool]) -> None:
        self._group = group
        self._is_source = is_source
        self._deliveries: dict[tuple[str, int, int], list[TracedRecord]] = {}

    def received(self, record: TracedRecord) -> None:
        """A record was fetched."""
        read = record.read
        origin = (read.topic, read.partition, read.offset)
        if not self._is_source(read.topic):
            routing = read_routing(list(read.headers), group=self._group)
            if routing is not None:
                origin = (routing.original_topic, routing.original_partition, routing.original_offset)
        self._deliveries.setdefault(origin, []).append(record)

    def outcomes(self) -> list[MessageOutcome]:
        """One for each message, in the order in which they were first received."""
        return [_outcome(origin, records) for origin, records in self._deliveries.items()]


def _outcome(origin: tuple[str, int, int], deliveries: list[TracedRecord]) -> MessageOutcome:
    topic, partition, offset = origin
    # What is sought back to, or was fetched in an epoch that had ended, was never taken: it is read again.
    deliveries = [record for record in deliveries if record.is_taken] or deliveries[:1]
    last_failure: Failure | None = None
    outcome = Outcome.PENDING
    for record in deliveries:
        last_failure = record.last_failure or last_failure
        outcome = _outcome_of(record) or outcome
    return MessageOutcome(
        topic,
        partition,
        offset,
        deliveries[0].read.key,
        deliveries[0].read.value,
        outcome,
        tuple(attempt for record in deliveries for attempt in record.attempts_made),
        tuple(state.name for record in deliveries for state in record.path),
        tuple(record.read.topic for record in deliveries),
        last_failure,
    )


def _outcome_of(record: TracedRecord) -> Outcome | None:
    """What this delivery came to; None when it came to nothing final (or to a retry topic)."""
    if record.state is State.HALTED:
        return Outcome.HALTED
    if record.state is not State.ACKED:
        return None
    before = record.path[-2]
    if before is State.DEAD_LETTERED:
        return Outcome.DEAD_LETTERED
    if before is not State.SUCCEEDED:
        return None  # ROUTED, or known from the commit metadata: an earlier delivery says
    failure = record.attempts_made[-1].failure
    return Outcome.SKIPPED if failure is not None and failure.kind is Kind.SKIP else Outcome.ACKED
