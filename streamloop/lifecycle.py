"""One run of a loop: start, drain, stop, and how it ended.

Start: settings and topics are checked, hooks run, the publisher and the pollers begin. End: a signal, stop(),
a bound, a fatal error or the watchdog; then nothing new starts, running handlers finish within the drain
time, offsets are committed, the members leave. Everything that may wait has a bound.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from streamloop.build import Parts, build_parts
from streamloop.control.link import LEAVE_WITHIN, ControlLink
from streamloop.control.operators import Operators
from streamloop.control.topic import name_of, unusable
from streamloop.engine import events as ev
from streamloop.errors import TopicError
from streamloop.kafka.poller import Close, StopFetching
from streamloop.kafka.positions import TopicLookup
from streamloop.kafka.publish_targets import PublishTargets
from streamloop.kafka.topic_admin import BrokersUnreachableError
from streamloop.leaving import leave
from streamloop.observed import Phase
from streamloop.ops.operations import Operations
from streamloop.preflight import TopicCheck, check_settings, make_admin, topics_of
from streamloop.report import health_of, left_behind, metrics_of, place_of, status_of
from streamloop.runners.threads import in_daemon_thread
from streamloop.status import ControlStatus
from streamloop.telemetry.exporting import Traces, open_traces
from streamloop.topic_watching import BROKER_ANSWER, TopicWatching, apply_change
from streamloop.until_end import GroupEnd
from streamloop.watchdog import Watchdog, only_stuck

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from streamloop.assembly import Assembly, Bounds
    from streamloop.kafka.topics import TopicChange
    from streamloop.routing import Topics
    from streamloop.runners.base import Running
    from streamloop.status import Health, LoopStatus

log = logging.getLogger("streamloop")

TICK: Final = 0.05
"""Seconds between two looks at deadlines."""
ASK_AGAIN: Final = 2.0
"""Seconds until an unreachable broker or a missing topic is asked for again at the start."""
SAY_AGAIN: Final = 30.0
"""Seconds until what is waited for is said again."""
FIRST_READ: Final = 2.0
"""Seconds that a start waits for what operators hold in the group."""
CANCEL_GRACE: Final = 1.0
"""Seconds that handlers get after they were cancelled at the end of the drain time."""
CLOSE_TIMEOUT: Final = 10.0
"""Seconds for the Consumers to leave their groups."""
PUBLISH_TIMEOUT: Final = 3.0
"""Seconds for the publisher to end: what the drain left is blocked or unwanted."""

DRAINED, FATAL, DRAIN_TIMED_OUT, WATCHDOG = 0, 1, 3, 70


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    ``exit_code``: 0 drained, 1 fatal error, 2 bad configuration, 3 drain timed out, 70 watchdog. ``counts``:
    by consumer. ``hanging``: handlers that did not come back, with their stacks. ``held_seconds``:
    partition-seconds by reason.
    """

    exit_code: int
    reason: str
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    hanging: tuple[str, ...] = ()
    held_seconds: dict[str, float] = field(default_factory=dict)
    peak_messages: int = 0
    """Most messages of one Consumer that were in the process and not acknowledged."""


@dataclass(slots=True)
class _End:
    """Why the run ends; the first reason stays, a worse exit code wins."""

    reason: str = ""
    exit_code: int = DRAINED

    def because(self, reason: str, exit_code: int = DRAINED) -> None:
        if not self.reason:
            self.reason = reason
        elif exit_code > self.exit_code and self.exit_code == DRAINED:
            self.reason = f"{reason} (after: {self.reason})"
        self.exit_code = self.exit_code or exit_code


class Run:
    """One run of a StreamLoop on one event loop."""

    def __init__(self, assembly: Assembly, bounds: Bounds, *, ends_process: bool = False) -> None:
        self.assembly = assembly
        self.bounds = bounds
        self.settings = assembly.settings
        self.phase = Phase.STARTING
        self.parts: Parts | None = None
        self.watchdog: Watchdog | None = None
        self.started_at = time.monotonic()
        self.ready = False
        self.ends_process = ends_process
        """The process is there for this run alone: a second signal and the watchdog may end it."""
        self.hanging: tuple[str, ...] = ()
        """The drain time was over before everything had ended."""
        self._end = _End()
        self._stop = threading.Event()
        self._stop_now = False
        runtime = bounds.max_runtime
        self._end_at = None if runtime is None else self.started_at + runtime
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self.control: ControlLink | None = None
        """The link to the group's control topic; None: it has not begun, or there can be none."""
        self._control_off: ControlStatus | None = None
        self._watching: TopicWatching | None = None
        self._topic_check: TopicCheck | None = None
        self._next_rearm = 0.0
        self.wall = time.time
        self.began_at = self.wall()
        """Epoch seconds: since when counters count."""
        self.export_failures: dict[str, int] = {"metrics": 0, "traces": 0}
        """Exports to the collector that failed, by signal."""
        self.drain_timeouts = 0
        self.topics: tuple[str, ...] = ()
        """What the loop reads: source topics, then retry and replay topics."""
        self.sources: frozenset[str] = frozenset()
        self.targets: tuple[str, ...] = ()
        """What failed messages go to: retry and dead-letter topics."""
        self.operators = Operators(lambda: self.wall())  # noqa: PLW0108 - the harness sets its clock later
        self.operations = Operations(self)
        self.traces = Traces()

    # ------------------------------------------------------------------------------------- from any thread

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Drain and end; ``at_once``: do not wait for running handlers."""
        self._end.because(reason)
        self._stop.set()
        if at_once:
            self._stop_now = True
        self._call(self._wake_up)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                return  # the event loop has ended, and with it the run

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    @property
    def control_status(self) -> ControlStatus | None:
        """The group's control topic as this member sees it; None before it was looked for."""
        return self.control.status() if self.control is not None else self._control_off

    @property
    def failed_because(self) -> str:
        """The fatal error that ends the run; empty while there is none."""
        return self._end.reason if self._end.exit_code else ""

    def partitions_of(self, topic: str) -> int | None:
        """How many partitions a topic has, as far as that is known."""
        watching = self._watching
        return watching.partitions_of(topic) if watching is not None else None

    def health(self) -> Health:
        """Whether it is alive and ready."""
        return health_of(self)

    def status(self) -> LoopStatus | None:
        """What it does; None before it has started."""
        return status_of(self)

    def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Counters and gauges."""
        return metrics_of(self)

    # ------------------------------------------------------------------------------------------- the run

    async def main(self) -> RunResult:
        """Start, run, drain, close. Raises ConfigurationError (nothing was started then)."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        topics = topics_of(self.assembly)
        for warning in await in_daemon_thread(lambda: check_settings(self.assembly)):
            log.warning("%s", warning, extra={"kind": "settings"})
        self.know(topics)
        self.operations.open()
        self.traces = open_traces(self.settings, self.export_failures)
        try:
            return await self._run(topics)
        except asyncio.CancelledError:
            # Cancelled while starting: nothing runs yet. While running, _until_told() has taken it.
            self._end.because("cancelled")
            raise
        finally:
            self.phase = Phase.ENDED
            self._stop.set()
            if self.watchdog is not None:
                self.watchdog.stop()
            control = self.control
            if control is not None:
                within = 0.0 if self._stop_now else LEAVE_WITHIN
                await in_daemon_thread(lambda: control.close(self.failed_because, within))
            await self.operations.close()
            # Last: the Consumers have left their groups, and nobody waits for a collector that is away.
            await in_daemon_thread(lambda: self.traces.close(self.settings.trace_flush_timeout))

    def know(self, topics: Topics) -> None:
        """These are the loop's topics."""
        self.topics = (*topics.sources, *topics.own_names)
        self.sources = frozenset(topics.sources)
        self.targets = (*topics.retry_names, *topics.dead_names)

    async def _run(self, topics: Topics) -> RunResult:
        self.phase = Phase.WAITING
        await self._await_topics(topics)
        self.phase = Phase.STARTING
        if self._stop.is_set() or self._end.reason:
            return self._result()
        self.parts = parts = build_parts(
            self.assembly, topics, self.bounds, self._poller_ended, self.traces.tracing
        )
        core = parts.core
        core.hold_for = self.operators.why
        read_until = time.monotonic() + FIRST_READ
        self._join_control(topics)
        hooks_ran = False
        try:
            hooks_ran = True
            started = await self._hooks(self.assembly.on_startup, self.settings.startup_timeout, "on_startup")
            if started and not self._stop.is_set():
                await self._first_read(read_until)
            if started and not self._stop.is_set():
                self._begin(parts, topics)
                await self._until_told(parts)
            await self._drain(parts)
        finally:
            await core.close()
            if hooks_ran:
                shutdown = self.assembly.on_shutdown[::-1]
                await self._hooks(shutdown, self.settings.shutdown_timeout, "on_shutdown")
        return self._result()

    def _join_control(self, topics: Topics) -> None:
        """Follow the group's control topic, if there can be one."""
        check = self._topic_check
        assert check is not None
        name = name_of(self.settings)
        why = unusable(self.settings, (*topics.sources, *topics.own_names, *topics.dead_names))
        if why:
            self._control_off = ControlStatus(name, "off", why)
            level = logging.INFO if self.settings.control_topic == "off" else logging.WARNING
            log.log(level, "no control topic: %s; this member is on its own", why, extra={"kind": "control"})
            return
        self.control = ControlLink(
            self.settings,
            check.admin,
            status=self.status,
            took=self.operators.take,
            applied=lambda: self.operators.applied,
            facts=lambda: [check.known[each] for each in topics.sources if each in check.known],
        )
        self.control.start()

    async def _first_read(self, until: float) -> None:
        """Nothing is handled before it is known what operators hold, or the bound is over."""
        control = self.control
        if control is None:
            return
        wait = max(0.0, until - time.monotonic())
        read = in_daemon_thread(lambda: control.await_first_read(wait))
        if await self._unless_told(read) and not control.first_read.is_set():
            log.warning(
                "the control topic %s could not be read within %g s: what operators hold in the group comes "
                "into force when it has been",
                control.topic,
                FIRST_READ,
                extra={"kind": "control"},
            )

    async def _await_topics(self, topics: Topics) -> None:
        """Until a broker has answered and the topics are as they have to be, or it is told to stop."""
        admin = make_admin(self.settings)
        self._topic_check = check = TopicCheck(self.assembly, topics, admin)
        said = "No Kafka broker has answered yet."
        say_at = 0.0
        while not self._stop.is_set() and not self._is_over():
            problem = ""
            look = in_daemon_thread(lambda: check.look(BROKER_ANSWER, create=self.settings.create_topics))
            try:
                if not await self._unless_told(look):
                    break
            except BrokersUnreachableError as error:
                problem = f"{error} Trying again."
            for warning in check.warnings:
                log.warning("%s", warning, extra={"kind": "topics"})
            check.warnings.clear()
            if not problem and check.missing:
                sentence = check.sentence_about_missing()
                if self.settings.require_topics:
                    raise TopicError(sentence)
                log.warning("%s\nIt is waited for.", sentence, extra={"kind": "topic_missing"})
            if not problem:
                self.ready = True
                return
            now = time.monotonic()
            if problem != said or now >= say_at:
                log.warning("%s", problem, extra={"kind": "broker_unreachable"})
                said, say_at = problem, now + SAY_AGAIN
            await self._unless_told(asyncio.sleep(ASK_AGAIN))
        if self._is_over():
            self._end.because(f"max_runtime is over, and the loop could not start. {said}", FATAL)

    def _is_over(self) -> bool:
        return self._end_at is not None and time.monotonic() >= self._end_at

    async def _unless_told(self, what: Coroutine[Any, Any, None]) -> bool:
        """Wait for it, but no longer than until somebody ends the run, or its time is over. False: it did.

        A question to brokers that are away takes seconds, and a signal must not wait for its answer.
        """
        assert self._wake is not None
        task = asyncio.ensure_future(what)
        told = asyncio.ensure_future(self._wake.wait())
        try:
            left = None if self._end_at is None else max(0.0, self._end_at - time.monotonic())
            await asyncio.wait({task, told}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            task.result()
            return True
        finally:
            told.cancel()
            task.cancel()

    async def _hooks(self, hooks: Sequence[Callable[[], Awaitable[None]]], within: float, where: str) -> bool:
        """Run the user's hooks within their time; False when one failed (which ends the run)."""
        name = ""
        try:
            async with asyncio.timeout(within):
                for hook in hooks:
                    name = getattr(hook, "__qualname__", repr(hook))
                    await hook()
        except TimeoutError:
            self._end.because(f"{where} function {name} did not end within {within:g} s", FATAL)
            log.error("%s function %s did not end within %g s", where, name, within)  # noqa: TRY400
            return False
        except Exception:
            self._end.because(f"{where} function {name} failed", FATAL)
            log.exception("%s function %s failed", where, name)
            return False
        return True

    def _begin(self, parts: Parts, topics: Topics) -> None:
        """Start the threads: from here on messages come."""
        handlers = [build.handler for build in self.assembly.consumers]
        slowest = max(handler.timeout + handler.kill_after for handler in handlers)
        self.watchdog = Watchdog(
            parts.core.heartbeat,
            handlers,
            give_up_after=slowest,
            give_up=self._watchdog_gave_up,
            end_process=self.ends_process,
            on_look=self.operations.look,
        )
        self.watchdog.start()
        parts.publisher.start()
        check = self._topic_check
        assert check is not None
        lookup = TopicLookup(check.admin)
        for poller in parts.pollers:
            poller.ends.lookup = lookup
            poller.start()
        self._watching = TopicWatching(
            check,
            topics,
            self.settings,
            stop=self._stop,
            changed=lambda change: self._call(self._topic_changed, change),
            end=self.stop_because,
        )
        self._watching.start()
        self.operations.count_dead_letters(
            check.admin, topics, lambda topic: ev.TopicPartition(topic, 0) in parts.engine.parts
        )
        targets = PublishTargets(
            check.admin, lambda topic: self._call(parts.core.target_missing, topic), self._stop
        )
        parts.core.first_use = targets.look
        if self.bounds.until_end:
            GroupEnd(
                self.settings.group,
                check.admin,
                partitions=lambda: {topic: self.partitions_of(topic) for topic in topics.sources},
                assigned=lambda: bool(parts.engine.intakes[0].parts),
                at_end=self.stop,
            ).start(self._stop)
        self.phase = Phase.RUNNING
        log.info(
            "member %s of group %s reads %s",
            self.settings.member,
            self.settings.group,
            ", ".join(topics.sources),
            extra={"kind": "started"},
        )

    async def _until_told(self, parts: Parts) -> None:
        """Tick until there is a reason to end."""
        while not self._end.reason:
            try:
                await asyncio.sleep(TICK)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None:
                    task.uncancel()
                self._end.because("cancelled")
                break
            self._tick(parts)
            outcome = parts.core.outcome
            if outcome.halted is not None:
                self._halted(outcome.halted)
            elif outcome.bound:
                self._end.because(f"bound reached: {outcome.bound}")
            elif self._is_over():
                self._end.because("bound reached: max_runtime")
            self._look_for_failures(parts)

    def _tick(self, parts: Parts) -> None:
        parts.core.tick()
        now = time.monotonic()
        self.operations.tick(now)
        if self.watchdog is not None and now >= self._next_rearm:
            self._next_rearm = now + 1.0
            self.watchdog.rearm()
        self._apply_operator(parts)

    def _apply_operator(self, parts: Parts) -> None:
        events = self.operators.changes(parts.engine.parts, parts.core.clock())
        if events:
            parts.core.deliver(events)

    def _halted(self, halt: ev.Halt) -> None:
        name = halt.record.part.name
        where = f"{name.topic}/{name.partition}/{halt.record.offset}"
        log.error(
            "stopping at %s: %s",
            where,
            halt.note,
            extra={"kind": "halted", "error_class": halt.failure.error_class},
        )
        self._end.because(f"stopped at {where}: {halt.note}", FATAL)

    def _look_for_failures(self, parts: Parts) -> None:
        if parts.core.outcome.failure is not None:
            self._end.because(f"the engine has failed: {parts.core.outcome.failure!r}", FATAL)
        if parts.publisher.failure is not None:
            self._end.because(f"the publisher's thread died: {parts.publisher.failure!r}", FATAL)
        for runner in parts.core.runners:
            if runner.counts.abandoned:
                for running in runner.running():
                    if running.given_up:
                        log.error(
                            "the handler of %s did not come back:\n%s",
                            _shown(running),
                            running.stack,
                            extra={"kind": "handler_stuck"},
                        )
                self._end.because(
                    f"handler {runner.handler.name} did not come back within kill_after of its timeout",
                    WATCHDOG,
                )

    def _poller_ended(self, failure: BaseException | None) -> None:
        """On the poller's thread."""
        if failure is not None:
            self._end.because(f"a poller's thread ended: {failure}", FATAL)
        self._call(self._wake_up)

    def _watchdog_gave_up(self, reason: str) -> None:
        """On the watchdog's thread: the event loop can't end the run."""
        self._end.because(reason, WATCHDOG)
        if self.ends_process:
            leave(WATCHDOG)

    def stop_because(self, reason: str, exit_code: int) -> None:
        """End the run with this exit code; from any thread."""
        self._end.because(reason, exit_code)
        self._stop.set()
        self._call(self._wake_up)

    def _topic_changed(self, change: TopicChange) -> None:
        if self.parts is not None and self.phase is Phase.RUNNING:
            apply_change(self.parts, change)

    # -------------------------------------------------------------------------------------------- the end

    async def _drain(self, parts: Parts) -> None:
        """Let running handlers end within the drain time, then leave the groups."""
        self.phase = Phase.DRAINING
        self.operations.drain()
        core = parts.core
        if self._watching is not None:  # it had begun
            for poller in parts.pollers:
                poller.command([StopFetching()])
            core.step([ev.Drain()])
            deadline = time.monotonic() + self.settings.drain_timeout
            await self._drained(parts, deadline)
            if not core.outcome.drained:
                await self._cut_short(parts)
            self.phase = Phase.CLOSING
            await self._close(parts)

    async def _drained(self, parts: Parts, deadline: float) -> None:
        core = parts.core
        while (
            not core.outcome.drained
            and core.outcome.failure is None
            and not self._stop_now
            and time.monotonic() < deadline
            and not only_stuck(parts)
        ):
            if core.outcome.halted is not None and not self._end.exit_code:
                self._halted(core.outcome.halted)
            try:
                await asyncio.sleep(TICK)
            except asyncio.CancelledError:
                self._stop_now = True
            self._tick(parts)

    async def _cut_short(self, parts: Parts) -> None:
        """The drain time is over: cancel what runs, and name what does not come back."""
        core = parts.core
        self.drain_timeouts += not self._stop_now
        waited = "a second signal came" if self._stop_now else f"{self.settings.drain_timeout:g} s are over"
        unwritten = "".join(
            f"; {each.waiting} records could not be written to {each.topic} ({each.reason}): their messages "
            "are not acknowledged and come again"
            for each in parts.publisher.blocked
        )
        left = left_behind(parts)
        if left:
            waited += f"; {left}"
        self._end.because(f"the drain was cut short: {waited}{unwritten}", DRAIN_TIMED_OUT)
        core.step([ev.CutShort()])
        for runner in core.runners:
            runner.stop()
        grace = time.monotonic() + (0.0 if self._stop_now else CANCEL_GRACE)
        while not core.outcome.drained and time.monotonic() < grace:
            await asyncio.sleep(TICK)
            core.tick()
        hanging = [running for runner in core.runners for running in runner.running()]
        self.hanging = tuple(f"{_shown(running)}\n{running.stack}" for running in hanging)
        for running in hanging:
            log.error(
                "the handler of %s still runs: its message is not acknowledged and comes again\n%s",
                _shown(running),
                running.stack,
                extra={"kind": "handler_hangs"},
            )

    async def _close(self, parts: Parts) -> None:
        """Commit what is acknowledged and leave the groups; the event loop goes on turning meanwhile."""
        for poller in parts.pollers:
            poller.command([Close()])
        timeout = 1.0 if self._stop_now else CLOSE_TIMEOUT
        deadline = time.monotonic() + timeout
        while any(poller.is_alive() for poller in parts.pollers) and time.monotonic() < deadline:
            await asyncio.sleep(TICK / 5)
            parts.core.tick()
        for poller in parts.pollers:
            if poller.is_alive():
                log.error("Consumer %s did not close within %g s", poller.label, timeout)
                self._end.because(f"Consumer {poller.label} did not close in time", DRAIN_TIMED_OUT)
        if parts.lookup is not None:
            parts.lookup.close()
        left = await in_daemon_thread(
            lambda: parts.publisher.close(0.0 if self._stop_now else PUBLISH_TIMEOUT)
        )
        if left:
            log.warning(
                "%d records were not confirmed: their messages are not acknowledged and come again", len(left)
            )

    def _result(self) -> RunResult:
        parts = self.parts
        end = self._end
        if parts is None:
            return RunResult(end.exit_code, end.reason or "stopped before it started")
        status = status_of(self)
        assert status is not None
        return RunResult(
            end.exit_code,
            end.reason,
            {consumer.name: consumer.counts for consumer in status.consumers},
            self.hanging,
            status.held_seconds,
            max(intake.peak_messages for intake in status.intakes),
        )


def _shown(running: Running) -> str:
    return f"{running.consumer} ({place_of(running.record)})"
