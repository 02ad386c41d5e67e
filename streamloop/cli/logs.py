"""Logging of a process that ``streamloop run`` started: one JSON object a line, or text on a terminal.

Only the command line sets this up: in a program of the user's, logging is the program's own. Whatever a
payload or an error's text holds, no line of either format bears a character that a terminal would obey.
Called by ``streamloop run`` before the loop starts.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import orjson
from opentelemetry import trace

from streamloop.telemetry.logs import Repeats, printable

if TYPE_CHECKING:
    from streamloop.settings import Settings

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_HARMFUL_IN_JSON: Final = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""What orjson leaves as it is (below 0x20 it escapes itself)."""


class JsonFormatter(logging.Formatter):
    """One JSON object: time (RFC 3339, UTC), level, logger, message, ``constant`` fields, trace_id and
    span_id of the current span, what was given as extra, exception.
    """

    def __init__(self, constant: dict[str, str] | None = None) -> None:
        super().__init__()
        self._constant = constant or {}

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            **self._constant,
            **_trace(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            text = orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # a lone surrogate, or an integer of more than 64 bits
            return json.dumps(line, default=str)
        return _HARMFUL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class TextFormatter(logging.Formatter):
    """``08:00:00.123 WARNING streamloop.publisher: message  key=value``, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end; a traceback follows on lines of its own, which are indented."""
        time = _time(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = {**_trace(), **_extra(record)}
        extra = "".join(f" {printable(str(name))}={printable(str(value))}" for name, value in fields.items())
        first, *others = _message(record).split("\n")
        text = f"{time} {record.levelname:<7} {record.name}: {printable(first)}{' ' if extra else ''}{extra}"
        blocks = [*others]
        if record.exc_info:
            blocks += self.formatException(record.exc_info).split("\n")
        if record.stack_info:
            blocks += record.stack_info.split("\n")
        # Indented, so that no text of an error can look like a line of its own.
        return "\n".join([text, *(f"    {printable(line)}" for line in blocks if line)])


def set_up_logging(settings: Settings) -> logging.Formatter:
    """Send all log records to stderr as the settings say. Replaces what was set up before.

    Returns how lines are made.
    """
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    member = {"group": settings.group, "member": settings.member}
    formatter = TextFormatter() if text else JsonFormatter(member)
    handler.setFormatter(formatter)
    handler.addFilter(Repeats())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    return formatter


def last_line(reason: str, code: int, formatter: logging.Formatter) -> str:
    """Why the process ends, as its last line, whatever the level: a JSON object among such, or plain text."""
    if not isinstance(formatter, JsonFormatter):
        # It may quote the error of a handler, and with it a payload.
        return "\n".join(map(printable, reason.split("\n")))
    level = logging.ERROR if code else logging.INFO
    said = {"name": "streamloop", "levelno": level, "levelname": logging.getLevelName(level), "msg": reason}
    return formatter.format(logging.makeLogRecord({**said, "kind": "ended", "exit_code": code}))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - arguments that do not fit, or can't be printed
        return f"{record.msg!s} (its arguments can't be shown: {type(error).__name__})"


def _time(record: logging.LogRecord) -> dt.datetime:
    return dt.datetime.fromtimestamp(record.created, dt.UTC)


def _trace() -> dict[str, str]:
    """The ids of the span that the line was logged in, if there is one."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
