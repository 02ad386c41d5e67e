"""The engine and its runners on one event loop: takes what the pollers and the publisher say, has the engine
decide, and passes the effects on.

Nothing here talks to Kafka: intakes (pollers) and the publisher are ports, so that the testing harness runs
the very same code without a broker. All methods run on the event loop's thread, but :meth:`Core.deliver`,
:meth:`Core.take_reports` and :meth:`Core.publish_from_thread`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from streamloop.engine import events as ev
from streamloop.errors import PublishError, StreamLoopError
from streamloop.kafka.headers import headers_of, read_routing
from streamloop.kafka.publishing import PublishRequest, Report, ReportKind
from streamloop.routing import Router, TargetFacts
from streamloop.runners.aio import AsyncRunner
from streamloop.runners.batch import BatchRunner
from streamloop.runners.inline import InlineRunner
from streamloop.runners.threads import ThreadRunner, call_in_thread
from streamloop.telemetry.durations import STEP_BOUNDS, Durations
from streamloop.telemetry.logs import StepLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from streamloop.declare import HandlerBuild
    from streamloop.engine.engine import Engine
    from streamloop.engine.events import Event
    from streamloop.engine.record import Record
    from streamloop.engine.retry import Failure
    from streamloop.kafka.headers import Routing
    from streamloop.message import Outgoing, RawMessage
    from streamloop.routing import Topics
    from streamloop.runners.base import Runner
    from streamloop.telemetry.tracing import Tracing

log = logging.getLogger("streamloop")

LOOK_FOR_CANCEL: Final = 0.05
"""Seconds between two looks of a thread that waits for a publish at whether it was asked to stop."""

MOST_TARGETS: Final = 200
"""Topics that handlers publish to which are looked at: they name them as they like."""

_EXPECTED = frozenset(reason.value for reason in ev.EXPECTED)


class IntakePort(Protocol):
    """A poller, as the core sees it."""

    waiting: bool
    """It is full and waits to be woken."""

    def command(self, commands: Sequence[Any]) -> None:
        """Carry these out, in order. Never blocks."""

    def wake(self) -> None:
        """Capacity was given back."""


class PublisherPort(Protocol):
    """The publisher, as the core sees it."""

    def submit(self, requests: Sequence[PublishRequest]) -> None:
        """Publish these. Never blocks."""

    def cancel(self, ids: Iterable[int]) -> None:
        """These need not be published any more."""


class Heartbeat:
    """When the event loop last turned (monotonic seconds). Written by the core, read by pollers."""

    __slots__ = ("stamp",)

    def __init__(self, stamp: float) -> None:
        self.stamp = stamp


@dataclass(slots=True)
class Outcome:
    """Why the run is to end, as the engine said it."""

    halted: ev.Halt | None = None
    failure: Exception | None = None
    """A bug of ours: the engine, or what carries out its decisions, has failed."""
    bound: str = ""
    drained: bool = False


class Core:
    """Runs the engine and the handlers of one loop."""

    def __init__(
        self,
        engine: Engine,
        plans: Sequence[HandlerBuild],
        topics: Topics,
        *,
        group: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        tracing: Tracing | None = None,
    ) -> None:
        self.engine = engine
        self.group = group
        self.clock = clock
        self.wall = wall
        """Epoch seconds."""
        self.done: list[Record] = []
        self.unstarted: list[Record] = []
        self.outcome = Outcome()
        self.heartbeat = Heartbeat(clock())
        self.turns = 0
        self.steps = Durations(STEP_BOUNDS)
        """How long turns took."""
        self.step_log = StepLog()
        self.notices: dict[str, int] = {}
        """How many notices of each kind there were."""
        self.hold_for: Callable[[str, int], str] | None = None
        """Why an operator holds a partition ('': nobody does): asked before anything of it starts."""
        self.tracing = tracing
        if tracing is not None:
            tracing.know(topics.is_source, topics.is_replay)
            self.step_log.ids = tracing.ids_of
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._inbox: deque[Event] = deque()
        self._inbox_scheduled = False
        self._soon = False
        self._intakes: list[IntakePort] = []
        self._commands: list[list[Any]] = []
        self._publisher: PublisherPort | None = None
        self._ids = count(1)
        self._router = Router(topics, group, tracing)
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._waits: dict[int, list[str]] = {}
        """By id() of a record that is handled: the topics that its handler waits to have published to."""
        self._used: set[str] = set()
        """Topics that handlers have published to."""
        self._missing: set[str] = set()
        """Those of them that did not exist when it was looked."""
        self.first_use: Callable[[str, str], None] | None = None
        """Told of a topic that a handler publishes to for the first time, and of the handler's name."""
        self._routes: dict[int, Record] = {}
        self._route_ids: dict[Record, int] = {}
        self._requests: list[PublishRequest] = []
        self._timer: asyncio.TimerHandle | None = None
        self._act: dict[type[Any], Callable[[Any], None]] = {
            ev.Dispatch: self._dispatch,
            ev.Cancel: self._cancel,
            ev.Route: self._route,
            ev.Unroute: self._unroute,
            ev.Hold: self._to_intake,
            ev.Seek: self._to_intake,
            ev.Commit: self._to_intake,
            ev.Quiet: self._to_intake,
            ev.Drained: self._drained,
            ev.BoundReached: self._bound,
            ev.Halt: self._halt,
            ev.Notice: self._notice,
        }
        self.runners: list[Runner] = [self._runner(plan) for plan in plans]

    def _runner(self, plan: HandlerBuild) -> Runner:
        handler = plan.handler
        if handler.batch_size:
            in_thread = None if plan.is_async else call_in_thread(self._loop)
            return BatchRunner(handler, self, self, self.tracing, call_in_thread=in_thread)
        if plan.is_async:
            return AsyncRunner(handler, self, self, self.tracing)
        if plan.inline:
            return InlineRunner(handler, self, self, self.tracing)
        return ThreadRunner(handler, self, self, self._loop, self.tracing)

    def connect(self, intakes: Sequence[IntakePort], publisher: PublisherPort) -> None:
        """Give it its pollers (in the order of the engine's intakes) and its publisher."""
        self._intakes = list(intakes)
        self._commands = [[] for _ in intakes]
        self._publisher = publisher

    # ------------------------------------------------------------------------------------- from any thread

    def deliver(self, events: Sequence[Event]) -> None:
        """Events of a poller. Never blocks."""
        self._inbox.extend(events)
        if not self._inbox_scheduled:
            self._inbox_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._take_inbox)
            except RuntimeError:
                return  # the event loop has ended: nobody decides any more, and nothing is committed

    def take_reports(self, reports: Sequence[Report]) -> None:
        """Reports of the publisher. Never blocks."""
        try:
            self._loop.call_soon_threadsafe(self._reports, reports)
        except RuntimeError:
            return  # as in deliver()

    def publish_from_thread(self, outgoing: Sequence[Outgoing], cancelled: threading.Event) -> None:
        """Publish for a handler that runs in a thread; blocks until the broker has confirmed all of it.

        Raises PublishError when the broker refuses one, or when ``cancelled`` is set meanwhile: a topic that
        takes nothing must not keep the thread for ever. Raises StreamLoopError on the event loop's thread.
        """
        if threading.get_ident() == self._loop_thread:
            raise StreamLoopError(
                "message.publish_and_wait() would block the event loop: await message.publish() in an async "
                "handler, and use message.publish_on_success() in an inline one"
            )
        future = asyncio.run_coroutine_threadsafe(self._publish_all(outgoing), self._loop)
        while not cancelled.is_set():
            try:
                return future.result(LOOK_FOR_CANCEL)
            except TimeoutError:
                if future.done():
                    raise
        future.cancel()
        topics = ", ".join(sorted({each.topic for each in outgoing}))
        raise PublishError(f"publish to {topics}: not confirmed when the handler was asked to stop")

    async def _publish_all(self, outgoing: Sequence[Outgoing]) -> None:
        await asyncio.gather(*map(self.publish, outgoing))

    # ------------------------------------------------------------------------------------------- the step

    def _take_inbox(self) -> None:
        self._inbox_scheduled = False
        self.flush()

    def soon(self) -> None:
        """Have the engine take what is there in this turn of the event loop."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._soon = False
        if self.done or self.unstarted or self._inbox:
            self.flush()

    def flush(self) -> None:
        """Have the engine take what is there now."""
        events: list[Event] = []
        inbox = self._inbox
        while inbox:
            event = inbox.popleft()
            events.append(event)
            if type(event) is ev.Assigned and self.hold_for is not None:
                why = self.hold_for(event.partition.topic, event.partition.partition)
                if why:
                    held = ev.HoldChanged(event.partition, event.epoch, ev.Reason.OPERATOR, True, why)
                    events.append(held)
        if self.done:
            events.append(ev.Finished(self.done.copy()))
            self.done.clear()
        if self.unstarted:
            events.append(ev.Unstarted(self.unstarted.copy()))
            self.unstarted.clear()
        tracing = self.tracing
        # What ends within this step (a record that can't be decoded) is the next one's.
        ended = len(tracing.ended) if tracing is not None else 0
        self.step(events)
        if ended:
            assert tracing is not None
            tracing.settle(ended)

    def step(self, events: Sequence[Event]) -> None:
        """One call of the engine, and what follows from it.

        What it raises is a bug of ours, and what it leaves behind may be half done: nothing is decided, and
        nothing committed, from then on. The run ends, and what was not committed comes again.
        """
        if self.outcome.failure is not None:
            return
        try:
            self._step(events)
        except Exception as error:
            self.outcome.failure = error
            log.critical("the engine has failed: the run ends", exc_info=True)

    def _step(self, events: Sequence[Event]) -> None:
        self.turns += 1
        now = self.clock()
        self.heartbeat.stamp = now
        act = self._act
        turn = self.step_log.before(now, events)
        effects = self.engine.step(now, events)
        if turn is not None:
            self.step_log.after(turn, effects)
        for effect in effects:
            act[type(effect)](effect)
        for index, commands in enumerate(self._commands):
            if commands:
                self._commands[index] = []
                self._intakes[index].command(commands)
        if self._requests:
            assert self._publisher is not None
            requests, self._requests = self._requests, []
            self._publisher.submit(requests)
        for intake in self._intakes:
            if intake.waiting:
                intake.wake()
        self._arm()
        self.steps.observe(self.clock() - now)

    def _arm(self) -> None:
        due = self.engine.next_due()
        timer = self._timer
        if timer is not None:
            if due is not None and timer.when() <= due and not timer.cancelled():
                return
            timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_at(max(due, self.clock()), self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self.flush()

    def tick(self) -> None:
        """Look at deadlines and at what only time shows. Called every 50 ms."""
        now = self.clock()
        for runner in self.runners:
            runner.scan(now)
        self.flush()

    # -------------------------------------------------------------------------------------------- effects

    def _dispatch(self, effect: ev.Dispatch) -> None:
        self.runners[effect.consumer].dispatch(effect.records)

    def _cancel(self, effect: ev.Cancel) -> None:
        for runner in self.runners:
            runner.cancel(effect.records)

    def _to_intake(self, effect: ev.Hold | ev.Seek | ev.Commit | ev.Quiet) -> None:
        self._commands[effect.intake].append(effect)

    def _drained(self, _effect: ev.Drained) -> None:
        self.outcome.drained = True

    def _bound(self, effect: ev.BoundReached) -> None:
        self.outcome.bound = effect.bound

    def _halt(self, effect: ev.Halt) -> None:
        self.outcome.halted = effect

    def _notice(self, effect: ev.Notice) -> None:
        self.notices[effect.kind] = self.notices.get(effect.kind, 0) + 1
        level = logging.WARNING if effect.warning else logging.INFO
        if effect.fields.get("reason") in _EXPECTED:
            level = logging.DEBUG
        log.log(
            level,
            effect.text,
            extra={"kind": effect.kind, **effect.fields},
        )

    # ----------------------------------------------------------------------------------- routed messages

    def _route(self, effect: ev.Route) -> None:
        record = effect.record
        number = next(self._ids)
        self._routes[number] = record
        self._route_ids[record] = number
        request = self._router.request(number, effect, self.wall())
        self._requests.append(request)
        name = record.part.name
        log.info(
            "%s/%s/%s: %s, to %s",
            name.topic,
            name.partition,
            record.offset,
            _short(effect.failure),
            request.topic,
            extra={
                "kind": "routed",
                "topic": name.topic,
                "partition": name.partition,
                "offset": record.offset,
                "target": request.topic,
                "attempt": effect.attempt,
                "error_class": effect.failure.error_class,
                "fingerprint": effect.failure.fingerprint,
                **(self.tracing.ids_of(record, effect.failure) if self.tracing is not None else {}),
            },
        )

    def _unroute(self, effect: ev.Unroute) -> None:
        number = self._route_ids.pop(effect.record, None)
        if number is not None:
            del self._routes[number]
            self._router.forget(number)
            if self.tracing is not None:
                self.tracing.gave_up(number)
            assert self._publisher is not None
            self._publisher.cancel([number])

    def _reports(self, reports: Sequence[Report]) -> None:
        events: list[Event] = []
        tracing = self.tracing
        for report in reports:
            if tracing is not None:
                tracing.reported(report)
            record = self._routes.get(report.id)
            if record is not None:
                self._route_report(report, record, events)
            else:
                self._own_report(report)
        self._inbox.extend(events)
        self.flush()

    def _route_report(self, report: Report, record: Record, events: list[Event]) -> None:
        match report.kind:
            case ReportKind.DELIVERED:
                del self._routes[report.id]
                del self._route_ids[record]
                self._router.forget(report.id)
                events.append(ev.Published(record))
            case ReportKind.BLOCKED:
                events.append(ev.PublishBlocked(record, f"{report.topic} takes nothing now: {report.reason}"))
            case ReportKind.UNBLOCKED:
                events.append(ev.PublishUnblocked(record))
            case ReportKind.TOO_LARGE | ReportKind.REFUSED:
                again = self._router.refused(report)
                if again.reason:
                    events.append(ev.PublishBlocked(record, again.reason))
                if again.delay:
                    self._loop.call_later(again.delay, self._again, report.id)
                else:
                    self._requests.append(again.request)

    def _again(self, number: int) -> None:
        """Try once more what the broker refused: somebody may have raised the topic's limit."""
        if number in self._routes and self._publisher is not None:
            self._publisher.submit([self._router.fresh(number)])

    def target_changed(self, topic: str, partitions: int) -> None:
        """A topic that we publish to has so many partitions now (it was made, made again, or grew)."""
        facts = self._topics.facts.setdefault(topic, TargetFacts())
        if facts.partitions == partitions:
            return
        facts.partitions = partitions
        moved = self._router.retarget(topic)
        if moved and self._publisher is not None:
            # What the client holds for a partition that is no more can't be delivered: it is sent anew.
            self._publisher.cancel([request.id for request in moved])
            self._publisher.submit(moved)

    # ----------------------------------------------------------------------------------- handlers' publishes

    async def publish(self, outgoing: Outgoing) -> None:
        """Publish for a handler, and wait until the broker has confirmed it.

        Raises PublishError when the broker refuses this very record.
        """
        number = next(self._ids)
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures[number] = future
        self._waits.setdefault(id(outgoing.source), []).append(outgoing.topic)
        assert self._publisher is not None
        tracing = self.tracing
        try:
            if outgoing.topic not in self._used:
                self._first_use(outgoing)
            headers = outgoing.headers if tracing is None else tracing.publishing(number, outgoing)
            self._publisher.submit(
                [
                    PublishRequest(
                        number,
                        outgoing.topic,
                        outgoing.partition,
                        outgoing.key,
                        outgoing.value,
                        headers,
                    )
                ]
            )
            await future
        finally:
            del self._futures[number]
            waits = self._waits[id(outgoing.source)]
            waits.remove(outgoing.topic)
            if not waits:
                del self._waits[id(outgoing.source)]
            if future.cancelled():  # with the handler that waited for it
                self._publisher.cancel([number])
                if tracing is not None:
                    tracing.gave_up(number)

    def _own_report(self, report: Report) -> None:
        future = self._futures.get(report.id)
        if future is None or future.done():
            return
        if report.kind is ReportKind.DELIVERED:
            self._missing.discard(report.topic)
            future.set_result(None)
        elif report.kind is ReportKind.BLOCKED:
            log.warning(
                "a handler's publish to %s waits: %s", report.topic, report.reason, extra={"kind": "publish"}
            )
        elif report.kind in (ReportKind.TOO_LARGE, ReportKind.REFUSED):
            future.set_exception(PublishError(f"publish to {report.topic}: {report.reason}"))

    def _first_use(self, outgoing: Outgoing) -> None:
        """A topic that no handler has published to yet: somebody looks whether it is there."""
        topic, source = outgoing.topic, outgoing.source
        if len(self._used) >= MOST_TARGETS:
            return
        self._used.add(topic)
        if self.first_use is not None and source is not None:
            consumer = self._topics.role(source.topic() or "").consumer
            self.first_use(topic, self.engine.consumers[consumer].spec.name)

    def target_missing(self, topic: str) -> None:
        """A topic that handlers publish to does not exist."""
        self._missing.add(topic)

    def waits_for(self, records: Sequence[Record]) -> str:
        """The topics that the handlers of these wait to have published to; empty: none. From any thread."""
        topics = {topic for record in records for topic in list(self._waits.get(id(record.message), ()))}
        return ", ".join(
            f"{topic} (no such topic)" if topic in self._missing else topic for topic in sorted(topics)
        )

    def routing(self, raw: RawMessage) -> Routing | None:
        """What the headers of a record of our own retry topics say of its past; None for all others."""
        if self._topics.is_source(raw.topic() or ""):
            return None
        return read_routing(headers_of(raw), group=self.group)

    # ------------------------------------------------------------------------------------------------ stop

    async def close(self) -> None:
        """End the idle workers and the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for runner in self.runners:
            await runner.close()
        for future in self._futures.values():
            if not future.done():
                future.cancel()
        if self.tracing is not None:
            self.tracing.close()


def _short(failure: Failure) -> str:
    # Escaped: an error's text may quote a hostile payload, and logs are read on terminals.
    text = failure.message.encode("unicode_escape").decode("ascii")
    return f"{failure.error_class}: {text[:200]}"
