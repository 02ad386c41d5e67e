"""What happened (a batch of events) and what time it is -> what to do (a list of effects).

The engine owns every decision about a message: what may start, what is acknowledged, what is retried and
where, what is committed, what is held and why. It has no clock, thread, or I/O: a recorded run can be played
again, and a simulator can drive it. One Engine serves one StreamLoop; all calls come from one thread.

The one thing that happens outside :meth:`Engine.step` is ``Record.begin()``: the runner claims a record right
before it calls the handler, because the partition may have left since it was dispatched.

Who starts is in dispatch.py, what follows from a failure in recovery.py, an unavailable dependency in
breaker.py, commits in commits.py, what only time shows in watch.py, and what ends in bounds.py; they share
this state.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from streamloop.engine import events as ev
from streamloop.engine.bounds import Bounds
from streamloop.engine.breaker import Breaker
from streamloop.engine.commits import Commits
from streamloop.engine.consumer import ConsumerSpec, ConsumerState, Intake
from streamloop.engine.dispatch import Dispatcher
from streamloop.engine.events import EXPECTED, Reason
from streamloop.engine.ledger import Ledger
from streamloop.engine.metadata import UNKNOWN, Identity, Ignored, decode
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
_BACKOFF = State.BACKOFF
_ACKED = State.ACKED
_REVOKED = State.REVOKED
_ROUTING_RETRY = State.ROUTING_RETRY
_ROUTING_DEAD = State.ROUTING_DEAD
# A handler that returned, with nothing left to publish: both transitions of the table at once.
_DONE = after(after(State.PROCESSING, Happened.SUCCEED), Happened.ACKNOWLEDGE)


@dataclass(frozen=True, slots=True)
class Role:
    """What a topic is to the loop: whose it is, and which hop (0 source or replay, i + 1 retry topic i).

    ``own``: the group wrote it for itself (a retry or replay topic), and the second intake reads it.
    """

    consumer: int
    hop: int = 0
    own: bool = False


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Bounds of one engine. Times in seconds, ``gap_limit`` in offsets, shares as fractions of high."""

    consumers: Sequence[ConsumerSpec]
    role_of: Callable[[str], Role]
    group: str = UNKNOWN
    commit_interval: float = 1.0
    gap_limit: int = 20_000
    lane_limit: int = 1_000
    backoff_share: float = 0.25
    dwell: float = 0.5
    max_messages: int | None = None
    until_end: bool = False
    uniform: Callable[[], float] = random.random


class Engine:
    """The decisions of one loop. ``capacities[i]`` belongs to intake i; intake 1, if any, reads the retry and
    replay topics."""

    def __init__(self, config: EngineConfig, capacities: Sequence[Capacity]) -> None:
        self.config = config
        self.intakes = [
            Intake(index, capacity, retries=index > 0) for index, capacity in enumerate(capacities)
        ]
        self.consumers = [ConsumerState(index, spec) for index, spec in enumerate(config.consumers)]
        self.parts: dict[TopicPartition, Partition] = {}
        self.now = 0.0
        self.draining = False
        self.cut_short = False
        """The drain's time is over: what fails was stopped."""
        self.halted = False
        self.late = 0
        """Events of ended epochs."""
        self.held_seconds: dict[Reason, float] = dict.fromkeys(Reason, 0.0)
        """Partition-seconds held, of holds that have ended."""
        self.budget = config.max_messages
        """Messages that may still be started; None: no bound."""
        self._out: list[Effect] = []
        # Dicts for sets in order of insertion: a recorded run gives the same effects in the same order.
        self._touched: dict[Partition, None] = {}
        self._unsaid: dict[Partition, None] = {}
        self._timers: list[tuple[float, int, Record | Partition]] = []
        self._order = count()
        self._tokens = count(1)
        self._reached: dict[TopicPartition, int] = {}
        self._intake_of: dict[TopicPartition, Intake] = {}
        self.commits = Commits(self)
        self.bounds = Bounds(self)
        self.breaker = Breaker(self)
        self.recovery = Recovery(self)
        self._dispatcher = Dispatcher(self)
        self._watch = Watch(self)
        self._take: dict[type[Any], Callable[[Any], None]] = {
            ev.Fetched: self._fetched,
            ev.Finished: self._finished,
            ev.Unstarted: self._dispatcher.given_back,
            ev.Assigned: self._assigned,
            ev.EndOfPartition: self._end_of_partition,
            ev.Published: self.recovery.published,
            ev.PublishBlocked: self.recovery.publish_blocked,
            ev.PublishUnblocked: self.recovery.publish_unblocked,
            ev.Revoking: self._revoking,
            ev.Closed: self._closed,
            ev.Committed: self._committed,
            ev.HoldChanged: self._hold_changed,
            ev.Sought: self._sought,
            ev.Drain: self._drain,
            ev.CutShort: self._cut_short,
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
        event = None
        for event in events:
            take[type(event)](event)
        if self._timers and self._timers[0][0] <= self.now:
            self._fire()
        if self._touched:
            self._settle()
        self._watch.look(happened=event is not None)
        if not self.draining and self._may_start():
            for consumer in self.consumers:
                if consumer.due or consumer.turns:
                    self._dispatcher.hand_out(consumer)
        if self.commits.dirty:
            self.commits.ask()
        if self._unsaid:
            self._say_holds()
        if self.bounds.leaving:
            self.bounds.quiet()
        self.bounds.look()
        return out

    def _may_start(self) -> bool:
        """No poller stands still. When one does, the ticks of the run look again."""
        now = self.now
        return all(now <= intake.capacity.start_until for intake in self.intakes)

    def next_due(self) -> float | None:
        """When the next step is due though nothing happens (engine clock), or None."""
        first = self._timers[0][0] if self._timers else None
        dues = [due for due in (first, self.commits.due(), self._watch.due()) if due is not None]
        return min(dues, default=None)

    def idle(self) -> bool:
        """Nothing runs, waits for a retry in place, or is being published."""
        return self.bounds.idle()

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
            self._unsaid[part] = None
            self.emit(ev.Notice(reason not in EXPECTED, "held", detail, self._naming(part, reason)))

    def release(self, part: Partition, reason: Reason) -> None:
        """End a reason; what was buffered may start when no other one forbids it."""
        hold = part.holds.pop(reason, None)
        if hold is None:
            return
        self.held_seconds[reason] += self.now - hold.since
        self._unsaid[part] = None
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
        identity = Identity(event.cluster_id, event.topic_id, self.config.group)
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
        self._intake_of[event.partition] = intake
        self.breaker.assigned(part)
        if not event.committed:
            part.hold(Reason.ASSIGNING, self.now, "its start position is being committed")
            ledger.version = 1
            self._unsaid[part] = None
            self.commits.emit(part)

    def _revoking(self, event: ev.Revoking) -> None:
        for name, epoch in event.partitions:
            part = self._live(name, epoch)
            if part is not None and not part.revoking:
                part.closing = part.revoking = True
                part.settle_stopped()
                self.bounds.leaving[part] = None

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
        never_sent = {waiting.record for waiting in part.dead_waiting}
        for record in part.ledger.outstanding:
            state = record.state
            if state is _ACKED:
                continue
            if state is _PROCESSING:
                running.append(record)
                self._dispatcher.outlived(record)
            elif state is _BACKOFF:
                if record in intake.backoff:
                    del intake.backoff[record]
                    # Its timer keeps the record, for up to a day; nothing else has it.
                    record.message = None
            elif (state is _ROUTING_RETRY or state is _ROUTING_DEAD) and record not in never_sent:
                self.emit(ev.Unroute(record))
            record.state = after(state, Happened.REVOKE)
        for reason, hold in (*part.holds.items(), *part.outside.items()):
            self.held_seconds[reason] += self.now - hold.since
        # What was acknowledged in this very step and is not settled yet is still in the count.
        intake.capacity.released(part.count, part.bytes)
        part.forget()
        for waiting in (self._touched, self._unsaid, self.commits.dirty, self.bounds.leaving):
            waiting.pop(part, None)
        for lane in [lane for lane, head in consumer.held_heads.items() if head.part is part]:
            del consumer.held_heads[lane]
        self.breaker.left(part)
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
        if not records:
            return
        part = self.parts.get(event.partition)
        if part is None or part.epoch != event.epoch or part.seeking:
            self._drop(event.partition, records)
            if part is None or part.epoch != event.epoch:
                self.late += 1
            return
        if records[0].offset < part.ledger.position:
            # Received in this epoch already: to handle it beside itself would break every promise.
            records = self._drop_received(part, records)
            if not records:
                return
        name, first = part.name, records[0].offset
        reached = self._reached.get(name, -1)
        counts = part.counts
        if first < reached:
            counts.redelivered += sum(record.offset < reached for record in records)
        if part.intake.retries:
            records = self.recovery.keep_due(part, records)
            if not records:
                return
        part.arrivals.append((first, self.now))
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
        part.counts.restored += known
        part.intake.capacity.released(known, size - fresh_size)
        part.count += len(fresh)
        part.bytes += fresh_size
        self.commits.dirty[part] = None
        return fresh

    def _drop(self, name: TopicPartition, records: list[Record]) -> None:
        """As if never taken: records of an ended epoch, or fetched before a seek was carried out."""
        # What reads the topic is known from its last assignment.
        intake = self._intake_of.get(name)
        if intake is None:
            intake = self.intakes[self.config.role_of(name.topic).own]
        intake.capacity.released(len(records), sum([record.size for record in records]))

    def _drop_received(self, part: Partition, records: list[Record]) -> list[Record]:
        position = part.ledger.position
        kept = [record for record in records if record.offset >= position]
        self._drop(part.name, [record for record in records if record.offset < position])
        return kept

    def _end_of_partition(self, event: ev.EndOfPartition) -> None:
        part = self._live(event.partition, event.epoch)
        if part is None or part.seeking:
            return
        version = part.ledger.version
        part.ledger.reached(event.offset)
        if part.ledger.version != version:
            self.commits.dirty[part] = None
        if part.end is None:
            part.end = event.offset

    def _finished(self, event: ev.Finished) -> None:
        last: Partition | None = None
        done = size = 0
        for record in event.records:
            if record.state is _PROCESSING and record.failure is None:
                part = record.part
                if part is not last:
                    if last is not None:
                        self._succeeded(last, done, size)
                    last = part
                    done = size = 0
                    release = part.lanes.release
                record.state = _DONE
                record.message = None
                done += 1
                size += record.size
                release(record)
            else:
                if last is not None:
                    self._succeeded(last, done, size)
                    last = None
                self._ended_otherwise(record)
        if last is not None:
            self._succeeded(last, done, size)

    def _succeeded(self, part: Partition, done: int, size: int) -> None:
        """So many handlers of one partition have returned, and nothing is left to publish."""
        consumer = part.consumer
        consumer.running -= done
        consumer.finished += done
        part.counts.succeeded += done
        part.running -= done
        part.freed += done
        part.freed_bytes += size
        self._touched[part] = None
        if consumer.unavailable:
            self.breaker.succeeded(consumer)

    def _ended_otherwise(self, record: Record) -> None:
        """A failure, or the result of an ended epoch.

        Raises:
            IllegalTransitionError: the record is not one that can end; nothing was changed.
        """
        late = record.state is _REVOKED
        if not late:
            began = record.state is _PROCESSING
            failed = Happened.FAIL if began else Happened.UNDECODABLE
            after(record.state, failed if record.failure is not None else Happened.SUCCEED)
        consumer = record.part.consumer
        consumer.running -= 1
        consumer.finished += 1
        if late:
            self._dispatcher.came_late(record)
        else:
            self.recovery.failed(record)

    def acknowledge(self, record: Record) -> None:
        """The record has just become ACKED: free its lane, its offset and its place in the buffer."""
        part = record.part
        record.message = None
        record.attempts = None
        part.freed += 1
        part.freed_bytes += record.size
        self._touched[part] = None
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
            self.commits.dirty[part] = None
            if Reason.GAP in part.holds:
                self._watch.gap(part)
        self._touched.clear()

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

    # ---------------------------------------------------------------------------------------------- holds

    def _hold_changed(self, event: ev.HoldChanged) -> None:
        part = self._live(event.partition, event.epoch)
        if part is None:
            return
        if event.held and event.reason not in part.outside:
            part.outside[event.reason] = Hold(self.now, event.detail)
            part.settle_stopped()
            self._unsaid[part] = None
            warning = event.reason not in EXPECTED
            self.emit(ev.Notice(warning, "held", event.detail, self._naming(part, event.reason)))
        elif event.held:
            # Held already: there is something else to say about it.
            part.outside[event.reason] = part.outside[event.reason]._replace(detail=event.detail)
        elif event.reason in part.outside:
            hold = part.outside.pop(event.reason)
            self.held_seconds[event.reason] += self.now - hold.since
            self._unsaid[part] = None
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

    def _committed(self, event: ev.Committed) -> None:
        part = self._live(event.partition, event.epoch)
        if part is not None:
            self.commits.confirmed(part, event.version)

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

    def _cut_short(self, _event: ev.CutShort) -> None:
        self.cut_short = True
        self.commits.flush()  # the partitions leave now, and do not wait for what still runs

    def halt(self, effect: ev.Halt) -> None:
        """A fatal error: start nothing any more."""
        self.halted = True
        self.emit(effect)
        self._drain(ev.Drain())
