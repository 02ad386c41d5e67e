"""Who starts now: what is handed to the runners, what they give back, and what a former epoch still holds up.

Part of the engine (it shares :class:`~streamloop.engine.engine.Engine`'s state and is called by it alone).
Nothing is handed out twice while it is out, and no lane starts here whose handler of an ended epoch still
runs: its records may start when that handler has really returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop.engine import events as ev
from streamloop.engine.lanes import BatchLanes
from streamloop.engine.states import State

if TYPE_CHECKING:
    from streamloop.engine.consumer import ConsumerState
    from streamloop.engine.engine import Engine
    from streamloop.engine.record import Record

_FETCHED = State.FETCHED
_BACKOFF = State.BACKOFF


class Dispatcher:
    """Hands records out as far as the consumer's concurrency and the run's bound allow."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def hand_out(self, consumer: ConsumerState) -> None:
        """Retries that are due first, since each holds a lane; then the partitions in turn."""
        engine = self._engine
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
            if part.stopped and not engine.breaker.may_start(record):
                part.stalled.append(record)
                engine.breaker.gave_up(record)
                continue
            part.intake.backoff.pop(record, None)
            records.append(record)
            room -= 1
        if engine.budget is not None:
            room = min(room, engine.budget)
        while room > 0 and consumer.turns:
            started = consumer.turns.take(room)
            if consumer.zombies:
                # What is held by one leaves room for others, so that no worker is idle beside them.
                started = [record for record in started if not self._held_up(consumer, record)]
            if consumer.spec.batch_size:
                started = self._runs(started, room)
            if engine.budget is not None:
                engine.budget -= len(started)
            room -= len(started)
            records += started
        if records:
            consumer.running += len(records)
            engine.emit(ev.Dispatch(consumer.index, records))

    def _runs(self, heads: list[Record], room: int) -> list[Record]:
        """For a batch consumer: with each head what follows it in its lane."""
        now = self._engine.now
        records: list[Record] = []
        for at, head in enumerate(heads, 1):
            lanes = head.part.lanes
            assert isinstance(lanes, BatchLanes)
            # Every head that was taken gets at least itself; what room is left goes to those that come first.
            records += lanes.run(head, max(1, room - len(records) - (len(heads) - at)), now)
        return records

    def given_back(self, event: ev.Unstarted) -> None:
        """The runner has not started these. They keep their order, and come before what was not out."""
        engine = self._engine
        for record in reversed(event.records):
            part = record.part
            consumer = part.consumer
            consumer.running -= 1
            attempts = record.attempts
            if engine.budget is not None and (
                attempts is None or not (attempts.in_place or attempts.unavailable)
            ):
                engine.budget += 1
            # What did not start because of a drain or a revoke stays as it is; it is received again.
            if part.closing:
                continue
            if record.state is _FETCHED:
                part.lanes.give_back(record)
                consumer.turns.enter(part)
            elif record.state is _BACKOFF:
                part.intake.backoff[record] = None
                consumer.due.appendleft(record)

    # ------------------------------------------------------------------------- handlers of ended epochs

    def outlived(self, record: Record) -> None:
        """The epoch of a running handler has ended: its lane must not start again here before it returns."""
        if record.lane is not None:
            lane = (record.part.name, record.lane)
            record.part.consumer.zombies.setdefault(lane, []).append(record)

    def _held_up(self, consumer: ConsumerState, record: Record) -> bool:
        if record.lane is None:
            return False
        lane = (record.part.name, record.lane)
        if lane not in consumer.zombies:
            return False
        consumer.held_heads[lane] = record
        return True

    def came_late(self, record: Record) -> None:
        """A handler of an ended epoch has returned: it acknowledges nothing, and frees its lane."""
        part = record.part
        consumer = part.consumer
        part.counts.late += 1
        record.message = None
        if record.lane is None:
            return
        lane = (part.name, record.lane)
        running = consumer.zombies.get(lane)
        if running is None or record not in running:
            return  # it never began: it could not be decoded
        running.remove(record)
        if not running:
            del consumer.zombies[lane]
            head = consumer.held_heads.pop(lane, None)
            if head is not None:
                head.part.lanes.ready.append(head)
                consumer.turns.enter(head.part)
