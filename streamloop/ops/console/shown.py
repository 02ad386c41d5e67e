"""What others wrote, as texts that are safe to show: bounded, and without characters that act or mislead.

The page puts texts into text nodes only, so that markup stays text. Here control characters and those that
change the direction of writing become visible escapes: a value can't hide what it is. Pure.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from streamloop.dlq.filters import show_key
from streamloop.dlq.values import pretty, show_value
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_VALUE: Final = 64 * 1024
"""Bytes of a value that are shown; the whole of it stays in the topic."""
LONGEST_HEADER: Final = 4 * 1024
LONGEST_KEY: Final = 1024
LONGEST_HEX: Final = 4 * 1024
MOST_HEADERS: Final = 200
SHORT: Final = 32
"""Bytes of a header that stand in one line."""
LONGEST_ERROR: Final = 2_000


def shown_text(text: str, longest: int = LONGEST_ERROR) -> str:
    """One line of another's text."""
    return printable(text[:longest]) + ("…" if len(text) > longest else "")


def shown_bytes(content: bytes | None, longest: int = LONGEST_VALUE) -> dict[str, Any]:
    """``kind``: null, empty, json (``text`` is indented, ``raw`` as it was), text or hex.

    ``size`` in bytes; ``shown``: how many of them ``text`` stands for.
    """
    if content is None:
        return {"kind": "null", "text": "", "size": 0, "shown": 0}
    if not content:
        return {"kind": "empty", "text": "", "size": 0, "shown": 0}
    size = len(content)
    text = _decoded(content, longest)
    if text is None:
        head = content[: min(longest, LONGEST_HEX)]
        return {"kind": "hex", "text": _hex(head), "size": size, "shown": len(head)}
    shown = {"kind": "text", "text": _lines(text), "size": size, "shown": min(size, longest)}
    indented = _indented(text) if size <= longest else None
    if indented is not None:
        shown.update(kind="json", text=_lines(indented), raw=shown["text"])
    return shown


def _decoded(content: bytes, longest: int) -> str | None:
    head = content[:longest]
    for cut in range(4 if len(content) > longest else 1):  # a character may be cut in two at the end
        try:
            text = head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        # A text with NULs is binary that happens to decode.
        return None if "\0" in text else text
    return None


def _indented(text: str) -> str | None:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    # Only broken into lines: numbers and duplicate names stay as they were sent.
    lines: list[str] = []
    room = 4 * LONGEST_VALUE
    for line in pretty(text):
        lines.append(line)
        room -= len(line) + 1
        if room < 0:
            return None
    return "\n".join(lines)


def _header(value: bytes | None) -> dict[str, Any]:
    shown = shown_bytes(value, LONGEST_HEADER)
    if value is not None and shown["kind"] == "hex" and len(value) <= SHORT:
        shown.update(kind="bytes", text=f"hex {value.hex(' ')}")
    return shown


def decoded_value(content: bytes | None, decode: Callable[[bytes | None], Any]) -> dict[str, Any] | None:
    """The value as the handler's codec reads it; None when it can't, or makes bytes of it."""
    shown = show_value(content, decode)
    if not shown.kind.endswith("decoded by the loop's codec"):
        return None
    size = len(content or b"")
    text = "\n".join(shown.lines)
    return {
        "kind": "text",
        "text": text[:LONGEST_VALUE] + ("\n…" if shown.cut or len(text) > LONGEST_VALUE else ""),
        "codec": shown_text(shown.kind, 200),
        "size": size,
        "shown": size,
    }


def shown_key(key: bytes | None, longest: int = 100) -> str | None:
    """A key in a list: its text, or hex:.."""
    if key is None:
        return None
    shown = show_key(key[:longest])
    return shown_text(shown, 2 * longest) + ("…" if len(key) > longest else "")


def safe_object(value: dict[str, Any]) -> dict[str, Any]:
    """The same JSON object with each text of it safe to show."""
    return {shown_text(str(name), 300): safe(each) for name, each in value.items()}


def safe(value: Any) -> Any:
    """The same JSON with each text of it safe to show."""
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, dict):
        return safe_object(value)
    if isinstance(value, list | tuple):
        return [safe(each) for each in value]
    return value


def _lines(text: str) -> str:
    return "\n".join(
        "\t".join(map(printable, line.split("\t"))) for line in text.replace("\r\n", "\n").split("\n")
    )


def _hex(content: bytes) -> str:
    lines = []
    for start in range(0, len(content), 16):
        row = content[start : start + 16]
        letters = "".join(chr(c) if 0x20 <= c < 0x7F else "." for c in row)
        lines.append(f"{start:06x}  {row.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def shown_headers(headers: list[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    """Each header with its name; what is beyond the bound is counted in a last one without a name."""
    shown: list[dict[str, Any]] = [
        {"name": shown_text(name, 256), "value": _header(value)} for name, value in headers[:MOST_HEADERS]
    ]
    if len(headers) > MOST_HEADERS:
        left = f"and {len(headers) - MOST_HEADERS} more headers"
        shown.append({"name": "", "value": {"kind": "text", "text": left, "size": 0, "shown": 0}})
    return shown
