"""Logging of a process that ``streamloop run`` started: one JSON object a line, or text on a terminal.

Only the command line sets this up: in a program of the user's, logging is the program's own. Called by
``streamloop run`` before the loop starts.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from streamloop.settings import Settings

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object: time (RFC 3339, UTC), level, logger, message, what was given as extra, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class TextFormatter(logging.Formatter):
    """``08:00:00.123 WARNING streamloop.publisher: message  key=value``, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end; a traceback follows on lines of its own."""
        time = _time(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        text = (
            f"{time} {record.levelname:<7} {record.name}: {record.getMessage()}{' ' if extra else ''}{extra}"
        )
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            text += "\n" + record.stack_info
        return text


def set_up_logging(settings: Settings) -> None:
    """Send all log records to stderr as the settings say. Replaces what was set up before."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)


def _time(record: logging.LogRecord) -> dt.datetime:
    return dt.datetime.fromtimestamp(record.created, dt.UTC)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
