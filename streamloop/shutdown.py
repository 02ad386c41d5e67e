"""How long a member may take to end: the bounds of every step after SIGTERM, added up.

What it is for: whoever ends a process after a time (Kubernetes, systemd) has to know that time. The steps are
those of ``streamloop.lifecycle``, with the bounds that the parts really use, so that the sum can't drift from
them. Pure. Called by the generator of the Helm chart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streamloop.control.link import LEAVE_MARGIN, LEAVE_WITHIN
from streamloop.kafka.publisher import CLOSE_MARGIN_S
from streamloop.leaving import FLUSH_BOUND as FLUSH_LOGS
from streamloop.lifecycle import CANCEL_GRACE, CLOSE_TIMEOUT, PUBLISH_TIMEOUT
from streamloop.ops.console.application import END_WITHIN
from streamloop.ops.listener import CLOSE_BOUND
from streamloop.telemetry.otlp_metrics import FLUSH_BOUND

if TYPE_CHECKING:
    from streamloop.settings import Settings

LEAVE: Final = CANCEL_GRACE + CLOSE_TIMEOUT + PUBLISH_TIMEOUT + CLOSE_MARGIN_S
"""Seconds after the drain until the member has left its groups and everything written is confirmed."""
LISTENERS: Final = 2 * 2 * CLOSE_BOUND
"""Seconds for two listeners, each with its thread and its workers."""
CONTROL: Final = LEAVE_WITHIN + LEAVE_MARGIN
"""Seconds for the last word in the group's control topic."""
END: Final = CONTROL + FLUSH_BOUND + LISTENERS + FLUSH_LOGS
"""Seconds after on_shutdown for the control topic, metrics, listeners and logs."""
MARGIN: Final = 3.0
"""Seconds between a bound and what relies on it: SIGKILL, or the next pod of a roll-out."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Seconds after SIGTERM. ``left``: the member has left its groups. ``ended``: the process has ended."""

    left: float
    ended: float

    @property
    def away(self) -> float:
        """How long to wait before the next member may be ended, so that only one is away."""
        return self.left + MARGIN

    @property
    def grace(self) -> float:
        """What to give it before SIGKILL."""
        return self.ended + MARGIN


def longest(settings: Settings) -> Ending:
    """The most that each may take, when nothing ends before its bound.

    A SIGTERM that comes while on_startup functions run waits for them, and then there is nothing to drain.
    """
    left = settings.drain_timeout + LEAVE
    ended = max(left, settings.startup_timeout) + settings.shutdown_timeout + settings.trace_flush_timeout
    # A replay that was begun on the console is told to stop when the drain begins, and waited for last.
    console = END_WITHIN if settings.console else 0.0
    return Ending(left, ended + console + END)
