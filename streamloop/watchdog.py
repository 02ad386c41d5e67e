"""Sees that the event loop has stopped turning, names the handler that blocks it, and ends what is stuck.

Two watches. A thread looks at the engine's heartbeat: a blocked event loop is logged with the handler's name
and stack. When a handler holds the interpreter's lock (a regular expression that backtracks), no Python
thread runs: a timer in C (faulthandler) writes all stacks to stderr and ends the process with exit code 1.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from streamloop.build import Parts
    from streamloop.core import Heartbeat
    from streamloop.runners.base import Handler

log = logging.getLogger("streamloop.watchdog")

BLOCKED_AFTER: Final = 2.0
"""Seconds without a turn of the event loop after which it is reported."""
LOOK_EVERY: Final = 0.5
C_TIMER_MARGIN: Final = 10.0
"""Seconds after the thread would have ended the process: then the timer in C does."""


class Watchdog:
    """Watches one event loop from a daemon thread.

    ``give_up_after``: seconds of silence after which ``give_up`` is called on the watchdog's thread.
    ``on_look``: called after each look, on the watchdog's thread.
    ``end_process``: arm the timer in C as well; only where the process is ours to end.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        handlers: Sequence[Handler],
        *,
        give_up_after: float,
        give_up: Callable[[str], None],
        end_process: bool,
        clock: Callable[[], float] = time.monotonic,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_look = on_look
        self._heartbeat = heartbeat
        self._by_code = {handler.code: handler.name for handler in handlers if handler.code is not None}
        self._give_up_after = give_up_after
        self._give_up = give_up
        self._end_process = end_process and _can_dump()
        self._clock = clock
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="streamloop-watchdog", daemon=True)
        self.blocked_by = ""
        """The handler that blocks the event loop now, or '' ."""
        self.blocks = 0
        """How often the event loop was found blocked."""

    def start(self) -> None:
        """Begin to watch. Called on the event loop's thread."""
        self._loop_thread = threading.get_ident()
        self.rearm()
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()
        if self._end_process:
            faulthandler.cancel_dump_traceback_later()

    def rearm(self) -> None:
        """The event loop turns: put the timer in C off. Called about once a second."""
        if self._end_process:
            faulthandler.dump_traceback_later(self._give_up_after + C_TIMER_MARGIN, exit=True)

    def _watch(self) -> None:
        reported = False
        gave_up = False
        while not self._stop.wait(LOOK_EVERY):
            self._on_look()
            silent = self._clock() - self._heartbeat.stamp
            if silent < BLOCKED_AFTER:
                reported = gave_up = False
                self.blocked_by = ""
                continue
            if not reported:
                reported = True
                self.blocks += 1
                self._report(silent)
                self._on_look()
            if silent >= self._give_up_after and not gave_up:
                gave_up = True
                self._give_up(
                    f"the event loop has been blocked for {silent:.0f} s by "
                    f"{self.blocked_by or 'unknown code'}"
                )

    def _report(self, silent: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - there is no other way
        name = self._name(frame)
        self.blocked_by = f"handler {name}" if name else "code that is no handler"
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        log.warning(
            "the event loop has been blocked for %.1f s by %s: nothing else runs meanwhile. An async handler "
            "must not block: await, use def (threads), or runner='thread'\n%s",
            silent,
            self.blocked_by,
            stack,
            extra={"kind": "event_loop_blocked", "handler": name},
        )

    def _name(self, frame: FrameType | None) -> str:
        while frame is not None:
            name = self._by_code.get(frame.f_code)
            if name is not None:
                return name
            frame = frame.f_back
        return ""


def _can_dump() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


def only_stuck(parts: Parts) -> bool:
    """Nothing is left to wait for but handlers that were given up: they do not come back."""
    running = [each for runner in parts.core.runners for each in runner.running()]
    return (
        bool(running)
        and all(each.given_up for each in running)
        and not any(part.routing for part in parts.engine.parts.values())
    )
