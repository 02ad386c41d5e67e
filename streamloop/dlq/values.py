"""A value as a person reads it: decoded by the loop's codec, as JSON, as text, or as a hex dump. Pure.

Nothing that a terminal would obey gets through. JSON is only broken into lines, never read and written
again: numbers, duplicate names and the order stay as they were sent. Called by ``streamloop dlq show``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic_core import to_jsonable_python

from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_LINES: Final = 200
LONGEST_LINE: Final = 4_000
MOST_HEX: Final = 512
"""Bytes of a hex dump."""
DEEPEST: Final = 60
_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_REGISTRY: Final = 5
"""Bytes that a schema registry's serialisers put before the payload: 0, and the schema's id."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A value for people. ``kind``: a few words; ``cut``: what is left out, '' when nothing is."""

    kind: str
    lines: tuple[str, ...]
    cut: str = ""


def show_value(
    value: bytes | None, decode: Callable[[bytes | None], Any] | None = None, *, full: bool = False
) -> Shown:
    """The value, decoded by ``decode`` (the handler's own) where that can; ``full``: however long it is."""
    if value is None:
        return Shown("null: a tombstone", ())
    if not value:
        return Shown("empty", ())
    said = ""
    if decode is not None:
        try:
            decoded = decode(value)
        except Exception as error:  # noqa: BLE001 - a codec may raise anything: then it is shown without it
            said = f", which the loop's codec refuses: {printable(str(error))[:300]}"
        else:
            found = _decoded(decoded)
            if found is not None:
                return _cut(f"{type(decoded).__name__}, decoded by the loop's codec", found, full)
    text = _text(value)
    if text is not None:
        try:
            parsed = orjson.loads(value)
        except orjson.JSONDecodeError:
            return _cut(f"text{said}", iter(text.split("\n")), full)
        if isinstance(parsed, dict | list):
            return _cut(f"JSON{said}", pretty(text), full)
        return _cut(f"JSON{said}", iter([text]), full)
    hint = ""
    if len(value) > _REGISTRY and value[0] == 0:
        hint = f"; perhaps of schema {int.from_bytes(value[1:_REGISTRY], 'big')} in a schema registry"
    return _hex(value, f"binary{said}{hint}", full)


def show_header(name: str, value: bytes | None, *, full: bool = False) -> str:
    """A header's value in one or more lines."""
    if value is None:
        return "null"
    text = _text(value)
    if text is None:
        dump = f"hex:{value[:64].hex()}" + (f".. ({len(value):,} bytes)" if len(value) > 64 else "")
        if name.startswith(("kafka_", "retry_topic-")) and len(value) in (
            4,
            8,
        ):  # Java's int or long (Spring)
            return f"{int.from_bytes(value, 'big', signed=True)} ({dump})"
        return dump
    shown = _cut("", iter(text.rstrip("\n").expandtabs(4).split("\n")), full, most_lines=12, longest=500)
    return "\n".join(shown.lines) + (f"\n.. {shown.cut}" if shown.cut else "")


def pretty(text: str) -> Iterator[str]:
    """A JSON document, which was checked, in lines; every word is as it was."""
    depth = 0
    line: list[str] = []
    previous = ""
    for match in _WORD.finditer(text):
        word = match[0]
        if word in "]}":
            depth -= 1
            if previous not in ("{", "["):
                yield "".join(line)
                line = ["  " * min(depth, DEEPEST)]
            line.append(word)
        else:
            if previous in ("{", "[", ","):
                yield "".join(line)
                line = ["  " * min(depth, DEEPEST)]
            line.append(word)
            if word == ":":
                line.append(" ")
            elif word in ("{", "["):
                depth += 1
        previous = word
    if line:
        yield "".join(line)


def _decoded(value: Any) -> Iterator[str] | None:
    """What a codec made, in lines; None for bytes, which are shown as if there were none."""
    if isinstance(value, bytes | bytearray | memoryview):
        return None
    if isinstance(value, str):
        return iter(value.split("\n"))
    try:
        plain = to_jsonable_python(value, fallback=repr, bytes_mode="base64", inf_nan_mode="strings")
        return iter(json.dumps(plain, indent=2, ensure_ascii=False).split("\n"))
    except Exception:  # noqa: BLE001 - whatever it is, it has a repr, or not even that
        try:
            return iter([repr(value)])
        except Exception:  # noqa: BLE001
            return None


def _text(value: bytes) -> str | None:
    """The value as text; None when it is none: not UTF-8, or with characters that no text has."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _cut(
    kind: str,
    lines: Iterator[str],
    full: bool,
    *,
    most_lines: int = MOST_LINES,
    longest: int = LONGEST_LINE,
) -> Shown:
    kept: list[str] = []
    left = long = 0
    for line in lines:
        if not full and len(kept) >= most_lines:
            left += 1
            continue
        given = line.removesuffix("\r")
        if not full and len(given) > longest:
            long += len(given) - longest
            given = given[:longest]
        kept.append(printable(given))
    cut = [f"{left:,} more lines"] if left else []
    if long:
        cut.append(f"{long:,} more characters in long lines")
    return Shown(kind, tuple(kept), f"{' and '.join(cut)}: --full shows them" if cut else "")


def _hex(value: bytes, kind: str, full: bool) -> Shown:
    shown = value if full else value[:MOST_HEX]
    lines = []
    for at in range(0, len(shown), 16):
        part = shown[at : at + 16]
        spaced = " ".join(f"{each:02x}" for each in part)
        plain = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in part)
        lines.append(f"{at:08x}  {spaced:<47}  {plain}")
    left = len(value) - len(shown)
    return Shown(
        kind, tuple(lines), f"{left:,} more bytes: --full shows them, --raw writes all" if left else ""
    )
