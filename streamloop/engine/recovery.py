"""What follows from a failure: back-off in place, retry topic, dead letter, waiting, a halt.

Part of the engine (it shares :class:`~streamloop.engine.engine.Engine`'s state and is called by it alone). It
never drops a message: a record leaves here only towards a handler, a topic, or a halt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamloop.engine import events as ev
from streamloop.engine.events import Reason, Target
from streamloop.engine.partition import DeadLetterWait, Partition
from streamloop.engine.record import Attempts, Record
from streamloop.engine.retry import Kind, Step, decide
from streamloop.engine.states import Happened, State, after

if TYPE_CHECKING:
    from streamloop.engine.engine import Engine
    from streamloop.engine.retry import Decision, Failure

NOT_DUE_SOON: Final = 1.0
"""Seconds: a retry that is due within it waits here; a later one is sought back to and held."""

RATE_WINDOW: Final = 60.0
"""Seconds over which dead letters of a partition are counted."""


class Recovery:
    """Decides what failed messages do next, and follows their routing to the end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # -------------------------------------------------------------------------------------------- failures

    def failed(self, record: Record) -> None:
        """A handler raised, or a record could not be decoded (it never began)."""
        engine = self._engine
        part = record.part
        consumer = part.consumer
        failure = record.failure
        assert failure is not None
        record.failure = None
        began = record.state is State.PROCESSING
        if engine.cut_short and began:
            part.running -= 1
            self._to(record, Happened.HALT)
            return
        attempts = record.attempts
        if attempts is None:
            attempts = record.attempts = Attempts()
        attempts.last = failure
        if failure.kind is Kind.UNAVAILABLE:
            attempts.unavailable += 1
        else:
            attempts.in_place += 1
            attempts.unavailable = 0
        if failure.kind is not Kind.SKIP and attempts.first_failed_at is None:
            attempts.first_failed_at = engine.now
        made = attempts.before + attempts.in_place
        decision = decide(
            consumer.spec.plan,
            failure,
            attempt=made,
            in_place=attempts.in_place,
            hop=part.hop,
            age=engine.now - attempts.first_failed_at if attempts.first_failed_at is not None else 0.0,
            unavailable_in_a_row=attempts.unavailable,
            uniform=engine.config.uniform,
        )
        if decision.note and decision.step is Step.AGAIN:
            engine.emit(ev.Notice(True, "retry_plan", decision.note, self._naming(record)))
        if began:
            part.running -= 1
        elif decision.step is not Step.DEAD_LETTER and decision.step is not Step.HALT:
            # What could not be decoded is dead, unless the consumer's rules or the codec say otherwise: then
            # it was an attempt like any other.
            self._to(record, Happened.START)
            began = True
        if decision.step is Step.ACK:
            engine.breaker.answered(record)
            part.counts.skipped += 1
            self._to(record, Happened.SUCCEED)
            self._to(record, Happened.ACKNOWLEDGE)
            engine.acknowledge(record)
            return
        part.counts.failed_as(failure.error_class)
        if decision.step is Step.WAIT:
            part.counts.unavailable += 1
            self._back_off(record, attempts, Happened.UNAVAILABLE, decision.delay)
            engine.breaker.unavailable(record, failure)
            return
        if began:
            engine.breaker.answered(record)
        else:
            part.counts.undecodable += 1
            engine.breaker.gave_up(record)
        if decision.step is Step.HALT:
            self._to(record, Happened.HALT)
            engine.halt(ev.Halt(record, failure, decision.note))
            return
        if began:
            self._to(record, Happened.FAIL)
        if decision.step is Step.AGAIN:
            part.counts.retried += 1
            self._back_off(record, attempts, Happened.BACK_OFF, decision.delay)
        elif decision.step is Step.RETRY_TOPIC:
            attempts.retry_index = decision.retry_index
            self._route_retry(record, failure, made)
        else:
            self._route_dead(record, failure, made, Happened.ROUTE_DEAD if began else Happened.UNDECODABLE)

    def _to(self, record: Record, happened: Happened) -> None:
        record.state = after(record.state, happened)

    def _naming(self, record: Record) -> dict[str, object]:
        name = record.part.name
        return {"topic": name.topic, "partition": name.partition, "offset": record.offset}

    def _back_off(self, record: Record, attempts: Attempts, happened: Happened, delay: float) -> None:
        self._to(record, happened)
        part = record.part
        attempts.due = self._engine.now + delay
        if part.closing:
            return  # the partition is leaving: it is received again by whoever gets it
        part.intake.backoff[record] = None
        self._engine.at(attempts.due, record)

    def record_due(self, record: Record, due: float) -> None:
        """A retry in place, or a retry-topic record, may start now."""
        attempts = record.attempts
        part = record.part
        if attempts is None or attempts.due != due or part.closing:
            return
        if record.state is State.FETCHED:
            part.lanes.ready.append(record)
            part.consumer.turns.enter(part)
            return
        if record.state is not State.BACKOFF:
            return
        part.consumer.due.append(record)

    # -------------------------------------------------------------------------------------------- routing

    def _route_retry(self, record: Record, failure: Failure, attempt: int) -> None:
        self._to(record, Happened.ROUTE_RETRY)
        record.part.routing += 1
        assert record.attempts is not None
        self._engine.emit(ev.Route(record, Target.RETRY, record.attempts.retry_index, failure, attempt))

    def _route_dead(self, record: Record, failure: Failure, attempt: int, happened: Happened) -> None:
        self._to(record, happened)
        part = record.part
        limit = part.consumer.spec.dead_letters_per_minute
        if limit is not None:
            self._forget_old(part)
            if part.dead_waiting or len(part.dead_times) >= limit:
                self._wait_for_rate(part, DeadLetterWait(record, failure, attempt), limit)
                return
            part.dead_times.append(self._engine.now)
        self._send_dead(part, record, failure, attempt)

    def _send_dead(self, part: Partition, record: Record, failure: Failure, attempt: int) -> None:
        part.routing += 1
        self._engine.emit(ev.Route(record, Target.DEAD_LETTER, -1, failure, attempt))

    def _forget_old(self, part: Partition) -> None:
        times = part.dead_times
        # As the timer computes it: otherwise rounding could keep what the timer says is over, for ever.
        while times and times[0] + RATE_WINDOW <= self._engine.now:
            times.popleft()

    def _wait_for_rate(self, part: Partition, waiting: DeadLetterWait, limit: int) -> None:
        if not part.dead_waiting:
            oldest = part.dead_times[0] if part.dead_times else self._engine.now
            self._engine.at(oldest + RATE_WINDOW, part)
        part.dead_waiting.append(waiting)
        self._engine.hold(
            part,
            Reason.DEAD_LETTER_RATE,
            f"more than {limit} dead letters a minute (dead_letter_max_per_minute): the last error is "
            f"{waiting.failure.error_class}: {waiting.failure.message}",
        )

    def partition_due(self, part: Partition) -> None:
        """A retry topic's head is due, or the dead-letter rate allows one again."""
        engine = self._engine
        if part.not_due_until and part.not_due_until <= engine.now:
            part.not_due_until = 0.0
            engine.release(part, Reason.RETRY_NOT_DUE)
        if part.dead_waiting and not part.closing:
            self._forget_old(part)
            limit = part.consumer.spec.dead_letters_per_minute or 1
            while part.dead_waiting and len(part.dead_times) < limit:
                waiting = part.dead_waiting.popleft()
                part.dead_times.append(engine.now)
                self._send_dead(part, waiting.record, waiting.failure, waiting.attempt)
            if part.dead_waiting:
                engine.at(part.dead_times[0] + RATE_WINDOW, part)
            else:
                engine.release(part, Reason.DEAD_LETTER_RATE)

    def published(self, event: ev.Published) -> None:
        """The broker has the routed record: ROUTED or DEAD_LETTERED, and at once ACKED."""
        record = event.record
        part = record.part
        counts = part.counts
        if record.state is State.ROUTING_RETRY:
            counts.routed += 1
        elif record.state is State.ROUTING_DEAD:
            counts.dead_lettered += 1
        else:
            counts.late += 1
            return
        self._to(record, Happened.CONFIRM)
        self._to(record, Happened.ACKNOWLEDGE)
        part.routing -= 1
        self._unblock(part, record)
        self._engine.acknowledge(record)

    def publish_blocked(self, event: ev.PublishBlocked) -> None:
        """The target takes nothing: hold the source partition until it does."""
        record = event.record
        if record.state is not State.ROUTING_RETRY and record.state is not State.ROUTING_DEAD:
            return
        part = record.part
        part.blocked.add(record)
        self._engine.hold(part, Reason.PUBLISH_BLOCKED, event.reason)

    def publish_unblocked(self, event: ev.PublishUnblocked) -> None:
        """The target takes records again."""
        self._unblock(event.record.part, event.record)

    def _unblock(self, part: Partition, record: Record) -> None:
        if part.blocked:
            part.blocked.discard(record)
            if not part.blocked:
                self._engine.release(part, Reason.PUBLISH_BLOCKED)

    def early(self, record: Record, decision: Decision) -> None:
        """Too much waits in BACKOFF: this one takes the next step of its plan now."""
        attempts = record.attempts
        assert attempts is not None
        assert attempts.last is not None
        record.part.intake.backoff.pop(record, None)
        record.part.counts.early += 1
        attempts.retry_index = decision.retry_index
        self._route_retry(record, attempts.last, attempts.before + attempts.in_place)
        self._engine.breaker.gave_up(record)

    # --------------------------------------------------------------------------------------- retry topics

    def keep_due(self, part: Partition, records: list[Record]) -> list[Record]:
        """Of a retry topic's records, those that are due soon; the rest is sought back to.

        A retry topic has one delay, so that behind a head that is not due nothing is due. The partition is
        paused, not slept on: others go on, and its delay may be longer than max.poll.interval.ms.
        """
        engine = self._engine
        soon = engine.now + NOT_DUE_SOON
        kept = 0
        due = 0.0
        for record in records:
            due = record.attempts.due if record.attempts is not None else 0.0
            if due > soon:
                break
            kept += 1
        else:
            return records
        dropped = records[kept:]
        part.intake.capacity.released(len(dropped), sum([record.size for record in dropped]))
        token = part.seeking = engine.token()
        part.not_due_until = due
        engine.at(due, part)
        engine.hold(part, Reason.RETRY_NOT_DUE, "the next retry is not due yet")
        engine.emit(ev.Seek(part.intake.index, part.name, part.epoch, dropped[0].offset, token))
        return records[:kept]

    def wait_until_due(self, part: Partition) -> None:
        """Heads that are due within a second wait here instead of starting at once."""
        engine = self._engine
        ready = part.lanes.ready
        waiting = [r for r in ready if r.attempts is not None and r.attempts.due > engine.now]
        if waiting:
            chosen = set(waiting)
            kept = [r for r in ready if r not in chosen]
            ready.clear()
            ready.extend(kept)
            for record in waiting:
                assert record.attempts is not None
                engine.at(record.attempts.due, record)
