"""Reads topics up to where they ended when the reading began: nothing more, and never only a part unsaid.

The bounds are fixed first (``open_bounds``), then ``BoundedReader`` reads up to them. A partition is complete
when its end is reported at or past the bound, or a record at or past the last offset below it came; never
because a last record was seen, since markers, compaction and aborted transactions leave none. It assigns
partitions by itself: it joins no group, commits nothing, creates no topic. Whatever topic it reads, memory is
bounded. What was removed by retention meanwhile is counted and said. Called by everything that reads
dead-letter topics or the ledger; each reader belongs to one thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streamloop.dlq.bounds import (
    TIMEOUT,
    Bounds,
    Partition,
    Range,
    ReadError,
    narrowed,
    open_bounds,
    recreated,
    refuse_recreated,
    topic_admin,
)
from streamloop.dlq.filters import Filter, Places
from streamloop.kafka.config import consumer_config

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.settings import Settings

__all__ = [
    "TIMEOUT",
    "BoundedReader",
    "Bounds",
    "NoRecord",
    "Partition",
    "Progress",
    "Range",
    "ReadError",
    "narrowed",
    "open_bounds",
    "read_one",
    "reader_config",
    "recreated",
    "refuse_recreated",
    "topic_admin",
]

IDLE_TIMEOUT: Final = 60.0
"""Seconds in which nothing at all came from any partition."""
PREFETCH_KBYTES: Final = 2 * 1024
PREFETCH_MESSAGES: Final = 5_000
"""Of each partition: librdkafka does not count headers, of which a dead letter has many."""
FETCH_BYTES: Final = 4 * 1024 * 1024
PARTITION_FETCH_BYTES: Final = 512 * 1024
"""As they come, perhaps compressed to a tenth. A larger record comes all the same, alone."""
BATCH: Final = 500
BATCH_BYTES: Final = 8 * 1024 * 1024
"""A batch is asked for so that its records, each as large as the largest of the last batch, stay in this."""

_AUTO_OFFSET_RESET: Final = -140
_NO_GROUP: Final = "streamloop-dlq"
"""For clients without a group: they have to name one, and never join it."""


class Progress(NamedTuple):
    """How far a reading is. Not each offset has a record."""

    records: int
    offsets_done: int
    offsets_total: int
    seconds: float


def reader_config(settings: Settings, *, read_committed: bool = True) -> dict[str, Any]:
    """Properties of a Consumer that only ever reads assigned partitions."""
    config = {
        **consumer_config(settings, "classic"),
        "log_level": 0,  # what it can't do is raised and told in a sentence
        "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        "queued.max.messages.kbytes": min(PREFETCH_KBYTES, max(1, settings.prefetch_bytes // 1024)),
        "queued.min.messages": PREFETCH_MESSAGES,
        "fetch.max.bytes": FETCH_BYTES,
        "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
        # An end of partition is told by a fetch that came back empty: this is how long such a fetch waits.
        "fetch.wait.max.ms": 50,
    }
    config["group.id"] = config["group.id"] or _NO_GROUP
    most = config.get("receive.message.max.bytes")
    if most is not None:  # librdkafka wants this much room around a fetch
        config["fetch.max.bytes"] = min(config["fetch.max.bytes"], int(most) - 512)
    for name in ("group.instance.id", "partition.assignment.strategy"):
        config.pop(name, None)
    return config


@dataclass(slots=True)
class _Left:
    """A partition that is still read. ``at``: the next offset to be seen."""

    at: int
    range: Range
    expired: int = 0


@dataclass(slots=True)
class BoundedReader:
    """Reads what ``bounds`` say, in batches, as a context manager and an iterator; once.

    ``progress`` is called after each turn of the client. ``stop``: an event that ends the reading early;
    ``complete`` then says so. ``idle_timeout`` (seconds): after so long without a sign of any partition the
    reading fails with a ReadError that names them. Brokers that are away for less than that are waited for.
    """

    settings: Settings
    bounds: Bounds
    progress: Callable[[Progress], None] | None = None
    stop: threading.Event | None = None
    idle_timeout: float = IDLE_TIMEOUT
    batch: int = BATCH
    consumer_factory: Callable[[dict[str, Any]], Any] = Consumer
    records: int = 0
    """Records read so far."""
    expired: dict[Partition, int] = field(default_factory=dict)
    """Offsets that retention removed before they could be read, by partition."""
    _left: dict[Partition, _Left] = field(default_factory=dict)
    _consumer: Any = None
    _began: float = 0.0
    _largest: int = 0
    _astray: bool = False
    _problem: str = ""

    def __post_init__(self) -> None:
        self._left = {
            place: _Left(each.start, each) for place, each in self.bounds.ranges.items() if each.offsets
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the client. May be called more than once."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    @property
    def complete(self) -> bool:
        """Whether every partition was read to its bound."""
        return not self._left

    @property
    def offsets_left(self) -> int:
        """Offsets that were not gone through."""
        return sum(max(0, each.range.end - each.at) for each in self._left.values())

    @property
    def reached(self) -> dict[Partition, int]:
        """Up to where (not included) each partition was read: the ``starts`` with which another goes on."""
        return self.bounds.ends | {place: left.at for place, left in self._left.items()}

    def __iter__(self) -> Iterator[list[Any]]:
        """Lists of confluent-kafka Messages, all without an error, each below its partition's bound.

        Order is kept within a partition. A list is the caller's, who may empty it. Raises ReadError.
        """
        self._began = last_sign = time.monotonic()
        if not self._left:
            self._tell()
            return
        try:
            if self._consumer is None:
                self._open()
            while self._left and not (self.stop is not None and self.stop.is_set()):
                messages = self._consumer.consume(self._room(), 0.1)
                now = time.monotonic()
                if messages:
                    found, sign = self._sort(messages)
                    messages = []  # the caller's list is the only one: what it lets go is gone
                    if sign:
                        last_sign = now
                    if found:
                        self.records += len(found)
                        yield found
                        found = []
                        last_sign = time.monotonic()  # whatever the caller did meanwhile
                if self._left and now - last_sign > self.idle_timeout:
                    raise ReadError(self._silent())
                self._tell()
        except KafkaException as error:
            raise ReadError(f"{self._named()} can't be read: {_said(error.args[0])}.") from None

    # ------------------------------------------------------------------------------------------- one turn

    def _open(self) -> None:
        config = reader_config(self.settings, read_committed=self.bounds.read_committed)
        self._consumer = self.consumer_factory(config)
        self._assign()

    def _assign(self) -> None:
        self._astray = False
        self._consumer.assign(
            [TopicPartition(topic, partition, left.at) for (topic, partition), left in self._left.items()]
        )

    def _room(self) -> int:
        if not self._largest:
            return min(self.batch, 16)
        return max(1, min(self.batch, BATCH_BYTES // self._largest))

    def _sort(self, messages: Sequence[Any]) -> tuple[list[Any], bool]:
        """The records that are wanted, and whether any partition gave a sign of itself."""
        found: list[Any] = []
        largest = 0
        sign = False
        finished: list[Partition] = []
        for message in messages:
            place = (message.topic(), message.partition())
            left = self._left.get(place)
            error = message.error()
            if error is not None:
                sign |= self._failed(place, left, message, error, finished)
                continue
            if left is None:
                continue  # read to its bound; fetched before it was paused
            sign = True
            size = len(message)
            largest = max(largest, size)
            offset = message.offset()
            if offset < left.at:
                continue  # it was assigned anew: this one was seen
            if offset < left.range.end:
                found.append(message)
            left.at = min(offset + 1, left.range.end)
            if left.at >= left.range.end:
                finished.append(place)
                del self._left[place]
        if largest:
            self._largest = largest
        if self._astray and self._left:
            # A partition whose offset was out of range can't be sought in: its fetcher has stopped.
            self._assign()
        elif finished and self._left:
            # Only so that nothing is fetched for nothing.
            self._consumer.pause([TopicPartition(*place) for place in finished])
        return found, sign

    def _failed(
        self, place: Partition, left: _Left | None, message: Any, error: KafkaError, finished: list[Partition]
    ) -> bool:
        code = error.code()
        if left is None:
            if error.fatal():
                raise ReadError(f"{self._named()} can't be read: {_said(error)}.")
            self._problem = _said(error)
            return False
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
            if message.offset() >= left.range.end:
                left.at = left.range.end
                finished.append(place)
                del self._left[place]
            return True
        if code in (_AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return self._out_of_range(place, left, finished)
        if code in _GONE:
            raise ReadError(f"{place[0]}/{place[1]} can't be read: {_said(error)}. Was the topic deleted?")
        if code in _DENIED:
            raise ReadError(f"{place[0]}/{place[1]} may not be read: {_said(error)}. READ on it is needed.")
        self._problem = _said(error)
        return False

    def _out_of_range(self, place: Partition, left: _Left, finished: list[Partition]) -> bool:
        """Retention was faster: go on where the log begins now."""
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=10.0)
        except (KafkaException, TypeError):
            low, high = left.at, left.at  # not told: asked again from the same place
        if high < left.at:
            raise ReadError(
                f"{place[0]}/{place[1]} ends at {high} now, before what was still to be read "
                f"({left.at} to {left.range.end - 1}): it was recreated or truncated. Start again."
            )
        upto = min(max(low, left.at), left.range.end)
        if upto > left.at:
            self.expired[place] = self.expired.get(place, 0) + upto - left.at
            left.at = upto
        if left.at >= left.range.end:
            finished.append(place)
            del self._left[place]
        self._astray = True
        return True

    def _tell(self) -> None:
        if self.progress is not None:
            total = self.bounds.offsets
            seconds = time.monotonic() - self._began
            self.progress(Progress(self.records, total - self.offsets_left, total, seconds))

    def _named(self) -> str:
        names = [f"{topic}/{partition}" for topic, partition in sorted(self._left)]
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    def _silent(self) -> str:
        why = f" ({self._problem})" if self._problem else ""
        return (
            f"Nothing came from {self._named()} for {self.idle_timeout:g} s{why}, though {self.offsets_left} "
            "offsets are to be read: is a broker or a leader away?"
        )


_GONE: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001
)
_DENIED: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})


@dataclass(frozen=True, slots=True)
class NoRecord:
    """There is no record at a place. ``reason``: the end of a sentence."""

    reason: str


def read_one(
    settings: Settings,
    topic: str,
    partition: int,
    offset: int,
    *,
    timeout: float = TIMEOUT,
    admin: TopicAdmin | None = None,
) -> tuple[Any | NoRecord, Bounds]:
    """The Message at a place, or why there is none, and the bounds within which it was looked for.

    Raises ReadError when it can't be told.
    """
    one = Filter(at=(Places(topic, partition, offset, offset),))
    bounds = open_bounds(settings, [topic], one, timeout=timeout, admin=admin)
    found = bounds.ranges[topic, partition]
    if offset < found.log_start:
        return NoRecord(
            f"it is no longer in the log: {topic}/{partition} begins at {found.log_start} (retention)"
        ), bounds
    if offset >= found.log_end:
        if offset < found.hidden_end:
            return NoRecord("a transaction that is still open holds it back"), bounds
        last = f"its last offset is {found.log_end - 1}" if found.log_end else "it has no records"
        return NoRecord(f"{topic}/{partition} has no offset {offset} yet: {last}"), bounds
    with BoundedReader(settings, bounds, idle_timeout=timeout) as reader:
        for batch in reader:
            for message in batch:
                if message.offset() == offset:
                    return message, bounds
        if reader.expired:
            return NoRecord("retention has removed it just now"), bounds
    gone = "it was compacted away, of an aborted transaction, or a marker"
    return NoRecord(f"there is no record at this offset: {gone}"), bounds


def _said(error: KafkaError) -> str:
    return str(error.str()).rstrip(".")
