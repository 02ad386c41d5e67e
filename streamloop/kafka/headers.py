"""The headers of routed records: what they are called, how they are read, written and made to fit.

Headers carry a message's past from hop to hop. Ours are replaced and never appended, so that a record does
not grow however often it is routed; the user's are kept byte for byte, in their order, with duplicates and
nulls. Names that begin with ``streamloop-`` or ``__dlq.errors.`` are ours. Values are UTF-8 text.

Never does I/O and never touches the value of a record. Called by the shell: ``read_routing`` for records of
the group's own retry and replay topics (and only those), ``route_headers`` and ``shrink`` before the
publisher.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamloop.engine.retry import Failure

RawHeaders = list[tuple[str, bytes | None]]
"""As ``headers_of`` gives them and confluent-kafka's ``produce(headers=)`` takes them."""

OWN_PREFIX: Final = "streamloop-"
DLQ_PREFIX: Final = "__dlq.errors."

ORIGINAL_TOPIC: Final = "streamloop-original-topic"
ORIGINAL_PARTITION: Final = "streamloop-original-partition"
ORIGINAL_OFFSET: Final = "streamloop-original-offset"
ORIGINAL_TIMESTAMP: Final = "streamloop-original-timestamp"
ORIGINAL_GROUP: Final = "streamloop-original-group"
FIRST_FAILED_AT: Final = "streamloop-first-failed-at"
FAILED_AT: Final = "streamloop-failed-at"
ATTEMPT: Final = "streamloop-attempt"
NOT_BEFORE: Final = "streamloop-not-before"
ERROR_CLASS: Final = "streamloop-error-class"
ERROR_MESSAGE: Final = "streamloop-error-message"
ERROR_FINGERPRINT: Final = "streamloop-error-fingerprint"
REPLAY_ID: Final = "streamloop-replay-id"
REPLAY_COUNT: Final = "streamloop-replay-count"
REPLAYED_FROM: Final = "streamloop-replayed-from"
REPLAYED_AT: Final = "streamloop-replayed-at"

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# The names that Kafka gives the headers of its own dead-letter queues (KIP-1191).
DLQ_TOPIC: Final = "__dlq.errors.topic"
DLQ_PARTITION: Final = "__dlq.errors.partition"
DLQ_OFFSET: Final = "__dlq.errors.offset"
DLQ_GROUP: Final = "__dlq.errors.group"
DLQ_DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
DLQ_MESSAGE: Final = "__dlq.errors.message"

UNREADABLE_NAME: Final = "(not UTF-8)"
"""Stands for a header's name that the client can't tell."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND: Final = 253_402_300_799  # of the year 9999: what is later can't be written again
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1


class Target(enum.Enum):
    """What kind of topic a record is routed to."""

    RETRY = "retry"
    DEAD = "dead"


class Coordinates(NamedTuple):
    """Where a record was read. ``timestamp_ms`` is None when the record has no timestamp."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Routing:
    """What the headers of a record that this group routed say about its past.

    ``original_timestamp`` in epoch ms, ``first_failed_at`` in epoch seconds, ``not_before_ms`` and
    ``replayed_at`` in epoch ms. ``attempt``: attempts made before this delivery, 0 when unknown.
    ``replayed_from`` is topic/partition/offset.
    """

    original_topic: str
    original_partition: int
    original_offset: int
    original_timestamp: int | None
    original_group: str
    first_failed_at: float | None = None
    attempt: int = 0
    not_before_ms: int | None = None
    replay_id: str | None = None
    replay_count: int = 0
    replayed_from: str | None = None
    replayed_at: int | None = None

    @property
    def original(self) -> Coordinates:
        """Where the message first failed."""
        return Coordinates(
            self.original_topic, self.original_partition, self.original_offset, self.original_timestamp
        )


def read_routing(headers: RawHeaders | None, *, group: str) -> Routing | None:
    """The past of a record of one of this group's own retry or replay topics; None when it has none.

    The caller vouches for the topic; here ``streamloop-original-group`` has to equal ``group``, and the
    original topic, partition and offset have to be readable. Any other malformed value counts as absent.
    Never raises.
    """
    if not headers:
        return None
    ours = {name: value for name, value in headers if name.startswith(OWN_PREFIX)}
    topic = _text(ours.get(ORIGINAL_TOPIC))
    partition = _number(ours.get(ORIGINAL_PARTITION), _INT32)
    offset = _number(ours.get(ORIGINAL_OFFSET), _INT64)
    if _text(ours.get(ORIGINAL_GROUP)) != group or topic is None or partition is None or offset is None:
        return None
    return Routing(
        original_topic=topic,
        original_partition=partition,
        original_offset=offset,
        original_timestamp=_number(ours.get(ORIGINAL_TIMESTAMP), _INT64),
        original_group=group,
        first_failed_at=_time(ours.get(FIRST_FAILED_AT)),
        attempt=_number(ours.get(ATTEMPT), _INT32) or 0,
        not_before_ms=_number(ours.get(NOT_BEFORE), _INT64),
        replay_id=_text(ours.get(REPLAY_ID)),
        replay_count=_number(ours.get(REPLAY_COUNT), _INT32) or 0,
        replayed_from=_text(ours.get(REPLAYED_FROM)),
        replayed_at=_number(ours.get(REPLAYED_AT), _INT64),
    )


_asked_headers: Final = methodcaller("headers")
"""``message.headers()``, called so that the interpreter looks whether it raised: a call in Python code that
ran some times before is specialised, leaves that out, and would get the list with the hole instead."""


def headers_of(message: Any) -> RawHeaders | None:
    """The headers of a consumed Message. Everything reads them through here.

    confluent-kafka can't tell a header whose name is not UTF-8: it raises once, and from then on gives a list
    with a hole in it that ends the process when it is touched. Such a message is mended for all who come
    later: the name stands escaped (``\\xff``; where there are several, as ``UNREADABLE_NAME``), and its value
    and all other headers are as they were sent.
    """
    try:
        found: RawHeaders | None = _asked_headers(message)
    except SystemError as error:
        found = _mend(message, error)
    return found


def exact_headers_of(message: Any) -> tuple[RawHeaders | None, bool]:
    """The same, with whether all names are as they were sent; False only at a Message's first reading."""
    try:
        found: RawHeaders | None = _asked_headers(message)
    except SystemError as error:
        return _mend(message, error), False
    return found, True


def _mend(message: Any, error: SystemError) -> RawHeaders:
    """Give a Message, whose headers() just raised ``error`` for the first time, headers that can be read."""
    broken = message.headers()  # now without an exception
    cause = error.__cause__
    name = UNREADABLE_NAME
    if isinstance(cause, UnicodeDecodeError):  # told where it is the only one
        name = cause.object.decode("utf-8", "backslashreplace")
    # Its repr is the one way to see a hole without touching it.
    found: RawHeaders = [
        (name, header[1]) if repr(header).startswith("(<NULL>,") else header for header in broken
    ]
    message.set_headers(found)
    return found


def is_ours(name: str) -> bool:
    """Whether a header belongs to streamloop:

    it is replaced at each hop and no part of the user's headers.
    """
    return name.startswith((OWN_PREFIX, DLQ_PREFIX))


def is_writable_name(name: str) -> bool:
    """Whether a client can write a header of this name as it is.

    confluent-kafka ends the process with a segmentation fault over a name that is no UTF-8 (half of a
    surrogate pair, which JSON can hold), and cuts one at a null character.
    """
    try:
        return b"\0" not in name.encode("utf-8")
    except UnicodeEncodeError:
        return False


def user_headers(headers: RawHeaders | None) -> RawHeaders:
    """The headers that are the user's (trace context included), as they are."""
    return [header for header in headers or () if not is_ours(header[0])]


def route_headers(
    headers: RawHeaders | None,
    *,
    target: Target,
    routing: Routing | None,
    source: Coordinates,
    failure: Failure,
    group: str,
    attempt: int,
    now_ms: int,
    not_before_ms: int | None = None,
    trace: tuple[str, str | None] | None = None,
) -> RawHeaders:
    """The headers of a record that goes to a retry or dead-letter topic.

    ``headers`` are those of the record just read at ``source``, ours included. ``routing`` is what
    ``read_routing`` said of it; None means that this group routes it for the first time, and whatever carries
    our names there is of someone else and is dropped. ``attempt``: attempts made in all, the failed one
    included. ``now_ms`` and ``not_before_ms`` (retry topics only): epoch ms. ``trace``: traceparent and
    tracestate to put in the place of any that are there; None leaves those as they are.
    """
    routed = user_headers(headers)
    if trace is not None:
        routed = [header for header in routed if header[0] not in (TRACEPARENT, TRACESTATE)]
    original = source if routing is None else routing.original
    first_failed_ms = now_ms
    if routing is not None and routing.first_failed_at is not None:
        first_failed_ms = round(routing.first_failed_at * 1000)

    def put(name: str, value: str | int) -> None:
        routed.append((name, str(value).encode("utf-8", "backslashreplace")))

    put(ORIGINAL_TOPIC, original.topic)
    put(ORIGINAL_PARTITION, original.partition)
    put(ORIGINAL_OFFSET, original.offset)
    if original.timestamp_ms is not None and original.timestamp_ms >= 0:
        put(ORIGINAL_TIMESTAMP, original.timestamp_ms)
    put(ORIGINAL_GROUP, group)
    put(FIRST_FAILED_AT, _rfc3339(first_failed_ms))
    put(FAILED_AT, _rfc3339(now_ms))
    put(ATTEMPT, attempt)
    if target is Target.RETRY and not_before_ms is not None:
        put(NOT_BEFORE, not_before_ms)
    put(ERROR_CLASS, failure.error_class)
    put(ERROR_MESSAGE, failure.message)
    put(ERROR_FINGERPRINT, failure.fingerprint)
    if routing is not None:
        if routing.replay_id is not None:
            put(REPLAY_ID, routing.replay_id)
        if routing.replay_count:
            put(REPLAY_COUNT, routing.replay_count)
        if routing.replayed_from is not None:
            put(REPLAYED_FROM, routing.replayed_from)
        if routing.replayed_at is not None:
            put(REPLAYED_AT, routing.replayed_at)
    if target is Target.DEAD:
        put(DLQ_TOPIC, original.topic)
        put(DLQ_PARTITION, original.partition)
        put(DLQ_OFFSET, original.offset)
        put(DLQ_GROUP, group)
        put(DLQ_DELIVERY_COUNT, attempt)
        put(DLQ_MESSAGE, failure.message)
    if trace is not None:
        traceparent, tracestate = trace
        put(TRACEPARENT, traceparent)
        if tracestate:
            put(TRACESTATE, tracestate)
    return routed


def replay_headers(
    headers: RawHeaders | None,
    *,
    original: Coordinates | None,
    group: str,
    replay_id: str,
    replay_count: int,
    replayed_from: str,
    now_ms: int,
    not_before_ms: int | None = None,
) -> RawHeaders:
    """The headers of a dead letter that goes back to be handled: the user's byte for byte, the trace too.

    ``original``: where it first failed, if that is known. ``replayed_from``: topic/partition/offset of the
    dead letter. ``replay_count``: how often it was replayed, this time included. ``now_ms`` and
    ``not_before_ms`` (retry topics only): epoch ms. What is said of the failures stays with the dead letter:
    attempts and age start anew.
    """
    replayed = user_headers(headers)

    def put(name: str, value: str | int) -> None:
        replayed.append((name, str(value).encode("utf-8", "backslashreplace")))

    if original is not None:
        put(ORIGINAL_TOPIC, original.topic)
        put(ORIGINAL_PARTITION, original.partition)
        put(ORIGINAL_OFFSET, original.offset)
        if original.timestamp_ms is not None and original.timestamp_ms >= 0:
            put(ORIGINAL_TIMESTAMP, original.timestamp_ms)
        put(ORIGINAL_GROUP, group)
    if not_before_ms is not None:
        put(NOT_BEFORE, not_before_ms)
    put(REPLAY_ID, replay_id)
    put(REPLAY_COUNT, replay_count)
    put(REPLAYED_FROM, replayed_from)
    put(REPLAYED_AT, now_ms)
    return replayed


_DROPPED_FIRST: Final = (
    (DLQ_MESSAGE,),
    (ERROR_MESSAGE,),
    (DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_GROUP, DLQ_DELIVERY_COUNT),
    (FAILED_AT,),
    (ERROR_FINGERPRINT,),
    (ERROR_CLASS,),
    (TRACESTATE,),
)
"""In this order, as long as it does not fit. What later hops, replay and the trace need is never dropped."""

_MARKER: Final = b"streamloop: dropped "


def shrink(headers: RawHeaders, budget_bytes: int) -> RawHeaders | None:
    """``headers`` in at most ``budget_bytes`` (as ``headers_size`` counts), or None when they can't fit.

    Optional headers go first; then the largest of the user's values are each replaced by a marker that tells
    how many bytes were dropped, such as b"streamloop: dropped 12345 bytes". Names, nulls and the order stay.
    """
    kept = list(headers)
    if headers_size(kept) <= budget_bytes:
        return kept
    for names in _DROPPED_FIRST:
        kept = [header for header in kept if header[0] not in names]
        if headers_size(kept) <= budget_bytes:
            return kept
    size = headers_size(kept)
    largest_first = sorted(range(len(kept)), key=lambda index: -len(kept[index][1] or b""))
    for index in largest_first:
        name, value = kept[index]
        if value is None or is_ours(name) or name == TRACEPARENT or value.startswith(_MARKER):
            continue
        marker = _MARKER + b"%d bytes" % len(value)
        if len(marker) >= len(value):
            break
        kept[index] = (name, marker)
        size -= _header_size(name, value) - _header_size(name, marker)
        if size <= budget_bytes:
            return kept
    return None


_BATCH_OVERHEAD: Final = 61
"""Bytes of a record batch (format v2) before its records: what a broker's max.message.bytes counts too."""


def record_size(key: bytes | None, value: bytes | None, headers: RawHeaders | None) -> int:
    """Bytes of a record batch (format v2) with this record alone, uncompressed:

    what a size limit is compared with.
    """
    body = 3 + _field_size(key) + _field_size(value) + headers_size(headers or ())
    return _BATCH_OVERHEAD + _varint_size(body) + body


def headers_size(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Bytes that ``headers`` take in a record, their count included."""
    count = size = 0
    for name, value in headers:
        count += 1
        size += _header_size(name, value)
    return _varint_size(count) + size


def _header_size(name: str, value: bytes | None) -> int:
    return _field_size(name.encode("utf-8", "surrogatepass")) + _field_size(value)


def _field_size(field: bytes | None) -> int:
    return 1 if field is None else _varint_size(len(field)) + len(field)


def _varint_size(number: int) -> int:
    # Zigzag: one bit of the varint is the sign.
    return max(1, ((number << 1).bit_length() + 6) // 7)


def _text(raw: bytes | None) -> str | None:
    if not isinstance(raw, bytes) or not raw:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _number(raw: bytes | None, most: int) -> int | None:
    # isdigit() of bytes is ASCII only; int() alone would also take signs, blanks and underscores.
    if not isinstance(raw, bytes) or not raw.isdigit() or len(raw) > len(str(most)):
        return None
    number = int(raw)
    return number if number <= most else None


def _time(raw: bytes | None) -> float | None:
    text = _text(raw)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        seconds = moment.timestamp() if moment.tzinfo is not None else -1.0
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds <= _LAST_SECOND else None


def _rfc3339(epoch_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=epoch_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
