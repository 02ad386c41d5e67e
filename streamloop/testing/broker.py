"""The harness's broker: logs of records, committed offsets, and topics that take nothing when a test says so.

In memory, on the harness's thread, and at once: what is appended can be read in the same instant. Only what
the harness's intakes and publisher need; it checks nothing that a test of a handler does not see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from streamloop.kafka import headers as hd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamloop.engine.events import TopicPartition
    from streamloop.kafka.headers import RawHeaders

PARTITIONS: Final = 4
"""Partitions of a topic by default."""

_CREATE_TIME: Final = 1
"""confluent_kafka.TIMESTAMP_CREATE_TIME."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record in a topic. ``headers`` are all of them, in order. ``timestamp`` in epoch ms."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int

    def json(self) -> Any:
        """The value, decoded as JSON. Raises ValueError when it is null or no JSON."""
        if self.value is None:
            raise ValueError(f"the value of {self.topic}/{self.partition}/{self.offset} is null")
        return orjson.loads(self.value)

    def header(self, name: str) -> str | None:
        """The last header with this name as text, or None when there is none or it is null."""
        found: bytes | None = None
        for each, value in self.headers:
            if each == name:
                found = value
        return None if found is None else found.decode("utf-8", "replace")

    @property
    def user_headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers that streamloop did not add."""
        return tuple(hd.user_headers(list(self.headers)))


@dataclass(frozen=True, slots=True)
class RoutedRecord(KafkaRecord):
    """A record in a retry or dead-letter topic, with what its headers say."""

    @property
    def error_class(self) -> str:
        """The last error's qualified class name."""
        return self.header(hd.ERROR_CLASS) or ""

    @property
    def error_message(self) -> str:
        """The last error's text."""
        return self.header(hd.ERROR_MESSAGE) or ""

    @property
    def fingerprint(self) -> str:
        """Equal for alike errors raised at the same place."""
        return self.header(hd.ERROR_FINGERPRINT) or ""

    @property
    def attempt(self) -> int:
        """Attempts made in all."""
        return int(self.header(hd.ATTEMPT) or 0)

    @property
    def not_before(self) -> int | None:
        """Epoch ms before which it is not tried again; None in a dead-letter topic."""
        text = self.header(hd.NOT_BEFORE)
        return None if text is None else int(text)

    @property
    def original(self) -> tuple[str, int, int]:
        """Topic, partition and offset where the message first failed."""
        return (
            self.header(hd.ORIGINAL_TOPIC) or "",
            int(self.header(hd.ORIGINAL_PARTITION) or -1),
            int(self.header(hd.ORIGINAL_OFFSET) or -1),
        )


class RecordView:
    """A record as the shell reads it: what confluent_kafka.Message has of it."""

    __slots__ = ("record",)

    def __init__(self, record: KafkaRecord) -> None:
        self.record = record

    def topic(self) -> str:
        return self.record.topic

    def partition(self) -> int:
        return self.record.partition

    def offset(self) -> int:
        return self.record.offset

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> RawHeaders | None:
        return list(self.record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        return _CREATE_TIME, self.record.timestamp


class Position(NamedTuple):
    """A committed offset with its metadata."""

    offset: int
    metadata: str


@dataclass(slots=True)
class TopicLog:
    """One topic. ``max_message_bytes`` None: no limit."""

    name: str
    partitions: list[list[KafkaRecord]]
    max_message_bytes: int | None = None
    blocked: str = ""
    """Why it takes no records now; '' when it does."""
    refused: str = ""
    """Why it refuses each record; '' when it does not."""
    turn: int = 0
    """The partition that the next record without a key goes to."""

    def records(self) -> list[KafkaRecord]:
        """All records, partition by partition."""
        return [record for log in self.partitions for record in log]


@dataclass(slots=True)
class Broker:
    """All topics, made when they are first needed."""

    partitions: Mapping[str, int]
    """Partitions by topic; what is not in it has ``default_partitions``."""
    default_partitions: int = PARTITIONS
    topics: dict[str, TopicLog] = field(default_factory=dict)
    committed: dict[TopicPartition, Position] = field(default_factory=dict)
    published: list[KafkaRecord] = field(default_factory=list)
    """What the loop published, in order."""

    def topic(self, name: str, partitions: int | None = None) -> TopicLog:
        """The topic; made if need be, with ``partitions`` unless the test has said how many."""
        topic = self.topics.get(name)
        if topic is None:
            count = self.partitions.get(name) or partitions or self.default_partitions
            topic = self.topics[name] = TopicLog(name, [[] for _ in range(count)])
        return topic

    def append(
        self,
        name: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: RawHeaders,
        timestamp: int,
    ) -> KafkaRecord:
        """Append a record. Without a partition: by key as Java clients do, in turn without a key."""
        topic = self.topic(name)
        count = len(topic.partitions)
        if partition is None:
            if key is not None:
                partition = partition_of(key, count)
            else:
                partition = topic.turn % count
                topic.turn += 1
        log = topic.partitions[partition]
        record = KafkaRecord(name, partition, len(log), key, value, tuple(headers), timestamp)
        log.append(record)
        return record


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: murmur2, as Java clients and our Producers place it."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, unsigned."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        word = (word ^ (word >> 24)) * factor & mask
        value = (value * factor & mask) ^ word
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * factor & mask
    value = (value ^ (value >> 13)) * factor & mask
    return value ^ (value >> 15)
