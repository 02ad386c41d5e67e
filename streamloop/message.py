"""What a handler sees of the message that it handles.

A Message is made only for handlers that ask for one. It reads the broker's record lazily and never changes
it. Where a message came back from a retry topic, topic, partition, offset and timestamp are those of the
original; ``delivery`` has those of the record that was just read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol, TypeAlias

from opentelemetry.context import get_current

from streamloop.codecs import encode
from streamloop.errors import StreamLoopError
from streamloop.kafka.headers import headers_of, is_writable_name, user_headers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from opentelemetry.context import Context

    from streamloop.codecs import Codec
    from streamloop.engine.record import Record
    from streamloop.kafka.headers import RawHeaders, Routing

Headers: TypeAlias = "Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]"


class RawMessage(Protocol):
    """What is used of a broker's record; confluent_kafka.Message has it."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> RawHeaders | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class Delivery(NamedTuple):
    """Where the record that was just read is. ``timestamp`` in epoch ms, None when it has none."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None


class Outgoing(NamedTuple):
    """A record that a handler publishes, encoded."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: RawHeaders
    partition: int
    context: Context | None = None
    """The trace that it is published in; None: the current one."""
    source: RawMessage | None = None
    """The record that was read, whose handler publishes."""


class Host(Protocol):
    """Who publishes for a message, and knows what its headers say of its past."""

    group: str
    clock: Callable[[], float]
    """Monotonic seconds."""

    def publish(self, outgoing: Outgoing) -> Awaitable[None]: ...
    def publish_from_thread(self, outgoing: Sequence[Outgoing], cancelled: threading.Event) -> None: ...
    def routing(self, raw: RawMessage) -> Routing | None: ...
    def waits_for(self, records: Sequence[Record]) -> str: ...


class _Unread:
    """Stands for what was not read yet."""


_UNREAD: Final = _Unread()


class Message:
    """One message, as its handler sees it."""

    __slots__ = (
        "_cancelled",
        "_context",
        "_host",
        "_on_success",
        "_raw",
        "_routing",
        "attempt",
        "deadline",
    )

    attempt: int
    """The number of this attempt since the original or the last replay; 1 is the first."""
    deadline: float
    """When the handler is asked to stop: seconds of time.monotonic()."""

    def __init__(self, record: Record, host: Host, deadline: float) -> None:
        self._raw: RawMessage = record.message
        self._host = host
        self._routing: Routing | _Unread | None = _UNREAD
        self._on_success: list[Outgoing] | None = None
        self._cancelled: threading.Event | None = None
        self._context: Context | None = None
        self.attempt = record.attempt
        self.deadline = deadline

    @property
    def _past(self) -> Routing | None:
        """What its headers say of its past. Read when it is asked for: most handlers don't."""
        if isinstance(self._routing, _Unread):
            self._routing = self._host.routing(self._raw)
        return self._routing

    @property
    def delivery(self) -> Delivery:
        """The record that was just read (of a retry topic, perhaps)."""
        raw = self._raw
        kind, timestamp = raw.timestamp()
        return Delivery(
            raw.topic() or "", raw.partition() or 0, raw.offset() or 0, timestamp if kind else None
        )

    @property
    def topic(self) -> str:
        """The original's topic."""
        return self._past.original_topic if self._past is not None else self._raw.topic() or ""

    @property
    def partition(self) -> int:
        """The original's partition."""
        return self._past.original_partition if self._past is not None else self._raw.partition() or 0

    @property
    def offset(self) -> int:
        """The original's offset."""
        return self._past.original_offset if self._past is not None else self._raw.offset() or 0

    @property
    def timestamp(self) -> int | None:
        """The original's timestamp in epoch ms, or None when it has none."""
        past = self._past
        return past.original_timestamp if past is not None else self.delivery.timestamp

    @property
    def replay_id(self) -> str | None:
        """The run of ``streamloop dlq replay`` that brought it back last; None when none did."""
        return self._past.replay_id if self._past is not None else None

    @property
    def replay_count(self) -> int:
        """How often it was replayed from dead letter."""
        return self._past.replay_count if self._past is not None else 0

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._host.group

    @property
    def key(self) -> bytes | None:
        """The key, as it was sent."""
        return self._raw.key()

    @property
    def value(self) -> bytes | None:
        """The value, as it was sent; None is a tombstone."""
        return self._raw.value()

    @property
    def headers(self) -> RawHeaders:
        """The sender's headers, in order, duplicates kept; not those that streamloop added."""
        return user_headers(headers_of(self._raw))

    def header(self, name: str) -> bytes | None:
        """The last of the sender's headers with this name, or None."""
        value = None
        for each, content in self.headers:
            if each == name:
                value = content
        return value

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; negative when it has passed."""
        return self.deadline - self._host.clock()

    @property
    def cancelled(self) -> threading.Event:
        """Set when the handler is asked to stop: at its time-out, or when its partition has left.

        A coroutine gets a CancelledError as well; a function in a thread has to look at this.
        """
        if self._cancelled is None:
            self._cancelled = threading.Event()
        return self._cancelled

    async def publish(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        codec: str | Codec | None = None,
    ) -> None:
        """Publish a record and wait until the broker has confirmed it.

        It is published again with a later attempt of this message. ``value``: bytes, str, None, or what JSON
        (or ``codec``) can encode. Without ``partition`` the key places it as Java clients do (murmur2).
        Raises PublishError when the broker refuses the record, EncodeError for a value that can't be encoded.
        In a handler that runs in a thread, use publish_and_wait().
        """
        await self._host.publish(self._outgoing(topic, value, key, headers, partition, codec, self._context))

    def publish_and_wait(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        codec: str | Codec | None = None,
    ) -> None:
        """The same as publish(), for a handler that runs in a thread: blocks until it is confirmed.

        Raises PublishError also when the handler is asked to stop meanwhile.
        """
        self._host.publish_from_thread(
            [self._outgoing(topic, value, key, headers, partition, codec, self._context)],
            self.cancelled,
        )

    def publish_on_success(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        codec: str | Codec | None = None,
    ) -> None:
        """Publish when the handler has returned; the message is acknowledged when that is confirmed."""
        # Sent later, outside of the handler's context: so in the trace of this moment.
        context = get_current() if self._context is None else self._context
        outgoing = self._outgoing(topic, value, key, headers, partition, codec, context)
        if self._on_success is None:
            self._on_success = []
        self._on_success.append(outgoing)

    def _outgoing(
        self,
        topic: str,
        value: object,
        key: bytes | str | None,
        headers: Headers | None,
        partition: int | None,
        codec: str | Codec | None,
        context: Context | None,
    ) -> Outgoing:
        if not topic:
            raise StreamLoopError("publish: the topic's name is empty; give the topic to publish to")
        raw_key = key.encode() if isinstance(key, str) else key
        return Outgoing(
            topic,
            raw_key,
            encode(value, codec),
            _headers(headers),
            -1 if partition is None else partition,
            context,
            self._raw,
        )

    def publish_in(self, context: Context) -> None:
        """What is published is part of this trace, and not of the current one. For batches."""
        self._context = context

    @property
    def publishes_on_success(self) -> bool:
        """Something is to be published when the handler has returned. For runners."""
        return self._on_success is not None

    def take_on_success(self) -> list[Outgoing]:
        """What is to be published now that the handler has returned. For runners."""
        pending, self._on_success = self._on_success, None
        return pending or []

    def publish_what_is_left(self) -> None:
        """Publish what is to be published on success, from a thread. For runners."""
        self._host.publish_from_thread(self.take_on_success(), self.cancelled)

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition}/{self.offset} attempt={self.attempt}>"


class PlainMessage(Message):
    """What a plain function sees: it can't await, so that publish() would silently do nothing."""

    __slots__ = ()

    def publish(self, *_arguments: object, **_keywords: object) -> NoReturn:
        raise StreamLoopError(
            "message.publish() has to be awaited, and this handler is a plain function: use "
            "message.publish_on_success(), or in a thread message.publish_and_wait()"
        )


def _headers(headers: Headers | None) -> RawHeaders:
    if headers is None:
        return []
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for name, _ in pairs:
        if not is_writable_name(name):
            raise ValueError(f"the header name {name!r} can't be written: it is no UTF-8, or holds a null")
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
