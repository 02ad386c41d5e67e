"""What a test asks of a broker or tells it: topics, records, committed offsets, groups.

What calls it: tests, fixtures and benchmarks, through KafkaCluster, which is a KafkaClient of its own nodes.
Every call is bounded (DEADLINE seconds) and returns only what the broker confirmed. It joins no group:
looking at a group never rebalances it.
"""

import json
import re
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.realkafka.waiting import wait_until

DEADLINE = 30.0
COORDINATOR_MOVES = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record to produce. partition None: by key, as Java does (murmur2). timestamp in ms; None: now."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as it stands in the log. timestamp in ms."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int

    def header(self, name: str) -> bytes | None:
        """The last header of that name; None also when there is none."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset and its metadata text."""

    offset: int
    metadata: str


class KafkaClient:
    """Calls to the cluster behind `bootstrap`. Clients are made when first needed; close() ends them."""

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """host:port list for bootstrap.servers."""

    @cached_property
    def admin(self) -> AdminClient:
        """The admin client, for what has no call here."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    @cached_property
    def _producer(self) -> Producer:
        return Producer(self.producer_config())

    def producer_config(self, **settings: Any) -> dict[str, Any]:
        """Settings of an idempotent producer that places keys as Java does."""
        return {
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "delivery.timeout.ms": int(DEADLINE * 1000),
            "linger.ms": 1,
            "log_level": 0,
            **settings,
        }

    def close(self) -> None:
        """Drop the clients."""
        self.__dict__.pop("_producer", None)
        self.__dict__.pop("admin", None)

    # Topics
    # --------

    def create_topic(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        prefix: str = "t",
        config: Mapping[str, str] | None = None,
        replication_factor: int = -1,
    ) -> str:
        """Create a topic and wait until every broker knows it. Its name is unique unless given."""
        topic = name or unique_name(prefix)
        new = NewTopic(topic, partitions, replication_factor, config=dict(config or {}))
        self.admin.create_topics([new], operation_timeout=DEADLINE)[topic].result(DEADLINE)
        wait_until(lambda: self.partitions(topic) == partitions, DEADLINE, f"topic {topic} to be listed")
        return topic

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is no longer listed."""
        self.admin.delete_topics([topic], operation_timeout=DEADLINE)[topic].result(DEADLINE)
        wait_until(lambda: not self.topic_exists(topic), DEADLINE, f"topic {topic} to be gone")

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of partitions to `total`."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(DEADLINE)
        wait_until(
            lambda: self.partitions(topic) == total, DEADLINE, f"topic {topic} to have {total} partitions"
        )

    def topics(self) -> set[str]:
        """The names of all topics."""
        return set(self.admin.list_topics(timeout=DEADLINE).topics)

    def topic_exists(self, topic: str) -> bool:
        return topic in self.topics()

    def partitions(self, topic: str) -> int:
        """How many partitions with a leader the topic has; 0 when it does not exist."""
        found = self.admin.list_topics(topic, timeout=DEADLINE).topics[topic]
        return sum(1 for partition in found.partitions.values() if partition.leader >= 0)

    def topic_config(self, topic: str) -> dict[str, str | None]:
        """The settings in force."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self.admin.describe_configs([resource])[resource].result(DEADLINE)
        return {name: entry.value for name, entry in entries.items()}

    def set_topic_config(self, topic: str, **config: str) -> None:
        """Change settings while the topic is in use; `retention_ms` stands for retention.ms."""
        self._set_config(ConfigResource.Type.TOPIC, topic, config)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Move the start of each given partition's log up to an offset."""
        ends = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for future in self.admin.delete_records(ends).values():
            future.result(DEADLINE)

    @contextmanager
    def writes_forbidden(self, topic: str) -> Iterator[None]:
        """Within the block nobody may write to the topic; all else goes on. On a cluster of one node only."""
        bindings = [
            AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*", operation, permission
            )
            for operation, permission in (
                (AclOperation.ALL, AclPermissionType.ALLOW),
                (AclOperation.WRITE, AclPermissionType.DENY),
            )
        ]
        for made in self.admin.create_acls(bindings).values():
            made.result(DEADLINE)
        try:
            yield
        finally:
            those = AclBindingFilter(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                None,  # type: ignore[arg-type]  # any principal
                None,  # type: ignore[arg-type]  # any host
                AclOperation.ANY,
                AclPermissionType.ANY,
            )
            for deleted in self.admin.delete_acls([those]).values():
                deleted.result(DEADLINE)

    # Records
    #
    def produce(self, topic: str, records: Iterable[Record | bytes | None]) -> list[tuple[int, int]]:
        """Write the records and return (partition, offset) of each, in the order given.

        Bytes or None stand for a record with only a value. KafkaException when the broker refuses one.
        """
        try:
            return _produce(self._producer, topic, records)
        except KafkaException:
            self.__dict__.pop(
                "_producer", None
            )  # it would refuse that topic from memory even when it is allowed again
            raise

    def produce_transaction(
        self, topic: str, records: Iterable[Record | bytes | None], *, abort: bool = False
    ) -> list[tuple[int, int]]:
        """The same in one transaction of its own. Returns when its marker stands behind the records."""
        producer = Producer(self.producer_config(**{"transactional.id": unique_name("tx")}))
        producer.init_transactions(DEADLINE)
        producer.begin_transaction()
        placed = _produce(producer, topic, records)
        if abort:
            producer.abort_transaction(DEADLINE)
        else:
            producer.commit_transaction(DEADLINE)
        last = dict(sorted(placed))
        wait_until(
            lambda: all(
                self.end_offsets(topic)[partition] > offset + 1 for partition, offset in last.items()
            ),
            DEADLINE,
            f"{topic}: the transaction's markers",
        )
        return placed

    def read_all(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        read_uncommitted: bool = False,
        timeout: float = DEADLINE,
    ) -> list[ReadRecord]:
        """Every record up to the end as it was at the call, by partition and offset.

        A partition is read when its end of partition is reported at or past that end: transaction markers and
        compaction leave no last record to wait for. An open transaction is waited for.
        """
        starts, ends = self.start_offsets(topic), self.end_offsets(topic)
        wanted = set(ends) if partitions is None else set(partitions)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": unique_name("reader"),
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted" if read_uncommitted else "read_committed",
                "fetch.queue.backoff.ms": 5,
                "fetch.wait.max.ms": 20,  # an end of partition is reported by a fetch that came back empty
                "log_level": 0,
            }
        )
        found: list[ReadRecord] = []
        deadline = time.monotonic() + timeout
        try:
            consumer.assign([TopicPartition(topic, partition, starts[partition]) for partition in wanted])
            left = set(wanted)
            while left:
                if time.monotonic() > deadline:
                    raise AssertionError(
                        f"{topic}: the end of partitions {sorted(left)} not seen in {timeout:g} s"
                    )
                for message in consumer.consume(500, 0.1):
                    error = message.error()
                    if error is None:
                        record = read_record(message)
                        if record.offset < ends[record.partition]:
                            found.append(record)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        partition, offset = message.partition(), message.offset()
                        assert partition is not None
                        assert offset is not None
                        if offset >= ends[partition]:
                            left.discard(partition)
                    elif not error.retriable():
                        raise KafkaException(error)
        finally:
            consumer.close()
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def end_offsets(self, topic: str, *, read_uncommitted: bool = True) -> dict[int, int]:
        """The end offset of each partition: the high watermark, or the last stable offset."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(topic, latest, read_uncommitted)

    def start_offsets(self, topic: str) -> dict[int, int]:
        """The first offset that each partition still has."""
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(topic, earliest, True)

    # Groups
    # --------

    def committed(self, group: str, topic: str) -> dict[int, CommittedOffset]:
        """What the group has committed, by partition; a partition without a committed offset is absent."""
        asked = [TopicPartition(topic, partition) for partition in range(self.partitions(topic))]
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        until = time.monotonic() + DEADLINE
        try:
            while True:
                try:
                    answers = consumer.committed(asked, timeout=DEADLINE)
                    break
                except KafkaException as error:
                    # Just after a group was made its coordinator may still be on its way.
                    if error.args[0].code() not in COORDINATOR_MOVES or time.monotonic() > until:
                        raise
        finally:
            consumer.close()
        found = {}
        for answer in answers:
            if answer.error is not None:
                raise KafkaException(answer.error)
            if answer.offset >= 0:
                found[answer.partition] = CommittedOffset(answer.offset, answer.metadata or "")
        return found

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The same without the metadata."""
        return {partition: found.offset for partition, found in self.committed(group, topic).items()}

    def lag(self, group: str, topic: str) -> int:
        """Records between the committed offsets and the ends; from the start where nothing is committed."""
        starts = self.start_offsets(topic)
        committed = self.committed_offsets(group, topic)
        ends = self.end_offsets(topic)
        return sum(end - committed.get(partition, starts[partition]) for partition, end in ends.items())

    def commit(self, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        """Commit (offset, metadata) for a group that has no members now."""
        wanted = [
            TopicPartition(topic, partition, offset, metadata)
            for partition, (offset, metadata) in offsets.items()
        ]
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        try:
            answers = consumer.commit(offsets=wanted, asynchronous=False)
        finally:
            consumer.close()
        for answer in answers or ():
            if answer.error is not None:
                raise KafkaException(answer.error)

    def members(self, group: str) -> dict[str, set[tuple[str, int]]]:
        """What each member is assigned, (topic, partition), by member id; empty without such a group."""
        until = time.monotonic() + DEADLINE
        while True:
            try:
                found = self.admin.describe_consumer_groups([group])[group].result(DEADLINE)
                break
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return {}
                # Just after a broker's start its coordinator may still be reading.
                if error.args[0].code() not in COORDINATOR_MOVES or time.monotonic() > until:
                    raise
        return {
            member.member_id: {(part.topic, part.partition) for part in member.assignment.topic_partitions}
            for member in found.members
        }

    def set_group_config(self, group: str, **config: str) -> None:
        """Settings of one `consumer` group, such as consumer_session_timeout_ms="1000", the least."""
        self._set_config(ConfigResource.Type.GROUP, group, config)

    def _set_config(self, kind: Any, name: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(setting.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for setting, value in config.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(DEADLINE)

    def _offsets(self, topic: str, spec: OffsetSpec, read_uncommitted: bool) -> dict[int, int]:
        level = IsolationLevel.READ_UNCOMMITTED if read_uncommitted else IsolationLevel.READ_COMMITTED
        asked = {TopicPartition(topic, partition): spec for partition in range(self.partitions(topic))}
        answers = self.admin.list_offsets(asked, isolation_level=level, request_timeout=DEADLINE)
        return {part.partition: future.result(DEADLINE).offset for part, future in answers.items()}


def unique_name(prefix: str) -> str:
    """A name for a topic or a group that nobody else uses. Characters that Kafka does not take become '-'."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', prefix)[:150]}-{uuid.uuid4().hex[:10]}"


def json_records(values: Iterable[Any], key: str | None = None) -> list[Record]:
    """A record for each value, as JSON; `key` names the field that becomes the record's key."""
    return [
        Record(json.dumps(value).encode(), None if key is None else str(value[key]).encode())
        for value in values
    ]


def read_record(message: Message) -> ReadRecord:
    """A consumed message as plain data."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    given = message.headers() or []
    assert isinstance(given, list)  # a dict is only ever given to produce()
    headers = tuple((name, _header_bytes(value)) for name, value in given)
    return ReadRecord(
        topic, partition, offset, message.key(), message.value(), headers, message.timestamp()[1]
    )


def _header_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _produce(
    producer: Producer, topic: str, records: Iterable[Record | bytes | None]
) -> list[tuple[int, int]]:
    placed: dict[int, tuple[int, int]] = {}
    errors: list[KafkaError] = []

    def report_to(index: int) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            # None: the broker had it already, from a first try whose answer was lost.
            placed[index] = (partition, -1 if offset is None else offset)

        return report

    count = 0
    for item in records:
        record = item if isinstance(item, Record) else Record(item)
        given: dict[str, Any] = {"on_delivery": report_to(count), "headers": list(record.headers)}
        if record.partition is not None:
            given["partition"] = record.partition
        if record.timestamp is not None:
            given["timestamp"] = record.timestamp
        while True:
            try:
                producer.produce(topic, record.value, record.key, **given)
                break
            except BufferError:  # its queue is full
                producer.poll(0.1)
        producer.poll(0)
        count += 1
    producer.flush(DEADLINE)
    if errors:
        raise KafkaException(errors[0])
    if len(placed) != count:
        raise AssertionError(f"{topic}: {count - len(placed)} of {count} records have no delivery report")
    return [placed[index] for index in range(count)]
