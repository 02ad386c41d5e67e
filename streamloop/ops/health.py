"""Whether a run has started, is ready, and lives; and why not.

Live: nothing is stuck for good. It does not depend on the broker: a loop that waits for one, is paused or has
nothing to do turns all the same. Ready: it has started once, and neither drains nor has failed; it does not
depend on an assignment, which would deadlock a rollout. Called by the watchdog's thread and by the event
loop's tick; reads plain values that others write, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from streamloop.build import Parts
    from streamloop.observed import Observed
    from streamloop.runners.base import Runner

POLL_TURN_LIMIT: Final = 60.0
"""Seconds without a turn of a poller's thread after which it counts as stuck."""


@dataclass(frozen=True, slots=True)
class Probes:
    """What the three probes answer. Ages in seconds: the poll threads' last turns, the oldest handler's."""

    phase: str
    ready: bool
    live: bool
    why_not_ready: tuple[str, ...] = ()
    why_not_live: tuple[str, ...] = ()
    poll_turn_ages: dict[str, float] = field(default_factory=dict)
    oldest_handlers: dict[str, float] = field(default_factory=dict)
    event_loop_age: float | None = None


def probe(run: Observed) -> Probes:
    """Look now."""
    parts = run.parts
    phase = run.phase.value
    trouble: list[str] = []
    turns: dict[str, float] = {}
    handlers: dict[str, float] = {}
    heartbeat: float | None = None
    if parts is not None and run.watchdog is not None:
        now = parts.core.clock()
        heartbeat = round(max(0.0, now - parts.core.heartbeat.stamp), 3)
        _look_at_threads(run, parts, now, trouble, turns)
        for runner in parts.core.runners:
            _look_at_handlers(runner, now, trouble, handlers)
    unready: list[str] = []
    if run.failed_because:
        unready.append(run.failed_because)
    if phase == "ended":
        unready.append("the run has ended")
    elif not run.ready or phase != "running":
        unready.append(phase)
    return Probes(phase, not unready, not trouble, tuple(unready), tuple(trouble), turns, handlers, heartbeat)


def _look_at_threads(
    run: Observed, parts: Parts, now: float, trouble: list[str], turns: dict[str, float]
) -> None:
    watchdog = run.watchdog
    if watchdog is not None and watchdog.blocked_by:
        trouble.append(f"the event loop is blocked by {watchdog.blocked_by}")
    for poller in parts.pollers:
        age = max(0.0, now - poller.last_turn)
        if poller.failure is not None:
            trouble.append(f"Consumer {poller.label} has failed: {poller.failure}")
        elif poller.is_alive():
            turns[poller.label] = round(age, 3)
            if age > POLL_TURN_LIMIT:
                trouble.append(f"Consumer {poller.label} has not polled for {age:.0f} s")
    if parts.publisher.failure is not None:
        trouble.append(f"the publisher has failed: {parts.publisher.failure}")
    if parts.core.outcome.failure is not None:
        trouble.append(f"the engine has failed: {parts.core.outcome.failure!r}")


def _look_at_handlers(runner: Runner, now: float, trouble: list[str], handlers: dict[str, float]) -> None:
    handler = runner.handler
    oldest = min(runner.running(), key=lambda each: each.started, default=None)
    if oldest is None and not runner.counts.abandoned:
        return
    where = ""
    age = handler.timeout + handler.kill_after
    if oldest is not None:
        age = max(0.0, now - oldest.started)
        handlers[handler.name] = round(age, 3)
        name = oldest.record.part.name
        where = f" of {name.topic}/{name.partition}/{oldest.record.offset}"
    if runner.counts.abandoned or age > handler.timeout + handler.kill_after:
        trouble.append(
            f"handler {handler.name} did not come back after its time-out{where}: it was started {age:.0f} s "
            f"ago, and timeout + kill_after is {handler.timeout + handler.kill_after:g} s"
        )
