"""A run as those see it who look at it: health, status, metrics, listeners, the console.

They read plain values that other threads write, and ask for little. So they need nothing of ``lifecycle``,
which makes them; the harness's runs are the same. Types only.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamloop.assembly import Assembly
    from streamloop.build import Parts
    from streamloop.control.link import ControlLink
    from streamloop.control.operators import Operators
    from streamloop.dlq.counting import Open
    from streamloop.settings import Settings
    from streamloop.status import ControlStatus
    from streamloop.telemetry.exporting import Traces
    from streamloop.watchdog import Watchdog


class Phase(Enum):
    """Where a run is."""

    STARTING = "starting"
    WAITING = "waiting for the broker"
    RUNNING = "running"
    DRAINING = "draining"
    CLOSING = "closing"
    ENDED = "ended"


class Outward(Protocol):
    """What looks outward, as the status tells it."""

    @property
    def urls(self) -> dict[str, str]:
        """Where it answers, by the setting that says so."""

    @property
    def open_dead_letters(self) -> Mapping[str, Open]:
        """The open dead letters that this member counts, by topic."""


class Observed(Protocol):
    """One run. What is None is not there yet."""

    phase: Phase
    ready: bool
    """It has started once."""
    wall: Callable[[], float]
    started_at: float
    """Monotonic."""
    began_at: float
    """Epoch seconds: since when counters count."""
    drain_timeouts: int
    export_failures: dict[str, int]
    """Exports to the collector that failed, by signal."""
    hanging: tuple[str, ...]
    topics: tuple[str, ...]
    sources: frozenset[str]
    targets: tuple[str, ...]

    settings: Settings
    assembly: Assembly
    parts: Parts | None
    watchdog: Watchdog | None
    operators: Operators
    control: ControlLink | None
    traces: Traces

    @property
    def operations(self) -> Outward:
        """What looks outward."""

    @property
    def control_status(self) -> ControlStatus | None:
        """The group's control topic as this member sees it."""

    @property
    def failed_because(self) -> str:
        """The fatal error that ends the run; empty while there is none."""

    def partitions_of(self, topic: str) -> int | None:
        """How many partitions a topic has, as far as that is known."""
