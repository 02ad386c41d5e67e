"""Ends the process although a thread is stuck, with what was logged and printed flushed.

Standard library only. Called by the command line at its end, and by a run whose bounds are over.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Final, NoReturn

FLUSH_BOUND: Final = 2.0
"""Seconds for flushing the log."""


def leave(code: int) -> NoReturn:
    """End the process at once, with what was logged and printed flushed: a stuck thread can't keep it."""
    # A thread that hangs while it logs holds the handler's lock, so even the flush has a bound.
    flush = threading.Thread(target=_flush, daemon=True)
    flush.start()
    flush.join(FLUSH_BOUND)
    os._exit(code)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # the reader has gone
