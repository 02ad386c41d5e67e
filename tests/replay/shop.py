"""A group with dead letters, what brings them back, and the count of what came: used by every test here.

The letters are written as the loop writes them, without running one; a live loop is started where a test
needs one. The count is the point: each letter's copies in the replay topic, seen by a read_committed reader,
against the ledger, both ways.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from streamloop.dlq.api import DeadLetters
from streamloop.engine.retry import Failure, Kind
from streamloop.kafka import headers as hd
from streamloop.settings import Settings
from tests.realkafka.client import Record, unique_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.realkafka import KafkaCluster, ReadRecord

RETRY = "1s"
"""The delay of the group's only retry topic."""
ROOM = str(2_000_000)


@dataclass
class Shop:
    """Topics of one group; ``partitions`` of each."""

    kafka: KafkaCluster
    partitions: int = 2
    retry: bool = True
    group: str = field(default_factory=lambda: unique_name("shop"))
    source: str = field(default_factory=lambda: unique_name("orders"))

    def __post_init__(self) -> None:
        self.kafka.create_topic(self.partitions, name=self.source)
        names = [self.dead, self.replay, *([self.retry_topic] if self.retry else [])]
        for name in names:
            self.kafka.create_topic(
                self.partitions, name=name, config={"max.message.bytes": ROOM, "retention.ms": "-1"}
            )

    @property
    def dead(self) -> str:
        return f"{self.source}.{self.group}.dlq"

    @property
    def replay(self) -> str:
        return f"{self.source}.{self.group}.replay"

    @property
    def retry_topic(self) -> str:
        return f"{self.source}.{self.group}.retry.{RETRY}"

    @property
    def ledger(self) -> str:
        return f"{self.group}.replays"

    @property
    def options(self) -> dict[str, Any]:
        """The settings, as keywords."""
        return {
            "brokers": [self.kafka.bootstrap],
            "group": self.group,
            "retry_topics": [RETRY] if self.retry else [],
        }

    @property
    def settings(self) -> Settings:
        return Settings.load(self.options, env={}).settings

    @property
    def letters(self) -> DeadLetters:
        return DeadLetters(self.settings, topics=[self.dead])

    # ------------------------------------------------------------------------------------------- letters

    def die(self, count: int, *, first: int = 0, **more: Any) -> list[tuple[int, int]]:
        """So many dead letters, as the loop writes them; returns where each is."""
        return self.kafka.produce(self.dead, [self.letter(first + n, **more) for n in range(count)])

    def bury(self, letters: Iterable[Record]) -> None:
        """These dead letters, which may be larger than a Producer takes by itself."""
        producer = Producer(self.kafka.producer_config(**{"message.max.bytes": 4_000_000}))
        for each in letters:
            assert each.partition is not None
            producer.produce(
                self.dead, each.value, each.key, partition=each.partition, headers=list(each.headers)
            )
        assert producer.flush(30) == 0

    def letter(
        self,
        number: int,
        *,
        error: str = "builtins.ConnectionError",
        key: bytes | None = None,
        value: bytes | None = b"",
        headers: Iterable[tuple[str, bytes | None]] = (),
        replayed: hd.Routing | None = None,
    ) -> Record:
        """The dead letter of the source topic's message with this number, which is its offset."""
        partition = number % self.partitions
        where = hd.Coordinates(self.source, partition, number, 1_700_000_000_000 + number)
        failure = Failure(
            Kind.TRANSIENT, error, f"it went wrong with {number}", f"{abs(hash(error)):016x}"[:16]
        )
        written = hd.route_headers(
            list(headers),
            target=hd.Target.DEAD,
            routing=replayed,
            source=where,
            failure=failure,
            group=self.group,
            attempt=3,
            now_ms=1_750_000_000_000 + number,
        )
        body = json.dumps({"id": number}).encode() if value == b"" else value
        return Record(body, key if key is not None else b"k%d" % number, tuple(written), partition)

    # ----------------------------------------------------------------------------------------- the count

    def entries(self) -> dict[str, dict[str, Any]]:
        """The ledger's entries by the place of the dead letter, the last one of each key."""
        found: dict[bytes, dict[str, Any]] = {}
        if not self.kafka.topic_exists(self.ledger):
            return {}
        for record in self.kafka.read_all(self.ledger):
            assert record.key is not None
            if record.key.startswith(b"run/"):
                continue
            if record.value is None:
                found.pop(record.key, None)
            else:
                found[record.key] = json.loads(record.value)
        return {entry.get("from", key.decode()): entry for key, entry in found.items()}

    def copies(self, topic: str | None = None) -> Counter[str]:
        """How often each dead letter is in the replay topic, for a read_committed reader."""
        return Counter(text(record, hd.REPLAYED_FROM) for record in self.back(topic))

    def back(self, topic: str | None = None) -> list[ReadRecord]:
        """What was replayed."""
        return self.kafka.read_all(topic or self.replay)

    def assert_once(self, expected: int | None = None) -> None:
        """Each letter of the ledger has one copy, and each copy is in the ledger."""
        copies, entries = self.copies(), self.entries()
        doubled = {place: count for place, count in copies.items() if count != 1}
        assert not doubled, f"replayed more than once: {doubled}"
        assert set(entries) == set(copies), (
            f"in the ledger only: {sorted(set(entries) - set(copies))[:5]}, "
            f"replayed only: {sorted(set(copies) - set(entries))[:5]}"
        )
        if expected is not None:
            assert len(copies) == expected


def text(record: ReadRecord, name: str) -> str:
    """A header, as text; '' when there is none."""
    return (record.header(name) or b"").decode()
