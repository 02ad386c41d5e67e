"""What the ops listeners answer from: values that were computed before anybody asked.

The event loop's tick replaces the scrape and the status about once a second, the watchdog's thread the
probes twice a second. So an answer never touches the engine, costs the event loop nothing, and comes while
the event loop is blocked. How old a value is, is part of the answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from streamloop.ops.health import Probes, probe
from streamloop.report import status_of
from streamloop.telemetry import table
from streamloop.telemetry.metrics import collect

if TYPE_CHECKING:
    from streamloop.observed import Observed
    from streamloop.status import LoopStatus
    from streamloop.telemetry.metrics import Scrape

EVERY: Final = 1.0
"""Seconds between two collections."""
SHARE: Final = 100
"""A collection that took t is not repeated before 100 t: at most 1 % of the event loop's time."""
STALE: Final = 10.0
"""Seconds after which probes that nobody renewed count as a failure."""


class Observer:
    """The values of one run. ``wants_status``: somebody may ask for it."""

    def __init__(self, run: Observed, *, wants_status: bool) -> None:
        self._run = run
        self._wants_status = wants_status
        self._next = 0.0
        self._probes = probe(run)
        self._probed_at = time.monotonic()
        self._scrape: Scrape = collect(run)
        self.status: LoopStatus | None = None

    def tick(self, now: float) -> None:
        """On the event loop: renew what is due."""
        if now >= self._next:
            self.renew()

    def renew(self) -> None:
        """On the event loop (or while it does not run yet): renew everything now."""
        begin = time.monotonic()
        self._scrape = collect(self._run)
        if self._wants_status:
            self.status = status_of(self._run)
        self.look()
        end = time.monotonic()
        self._next = end + max(EVERY, SHARE * (end - begin))

    def look(self) -> None:
        """On any thread: renew the probes."""
        self._probes = probe(self._run)
        self._probed_at = time.monotonic()

    def probes(self) -> Probes:
        """What the probes answer. Before the watchdog runs nothing can be stuck, and they are made anew."""
        run = self._run
        if run.watchdog is None or run.parts is None:
            return probe(run)
        probes = self._probes
        age = time.monotonic() - self._probed_at
        if age <= STALE or run.phase.value == "ended":
            return probes
        why = f"nobody has looked at the threads for {age:.0f} s"
        return Probes(
            probes.phase,
            probes.ready,
            False,
            probes.why_not_ready,
            (*probes.why_not_live, why),
            probes.poll_turn_ages,
            probes.oldest_handlers,
            probes.event_loop_age,
        )

    def scrape(self) -> Scrape:
        """The newest scrape, with the heartbeat's age as it is now."""
        parts = self._run.parts
        if parts is None:
            return self._scrape
        age = max(0.0, parts.core.clock() - parts.core.heartbeat.stamp)
        return self._scrape.with_value(table.HEARTBEAT, round(age, 3), self._run.settings.group)
