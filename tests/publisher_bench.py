"""A publisher without its thread, on Producers and a clock that do what the test says; and an inbox for one
with it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from streamloop.kafka.publisher import Publisher
from streamloop.kafka.publishing import PublishRequest, Report, ReportKind

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND_S = 30.0
DELIVERED, TOO_LARGE, REFUSED = ReportKind.DELIVERED, ReportKind.TOO_LARGE, ReportKind.REFUSED
BLOCKED, UNBLOCKED = ReportKind.BLOCKED, ReportKind.UNBLOCKED

MSG_SIZE_TOO_LARGE, RECORD_LIST_TOO_LARGE, POLICY_VIOLATION, INVALID_RECORD = 10, 18, 44, 87
MISSING, DENIED, NOT_ENOUGH_REPLICAS, DISK, TIMED_OUT, FATAL, PURGED = 3, 29, 19, 56, -192, -150, -152


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Sent:
    """A record in a fake Producer's hands."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    headers: list[tuple[str, bytes | None]]
    on_delivery: Any


@dataclass
class Delivered:
    """What the client gives a delivery callback beside the error."""

    where: int
    at: int

    def partition(self) -> int:
        return self.where

    def offset(self) -> int:
        return self.at


@dataclass
class FakeProducer:
    config: dict[str, Any]
    sent: list[Sent] = field(default_factory=list)
    room: int = 1_000_000
    raising: dict[str, Exception] = field(default_factory=dict)
    poll_raises: Exception | None = None
    raises_before_reports: int = 0
    metadata_raises: Exception | None = None
    metadata_asked: list[str] = field(default_factory=list)
    purged: bool = False
    produced: int = 0
    _due: list[tuple[Sent, KafkaError | None]] = field(default_factory=list)

    def produce(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: list[tuple[str, bytes | None]],
        on_delivery: Any,
    ) -> None:
        if topic in self.raising:
            raise self.raising[topic]
        if len(self.sent) >= self.room:
            raise BufferError("Local: Queue full")
        self.produced += 1
        self.sent.append(Sent(topic, value, key, partition, headers, on_delivery))

    def poll(self, timeout: float) -> int:
        assert timeout <= 0.1, "a turn must not wait for long"
        if self.raises_before_reports and self.poll_raises is not None:
            self.raises_before_reports -= 1
            raise self.poll_raises
        due, self._due = self._due, []
        for offset, (record, error) in enumerate(due):
            record.on_delivery(error, Delivered(max(record.partition, 0), offset))
        self._raise_once()
        return len(due)

    def _raise_once(self) -> None:
        error, self.poll_raises = self.poll_raises, None
        if error is not None:
            raise error

    def purge(self, *, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        assert (in_queue, in_flight, blocking) == (True, True, False)
        self.purged = True
        self.sent.clear()

    def list_topics(self, topic: str, *, timeout: float) -> None:
        assert timeout <= 1
        self.metadata_asked.append(topic)
        if self.metadata_raises is not None:
            raise self.metadata_raises

    def report(self, code: int = 0, *, count: int | None = None, topic: str | None = None) -> list[Sent]:
        """The next poll reports on the first records (all by default), with an error code or as delivered."""
        records = [r for r in self.sent if topic in (None, r.topic)][:count]
        for record in records:
            self.sent.remove(record)
            self._due.append((record, KafkaError(code) if code else None))
        return records


class Bench:
    """A publisher without its thread, the Producers that it made, and what it reported."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.producers: list[FakeProducer] = []
        self.refuse_to_make: list[Exception] = []
        self.reports: list[Report] = []
        self.publisher = Publisher(
            {"bootstrap.servers": "broker:9092", "linger.ms": 5},
            deliver=self.reports.extend,
            clock=self.clock,
            producer_factory=self._make,
            jitter=lambda: 1.0,  # the longest pause of each
            **options,
        )

    def _make(self, config: dict[str, Any]) -> FakeProducer:
        if self.refuse_to_make:
            raise self.refuse_to_make.pop(0)
        self.producers.append(FakeProducer(config))
        return self.producers[-1]

    @property
    def main(self) -> FakeProducer:
        return [p for p in self.producers if p.config.get("batch.num.messages") != 1][-1]

    @property
    def solo(self) -> FakeProducer:
        return [p for p in self.producers if p.config.get("batch.num.messages") == 1][-1]

    def submit(self, *ids: int, topic: str = "dead", partition: int = 0) -> None:
        self.publisher.submit([request(i, topic, partition) for i in ids])
        self.publisher.turn()

    def turn(self, seconds: float = 0.0) -> list[tuple[int, ReportKind]]:
        """Let time pass, make a turn, and return what it reported."""
        self.clock.now += seconds
        self.reports.clear()
        self.publisher.turn()
        return [(r.id, r.kind) for r in self.reports]

    def in_hand(self, producer: FakeProducer | None = None) -> list[int]:
        return [int(r.value or b"-1") for r in (producer or self.main).sent]


def request(request_id: int, topic: str = "dead", partition: int = 0) -> PublishRequest:
    return PublishRequest(request_id, topic, partition, b"k", str(request_id).encode(), [("h", b"1")])


def fatal_error() -> KafkaException:
    return KafkaException(KafkaError(FATAL, "desynchronized", fatal=True))


class Inbox:
    """Collects reports, and waits for what a test expects of them."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._changed = threading.Condition()

    def put(self, reports: list[Report]) -> None:
        with self._changed:
            self.reports.extend(reports)
            self._changed.notify_all()

    def ids(self, kind: ReportKind) -> list[int]:
        return sorted(r.id for r in self.reports if r.kind is kind)

    def wait_for(self, condition: Callable[[], bool], timeout: float = BOUND_S) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), self.reports[-20:]
