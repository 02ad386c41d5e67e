"""What stands in the control topic: keys and values, written strictly and read leniently. Pure.

The topic is compacted, and only its partition 0 is used, so that everybody reads one order. Keys:

- ``status/<member>``: how a member is; a null when it has left.
- ``operator/*``, ``operator/<topic>``, ``operator/<topic>/<partition>``: what an operator holds; a null when
  he has resumed it (who did is in the header ``streamloop-by``).

Anybody with the right to write may have written what is read here: nothing in it may raise, and every text is
bounded. What this version does not know is ignored. Called by whatever reads or writes the topic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from streamloop.errors import ConfigurationError
from streamloop.status import LoopStatus  # noqa: TC001 - pydantic reads it

STATUS: Final = b"status/"
OPERATOR: Final = b"operator/"
EVERYTHING: Final = "*"
"""No topic can have this name."""
VERSION: Final = 1
_HEAD: Final = b'{"v":1,'
"""So begins every value of this version: another one is told without reading it."""

LONGEST_STATUS: Final = 256 * 1024
"""Bytes of a status record: a member with more to say leaves out the partitions that need attention least."""
LONGEST_RECORD: Final = 2 * LONGEST_STATUS
"""Bytes of a record above which it is ignored."""
LONGEST_REASON: Final = 500
LONGEST_NAME: Final = 200

BY: Final = "streamloop-by"
"""The header of a null: who resumed."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """What an operator means: everything (no topic), a topic (no partition), or a partition."""

    topic: str | None = None
    partition: int | None = None

    def __str__(self) -> str:
        if self.topic is None:
            return "everything"
        return self.topic if self.partition is None else f"{self.topic}/{self.partition}"

    @property
    def key(self) -> bytes:
        """The record's key."""
        return OPERATOR + (EVERYTHING if self.topic is None else str(self)).encode()

    @staticmethod
    def of_key(key: bytes) -> Scope | None:
        """The scope of an operator's record; None: the key is not one of ours."""
        try:
            text = key[len(OPERATOR) :].decode("ascii")
        except UnicodeDecodeError:
            return None
        return Scope() if text == EVERYTHING else _parse(text)

    @staticmethod
    def parse(text: str) -> Scope:
        """``topic`` or ``topic/partition``. ConfigurationError: a sentence that says what to write."""
        scope = _parse(text)
        if scope is None:
            raise ConfigurationError(
                f"{text!r} names no topic or partition: write a topic, such as orders, or one of its "
                "partitions, such as orders/3."
            )
        return scope


def _parse(text: str) -> Scope | None:
    topic, slash, number = text.partition("/")
    if not _TOPIC.fullmatch(topic):
        return None
    if not slash:
        return Scope(topic)
    if not (number.isascii() and number.isdigit() and len(number) < 10) or number != str(int(number)):
        return None
    return Scope(topic, int(number))


@dataclass(frozen=True, slots=True)
class OperatorHold:
    """Something that an operator holds. ``since``: epoch seconds, by the clock of who wrote it."""

    scope: Scope
    by: str
    since: float
    reason: str = ""

    @property
    def topic(self) -> str | None:
        """The topic; None: everything."""
        return self.scope.topic

    @property
    def partition(self) -> int | None:
        """The partition; None: all of the topic."""
        return self.scope.partition


def hold_value(hold: OperatorHold) -> bytes:
    """The value of an operator's record."""
    return orjson.dumps(
        {
            "v": VERSION,
            "kind": "operator",
            "by": hold.by[:LONGEST_NAME],
            "since": hold.since,
            "reason": hold.reason[:LONGEST_REASON],
        }
    )


def read_hold(scope: Scope, value: bytes) -> OperatorHold | None:
    """What an operator's record says; None: this version does not know it."""
    found = read_object(value, "operator")
    if found is None:
        return None
    since = found.get("since")
    return OperatorHold(
        scope,
        _text(found.get("by"), LONGEST_NAME) or "somebody",
        float(since) if isinstance(since, int | float) and not isinstance(since, bool) else 0.0,
        _text(found.get("reason"), LONGEST_REASON),
    )


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """A topic over the partitions of one member, or of all. ``kind``: source or retry.

    ``lag``: offsets, of the partitions whose end is known; ``lag_unknown`` counts the others.
    ``lag_seconds``: the oldest; None: unknown of all.
    """

    topic: str
    kind: str
    partitions: int = 0
    held: int = 0
    buffered: int = 0
    lag: int = 0
    lag_unknown: int = 0
    lag_seconds: float | None = None

    def and_(self, other: TopicTotals) -> TopicTotals:
        """Both together."""
        seconds = [each for each in (self.lag_seconds, other.lag_seconds) if each is not None]
        return TopicTotals(
            self.topic,
            self.kind,
            self.partitions + other.partitions,
            self.held + other.held,
            self.buffered + other.buffered,
            self.lag + other.lag,
            self.lag_unknown + other.lag_unknown,
            max(seconds, default=None),
        )


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """How a member is, as it said at ``at`` (epoch seconds, its clock).

    ``instance`` tells two processes of one name apart. ``applied``: the offset of the newest operator's
    record that it has applied, -1: none, valid for the control topic with the id ``topic_id``. ``ended``: why
    it has ended, when that was an error. ``status.partitions`` may be cut: ``partitions_cut`` says by how
    many, and ``topics`` has the totals of all.
    """

    member: str
    instance: str
    version: str
    host: str
    pid: int
    started_at: float
    at: float
    status: LoopStatus
    topics: tuple[TopicTotals, ...] = ()
    partitions_cut: int = 0
    applied: int = -1
    topic_id: str = ""
    ended: str = ""


_RECORD: Final = TypeAdapter(MemberRecord)


def status_key(member: str) -> bytes:
    """The key of a member's status."""
    return STATUS + member.encode("utf-8", "surrogateescape")[: LONGEST_NAME * 4]


def member_of_key(key: bytes) -> str:
    """The member that a status record is about."""
    return key[len(STATUS) :].decode("utf-8", "backslashreplace")


def read_status(value: bytes) -> MemberRecord | None:
    """A member's record; None: it is not one that this version knows."""
    found = read_object(value, "status")
    if found is None:
        return None
    try:
        record = _RECORD.validate_python(found.get("record"))
        orjson.dumps(record)  # numbers that JSON would not take are told here, not when it is shown
    except (ValidationError, TypeError, ValueError, OverflowError):
        return None
    return record


def is_known(value: bytes) -> bool:
    """Whether a value looks like one of this version, at no cost."""
    return len(value) <= LONGEST_RECORD and value.startswith(_HEAD)


def read_object(value: bytes, kind: str) -> dict[str, Any] | None:
    """The JSON object of this kind and version, or None."""
    if not is_known(value):
        return None
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict) or found.get("v") != VERSION or found.get("kind") != kind:
        return None
    return found


def status_value(record: MemberRecord) -> bytes:
    """The value of a status record, whatever its size."""
    return orjson.dumps({"v": VERSION, "kind": "status", "record": record})


def _text(value: object, longest: int) -> str:
    return value[:longest] if isinstance(value, str) else ""
