"""How numbers, times and others' texts look in the terminal views. Pure. Called by ``top`` and ``trace``."""

from __future__ import annotations

import datetime as dt
import textwrap
from typing import Any, Final

from rich.text import Text

from streamloop.telemetry.logs import printable

NONE: Final = "-"
"""What is not known: never 0."""


def text(value: object, style: str = "") -> Text:
    """A text of another's: no character that a terminal obeys, and no markup."""
    return Text(printable(str(value)), style=style)


def folded(line: str, width: int, hanging: int | None = None) -> str:
    """A line broken at blanks, the rest indented by ``hanging``, or else as the line is. Words stay whole, so
    that commands, names and addresses can be copied."""
    words = line.lstrip(" ")
    begins = len(line) - len(words)
    if hanging is None:
        hanging = begins + (2 if words.startswith("- ") else 0)
    return textwrap.fill(
        words,
        max(width, 40),
        initial_indent=" " * begins,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def number(value: Any, digits: int = 0) -> str:
    """12,345; '-' when it is no number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return NONE
    return f"{value:,.{digits}f}" if digits else f"{round(value):,}"


def rate(value: float | None) -> str:
    """A number a second."""
    if value is None:
        return NONE
    return "0" if value == 0 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def age(seconds: Any) -> str:
    """0.3 s, 45 s, 5 min 3 s, 2 h 5 min, 3 d 4 h."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return NONE
    seconds = max(0.0, float(seconds))
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, below, lower in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit:,} {name}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"


def span_time(nanoseconds: int) -> str:
    """A duration of a span: 250 µs, 12.3 ms, 1.25 s, or as ``age``."""
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1_000:.0f} µs"
    if nanoseconds < 1_000_000_000:
        return f"{nanoseconds / 1_000_000:.1f} ms"
    if nanoseconds < 60_000_000_000:
        return f"{nanoseconds / 1_000_000_000:.2f} s"
    return age(nanoseconds / 1_000_000_000)


def size(value: Any) -> str:
    """Bytes as B, KiB, MiB or GiB."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return NONE
    amount = float(value)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def moment(epoch_ms: int | None) -> str:
    """A time in UTC, to the millisecond."""
    if epoch_ms is None:
        return NONE
    try:
        found = dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return found.strftime("%Y-%m-%d %H:%M:%S.") + f"{epoch_ms % 1000:03d}Z"
