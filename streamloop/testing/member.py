"""One life of a loop in the harness: from its start to its stop or its crash.

Puts engine, core and runners together as production does, with the harness's ends of the ports, and drives
the event loop. It is the event loop's pilot: it says when time may pass, and ticks when a deadline is near.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from streamloop.engine import events as ev
from streamloop.engine.events import TopicPartition
from streamloop.engine.states import State
from streamloop.testing.clock import VirtualLoop
from streamloop.testing.errors import HarnessError, StillWaitingError
from streamloop.testing.ports import HarnessIntake, HarnessPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from streamloop.app import StreamLoop
    from streamloop.assembly import Assembly
    from streamloop.core import Core
    from streamloop.engine.engine import Engine
    from streamloop.engine.partition import Partition
    from streamloop.engine.record import Record
    from streamloop.lifecycle import Run
    from streamloop.routing import Topics
    from streamloop.testing.broker import Broker, KafkaRecord
    from streamloop.testing.clock import Clock
    from streamloop.testing.trace import Journal

T = TypeVar("T")

log = logging.getLogger("streamloop.testing")

TICK: Final = 0.05
"""Seconds: deadlines are looked at this often, as in production."""
CANCEL_GRACE: Final = 1.0
"""Seconds that handlers get after they were cancelled at the end of the drain time, as in production."""
DAY: Final = 86_400.0
DRAINED, FATAL, DRAIN_TIMED_OUT, WATCHDOG = 0, 1, 3, 70
SHOWN: Final = 20
"""Most messages that an error lists."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that is not acknowledged. ``state``: the engine's, or UNREAD when it was not fetched."""

    topic: str
    partition: int
    offset: int
    state: str
    why: str

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition}/{self.offset}: {self.state}{', ' if self.why else ''}{self.why}"
        )


@dataclass(slots=True)
class World:
    """What outlives a member: the broker, the clock, the epochs, and what became of messages."""

    broker: Broker
    clock: Clock
    journal: Journal
    uniform: Callable[[], float]
    """Numbers in [0, 1) for the jitter of back-offs."""
    patience: float
    epochs: dict[TopicPartition, int]


class Member:
    """One life of the loop. ``start`` first; ``stop`` or ``kill`` last."""

    engine: Engine
    core: Core
    publisher: HarnessPublisher
    intakes: list[HarnessIntake]
    run_state: Run

    def __init__(self, loop: StreamLoop[Any], assembly: Assembly, topics: Topics, world: World) -> None:
        self.exit_code: int | None = None
        self.exit_reason = ""
        self.assembly = assembly
        self.topics = topics
        self.clock = world.clock
        self._loop = loop
        self._world = world
        self._should_stop: Callable[[], bool] = _never
        self._errors: list[tuple[str, BaseException | None]] = []
        self._in_hooks = False
        self.event_loop = VirtualLoop(world.clock, self, world.patience)
        self.event_loop.set_exception_handler(self._unexpected)
        self.intakes = []

    # ------------------------------------------------------------------------------------------- its life

    def start(self) -> None:
        """Build all parts, run on_startup, and take all partitions. Raises what a hook raises."""
        self._complete(self._start(), "an on_startup function")
        for intake in self.intakes:
            intake.assign(self.partitions(intake))

    async def _start(self) -> None:
        # Imported here: these bring in the whole shell, Kafka's client included.
        from streamloop.assembly import Bounds
        from streamloop.build import Parts, build_engine, make_preparer
        from streamloop.core import Core
        from streamloop.lifecycle import Run
        from streamloop.observed import Phase
        from streamloop.telemetry.exporting import open_traces
        from streamloop.watchdog import Watchdog

        world, topics, assembly = self._world, self.topics, self.assembly
        settings, clock = assembly.settings, world.clock
        self.engine, capacities = build_engine(assembly, topics, Bounds())
        self.engine.config = replace(self.engine.config, uniform=world.uniform)
        # Only where the test has set a TracerProvider: a test exports nothing by itself.
        traces = open_traces(
            settings, {"traces": 0}, clock=clock.monotonic, wall=clock.wall, may_make_provider=False
        )
        self.core = core = Core(
            self.engine,
            assembly.consumers,
            topics,
            group=settings.group,
            clock=clock.monotonic,
            wall=clock.wall,
            tracing=traces.tracing,
        )
        names = [("source", list(topics.sources)), ("retry", topics.own_names)]
        preparer = make_preparer(topics, settings.group, clock=clock.monotonic, wall=clock.wall)
        self.intakes = [
            HarnessIntake(
                index,
                names[index][0],
                names[index][1],
                world.broker,
                core,
                capacity,
                clock,
                world.journal,
                epochs=world.epochs,
                prepare=preparer if index else None,
                start_at=self._start_at,
            )
            for index, capacity in enumerate(capacities)
        ]
        self.publisher = HarnessPublisher(world.broker, core, clock, self.poke)
        core.connect(self.intakes, self.publisher)
        self.run_state = run = Run(assembly, Bounds())
        parts: Any = Parts(self.engine, core, self.publisher, self.intakes, capacities)  # type: ignore[arg-type]
        run.parts = parts
        core.hold_for = run.operators.why
        run.know(topics)
        run.wall = clock.wall
        run.traces = traces
        run.ready = True
        handlers = [build.handler for build in assembly.consumers]
        # Not started: for loop.health() alone, which asks it what blocks the event loop.
        run.watchdog = Watchdog(
            core.heartbeat, handlers, give_up_after=DAY, give_up=log.error, end_process=False
        )
        self._loop._run = run  # noqa: SLF001 - for loop.status(), health() and pause()
        await self._hooks(assembly.on_startup, settings.startup_timeout)
        run.phase = Phase.RUNNING

    async def _hooks(self, hooks: Iterable[Callable[[], Any]], within: float) -> None:
        self._in_hooks = True
        try:
            async with asyncio.timeout(within):
                for hook in hooks:
                    await hook()
        finally:
            self._in_hooks = False

    def _start_at(self, topic: str, log: list[KafkaRecord]) -> int:
        if not self.topics.is_source(topic):
            return 0
        start = self.assembly.consumers[self.topics.sources[topic].consumer].settings.start
        if start == "latest":
            return len(log)
        if start == "stop":
            raise HarnessError(
                f"start='stop' keeps the loop from {topic}, which has no committed offset in the harness: "
                "give Harness(loop, start='earliest')"
            )
        if isinstance(start, int):
            return next((record.offset for record in log if record.timestamp >= start), len(log))
        return 0

    def partitions(self, intake: HarnessIntake) -> list[TopicPartition]:
        """All partitions of its topics."""
        return [
            TopicPartition(topic, partition)
            for topic in intake.topics
            for partition in range(len(self._world.broker.topic(topic).partitions))
        ]

    def stop(self) -> None:
        """Drain as production does, commit, run on_shutdown, and end. Raises what a hook raises."""
        try:
            self._complete(self._drain(), "the drain")
        finally:
            self._end()

    async def _drain(self) -> None:
        core, settings = self.core, self.assembly.settings
        try:
            for intake in self.intakes:
                intake.stop_fetching()
            core.step([ev.Drain()])
            if not await self._drained(settings.drain_timeout):
                for runner in core.runners:
                    runner.stop()
                await self._drained(CANCEL_GRACE)
                self._ends(DRAIN_TIMED_OUT, f"the drain was cut short: {settings.drain_timeout:g} s are over")
            self._ends(DRAINED, "stopped")
            await core.close()
        finally:
            await self._hooks(self.assembly.on_shutdown[::-1], settings.shutdown_timeout)

    async def _drained(self, within: float) -> bool:
        core = self.core
        until = self.clock.now + within
        while not core.outcome.drained and self.clock.now < until:
            await asyncio.sleep(TICK)
            core.tick()
        return core.outcome.drained

    def kill(self) -> None:
        """End without a drain, as kill -9 would: what is not committed comes again."""
        self._ends(-9, "crashed")
        self._end()

    def _end(self) -> None:
        self._loop._run = None  # noqa: SLF001 - it runs no more
        self.event_loop.set_exception_handler(lambda _loop, _context: None)
        for intake in self.intakes:
            if intake.assigned:
                intake.close(list(intake.assigned), lost=True)
            intake.closed = True
        if self.intakes:
            self.publisher.closed = True
            self.event_loop.create_task(self.core.close())
        self._spin()
        left = asyncio.all_tasks(self.event_loop)
        for task in left:
            task.cancel()
        self._spin()
        for task in asyncio.all_tasks(self.event_loop):
            # It swallows its cancellation; asyncio would complain of it when it is collected.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
            coroutine: Any = task.get_coro()
            try:
                coroutine.close()
            except RuntimeError as error:
                log.warning("%r does not end: %s", task, error)
        self.event_loop.close()

    def _spin(self) -> None:
        """Do what is ready now."""
        self._should_stop = _always
        self.event_loop.run_forever()

    # -------------------------------------------------------------------------------------------- driving

    def run(self, until: Callable[[], bool] | None, limit: float) -> None:
        """Run until nothing is left to do by itself. Raises StillWaitingError after ``limit`` seconds."""

        def should_stop() -> bool:
            return (until is not None and until()) or self.ended() or not self.is_alive()

        if not self.run_for(limit, should_stop):
            raise StillWaitingError(self._sentence(limit))

    def run_for(self, seconds: float, should_stop: Callable[[], bool]) -> bool:
        """Run until ``should_stop`` (asked when nothing is ready) or so many seconds have passed.

        True when it was told to stop before.
        """
        self.tick()
        told = False

        def asked() -> bool:
            nonlocal told
            told = should_stop()
            return told

        timer = self.event_loop.call_later(seconds, self.event_loop.stop)
        self._should_stop = asked
        try:
            self.event_loop.run_forever()
            if not told:
                self._spin()
        finally:
            timer.cancel()
            self._should_stop = _never
        self._raise_problems()
        self.ended()
        return told

    def settle(self) -> None:
        """Do what can be done in this instant."""
        self.run_for(0.0, _always)

    def _complete(self, coroutine: Coroutine[Any, Any, T], what: str) -> T:
        task = self.event_loop.create_task(coroutine)
        self._should_stop = _never
        try:
            return self.event_loop.run_until_complete(task)
        except RuntimeError:
            if task.done():
                raise
            task.cancel()
            raise HarnessError(f"{what} waits for something that never comes") from None
        finally:
            self._raise_problems()

    def _raise_problems(self) -> None:
        if self.core.outcome.failure is not None:
            raise HarnessError(
                "the engine has failed: this is a bug of streamloop"
            ) from self.core.outcome.failure
        problem = self.event_loop.problem
        if problem is not None:
            self.event_loop.problem = None
            raise problem
        for runner in self.core.runners:
            for task in runner.tasks():
                if task.done() and not task.cancelled() and task.exception() is not None:
                    self._errors.append((f"a worker of {runner.handler.name} died", task.exception()))
        if self._errors:
            text, error = self._errors.pop(0)
            self._errors.clear()
            raise HarnessError(f"an error that no handler raised: {text}") from error

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append((str(context.get("message")), context.get("exception")))

    # ------------------------------------------------------------------------------------------- the pilot

    def should_stop(self) -> bool:
        """Asked each time before the clock moves."""
        return self._should_stop()

    def next_tick(self) -> float | None:
        """The tick at which the next deadline will be seen."""
        if not self.intakes:
            return None
        deadlines = [due for due in (runner.next_scan() for runner in self.core.runners) if due is not None]
        return min(deadlines) + TICK if deadlines else None

    def tick(self) -> None:
        """What production does every 50 ms."""
        if self.intakes:
            self.core.tick()
            self.run_state._apply_operator(self.run_state.parts)  # type: ignore[arg-type]  # noqa: SLF001

    def is_busy(self, sockets: int) -> bool:
        """A handler runs in a thread, or may wait for a socket."""
        if self._in_hooks and sockets:
            return True
        if not self.intakes:
            return False
        return any(
            (runner.in_threads or sockets) and any(True for _ in runner.running())
            for runner in self.core.runners
        )

    def stuck(self) -> str:
        """What runs, with stacks."""
        if not self.intakes:
            return ""
        return "\n".join(
            f"{running.consumer} ({_shown(running.record)}):\n{running.stack}"
            for runner in self.core.runners
            for running in runner.running()
        )

    def poke(self) -> None:
        """Records were appended."""
        for intake in self.intakes:
            intake.soon()

    # ------------------------------------------------------------------------------------------- its state

    def ended(self) -> bool:
        """A fatal error has ended the run, or a handler that did not come back; says so in exit_code."""
        halted = self.core.outcome.halted
        if halted is not None and self.core.outcome.drained:
            self._ends(FATAL, f"fatal error at {_shown(halted.record)}: {halted.note}")
        for runner in self.core.runners:
            if runner.counts.abandoned:
                self._ends(
                    WATCHDOG,
                    f"handler {runner.handler.name} did not come back within kill_after of its timeout",
                )
        return self.exit_code is not None

    def _ends(self, code: int, reason: str) -> None:
        if self.exit_code is None:
            self.exit_code, self.exit_reason = code, reason

    def is_alive(self) -> bool:
        """Something will happen by itself. Asked when nothing is ready to run."""
        engine = self.engine
        if any(consumer.running for consumer in engine.consumers):
            return True
        now = self.clock.now
        for intake in engine.intakes:
            for record in intake.backoff:
                assert record.attempts is not None
                if record.attempts.due > now or not record.part.stopped:
                    return True
        return any(self._goes_on(part, now) for part in engine.parts.values())

    def _goes_on(self, part: Partition, now: float) -> bool:
        ledger = part.ledger
        if part.running or part.routing > len(part.blocked) or part.dead_waiting or part.not_due_until:
            return True
        if ledger.version != ledger.confirmed or (part.lanes.ready and not part.stopped):
            return True
        return part.intake.retries and any(
            record.state is State.FETCHED and record.attempts is not None and record.attempts.due > now
            for record in ledger.outstanding
        )

    def waiting(self) -> list[Waiting]:
        """What is not acknowledged: first what was fetched, then what was not."""
        found = [
            Waiting(name.topic, name.partition, record.offset, record.state.name, self._why(part, record))
            for name, part in self.engine.parts.items()
            for record in part.ledger.outstanding
            if record.state is not State.ACKED
        ]
        for intake in self.intakes:
            for name in self.partitions(intake):
                log = self._world.broker.topic(name.topic).partitions[name.partition]
                assignment = intake.assigned.get(name)
                if assignment is not None:
                    position, why = assignment.position, self._held(name)
                else:
                    committed = self._world.broker.committed.get(name)
                    position, why = (committed.offset if committed else 0), "its partition is not assigned"
                found += [
                    Waiting(name.topic, name.partition, each.offset, "UNREAD", why) for each in log[position:]
                ]
        return found

    def _held(self, name: TopicPartition) -> str:
        part = self.engine.parts.get(name)
        if part is None:
            return ""
        if part.not_due_until:
            return f"due in {part.not_due_until - self.clock.now:.1f} s"
        return "; ".join(
            f"held ({reason.value}): {hold.detail}"
            for reason, hold in (*part.holds.items(), *part.outside.items())
        )

    def _why(self, part: Partition, record: Record) -> str:
        now = self.clock.now
        if record.state is State.PROCESSING:
            return f"its handler has run for {now - record.started:.1f} s"
        if record.attempts is not None and record.attempts.due > now:
            return f"due in {record.attempts.due - now:.1f} s"
        return self._held(part.name)

    def _sentence(self, limit: float) -> str:
        waiting = self.waiting()
        lines = [f"  {each}" for each in waiting[:SHOWN]]
        if len(waiting) > SHOWN:
            lines.append(f"  and {len(waiting) - SHOWN} more")
        return "\n".join(
            [
                f"after {limit:g} s of virtual time (limit) {len(waiting)} messages are not acknowledged; "
                "use advance(seconds) or run(until=...) where they are meant to wait:",
                *lines,
            ]
        )


def _shown(record: Record) -> str:
    name = record.part.name
    return f"{name.topic}/{name.partition}/{record.offset}"


def _never() -> bool:
    return False


def _always() -> bool:
    return True
