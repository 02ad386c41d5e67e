"""Runs a loop to its end on an event loop of its own, in the calling thread, with the process's signals.

What is here must also work while the event loop is blocked: a signal's handler runs in the main thread,
between two instructions of whatever runs there. Called by StreamLoop.run().
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

from streamloop.errors import StreamLoopError
from streamloop.leaving import leave
from streamloop.lifecycle import DRAIN_TIMED_OUT

if TYPE_CHECKING:
    from streamloop.lifecycle import Run, RunResult

log = logging.getLogger("streamloop")


def run_blocking(run: Run, *, handle_signals: bool) -> RunResult:
    """Run on an event loop of its own, in this thread, with signals when this is the main thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise StreamLoopError("loop.run() was called in a running event loop: await loop.run_async() there")
    loop = asyncio.new_event_loop()
    restore: list[tuple[int, Any]] = []
    if handle_signals and threading.current_thread() is threading.main_thread():
        restore = _take_signals(run)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(run.main())
    finally:
        for number, former in restore:
            signal.signal(number, former)
        _close_loop(loop)


def _take_signals(run: Run) -> list[tuple[int, Any]]:
    """SIGTERM and SIGINT drain; a second one stops at once, also when the event loop is blocked."""
    seen = 0

    def take(number: int, _frame: object) -> None:
        nonlocal seen
        seen += 1
        name = signal.Signals(number).name
        if seen == 1:
            run.stop(f"{name} received")
            return
        run.stop(f"{name} received", at_once=True)
        if run.ends_process:
            log.warning("a second signal: stopping at once")
            leave(DRAIN_TIMED_OUT)

    return [(number, signal.signal(number, take)) for number in (signal.SIGTERM, signal.SIGINT)]


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """End what is left, bounded: a handler that swallows its cancellation can't keep the program."""
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
