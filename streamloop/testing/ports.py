"""The harness's ends of the core's two ports: an intake that reads the harness's broker, and a publisher.

They stand where the pollers' and the publisher's threads are in production, and speak the same events,
commands and reports. All on the event loop's thread; what they say reaches the core in the next turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from streamloop.engine import events as ev
from streamloop.kafka.ends import End
from streamloop.kafka.fetching import MESSAGE_OVERHEAD
from streamloop.kafka.headers import record_size
from streamloop.kafka.publishing import PublishCounters, PublishRequest, Report, ReportKind
from streamloop.telemetry.durations import Durations
from streamloop.testing.broker import Position, RecordView
from streamloop.testing.trace import TracedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from streamloop.core import Core
    from streamloop.engine.events import TopicPartition
    from streamloop.engine.gate import Capacity
    from streamloop.engine.record import Record
    from streamloop.kafka.publisher import BlockedTarget
    from streamloop.testing.broker import Broker, KafkaRecord
    from streamloop.testing.clock import Clock
    from streamloop.testing.trace import Journal

CLUSTER: Final = "harness"
_TOO_LARGE: Final = 10
_REFUSED: Final = 87
_BLOCKED: Final = 29


@dataclass(slots=True)
class Assignment:
    """One partition in one epoch."""

    epoch: int
    position: int
    reasons: frozenset[ev.Reason] = frozenset()
    """Why the engine wants it held."""
    leaving: bool = False
    quiet: bool = False
    at_end: int = -1
    """The end that was told last."""


@dataclass(slots=True)
class IntakeStats:
    """What a poller counts, as far as the metrics show it."""

    rebalances: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    out_of_range: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    commit_durations: dict[int, Durations] = field(default_factory=dict)
    polls: Durations = field(default_factory=Durations)
    last_commit: float | None = None
    stalls: int = 0


class HarnessEnds:
    """Where the assigned partitions end: known at any time."""

    def __init__(self, intake: HarnessIntake, broker: Broker) -> None:
        self._intake = intake
        self._broker = broker

    @property
    def known(self) -> dict[TopicPartition, End]:
        """By partition."""
        return {
            name: End(
                assignment.epoch,
                len(self._broker.topic(name.topic).partitions[name.partition]),
                assignment.position,
                None,
                None,
            )
            for name, assignment in self._intake.assigned.items()
        }


class HarnessIntake:
    """Stands for a poller. ``start_at`` says where a partition without a committed offset begins."""

    def __init__(
        self,
        index: int,
        name: str,
        topics: Sequence[str],
        broker: Broker,
        core: Core,
        capacity: Capacity,
        clock: Clock,
        journal: Journal,
        *,
        epochs: dict[TopicPartition, int],
        prepare: Callable[[TopicPartition, list[Record]], None] | None,
        start_at: Callable[[str, list[KafkaRecord]], int],
    ) -> None:
        self.name = self.label = name
        self.topics = tuple(topics)
        self.waiting = False
        self.stalled = False
        self.protocol = "harness"
        self.detail = ""
        self.failure: BaseException | None = None
        self.closed = False
        self.stats = IntakeStats()
        self.ends = HarnessEnds(self, broker)
        self.assigned: dict[TopicPartition, Assignment] = {}
        self._index = index
        self._broker = broker
        self._core = core
        self._capacity = capacity
        self._clock = clock
        self._journal = journal
        self._epochs = epochs
        self._prepare = prepare
        self._start_at = start_at
        self._scheduled = False
        self._fetching = True
        self._loop = asyncio.get_running_loop()
        self._carry_out: dict[type[Any], Callable[[Any], None]] = {
            ev.Hold: self._hold,
            ev.Seek: self._seek,
            ev.Commit: self._commit,
            ev.Quiet: self._quiet,
        }

    def is_alive(self) -> bool:
        """It works, as a poller's thread would."""
        return not self.closed

    @property
    def last_turn(self) -> float:
        """It is never late."""
        return self._clock.now

    # ------------------------------------------------------------------------------------------ the core's

    def command(self, commands: Sequence[Any]) -> None:
        """Carry these out, in order."""
        if not self.closed:
            for command in commands:
                self._carry_out[type(command)](command)

    def wake(self) -> None:
        """Capacity was given back."""
        self.waiting = False
        self.soon()

    def _of(self, name: TopicPartition, epoch: int) -> Assignment | None:
        assignment = self.assigned.get(name)
        return assignment if assignment is not None and assignment.epoch == epoch else None

    def _hold(self, command: ev.Hold) -> None:
        if assignment := self._of(command.partition, command.epoch):
            assignment.reasons = command.reasons
            self.soon()

    def _seek(self, command: ev.Seek) -> None:
        if assignment := self._of(command.partition, command.epoch):
            assignment.position = command.offset
            self._core.deliver([ev.Sought(command.partition, command.epoch, command.token)])
            self.soon()

    def _commit(self, command: ev.Commit) -> None:
        if self._of(command.partition, command.epoch) is None:
            self.stats.commits["dropped"] += 1
            return
        self.stats.commits["ok"] += 1
        self.stats.last_commit = self._clock.wall()
        self._broker.committed[command.partition] = Position(command.offset, command.metadata)
        self._core.deliver([ev.Committed(command.partition, command.epoch, command.offset, command.version)])

    def _quiet(self, command: ev.Quiet) -> None:
        if assignment := self._of(command.partition, command.epoch):
            assignment.quiet = True

    # --------------------------------------------------------------------------------------- the harness's

    def assign(self, names: Iterable[TopicPartition]) -> None:
        """These come: each opens an epoch at its committed offset."""
        events: list[ev.Event] = []
        for name in names:
            if name in self.assigned:
                continue
            epoch = self._epochs[name] = self._epochs.get(name, 0) + 1
            position = self._broker.committed.get(name)
            log = self._broker.topic(name.topic).partitions[name.partition]
            offset = self._start_at(name.topic, log) if position is None else position.offset
            self.assigned[name] = Assignment(epoch, offset)
            events.append(
                ev.Assigned(
                    self._index,
                    name,
                    epoch,
                    offset,
                    position is not None,
                    "" if position is None else position.metadata,
                    CLUSTER,
                    f"id-of-{name.topic}",
                )
            )
        if events:
            self.stats.rebalances["assigned"] += 1
            self._core.deliver(events)
            self.soon()

    def revoke(self, names: Sequence[TopicPartition]) -> None:
        """These are about to leave: quiet() says when nothing of theirs goes on, then comes close()."""
        for name in names:
            self.assigned[name].leaving = True
        self.stats.rebalances["revoked"] += 1
        self._core.deliver([ev.Revoking([(name, self.assigned[name].epoch) for name in names])])

    def is_quiet(self, names: Sequence[TopicPartition]) -> bool:
        """Nothing of these goes on."""
        return all(self.assigned[name].quiet for name in names)

    def close(self, names: Sequence[TopicPartition], *, lost: bool) -> None:
        """These have left."""
        if lost:
            self.stats.rebalances["lost"] += 1
        epochs = [(name, self.assigned.pop(name).epoch) for name in names]
        self._core.deliver([ev.Closed(epochs, lost)])

    def stop_fetching(self) -> None:
        """The loop drains."""
        self._fetching = False

    def soon(self) -> None:
        """Fetch in this turn of the event loop."""
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def has_more(self) -> bool:
        """Something can be fetched now."""
        return self._fetching and any(
            self._may_fetch(assignment) and assignment.position < len(self._log(name))
            for name, assignment in self.assigned.items()
        )

    def _may_fetch(self, assignment: Assignment) -> bool:
        return not assignment.reasons and not assignment.leaving

    def _log(self, name: TopicPartition) -> list[KafkaRecord]:
        return self._broker.topic(name.topic).partitions[name.partition]

    def _turn(self) -> None:
        self._scheduled = False
        if self.closed or not self._fetching:
            return
        events: list[ev.Event] = []
        # In turn, so that one long partition does not take all the room.
        for name, assignment in list(self.assigned.items()):
            if not self._may_fetch(assignment):
                continue
            log = self._log(name)
            if assignment.position < len(log):
                room = self._capacity.room()
                if room == 0:
                    self.waiting = True
                    break
                self._fetch(name, assignment, log[assignment.position : assignment.position + room], events)
                del self.assigned[name]
                self.assigned[name] = assignment
            if assignment.position >= len(log) and assignment.at_end != assignment.position:
                assignment.at_end = assignment.position
                events.append(ev.EndOfPartition(name, assignment.epoch, assignment.position))
        if events:
            self._core.deliver(events)
        if not self.waiting and self.has_more():
            self.soon()

    def _fetch(
        self, name: TopicPartition, assignment: Assignment, found: list[KafkaRecord], events: list[ev.Event]
    ) -> None:
        records: list[Record] = []
        sizes = [len(each.key or b"") + len(each.value or b"") + MESSAGE_OVERHEAD for each in found]
        for each, size in zip(found, sizes, strict=True):
            record = TracedRecord(each, size, RecordView(each), self._clock)
            self._journal.received(record)
            records.append(record)
        if self._prepare is not None:
            self._prepare(name, records)
        self._capacity.took(len(records), sum(sizes), max(sizes))
        assignment.position = found[-1].offset + 1
        events.append(ev.Fetched(name, assignment.epoch, records))


class HarnessPublisher:
    """Stands for the publisher: the broker's verdict comes at once, unless the test has blocked the topic."""

    def __init__(self, broker: Broker, core: Core, clock: Clock, intakes: Callable[[], None]) -> None:
        self.counters = PublishCounters()
        self.failure: BaseException | None = None
        self.closed = False
        self.waiting: dict[int, PublishRequest] = {}
        """Requests whose topic takes nothing now."""
        self._broker = broker
        self._core = core
        self._clock = clock
        self._appended = intakes

    @property
    def blocked(self) -> tuple[BlockedTarget, ...]:
        """For the status page: the harness has no targets of its own to show."""
        return ()

    def submit(self, requests: Sequence[PublishRequest]) -> None:
        """Publish these."""
        if self.closed:
            return
        reports = [self._publish(request) for request in requests]
        self.counters.outstanding = len(self.waiting)
        self._core.take_reports(reports)
        self._appended()

    def cancel(self, ids: Iterable[int]) -> None:
        """These are no longer wanted."""
        for number in ids:
            self.waiting.pop(number, None)
        self.counters.outstanding = len(self.waiting)

    def unblock(self, topic: str) -> None:
        """The topic takes records again: what waits goes on, in order."""
        requests = [request for request in self.waiting.values() if request.topic == topic]
        for request in requests:
            del self.waiting[request.id]
        if requests:
            self._core.take_reports(
                [self._report(request, ReportKind.UNBLOCKED, 0, "") for request in requests]
            )
            self.submit(requests)

    def _publish(self, request: PublishRequest) -> Report:
        topic = self._broker.topic(request.topic)
        if topic.blocked:
            self.waiting[request.id] = request
            return self._failed(request, ReportKind.BLOCKED, _BLOCKED, topic.blocked)
        if topic.refused:
            return self._failed(request, ReportKind.REFUSED, _REFUSED, topic.refused)
        limit = topic.max_message_bytes
        size = record_size(request.key, request.value, request.headers)
        if limit is not None and size > limit:
            return self._failed(
                request,
                ReportKind.TOO_LARGE,
                _TOO_LARGE,
                f"{size} bytes are more than max.message.bytes={limit}",
            )
        record = self._broker.append(
            request.topic,
            None if request.partition < 0 else request.partition,
            request.key,
            request.value,
            request.headers,
            int(self._clock.wall() * 1000),
        )
        self._broker.published.append(record)
        self.counters.published += 1
        return Report(request.id, ReportKind.DELIVERED, record.topic, record.partition, record.offset, 0, "")

    def _failed(self, request: PublishRequest, kind: ReportKind, code: int, reason: str) -> Report:
        self.counters.failures[code] = self.counters.failures.get(code, 0) + 1
        return self._report(request, kind, code, reason)

    def _report(self, request: PublishRequest, kind: ReportKind, code: int, reason: str) -> Report:
        return Report(request.id, kind, request.topic, -1, -1, code, reason)
