"""What happened (a batch of events) and what time it is -> what to do (a list of effects).

The engine owns every decision about a message: what may start, what is acknowledged, what is retried and
where, what is committed, what is held and why. It has no clock, thread, or I/O: a recorded run can be played
again, and a simulator can drive it. One Engine serves one StreamLoop; all calls come from one thread.

The one thing that happens outside :meth:`Engine.step` is ``Record.begin()``: the runner claims a record right
before it calls the handler, because the partition may have left since it was dispatched.

Failures and routing are in recovery.py, holds and what a tick looks at in watch.py; they share this state.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from streamloop.engine import events as ev
from streamloop.engine.consumer import ConsumerSpec, ConsumerState, Intake
from streamloop.engine.events import Reason
from streamloop.engine.lanes import BatchLanes
from streamloop.engine.ledger import Ledger
from streamloop.engine.metadata import Identity, Ignored, decode
from streamloop.engine.partition import Hold, Partition
from streamloop.engine.recovery import Recovery
from streamloop.engine.states import Happened, State, after
from streamloop.engine.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from streamloop.engine.events import Effect, Event, TopicPartition
    from streamloop.engine.gate import Capacity
    from streamloop.engine.record import Record

_PROCESSING = State.PROCESSING
_FETCHED = State.FETCHED
_BACKOFF = State.BACKOFF
_ACKED = State.ACKED
_REVOKED = State.REVOKED
_HALTED = State.HALTED
# A handler that returned, with nothing left to publish: both transitions of the table at once.
_DONE = after(after(State.PROCESSING, Happened.SUCCEED), Happened.ACKNOWLEDGE)


@dataclass(frozen=True, slots=True)
class Role:
    """What a topic is to the loop: whose it is, and which hop (0 source or replay, i + 1 retry topic i)."""

    consumer: int
    hop: int = 0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Bounds of one engine. Times in seconds, ``gap_limit`` in offsets, shares as fractions of high."""

    consumers: Sequence[ConsumerSpec]
    role_of: Callable[[str], Role]
    commit_interval: float = 1.0
    gap_limit: int = 20_000
    lane_limit: int = 1_000
    backoff_share: float = 0.25
    dwell: float = 0.5
    max_messages: int | None = None
    until_end: bool = False
    uniform: Callable[[], float] = random.random


class Engine:
    """The decisions of one loop. ``capacities[i]`` belongs to intake i; intake 1, if any, reads retries."""

    def __init__(self, config: EngineConfig, capacities: Sequence[Capacity]) -> None:
        self.config = config
        self.intakes = [
            Intake(index, capacity, retries=index > 0) for index, capacity in enumerate(capacities)
        ]
        self.consumers = [ConsumerState(index, spec) for index, spec in enumerate(config.consumers)]
        self.parts: dict[TopicPartition, Partition] = {}
        self.now = 0.0
        self.draining = False
        self.halted = False
        self.late = 0
        """Events of ended epochs."""
        self.held_seconds: dict[Reason, float] = dict.fromkeys(Reason, 0.0)
        """Partition-seconds held, of holds that have ended."""
        self.budget = config.max_messages
        """Messages that may still be started; None: no bound."""
        self._out: list[Effect] = []
        self._touched: set[Partition] = set()
        self._unsaid: set[Partition] = set()
        self._dirty: set[Partition] = set()
        self._timers: list[tuple[float, int, Record | Partition]] = []
        self._order = count()
        self._tokens = count(1)
        self._next_commit = 0.0
        self._reached: dict[TopicPartition, int] = {}
        self._drained_said = False
        self._bound_said = False
        self.recovery = Recovery(self)
        self._watch = Watch(self)
        self._take: dict[type[Any], Callable[[Any], None]] = {
            ev.Fetched: self._fetched,
            ev.Finished: self._finished,
            ev.Unstarted: self._unstarted,
            ev.Assigned: self._assigned,
            ev.EndOfPartition: self._end_of_partition,
            ev.Published: self._published,
            ev.PublishBlocked: self.recovery.publish_blocked,
            ev.PublishUnblocked: self.recovery.publish_unblocked,
            ev.Revoking: self._revoking,
            ev.Closed: self._closed,
            ev.Committed: self._committed,
            ev.HoldChanged: self._hold_changed,
            ev.Sought: self._sought,
            ev.Drain: self._drain,
            ev.Tick: self._tick,
        }

    # ------------------------------------------------------------------------------------------- the call

    def step(self, now: float, events: Iterable[Event]) -> list[Effect]:
        """Take what happened and return what to do, in that order.

        ``now``: seconds of a monotonic clock; a step back counts as no time passed.
        """
        if now > self.now:
            self.now = now
        out: list[Effect] = []
        self._out = out
        take = self._take
        for event in events:
            take[type(event)](event)
        if self._timers and self._timers[0][0] <= self.now:
            self._fire()
        if self._touched:
            self._settle()
        self._watch.look()
        if not self.draining:
            for consumer in self.consumers:
                if consumer.due or consumer.turns:
                    self._dispatch(consumer)
        if self._dirty:
            self._commit()
        if self._unsaid:
            self._say_holds()
        self._quiet()
        self._bounds()
        return out

    def next_due(self) -> float | None:
        """When the next step is due though nothing happens (engine clock), or None."""
        due = self._timers[0][0] if self._timers else None
        if self._dirty and (due is None or self._next_commit < due):
            due = self._next_commit
        return due

    # ------------------------------------------------------------------------------------- in the other parts

    def emit(self, effect: Effect) -> None:
        """Add an effect to this step's answer."""
        self._out.append(effect)

    def at(self, due: float, what: Record | Partition) -> None:
        """Look at this record or partition again at ``due``."""
        heapq.heappush(self._timers, (due, next(self._order), what))

    def hold(self, part: Partition, reason: Reason, detail: str) -> None:
        """Hold a partition for a reason of the engine's, and say so once."""
        if part.hold(reason, self.now, detail):
            self._unsaid.add(part)
            self.emit(ev.Notice(True, "held", detail, self._naming(part, reason)))

    def release(self, part: Partition, reason: Reason) -> None:
        """End a reason; what was buffered may start when no other one forbids it."""
        hold = part.holds.pop(reason, None)
        if hold is None:
            return
        self.held_seconds[reason] += self.now - hold.since
        self._unsaid.add(part)
        self._resume(part)
        self.emit(ev.Notice(False, "released", f"no longer held: {reason.value}", self._naming(part, reason)))

    def _naming(self, part: Partition, reason: Reason) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "topic": part.name.topic,
            "partition": part.name.partition,
            "reason": reason.value,
        }
        holder = part.ledger.holder
        if holder is not None:
            arrived = part.arrived(holder.offset)
            fields |= {
                "holding_offset": holder.offset,
                "holding_state": holder.state.name,
                "holding_age_seconds": round(self.now - arrived, 3) if arrived is not None else None,
            }
        return fields

    def _resume(self, part: Partition) -> None:
        part.settle_stopped()
        if not part.stopped:
            if part.stalled:
                part.consumer.due.extend(part.stalled)
                part.stalled.clear()
            part.consumer.turns.enter(part)

    # ------------------------------------------------------------------------------------------ partitions

    def _assigned(self, event: ev.Assigned) -> None:
        role = self.config.role_of(event.partition.topic)
        intake = self.intakes[event.intake]
        old = self.parts.get(event.partition)
        if old is not None:
            # The poller always closes an epoch before it opens the next; this is the belt to that brace.
            self._end(old)
        identity = Identity(event.cluster_id, event.topic_id)
        known = decode(event.metadata, identity, event.offset) if event.committed else None
        if isinstance(known, Ignored):
            self.emit(
                ev.Notice(
                    True,
                    "metadata_ignored",
                    f"the commit metadata of {event.partition.topic}/{event.partition.partition} is ignored: "
                    f"{known.reason}; messages that were acknowledged beyond the committed offset come again",
                    {"topic": event.partition.topic, "partition": event.partition.partition},
                )
            )
            known = None
        ledger = Ledger(event.offset, identity, known)
        part = Partition(
            event.partition, event.epoch, intake, self.consumers[role.consumer], role.hop, ledger
        )
        part.closing = self.draining
        part.settle_stopped()
        self.parts[event.partition] = intake.parts[event.partition] = part
        if not event.committed:
            part.hold(Reason.ASSIGNING, self.now, "its start position is being committed")
            ledger.version = 1
            self._unsaid.add(part)
            self._emit_commit(part)

    def _revoking(self, event: ev.Revoking) -> None:
        for name, epoch in event.partitions:
            part = self._live(name, epoch)
            if part is not None:
                part.closing = part.revoking = True
                part.settle_stopped()

    def _closed(self, event: ev.Closed) -> None:
        for name, epoch in event.partitions:
            part = self._live(name, epoch)
            if part is not None:
                self._end(part)

    def _end(self, part: Partition) -> None:
        """The epoch is over: nothing of it is acknowledged from here on."""
        del self.parts[part.name]
        intake, consumer = part.intake, part.consumer
        del intake.parts[part.name]
        running: list[Record] = []
        for record in part.ledger.outstanding:
            state = record.state
            if state is _ACKED:
                continue
            if state is _PROCESSING:
                running.append(record)
                if record.lane is not None:
                    lane = (part.name, record.lane)
                    consumer.zombies[lane] = consumer.zombies.get(lane, 0) + 1
            elif state is _BACKOFF:
                intake.backoff.pop(record, None)
            elif state is State.ROUTING_RETRY or state is State.ROUTING_DEAD:
                self.emit(ev.Unroute(record))
            record.state = after(state, Happened.REVOKE)
        for reason, hold in (*part.holds.items(), *part.outside.items()):
            self.held_seconds[reason] += self.now - hold.since
        intake.capacity.released(part.count + part.freed, part.bytes + part.freed_bytes)
        part.count = part.bytes = part.freed = part.freed_bytes = 0
        part.closing = True
        part.settle_stopped()
        part.lanes.clear()
        part.ledger.outstanding.clear()
        self._touched.discard(part)
        self._dirty.discard(part)
        self._unsaid.discard(part)
        for lane in [lane for lane, head in consumer.held_heads.items() if head.part is part]:
            del consumer.held_heads[lane]
        self.recovery.partition_left(part)
        if running:
            # Asked to stop in both cases: what they do from here on is done again by the next owner.
            self.emit(ev.Cancel(running))

    def _live(self, name: TopicPartition, epoch: int) -> Partition | None:
        part = self.parts.get(name)
        if part is None or part.epoch != epoch:
            self.late += 1
            return None
        return part

    # ------------------------------------------------------------------------------------------- messages

    def _fetched(self, event: ev.Fetched) -> None:
        records = event.records
        part = self.parts.get(event.partition)
        if part is None or part.epoch != event.epoch or part.seeking:
            self._drop(self.intakes[self.config.role_of(event.partition.topic).hop > 0], event, part)
            return
        name, first = part.name, records[0].offset
        reached = self._reached.get(name, -1)
        counts = part.consumer.counts
        if first < reached:
            counts.redelivered += sum(record.offset < reached for record in records)
        part.arrivals.append((first, self.now))
        if part.intake.retries:
            records = self.recovery.keep_due(part, records)
            if not records:
                return
        received = len(records)
        counts.received += received
        last = records[-1].offset
        if last >= reached:
            self._reached[name] = last + 1
        size = sum([record.size for record in records])
        if part.ledger.restored is not None:
            records = self._without_known(part, records, size)
        else:
            part.ledger.receive(records)
            part.count += received
            part.bytes += size
        if records:
            part.lanes.add(part, records)
            if part.intake.retries:
                self.recovery.wait_until_due(part)
            part.consumer.turns.enter(part)
        if part.ledger.gap > self.config.gap_limit:
            self._watch.gap(part)

    def _without_known(self, part: Partition, records: list[Record], size: int) -> list[Record]:
        """Restart: leave out what the commit metadata says is acknowledged."""
        fresh = part.ledger.receive(records)
        known = len(records) - len(fresh)
        fresh_size = sum([record.size for record in fresh])
        part.consumer.counts.restored += known
        part.intake.capacity.released(known, size - fresh_size)
        part.count += len(fresh)
        part.bytes += fresh_size
        self._dirty.add(part)
        return fresh

    def _drop(self, intake: Intake, event: ev.Fetched, part: Partition | None) -> None:
        """Records of an ended epoch, or fetched before a seek was carried out: as if never taken."""
        records = event.records
        intake = part.intake if part is not None else intake
        intake.capacity.released(len(records), sum([record.size for record in records]))
        if part is None or part.epoch != event.epoch:
            self.late += 1

    def _end_of_partition(self, event: ev.EndOfPartition) -> None:
        part = self._live(event.partition, event.epoch)
        if part is None or part.seeking:
            return
        version = part.ledger.version
        part.ledger.reached(event.offset)
        if part.ledger.version != version:
            self._dirty.add(part)
        if part.end is None:
            part.end = event.offset

    def _finished(self, event: ev.Finished) -> None:
        touched = self._touched
        last: Partition | None = None
        succeeded = 0
        for record in event.records:
            part = record.part
            consumer = part.consumer
            consumer.running -= 1
            consumer.finished += 1
            if record.state is _PROCESSING and record.failure is None:
                record.state = _DONE
                record.message = None
                part.running -= 1
                part.freed += 1
                part.freed_bytes += record.size
                if part is not last:
                    if last is not None:
                        last.consumer.counts.succeeded += succeeded
                    succeeded = 0
                    touched.add(part)
                    last = part
                succeeded += 1
                part.lanes.release(record)
                if consumer.unavailable:
                    self.recovery.answered(consumer, record)
            elif record.state is _REVOKED:
                self._came_late(record)
            else:
                self.recovery.failed(record)
        if last is not None:
            last.consumer.counts.succeeded += succeeded

    def _came_late(self, record: Record) -> None:
        """The handler of an ended epoch has returned: it acknowledges nothing, and frees its lane."""
        part = record.part
        consumer = part.consumer
        consumer.counts.late += 1
        record.message = None
        if record.lane is None:
            return
        lane = (part.name, record.lane)
        left = consumer.zombies.get(lane, 0) - 1
        if left > 0:
            consumer.zombies[lane] = left
        elif left == 0:
            del consumer.zombies[lane]
            head = consumer.held_heads.pop(lane, None)
            if head is not None:
                head.part.lanes.ready.append(head)
                consumer.turns.enter(head.part)

    def _unstarted(self, event: ev.Unstarted) -> None:
        for record in event.records:
            consumer = record.part.consumer
            consumer.running -= 1
            # What did not start because of a drain or a revoke stays as it is; it is received again.
            if record.state is _FETCHED and not record.part.closing:
                record.part.lanes.ready.appendleft(record)
                consumer.turns.enter(record.part)
            elif record.state is _BACKOFF and not record.part.closing:
                consumer.due.append(record)

    def _published(self, event: ev.Published) -> None:
        self.recovery.published(event)

    def acknowledge(self, record: Record) -> None:
        """The record has just become ACKED: free its lane, its offset and its place in the buffer."""
        part = record.part
        record.message = None
        record.attempts = None
        part.freed += 1
        part.freed_bytes += record.size
        self._touched.add(part)
        part.lanes.release(record)

    def _settle(self) -> None:
        """After acknowledgements: move the commit positions on, give capacity back, give turns."""
        for part in self._touched:
            freed, freed_bytes = part.freed, part.freed_bytes
            part.freed = part.freed_bytes = 0
            part.count -= freed
            part.bytes -= freed_bytes
            part.acked += freed
            part.intake.capacity.released(freed, freed_bytes)
            part.ledger.advance()
            part.forget_arrivals()
            if part.intake.retries:
                self.recovery.wait_until_due(part)
            part.consumer.turns.enter(part)
            self._dirty.add(part)
            if Reason.GAP in part.holds:
                self._watch.gap(part)
        self._touched.clear()

    # ------------------------------------------------------------------------------------------- dispatch

    def _dispatch(self, consumer: ConsumerState) -> None:
        room = consumer.room()
        if room <= 0:
            return
        records: list[Record] = []
        due = consumer.due
        while due and room > 0:
            record = due.popleft()
            part = record.part
            if record.state is not _BACKOFF or part.closing:
                continue
            if part.stopped and record is not consumer.probe:
                part.stalled.append(record)
                continue
            part.intake.backoff.pop(record, None)
            records.append(record)
            room -= 1
        if room > 0 and consumer.turns:
            if self.budget is not None:
                room = min(room, self.budget)
            started = consumer.turns.take(room) if room > 0 else []
            if consumer.zombies:
                started = [record for record in started if not self._held_by_zombie(consumer, record)]
            if consumer.spec.batch_size:
                started = self._runs(started, room)
            if self.budget is not None:
                self.budget -= len(started)
            records += started
        if records:
            consumer.running += len(records)
            self.emit(ev.Dispatch(consumer.index, records))

    def _runs(self, heads: list[Record], room: int) -> list[Record]:
        """For a batch consumer: with each head what follows it in its lane."""
        records: list[Record] = []
        for at, head in enumerate(heads, 1):
            lanes = head.part.lanes
            assert isinstance(lanes, BatchLanes)
            # Every head that was taken gets at least itself; what room is left goes to those that come first.
            records += lanes.run(head, max(1, room - len(records) - (len(heads) - at)))
        return records

    def _held_by_zombie(self, consumer: ConsumerState, record: Record) -> bool:
        if record.lane is None:
            return False
        lane = (record.part.name, record.lane)
        if lane not in consumer.zombies:
            return False
        consumer.held_heads[lane] = record
        return True

    def _fire(self) -> None:
        """What has become due."""
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            due, _, what = heapq.heappop(timers)
            if isinstance(what, Partition):
                if self.parts.get(what.name) is what:
                    self.recovery.partition_due(what)
            else:
                self.recovery.record_due(what, due)

    # -------------------------------------------------------------------------------------------- commits

    def _commit(self) -> None:
        if self.now < self._next_commit:
            # What is about to leave is committed as soon as it changes: the poller keeps the newest.
            for part in [part for part in self._dirty if part.revoking]:
                self._emit_commit(part)
            return
        self._next_commit = self.now + self.config.commit_interval
        for part in list(self._dirty):
            self._emit_commit(part)

    def _emit_commit(self, part: Partition) -> None:
        self._dirty.discard(part)
        offset, metadata, version = part.ledger.snapshot()
        part.emitted = version
        self.emit(ev.Commit(part.intake.index, part.name, part.epoch, offset, metadata, version))

    def _committed(self, event: ev.Committed) -> None:
        part = self._live(event.partition, event.epoch)
        if part is None:
            return
        part.ledger.confirmed = max(part.ledger.confirmed, event.version)
        self.release(part, Reason.ASSIGNING)

    # ---------------------------------------------------------------------------------------------- holds

    def _hold_changed(self, event: ev.HoldChanged) -> None:
        part = self._live(event.partition, event.epoch)
        if part is None:
            return
        if event.held and event.reason not in part.outside:
            part.outside[event.reason] = Hold(self.now, event.detail)
            part.settle_stopped()
            self._unsaid.add(part)
            self.emit(ev.Notice(True, "held", event.detail, self._naming(part, event.reason)))
        elif not event.held and event.reason in part.outside:
            hold = part.outside.pop(event.reason)
            self.held_seconds[event.reason] += self.now - hold.since
            self._unsaid.add(part)
            self._resume(part)

    def _say_holds(self) -> None:
        for part in self._unsaid:
            wanted = part.wanted()
            if wanted != part.said:
                part.said = wanted
                self.emit(ev.Hold(part.intake.index, part.name, part.epoch, wanted))
        self._unsaid.clear()

    def token(self) -> int:
        """A fresh token for a seek."""
        return next(self._tokens)

    def _sought(self, event: ev.Sought) -> None:
        part = self._live(event.partition, event.epoch)
        if part is not None and part.seeking == event.token:
            part.seeking = 0

    # --------------------------------------------------------------------------------------- stop and bounds

    def _tick(self, _event: ev.Tick) -> None:
        """Time has passed; step() looks at it."""

    def _drain(self, _event: ev.Drain) -> None:
        self.draining = True
        for part in self.parts.values():
            part.closing = True
            part.settle_stopped()

    def halt(self, effect: ev.Halt) -> None:
        """A fatal error: start nothing any more."""
        self.halted = True
        self.emit(effect)
        self._drain(ev.Drain())

    def _quiet(self) -> None:
        for part in self.parts.values():
            if part.revoking and not part.quiet_said and not part.running and not part.routing:
                part.quiet_said = True
                if part in self._dirty or part.ledger.version != part.emitted:
                    self._emit_commit(part)
                self.emit(ev.Quiet(part.intake.index, part.name, part.epoch))

    def _bounds(self) -> None:
        if self.draining:
            busy = any(part.running or part.routing for part in self.parts.values())
            if not busy and not self._drained_said:
                self._drained_said = True
                self.emit(ev.Drained())
            return
        if self._bound_said:
            return
        if self.budget == 0 and self.idle():
            self._bound_said = True
            self.emit(ev.BoundReached("max_messages"))
        elif self.config.until_end and self._at_end():
            self._bound_said = True
            self.emit(ev.BoundReached("until_end"))

    def idle(self) -> bool:
        """Nothing runs, waits for a retry in place, or is being published."""
        return (
            not any(consumer.running or consumer.due for consumer in self.consumers)
            and not any(intake.backoff for intake in self.intakes)
            and not any(part.routing or part.dead_waiting for part in self.parts.values())
        )

    def _at_end(self) -> bool:
        parts = self.intakes[0].parts
        return bool(parts) and all(
            part.end is not None and part.ledger.committable >= part.end for part in parts.values()
        )
