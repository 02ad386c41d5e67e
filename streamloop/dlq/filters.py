"""Which dead letters are meant: by error, key, place, time, header, value, or replayed before.

A filter is plain data, so that a replay can record it and a page can send it. Conditions of one kind are
alternatives, conditions of different kinds must all hold. Matching is pure and never raises. Called by every
command of ``streamloop dlq`` and by the library.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamloop.errors import ConfigurationError
from streamloop.settings import units

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streamloop.dlq.letter import DeadLetter

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FINGERPRINT: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
_RANGE: Final = re.compile(r"(?P<first>[0-9]{1,19})?(?P<dash>-)?(?P<last>[0-9]{1,19})?")
_PLACES: Final = "TOPIC, TOPIC/PARTITION, TOPIC/PARTITION/OFFSET or TOPIC/PARTITION:FROM-TO"
_LARGEST: Final = 2**63 - 1
_MOST_PARTITIONS: Final = 2**31 - 1


class Places(NamedTuple):
    """A topic, one of its partitions, or a range of offsets there.

    ``partition`` None: all. ``first`` to ``last``, both included; ``last`` None: to the end.
    """

    topic: str
    partition: int | None = None
    first: int = 0
    last: int | None = None

    def holds(self, topic: str, partition: int, offset: int) -> bool:
        """Whether that record is in here."""
        return (
            topic == self.topic
            and (self.partition is None or partition == self.partition)
            and offset >= self.first
            and (self.last is None or offset <= self.last)
        )

    def __str__(self) -> str:
        if self.partition is None:
            return self.topic
        place = f"{self.topic}/{self.partition}"
        if self.last == self.first:
            return f"{place}/{self.first}"
        if self.first == 0 and self.last is None:
            return place
        return f"{place}:{self.first}-{'' if self.last is None else self.last}"

    @classmethod
    def parse(cls, text: str, option: str = "place") -> Places:
        """From a text. Raises ConfigurationError that names the option."""
        head, colon, span = text.strip().partition(":")
        parts = head.split("/")
        problem = ConfigurationError(f"{option} {text[:300]!r} names no place: give {_PLACES}.")
        if len(parts) > (2 if colon else 3) or _TOPIC.fullmatch(parts[0]) is None:
            raise problem
        if colon and len(parts) != 2:
            raise problem
        if len(parts) == 1:
            return cls(parts[0])
        partition = _whole(parts[1], _MOST_PARTITIONS)
        if partition is None:
            raise problem
        if not colon and len(parts) == 2:
            return cls(parts[0], partition)
        match = _RANGE.fullmatch(span if colon else parts[2])
        if match is None or not (match["first"] or match["last"]):
            raise problem
        first = int(match["first"] or 0)
        last = int(match["last"]) if match["last"] else None if match["dash"] else first
        if first > _LARGEST or (last is not None and last > _LARGEST):
            raise problem
        if last is not None and last < first:
            raise ConfigurationError(f"{option} {text!r} ends before it begins: give the lower offset first.")
        return cls(parts[0], partition, first, last)


class HeaderIs(NamedTuple):
    """A header that must be there; with ``value`` (bytes) it must have that value in one of its places."""

    name: str
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters are meant; ``Filter()`` means all. Made by hand or by ``Filter.parse``.

    ``errors``: full class names, or their last part. ``fingerprints``: or their beginning. ``keys``: bytes,
    None stands for a record without a key. ``originals``: where the messages first failed; ``at``: where the
    dead letters are. ``since`` (included) and ``until`` (not included): when they died, epoch seconds; a
    letter of which that is not known matches neither. ``groups``: the group that failed. ``values``: bytes
    that the value contains. ``replayed``: whether it came back after a replay (None: either).
    """

    errors: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    keys: tuple[bytes | None, ...] = ()
    originals: tuple[Places, ...] = ()
    at: tuple[Places, ...] = ()
    since: float | None = None
    until: float | None = None
    headers: tuple[HeaderIs, ...] = ()
    groups: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    replayed: bool | None = None

    @property
    def is_all(self) -> bool:
        """Whether every dead letter matches."""
        return self == ALL

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the letter is meant."""
        if self.fingerprints and not letter.fingerprint.startswith(self.fingerprints):
            return False
        if self.errors and not self._error(letter.error_class):
            return False
        if self.keys and letter.key not in self.keys:
            return False
        if self.at and not any(each.holds(letter.topic, letter.partition, letter.offset) for each in self.at):
            return False
        if self.originals:
            original = letter.original
            if original is None or not any(each.holds(*original[:3]) for each in self.originals):
                return False
        if self.groups and letter.group not in self.groups:
            return False
        if self.replayed is not None and self.replayed != bool(letter.replay_id or letter.replay_count):
            return False
        if self.since is not None or self.until is not None:
            died = letter.died_at
            if died is None or not (
                (self.since is None or died >= self.since) and (self.until is None or died < self.until)
            ):
                return False
        if self.headers and not all(_has(letter, each) for each in self.headers):
            return False
        if self.values:
            value = letter.value
            return value is not None and any(each in value for each in self.values)
        return True

    def _error(self, found: str) -> bool:
        return found in self.errors or found.rpartition(".")[2] in self.errors

    def describe(self) -> str:
        """What is meant, for people: 'all dead letters', or the conditions."""
        said: list[str] = []

        def add(name: str, values: Iterable[object]) -> None:
            texts = [str(value) for value in values]
            if texts:
                said.append(f"{name} {' or '.join(texts)}")

        add("error", self.errors)
        add("fingerprint", (f"{each}.." if len(each) < 16 else each for each in self.fingerprints))
        add("key", map(show_key, self.keys))
        add("original", self.originals)
        add("dead letter", self.at)
        if self.since is not None:
            said.append(f"died at or after {_moment(self.since)}")
        if self.until is not None:
            said.append(f"died before {_moment(self.until)}")
        for name, value in self.headers:
            said.append(f"header {name}" + ("" if value is None else f"={show_bytes(value)}"))
        add("group", self.groups)
        add("value contains", map(show_bytes, self.values))
        if self.replayed is not None:
            said.append("dead again after a replay" if self.replayed else "never replayed before")
        return ", ".join(said) or "all dead letters"

    def to_json(self) -> dict[str, Any]:
        """What is not at its default, as JSON has it; keys and values as ``show_bytes`` writes them."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value in ((), None):
                continue
            if each.name == "keys":
                value = [show_key(key) for key in value]
            elif each.name == "values":
                value = [show_bytes(part) for part in value]
            elif each.name in ("originals", "at"):
                value = [str(place) for place in value]
            elif each.name == "headers":
                value = [[name, None if given is None else show_bytes(given)] for name, given in value]
            elif isinstance(value, tuple):
                value = list(value)
            found[each.name] = value
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Filter:
        """The filter that ``to_json`` wrote. Raises ConfigurationError for what is none."""
        names = {each.name for each in fields(cls)}
        strange = sorted(set(found) - names)
        if strange:
            raise ConfigurationError(
                f"The filter has no {strange[0][:80]!r}: it knows {', '.join(sorted(names))}."
            )
        try:
            return cls(
                errors=_texts(found, "errors"),
                fingerprints=tuple(_fingerprint(each) for each in _texts(found, "fingerprints")),
                keys=tuple(_key(each, "keys") for each in _texts(found, "keys")),
                originals=tuple(Places.parse(each, "originals") for each in _texts(found, "originals")),
                at=tuple(Places.parse(each, "at") for each in _texts(found, "at")),
                since=_seconds(found, "since"),
                until=_seconds(found, "until"),
                headers=tuple(
                    HeaderIs(_text(name), None if value is None else _bytes(_text(value), "headers"))
                    for name, value in found.get("headers", ())
                ),
                groups=_texts(found, "groups"),
                values=tuple(_part(each, "values") for each in _texts(found, "values")),
                replayed=_flag(found.get("replayed")),
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"The filter can't be read: {str(error)[:200]}.") from None

    @classmethod
    def parse(
        cls,
        *,
        error: Sequence[str] = (),
        fingerprint: Sequence[str] = (),
        key: Sequence[str] = (),
        original: Sequence[str] = (),
        at: Sequence[str] = (),
        since: str | None = None,
        until: str | None = None,
        header: Sequence[str] = (),
        original_group: Sequence[str] = (),
        value: Sequence[str] = (),
        replayed: bool | None = None,
        now: float | None = None,
    ) -> Filter:
        """The filter that command line options mean. Raises ConfigurationError, a sentence.

        ``now``: epoch seconds, for times such as '2h' (ago); the clock when None.
        """
        clock = time.time() if now is None else now
        found = cls(
            errors=tuple(error),
            fingerprints=tuple(_fingerprint(each) for each in fingerprint),
            keys=tuple(_key(each, "--key") for each in key),
            originals=tuple(Places.parse(each, "--original") for each in original),
            at=tuple(Places.parse(each, "--at") for each in at),
            since=None if since is None else moment_of(since, clock, "--since"),
            until=None if until is None else moment_of(until, clock, "--until"),
            headers=tuple(_header(each) for each in header),
            groups=tuple(original_group),
            values=tuple(_part(each, "--value") for each in value),
            replayed=replayed,
        )
        if found.since is not None and found.until is not None and found.until <= found.since:
            raise ConfigurationError("--until is not after --since: nothing can match; exchange the two.")
        return found


ALL: Final = Filter()
"""Every dead letter."""


def moment_of(text: str, now: float, option: str) -> float:
    """Epoch seconds of an RFC 3339 time, of epoch ms, or of a duration ago. Raises ConfigurationError."""
    try:
        return now - units.duration(text) if not text.strip().isdigit() else _epoch_ms(text)
    except ValueError:
        pass
    try:
        found = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        zone = "" if found is None else " (the time has no zone)"
        raise ConfigurationError(
            f"{option} {text[:80]!r} is no time{zone}: give an RFC 3339 time with a zone "
            "(2026-01-31T08:00:00Z), a duration ago (30m, 2h, 7d), or epoch milliseconds."
        )
    return found.timestamp()


def show_bytes(raw: bytes) -> str:
    """The bytes as ``--key`` and ``--value`` take them: a text, or hex:.. where they are none."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"hex:{raw.hex()}"
    if not text or text.startswith(("hex:", "null:")) or not text.isprintable():
        return f"hex:{raw.hex()}"
    return text


def show_key(key: bytes | None) -> str:
    """The same for a key; 'null:' for none."""
    return "null:" if key is None else show_bytes(key)


def _epoch_ms(text: str) -> float:
    number = int(text)
    if not 10**11 <= number < 253_402_300_800_000:
        raise ValueError
    return number / 1000


def _key(text: str, option: str) -> bytes | None:
    return None if text == "null:" else _bytes(text, option)


def _part(text: str, option: str) -> bytes:
    raw = _bytes(text, option)
    if not raw:
        raise ConfigurationError(f"{option} is empty: give a text or hex:.. that the value contains.")
    return raw


def _bytes(text: str, option: str) -> bytes:
    if not text.startswith("hex:"):
        return text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(text.removeprefix("hex:"))
    except ValueError:
        raise ConfigurationError(
            f"{option} {text[:80]!r} is not hexadecimal: give an even number of digits after 'hex:'."
        ) from None


def _fingerprint(text: str) -> str:
    found = text.strip().removesuffix("..")
    if _FINGERPRINT.fullmatch(found) is None:
        raise ConfigurationError(
            f"--fingerprint {text[:80]!r} is none: give one that 'streamloop dlq ls' shows, or its beginning."
        )
    return found


def _header(text: str) -> HeaderIs:
    name, equals, value = text.partition("=")
    if not name:
        raise ConfigurationError("--header needs NAME or NAME=VALUE.")
    return HeaderIs(name, _bytes(value, "--header") if equals else None)


def _has(letter: DeadLetter, wanted: HeaderIs) -> bool:
    name, value = wanted
    return any(each == name and (value is None or given == value) for each, given in letter.headers)


def _whole(text: str, most: int) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        return None
    return number if (number := int(text)) <= most else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return value


def _texts(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = found.get(name) or ()
    if isinstance(values, str):
        raise TypeError(f"{name} must be a list")
    return tuple(_text(each) for each in values)


def _seconds(found: Mapping[str, Any], name: str) -> float | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 10**12:
        raise TypeError(f"{name} must be epoch seconds")
    return float(value)


def _flag(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise TypeError("replayed must be true or false")


def _moment(seconds: float) -> str:
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s"
