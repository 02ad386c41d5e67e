"""Values with a unit: how a setting's text becomes a number, and how a number is shown again.

A number without a unit is in seconds or in bytes. Every function that reads raises ValueError with the end of
a sentence ("give ..") and never repeats the value: the caller adds it, unless it is a secret. Called by the
settings model.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import ByteSize, TypeAdapter, ValidationError

StartWord = Literal["earliest", "latest", "stop"]

_DURATION_HINT: Final = "give seconds, or a number with a unit such as 500ms, 30s, 5m, 2h or 14d"
_SIZE_HINT: Final = "give bytes, or a number with a unit such as 64MiB, 64Mi, 512KiB or 1GB"
_COUNT_HINT: Final = "give a whole number"

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d)\s*)+")
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
DURATION_PATTERN: Final = r"^\s*([0-9.]+([eE][+-]?[0-9]+)?|([0-9]+(\.[0-9]+)?(ms|s|m|h|d)\s*)+)\s*$"
SIZE_PATTERN: Final = r"^\s*[0-9.]+([eE][+-]?[0-9]+)?\s*([kKmMgGtT]?i?[bB]?)\s*$"

_FIRST_MILLISECONDS: Final = 10**11
_LAST_MILLISECONDS: Final = 253_402_300_800_000  # the year 10000
_LARGEST: Final = 2**53
_LONGEST_SECONDS: Final = 100 * 365 * 86_400

_BYTES: Final = TypeAdapter(ByteSize)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_LISTEN: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})", re.ASCII)
_WEB: Final = re.compile(r"https?://[A-Za-z0-9._:\[\]/~%-]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
_BROKER: Final = re.compile(
    r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?"
)


def duration(value: object) -> float:
    """Seconds, 0 or more, of a number, a text such as ``500ms`` or ``1h30m``, or a timedelta."""
    if isinstance(value, dt.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            seconds = float(text)
        elif _DURATION.fullmatch(text):
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
        else:
            raise ValueError(_DURATION_HINT)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        raise ValueError(_DURATION_HINT)  # noqa: TRY004 - pydantic makes a report of a ValueError only
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{_DURATION_HINT}, not below 0 and at most 100 years")
    return float(seconds)


def size(value: object) -> int:
    """Bytes of a number or a text such as ``64MiB``. ``Mi`` as in Kubernetes counts as ``MiB``."""
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return _whole(float(text), _SIZE_HINT)
        try:
            return _whole(_BYTES.validate_python(text + "B" if text.endswith("i") else text), _SIZE_HINT)
        except ValidationError:
            raise ValueError(_SIZE_HINT) from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _whole(value, _SIZE_HINT)
    raise ValueError(_SIZE_HINT)


def count(value: object) -> int:
    """A whole number. ``1e+06`` is one too: that is how Helm writes a million."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return _whole(float(value), _COUNT_HINT)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _whole(value, _COUNT_HINT)
    raise ValueError(_COUNT_HINT)


def _whole(value: float, hint: str) -> int:
    # Up to 2**53 a float is exact; nothing that is counted here comes near.
    if not -_LARGEST <= value <= _LARGEST or value != int(value):
        raise ValueError(hint)
    return int(value)


def listed(value: object) -> tuple[object, ...]:
    """The items of a list, of a JSON array, or of a text with commas; ``none`` has no items."""
    if isinstance(value, str):
        text = value.strip()
        if text.lower() == "none":
            return ()
        if text.startswith("["):
            try:
                value = json.loads(text)
            except ValueError:
                raise ValueError('give a list: either a,b,c or JSON such as ["a", "b"]') from None
        else:
            return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        return tuple(value)
    return (value,)


def pairs(value: object) -> dict[str, str]:
    """A mapping of text to text, from a mapping, a JSON object, or a text such as ``old=new,old2=new2``."""
    hint = "give pairs such as orders=orders-v2, or a mapping"
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("{"):
            try:
                value = json.loads(text)
            except ValueError:
                raise ValueError(hint) from None
        else:
            found: dict[str, str] = {}
            for part in filter(None, (part.strip() for part in text.split(","))):
                old, equals, new = part.partition("=")
                if not equals or not old.strip() or not new.strip():
                    raise ValueError(hint)
                found[old.strip()] = new.strip()
            return found
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) and part for pair in value.items() for part in pair
    ):
        raise ValueError(hint)
    return dict(value)


def brokers(value: object) -> tuple[str, ...]:
    """Addresses such as ``host:9092``."""
    found = listed(value)
    for broker in found:
        match = _BROKER.fullmatch(broker) if isinstance(broker, str) else None
        if match is None or not 0 < int(match["port"] or 9092) < 65_536:
            raise ValueError(
                "give addresses such as host:9092 or [::1]:9092, several with commas between them"
            )
    return tuple(str(broker) for broker in found)


def address(value: str) -> str:
    """Where to listen: ``127.0.0.1:9464``, ``[::1]:9464``; port 0 is any free one."""
    match = _LISTEN.fullmatch(value.strip())
    if match is None or int(match["port"]) > 65_535:
        raise ValueError("give host:port, such as 127.0.0.1:9464, 0.0.0.0:9464 (everywhere) or [::]:9464")
    return value.strip()


def web_address(value: str) -> str:
    """The base of a web address, without a slash at its end: ``http://jaeger:16686``."""
    found = value.strip().rstrip("/")
    hint = "give an http or https address without user, query and fragment, such as http://jaeger:16686"
    try:
        parts = urlsplit(found)
        port = parts.port
    except ValueError:
        raise ValueError(hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not _WEB.fullmatch(found):
        raise ValueError(hint)
    return found


def host_and_port(value: str) -> tuple[str, int]:
    """The two parts of an address that was checked; an IPv6 address without its brackets."""
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)


def names(value: object) -> tuple[str, ...]:
    """Host names."""
    found = listed(value)
    for name in found:
        if not isinstance(name, str) or not _HOST.fullmatch(name):
            raise ValueError("give host names without a port, several with commas between them")
    return tuple(str(name).lower() for name in found)


def start(value: object) -> StartWord | int:
    """``earliest``, ``latest``, ``stop``, or a point in time as epoch milliseconds."""
    hint = (
        "give earliest, latest, stop, an RFC 3339 time with a zone (2026-01-31T08:00:00Z), or epoch "
        "milliseconds"
    )
    if isinstance(value, str):
        text = value.strip()
        match text.lower():
            case "earliest" | "latest" | "stop" as word:
                return word
        if _NUMBER.fullmatch(text):
            return start(count(text))
        try:
            value = dt.datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(hint) from None
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            raise ValueError(f"the time has no zone: {hint}")
        return start(round(value.timestamp() * 1000))
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < _FIRST_MILLISECONDS:
            raise ValueError(f"that is a time before 1974, perhaps meant in seconds: {hint}")
        if 0 < value < _LAST_MILLISECONDS:
            return value
    raise ValueError(hint)


def show_duration(seconds: float) -> str:
    """The shortest exact text: 0.5 is ``500ms``, 300 is ``5m``, 1209600 is ``14d``.

    Also used in topic names.
    """
    milliseconds = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        step = round(_SECONDS[unit] * 1000)
        if milliseconds and milliseconds % step == 0:
            return f"{milliseconds // step}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def show_size(size_in_bytes: int) -> str:
    """The largest binary unit that divides it: 67108864 is ``64MiB``."""
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_in_bytes and size_in_bytes % 1024**exponent == 0:
            return f"{size_in_bytes // 1024**exponent}{unit}"
    return str(size_in_bytes)
