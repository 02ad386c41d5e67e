"""Everything of a run that looks outward while it runs: the two listeners and the push over OTLP.

Opened by the run before anything is connected, so that a port in use is found at the start; closed last.
Whatever fails here later never touches the handling of messages.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from streamloop.dlq.counting import DeadLetterCounter, counted_of
from streamloop.ops.console.application import Console
from streamloop.ops.console.letters import desk_of
from streamloop.ops.control import control_application
from streamloop.ops.guard import Guard
from streamloop.ops.listener import Listener
from streamloop.ops.observer import Observer
from streamloop.ops.probes import probes_application
from streamloop.runners.threads import in_daemon_thread
from streamloop.telemetry.environment import metric_export, resource_of
from streamloop.telemetry.otlp_metrics import OtlpPush

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.dlq.counting import Open
    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.observed import Observed
    from streamloop.ops.web import Application
    from streamloop.routing import Topics

log = logging.getLogger("streamloop.ops")


class Operations:
    """The outward side of one run. Does nothing, and costs nothing, when no setting asks for it."""

    def __init__(self, run: Observed) -> None:
        self._run = run
        self._observer: Observer | None = None
        self._listeners: list[Listener] = []
        self._push: OtlpPush | None = None
        self._console: Console | None = None
        self._counter: DeadLetterCounter | None = None

    def open(self) -> None:
        """Bind what is to be bound, and begin to answer. Raises ConfigurationError."""
        run, settings = self._run, self._run.settings
        export = metric_export(settings.metrics_exporter, os.environ)
        if export is None and settings.ops_address is None and settings.control_address is None:
            return
        self._observer = observer = Observer(run, wants_status=settings.control_address is not None)
        try:
            if settings.ops_address is not None:
                self._listen("ops_address", settings.ops_address, probes_application(observer))
            if settings.control_address is not None:
                guard = Guard(settings.control_read_token, settings.control_act_token, settings.control_hosts)
                if settings.console:
                    desk, why_none = desk_of(run)
                    self._console = Console(run, observer, guard, desk, why_none=why_none)
                self._listen(
                    "control_address",
                    settings.control_address,
                    control_application(run, observer, guard, self._console),
                )
        except BaseException:
            self._close()
            raise
        for listener in self._listeners:
            listener.start()
        if export is not None:
            self._push = OtlpPush(
                export, resource_of(settings), latest=observer.scrape, failures=run.export_failures
            )
            self._push.start()

    def _listen(self, setting: str, address: str, application: Application) -> None:
        self._listeners.append(Listener(setting, address, application, self._run.settings.origin(setting)))

    @property
    def urls(self) -> dict[str, str]:
        """Where it answers, by the setting that says so."""
        return {each.setting: each.url for each in self._listeners}

    def count_dead_letters(self, admin: TopicAdmin, topics: Topics, owns: Callable[[str], bool]) -> None:
        """Begin to count the open dead letters, when somebody may see how many there are."""
        dead = [(each.name, each.dead) for each in topics.sources.values() if each.dead is not None]
        if self._observer is not None and self._run.settings.count_dead_letters and dead:
            self._counter = DeadLetterCounter(self._run.settings, admin, counted_of(dead), owns)
            self._counter.start()

    @property
    def open_dead_letters(self) -> dict[str, Open]:
        """The open dead letters that this member counts, by topic; what is not known is absent."""
        return self._counter.open if self._counter is not None else {}

    def tick(self, now: float) -> None:
        """On the event loop, every 50 ms: renew what is shown, when it is time to."""
        if self._observer is not None:
            self._guarded(lambda observer: observer.tick(now))

    def look(self) -> None:
        """On the watchdog's thread, twice a second: renew the probes."""
        if self._observer is not None:
            self._guarded(Observer.look)

    def _guarded(self, renew: Callable[[Observer], None]) -> None:
        """What is shown must not end what is shown: an error of ours here is logged, and that is all."""
        assert self._observer is not None
        try:
            renew(self._observer)
        except Exception:
            log.exception("what the listeners show could not be renewed", extra={"kind": "ops"})

    def drain(self) -> None:
        """The drain begins: what was begun on the console ends, too."""
        if self._console is not None:
            self._console.drain()

    async def close(self) -> None:
        """Push once more, and answer nobody any more. Takes at most some seconds, off the event loop."""
        if self._observer is not None:
            self._guarded(Observer.renew)
            await in_daemon_thread(self._close)

    def _close(self) -> None:
        if self._console is not None:
            self._console.close()
        if self._counter is not None:
            self._counter.close()
        if self._push is not None:
            self._push.close()
        for listener in self._listeners:
            listener.close()
