"""A value that is renewed while somebody asks for it, in a thread of its own, and never by the one who asks.

So an answer takes no time, and many pages cost no more than one. Called by the console's API.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from streamloop.errors import StreamLoopError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("streamloop.ops")

T = TypeVar("T")
FIRST: Final = 3.0
"""Seconds that the very first answer may wait for."""
PATIENCE: Final = 15.0
"""Seconds from a failure to the next try."""


class Recent(Generic[T]):
    """``make`` gives the value; ``every``: seconds from the end of one renewal to the next, at least."""

    def __init__(
        self,
        make: Callable[[], T],
        *,
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._every = every
        self._clock = clock
        self._lock = threading.Lock()
        self._there = threading.Event()
        self._running = False
        self._next = 0.0
        self._value: T | None = None
        self._error = ""

    def get(self, first: float = FIRST) -> tuple[T | None, str]:
        """The newest value (None: not there yet), and what is wrong, '' when nothing is."""
        with self._lock:
            if not self._running and self._clock() >= self._next:
                self._running = True
                threading.Thread(target=self._renew, name="streamloop-console-recent", daemon=True).start()
        if self._value is None and not self._error:
            self._there.wait(first)
        return self._value, self._error

    def soon(self) -> None:
        """Something has changed: the next who asks starts a renewal."""
        with self._lock:
            self._next = 0.0

    def _renew(self) -> None:
        wait = self._every
        try:
            self._value = self._make()
            self._error = ""
        except StreamLoopError as error:
            self._error, wait = str(error), PATIENCE
        except Exception as error:
            log.exception("console: a renewal has failed", extra={"kind": "ops"})
            self._error = f"an internal error ({type(error).__name__}): the log of this member has it"
            wait = PATIENCE
        with self._lock:
            self._next = self._clock() + wait
            self._running = False
        self._there.set()
