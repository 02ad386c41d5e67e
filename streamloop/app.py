"""StreamLoop: declares consumers, runs them, stops them."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal

from typing_extensions import TypeVar

from streamloop.assembly import Assembly, Bounds, Hook
from streamloop.blocking import run_blocking
from streamloop.control.records import Scope
from streamloop.declare import Declaration, HandlerBuild, Middleware, build_handler, declare
from streamloop.engine.retry import ErrorRules
from streamloop.errors import ConfigurationError, StreamLoopError
from streamloop.lifecycle import Run, RunResult
from streamloop.preflight import CheckReport, check_loop
from streamloop.settings import ConsumerSettings, Loaded, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from streamloop.codecs import Codec
    from streamloop.control.view import GroupView
    from streamloop.engine.retry import Failure
    from streamloop.status import Health, LoopStatus

S = TypeVar("S", default=None)
F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("streamloop")


class StreamLoop(Generic[S]):
    """A consumer group member: one engine, one Kafka Consumer for its source topics and one for its retries.

    ``group``: the consumer group (setting ``group``). ``state``: whatever the handlers share, such as pools;
    it is ``loop.state``, of the type that was given. ``settings``: any setting by its name; they come before
    the environment, the settings file and the defaults.

        loop = StreamLoop("billing")

        @loop.consumer("orders", ordering="key", concurrency=200, timeout=10)
        async def charge(order: Order, message: Message) -> None: ...
    """

    def __init__(self, group: str | None = None, *, state: S | None = None, **settings: object) -> None:
        if group is not None:
            if not isinstance(group, str):
                raise ConfigurationError(
                    f"StreamLoop({group!r}): the first argument is the consumer group's name, a string"
                )
            settings = {"group": group, **settings}
        self._keywords = settings
        self._state = state
        self._declarations: list[Declaration] = []
        self._middleware: list[Middleware] = []
        self._on_startup: list[Hook] = []
        self._on_shutdown: list[Hook] = []
        self._overrides: Mapping[str, object] = {}
        self._config: Path | None = None
        self._run: Run | None = None
        self._lock = threading.Lock()

    @property
    def state(self) -> S:
        """What was given as ``state``."""
        return self._state  # type: ignore[return-value]

    @state.setter
    def state(self, value: S) -> None:
        self._state = value

    # ------------------------------------------------------------------------------------------- declaring

    def consumer(
        self,
        *topics: str,
        name: str | None = None,
        runner: Literal["auto", "thread", "inline"] = "auto",
        batch: bool = False,
        codec: str | Codec | None = None,
        permanent: Iterable[type[BaseException]] = (),
        transient: Iterable[type[BaseException]] = (),
        unavailable: Iterable[type[BaseException]] = (),
        fatal: Iterable[type[BaseException]] = (),
        delay: Callable[[int, Failure], float] | None = None,
        **settings: object,
    ) -> Callable[[F], F]:
        """Declare the handler of one or more topics. The function itself stays as it is.

        ``name``: the function's name by default. ``runner``: 'auto' runs ``async def`` on the event loop and
        ``def`` in threads; 'inline' runs a cheap ``def`` on the event loop. ``batch``: the handler takes a
        list (batch_size, batch_linger) and may return an outcome for each. ``codec``: 'json', 'msgpack' or an
        object with decode and encode; without one the annotation of the first argument decides.
        ``permanent``, ``transient``, ``unavailable``, ``fatal``: exception classes; what is not listed is
        transient. ``delay``: seconds before the next attempt in place, from (attempt, failure).
        ``settings``: any setting of a consumer: ordering, concurrency, timeout, in_place_attempts,
        retry_topics, strict_order, dead_letter, ...

        Raises ConfigurationError: a sentence that names the handler and what to change.
        """
        if len(topics) == 1 and callable(topics[0]):
            raise ConfigurationError("write @loop.consumer('orders'), with the topic: it is given a function")
        rules = ErrorRules(tuple(permanent), tuple(transient), tuple(unavailable), tuple(fatal))

        def decorate(function: F) -> F:
            declaration = declare(
                function,
                name=name,
                topics=topics,
                runner=runner,
                batch=batch,
                codec=codec,
                rules=rules,
                delay=delay,
                settings=settings,
            )
            self._add(declaration)
            return function

        return decorate

    def _add(self, declaration: Declaration) -> None:
        for other in self._declarations:
            if other.name == declaration.name:
                raise ConfigurationError(
                    f"two handlers of this loop are named {declaration.name}: give one of them name='...'"
                )
            taken = set(other.topics) & set(declaration.topics)
            if taken:
                raise ConfigurationError(
                    f"topic {min(taken)} has two handlers in this loop, {other.name} and "
                    f"{declaration.name}: use one, or a loop (a group) of its own for the other"
                )
        for topic in declaration.topics:
            if topic.startswith("^"):
                raise ConfigurationError(
                    f"handler {declaration.name} names the pattern {topic}: patterns are refused, because "
                    "each source topic has retry and dead-letter topics that are checked before the start; "
                    "list the topics"
                )
        self._declarations.append(declaration)

    def middleware(self, function: F) -> F:
        """Declare a middleware: ``async def middleware(message, call_next)`` around every handler.

        ``await call_next()`` runs the handler (or the next middleware) and returns what it returned. Around
        ``def`` handlers it is a ``def`` and calls ``call_next()``; around batch handlers ``message`` is the
        list. The first declared is the outermost.
        """
        if not callable(function):
            raise ConfigurationError(f"@loop.middleware decorates a function, and got {function!r}")
        self._middleware.append(function)
        return function

    def on_startup(self, function: F) -> F:
        """Declare an ``async def`` without arguments that runs on the handlers' event loop before the
        subscription. What it raises ends the run (exit code 1). Bounded by ``startup_timeout``.
        """
        return self._hook(self._on_startup, function, "on_startup")

    def on_shutdown(self, function: F) -> F:
        """Declare an ``async def`` without arguments that runs after the drain, also when startup failed.

        Bounded by ``shutdown_timeout``. Run in reverse order of declaration.
        """
        return self._hook(self._on_shutdown, function, "on_shutdown")

    def _hook(self, hooks: list[Hook], function: F, where: str) -> F:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"@loop.{where} decorates an async def, and got {function!r}")
        hooks.append(function)
        return function

    # ------------------------------------------------------------------------------------------- settings

    def configure(self, overrides: Mapping[str, object], *, config: Path | None = None) -> None:
        """Settings of the command line, which come before all others, and the settings file."""
        self._overrides = dict(overrides)
        self._config = config

    def load_settings(self) -> Loaded:
        """The settings in force. Raises ConfigurationError."""
        return Settings.load(self._keywords, yaml_path=self._config, command_line=self._overrides)

    def consumer_settings(self) -> Sequence[ConsumerSettings]:
        """What is in force for each declared consumer. Raises ConfigurationError."""
        return [build.settings for build in self._builds(self.load_settings())]

    def _builds(self, loaded: Loaded) -> list[HandlerBuild]:
        if not self._declarations:
            raise ConfigurationError(
                "this loop has no handler: decorate a function with @loop.consumer('topic') before it runs"
            )
        loaded.require_consumers([declaration.name for declaration in self._declarations])
        return [
            build_handler(
                declaration,
                loaded.settings.for_consumer(declaration.name, declaration.settings),
                loaded.settings.topics,
                self._middleware,
            )
            for declaration in self._declarations
        ]

    def assemble(self, *, needs_broker: bool = True) -> Assembly:
        """Everything that a run is made of, checked. Raises ConfigurationError."""
        loaded = self.load_settings()
        if needs_broker:
            loaded.require("brokers", "group")
        else:
            loaded.require("group")
        return Assembly(loaded, self._builds(loaded), self._on_startup, self._on_shutdown)

    # ---------------------------------------------------------------------------------------------- running

    def run(
        self,
        *,
        max_messages: int | None = None,
        max_runtime: float | None = None,
        until_end: bool = False,
        handle_signals: bool = True,
        ends_process: bool = False,
    ) -> RunResult:
        """Run until a signal, stop(), a fatal error, or a bound; returns how it ended.

        ``max_messages``: end when so many messages were handled. ``max_runtime``: seconds, waiting for a
        broker included. ``until_end``: end when all assigned source partitions are handled up to the end that
        each had when it was first reached; without a partition, when the group has committed up to the ends
        of its topics. ``handle_signals``: SIGTERM and SIGINT drain, a second one stops
        at once (main thread only). ``ends_process``: nothing else runs in this process, as in ``streamloop
        run``: when the event loop is blocked, a second signal and the watchdog end the process (os._exit)
        with the exit code that the result would have had; otherwise they can only wait for the event loop.
        Raises ConfigurationError before anything starts.
        """
        run = self._begin(Bounds(max_messages, max_runtime, until_end), ends_process=ends_process)
        try:
            return run_blocking(run, handle_signals=handle_signals)
        finally:
            self._run = None

    async def run_async(
        self,
        *,
        max_messages: int | None = None,
        max_runtime: float | None = None,
        until_end: bool = False,
    ) -> RunResult:
        """The same on an event loop that runs already; signals are the caller's. Cancelling it drains."""
        run = self._begin(Bounds(max_messages, max_runtime, until_end))
        try:
            return await run.main()
        finally:
            self._run = None

    def _begin(self, bounds: Bounds, *, ends_process: bool = False) -> Run:
        assembly = self.assemble()
        with self._lock:
            if self._run is not None:
                raise StreamLoopError("this loop runs already: a StreamLoop is one member, run another one")
            self._run = run = Run(assembly, bounds, ends_process=ends_process)
        return run

    def stop(self) -> None:
        """Drain and end the run; from any thread, any number of times."""
        run = self._run
        if run is not None:
            run.stop("stop() was called")

    def check(self, timeout: float = 10.0) -> CheckReport:
        """Check settings, topics and the broker without handling anything. ``timeout`` in seconds."""
        return check_loop(self.assemble(), timeout)

    # ------------------------------------------------------------------------------------------ looking at it

    def health(self) -> Health:
        """Whether the loop is alive and ready, and why not; from any thread."""
        from streamloop.status import NOT_RUNNING

        run = self._run
        return run.health() if run is not None else NOT_RUNNING

    def status(self) -> LoopStatus | None:
        """What the loop is doing; from any thread. None when it does not run."""
        run = self._run
        return run.status() if run is not None else None

    def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """All counters and gauges, by metric name and labels; from any thread. Empty when it does not run."""
        run = self._run
        return run.metrics() if run is not None else {}

    def pause(self, topic: str | None = None, partition: int | None = None) -> None:
        """Hold what this member is assigned, or one topic, or one partition, until resume(); from any thread.

        It is this member's alone. ``streamloop pause`` and the control listener pause the whole group.
        """
        if self._run is not None:
            self._run.operators.hold(Scope(topic, partition), "loop.pause()")

    def resume(self, topic: str | None = None, partition: int | None = None) -> None:
        """End what pause() with the same arguments began; without arguments: all of it."""
        if self._run is not None:
            self._run.operators.release(Scope(topic, partition))

    def group_view(self) -> GroupView | None:
        """The whole group, as its control topic shows it; from any thread.

        None when the loop does not run, or is on its own (``status().control`` says why).
        """
        control = self._run.control if self._run is not None else None
        return control.view() if control is not None else None

    def __repr__(self) -> str:
        names = ", ".join(declaration.name for declaration in self._declarations)
        return f"<StreamLoop {self._keywords.get('group', os.environ.get('STREAMLOOP_GROUP', '?'))}: {names}>"
