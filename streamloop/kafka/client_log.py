"""Where librdkafka's own log lines go: through logging, and none of them again and again.

What it is for: with the broker away each client says so some twenty times a second, for as long as that
lasts. One line a minute says as much. What it must never do: keep back anything below INFO, which was asked
for by kafka.*.debug. Called by whatever builds a Consumer or a Producer.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Seldom", "librdkafka_log"]

SAY_AGAIN: Final = 60.0
"""Seconds after which a line is let through again."""
MOST_REMEMBERED: Final = 200
_VARYING: Final = re.compile(r"\d+ms\b|timeout #\d+")


class Seldom(logging.Filter):
    """Lets a line through that has not been there within the last minute. Times in it make no difference."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be handled."""
        if record.levelno < logging.INFO:
            return True
        now = self._clock()
        line = _VARYING.sub("", record.getMessage())
        last = self._said.get(line)
        if last is not None and now - last < SAY_AGAIN:
            return False
        if len(self._said) >= MOST_REMEMBERED:
            self._said.clear()
        self._said[line] = now
        return True


librdkafka_log: Final = logging.getLogger("streamloop.librdkafka")
librdkafka_log.addFilter(Seldom())
