"""Operators' records on their way into the control topic: asked for on any thread, sent by the link's.

Who asks waits for the broker's answer, within a bound. Called by the link.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamloop.errors import StreamLoopError

if TYPE_CHECKING:
    from collections.abc import Iterator


class ControlError(StreamLoopError):
    """An operator's wish did not get into the control topic. A sentence that says why."""


@dataclass(slots=True)
class Write:
    """A record that somebody waits for. ``offset`` or ``error`` is there when ``done`` is set."""

    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    offset: int = -1
    error: str = ""

    def report(self, error: Any, message: Any) -> None:
        """The broker's answer."""
        if error is not None:
            self.error = str(error.str())
        else:
            self.offset = message.offset()
        self.done.set()


class Writes:
    """What is to be sent, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Write] = queue.SimpleQueue()

    def put(self, write: Write) -> None:
        """Have it sent; nobody waits."""
        self._queue.put(write)

    def put_and_wait(self, writes: list[Write], topic: str, timeout: float) -> int:
        """Have them sent; the offset of the last. ControlError: refused, or not confirmed in time."""
        for write in writes:
            self._queue.put(write)
        until = time.monotonic() + timeout
        for write in writes:
            if not write.done.wait(max(0.0, until - time.monotonic())):
                raise ControlError(
                    f"the broker did not confirm it within {timeout:g} s: it may still come into force"
                )
            if write.error:
                raise ControlError(f"the control topic {topic} does not take it: {write.error}")
        return max(write.offset for write in writes)

    def take(self) -> Iterator[Write]:
        """What is to be sent now."""
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def fail(self, reason: str) -> None:
        """None of them can be sent."""
        for write in self.take():
            write.error = reason
            write.done.set()
