"""One dead letter, read leniently: whoever wrote it, and whatever its headers hold.

Understands the headers of streamloop, of Spring Kafka's recoverer, of Kafka Connect and of Kafka's own
dead-letter queues (KIP-1191). Everything in a record is another's text and may be hostile: what can't be read
counts as absent, nothing here raises, and nothing is shortened or changed, so that a replay or an export has
the very bytes. Called by whatever reads dead-letter topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from streamloop.engine.retry import fingerprint_of
from streamloop.kafka import headers as hd

if TYPE_CHECKING:
    from collections.abc import Mapping

STREAMLOOP: Final = "streamloop"
SPRING: Final = "spring"
CONNECT: Final = "connect"
KAFKA: Final = "kafka"
UNKNOWN: Final = "unknown"

_SPRING: Final = "kafka_dlt-"
_CONNECT: Final = "__connect.errors."
_SPRING_ATTEMPTS: Final = ("retry_topic-attempts", "kafka_deliveryAttempt")
_SPRING_WRAPPER: Final = "ListenerExecutionFailedException"
"""Spring names this class for every failure of a listener; the cause says what failed."""

_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1
_LAST_SECOND: Final = 253_402_300_799
_FINGERPRINT: Final = re.compile("[0-9A-Za-z_-]{1,64}")
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE: Final = b"0" * 32


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record of a dead-letter topic.

    ``key``, ``value`` and ``headers`` are byte for byte what the record holds. ``timestamp_ms`` is the
    record's own (epoch ms, None without one), ``first_failed_at`` and ``failed_at`` are epoch seconds from
    the headers, ``attempts`` those made in all; None: nobody says. ``written_by`` is streamloop, spring,
    connect, kafka (its own dead-letter queues) or unknown. ``error_class`` and ``error_message`` are '' when
    unknown; there is always a ``fingerprint``: the header's, or one made of these two. ``trace_id``: 32
    lower-case hex digits that are not all zero. ``exact`` is False when a header's name is not UTF-8: it
    stands escaped, and no client of librdkafka in Python can write the record as it was.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    leader_epoch: int | None
    key: bytes | None
    value: bytes | None
    headers: hd.RawHeaders
    written_by: str
    original: hd.Coordinates | None
    group: str | None
    error_class: str
    error_message: str
    fingerprint: str
    attempts: int | None
    first_failed_at: float | None
    failed_at: float | None
    replay_id: str | None
    replay_count: int
    trace_id: str | None
    exact: bool = True

    @property
    def place(self) -> str:
        """topic/partition/offset of the dead letter, as every command takes it."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def died_at(self) -> float | None:
        """When it failed for good, epoch seconds: as its headers say, else the record's own timestamp."""
        if self.failed_at is not None:
            return self.failed_at
        return None if self.timestamp_ms is None else self.timestamp_ms / 1000


def letter_of(message: Any) -> DeadLetter:
    """The dead letter of a confluent-kafka Message (one without an error). Never raises."""
    kind, stamp = message.timestamp()
    exact = True
    try:
        headers: hd.RawHeaders = hd.asked_headers(message) or []
    except SystemError as error:  # a name that is not UTF-8
        headers, exact = hd.mend(message, error), False
    # Of duplicates the last one is the newest: routers that append put theirs behind.
    named: dict[str, bytes | None] = dict(headers)
    known = _read(named, headers) if named else _NOTHING
    epoch = message.leader_epoch()
    return DeadLetter(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        stamp if kind and stamp >= 0 else None,
        epoch if epoch is not None and epoch >= 0 else None,
        message.key(),
        message.value(),
        headers,
        known.written_by,
        known.original,
        known.group,
        known.error_class,
        known.error_message,
        known.fingerprint or fingerprint_of(known.error_class, known.error_message),
        known.attempts,
        known.first_failed_at,
        known.failed_at,
        _text(named.get(hd.REPLAY_ID)) or None,
        _number(named.get(hd.REPLAY_COUNT), _INT32) or 0,
        _trace_id(named.get(hd.TRACEPARENT)),
        exact,
    )


@dataclass(slots=True)
class _Known:
    """What the headers say."""

    written_by: str
    original: hd.Coordinates | None = None
    group: str | None = None
    error_class: str = ""
    error_message: str = ""
    fingerprint: str = ""
    attempts: int | None = None
    first_failed_at: float | None = None
    failed_at: float | None = None


_NOTHING: Final = _Known(UNKNOWN)


def _read(named: Mapping[str, bytes | None], headers: hd.RawHeaders) -> _Known:
    if hd.ORIGINAL_TOPIC in named or hd.ERROR_FINGERPRINT in named or hd.ERROR_CLASS in named:
        return _streamloop(named)
    written = _written_by(named)
    if written == SPRING:
        return _spring(named, headers)
    if written == CONNECT:
        return _connect(named)
    if written == KAFKA:
        return _kafka(named)
    return _Known(UNKNOWN)


def _written_by(named: Mapping[str, bytes | None]) -> str:
    for name in named:
        if name.startswith(_SPRING):
            return SPRING
        if name.startswith(_CONNECT):
            return CONNECT
        if name.startswith(hd.DLQ_PREFIX):
            return KAFKA
    return UNKNOWN


def _streamloop(named: Mapping[str, bytes | None]) -> _Known:
    get = named.get
    message = get(hd.ERROR_MESSAGE)
    first, last = get(hd.FIRST_FAILED_AT), get(hd.FAILED_AT)
    failed_at = _time(last)
    return _Known(
        STREAMLOOP,
        _coordinates(
            get(hd.ORIGINAL_TOPIC),
            get(hd.ORIGINAL_PARTITION),
            get(hd.ORIGINAL_OFFSET),
            get(hd.ORIGINAL_TIMESTAMP),
        ),
        _name(get(hd.ORIGINAL_GROUP)) or None,
        _name(get(hd.ERROR_CLASS)),
        _text(message if message is not None else get(hd.DLQ_MESSAGE)),
        _fingerprint(get(hd.ERROR_FINGERPRINT)),
        _number(get(hd.ATTEMPT), _INT32),
        failed_at if first == last else _time(first),
        failed_at,
    )


def _spring(named: Mapping[str, bytes | None], headers: hd.RawHeaders) -> _Known:
    # Where a record went through several topics, each appended its own: the first says where it began.
    first: dict[str, bytes | None] = {}
    for name, value in headers:
        if name.startswith(_SPRING):
            first.setdefault(name, value)
    error_class = _text(named.get(f"{_SPRING}exception-fqcn"))
    cause = _text(named.get(f"{_SPRING}exception-cause-fqcn"))
    if cause and (not error_class or error_class.endswith(_SPRING_WRAPPER)):
        error_class = cause
    attempts = next((n for each in _SPRING_ATTEMPTS if (n := _number(named.get(each), _INT32))), None)
    return _Known(
        SPRING,
        _coordinates(
            first.get(f"{_SPRING}original-topic"),
            first.get(f"{_SPRING}original-partition"),
            first.get(f"{_SPRING}original-offset"),
            first.get(f"{_SPRING}original-timestamp"),
        ),
        _text(named.get(f"{_SPRING}original-consumer-group")) or None,
        error_class,
        _text(named.get(f"{_SPRING}exception-message")),
        attempts=attempts,
    )


def _connect(named: Mapping[str, bytes | None]) -> _Known:
    connector = _text(named.get(f"{_CONNECT}connector.name"))
    return _Known(
        CONNECT,
        _coordinates(
            named.get(f"{_CONNECT}topic"),
            named.get(f"{_CONNECT}partition"),
            named.get(f"{_CONNECT}offset"),
            None,
        ),
        f"connect-{connector}" if connector else None,  # the group of a sink connector, by default
        _text(named.get(f"{_CONNECT}exception.class.name")),
        _text(named.get(f"{_CONNECT}exception.message")),
    )


def _kafka(named: Mapping[str, bytes | None]) -> _Known:
    return _Known(
        KAFKA,
        _coordinates(named.get(hd.DLQ_TOPIC), named.get(hd.DLQ_PARTITION), named.get(hd.DLQ_OFFSET), None),
        _text(named.get(hd.DLQ_GROUP)) or None,
        "",
        _text(named.get(hd.DLQ_MESSAGE)),
        attempts=_number(named.get(hd.DLQ_DELIVERY_COUNT), _INT32),
    )


def _coordinates(
    topic: bytes | None, partition: bytes | None, offset: bytes | None, timestamp: bytes | None
) -> hd.Coordinates | None:
    name, at, where = _name(topic), _number(partition, _INT32), _number(offset, _INT64)
    if not name or at is None or where is None:
        return None
    return hd.Coordinates(name, at, where, _number(timestamp, _INT64))


def _text(raw: bytes | None) -> str:
    """The text of a header; what is no UTF-8 is escaped, never lost. '' when it is absent."""
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else ""


_NAMES: Final[dict[bytes | None, str]] = {None: ""}
"""Texts that many letters share: topics, groups, error classes. One string for all of them, and no work."""
_MOST_NAMES: Final = 2_000


def _name(raw: bytes | None) -> str:
    found = _NAMES.get(raw)
    if found is None:
        found = _text(raw)
        if len(found) <= 300 and len(_NAMES) < _MOST_NAMES:
            _NAMES[raw] = found
    return found


def _fingerprint(raw: bytes | None) -> str:
    found = _name(raw)
    return found if not found or _FINGERPRINT.fullmatch(found) else ""


def _number(raw: bytes | None, most: int) -> int | None:
    """A number written as text, or as Java's int or long (Spring).

    Four or eight digits are text: as an int or a long they would be more partitions or offsets than there
    are.
    """
    if not isinstance(raw, bytes) or not raw or len(raw) > 20:
        return None
    if raw.isdigit():
        number = int(raw)
    elif len(raw) in (4, 8):
        number = int.from_bytes(raw, "big", signed=True)
    else:
        return None
    return number if 0 <= number <= most else None


def _time(raw: bytes | None) -> float | None:
    if not isinstance(raw, bytes) or len(raw) > 64:
        return None
    try:
        moment = datetime.fromisoformat(raw.decode("ascii"))
        seconds = moment.timestamp() if moment.tzinfo is not None else -1.0
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds <= _LAST_SECOND else None


def _trace_id(raw: bytes | None) -> str | None:
    if not isinstance(raw, bytes) or len(raw) > 512:
        return None
    match = _TRACEPARENT.match(raw)
    return match[1].decode("ascii") if match is not None and match[1] != _NO_TRACE else None
