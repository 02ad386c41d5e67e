"""Bounded reads on a real broker: complete where the log has gaps, never beyond the bound, never silent."""

from __future__ import annotations

import io
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from streamloop.dlq.exporting import export_letters
from streamloop.dlq.filters import Filter, Places
from streamloop.dlq.letter import letter_of
from streamloop.dlq.reading import BoundedReader, NoRecord, ReadError, open_bounds, read_one, recreated
from streamloop.settings import Settings
from tests.realkafka.client import Record, unique_name
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.dlq.reading import Bounds
    from tests.realkafka import KafkaCluster

SOON = 20.0
"""Seconds within which a read that waits for what will never come would have been given up."""


def settings_for(kafka: KafkaCluster) -> Settings:
    return Settings(brokers=(kafka.bootstrap,), group=unique_name("reader"))


def read(kafka: KafkaCluster, bounds: Bounds, **options: Any) -> tuple[list[Any], BoundedReader]:
    options.setdefault("idle_timeout", SOON)
    with BoundedReader(settings_for(kafka), bounds, **options) as reader:
        found = [message for batch in reader for message in batch]
    return found, reader


def read_all(kafka: KafkaCluster, topic: str, where: Filter | None = None) -> tuple[list[Any], BoundedReader]:
    return read(kafka, open_bounds(settings_for(kafka), [topic], where or Filter()))


def values(messages: list[Any]) -> list[bytes | None]:
    return [message.value() for message in messages]


def test_partitions_that_end_in_a_commit_marker_an_abort_marker_or_nothing_are_complete(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(4)
    kafka.produce_transaction(name, [Record(b"a", partition=0), Record(b"b", partition=0)])
    kafka.produce(name, [Record(b"c", partition=1)])
    kafka.produce_transaction(name, [Record(b"never", partition=1)], abort=True)
    kafka.produce_transaction(name, [Record(b"never", partition=2)], abort=True)
    found, reader = read_all(kafka, name)
    assert sorted((each.partition(), each.value()) for each in found) == [(0, b"a"), (0, b"b"), (1, b"c")]
    assert reader.complete
    assert reader.offsets_left == 0
    assert reader.reached == {(name, partition): end for partition, end in kafka.end_offsets(name).items()}


def test_what_comes_after_the_bounds_were_set_is_not_read(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(2)
    kafka.produce(name, [Record(b"before", partition=0)])
    bounds = open_bounds(settings_for(kafka), [name])
    kafka.produce(name, [Record(b"after", partition=0), Record(b"after", partition=1)])
    found, reader = read(kafka, bounds)
    assert values(found) == [b"before"]
    assert reader.complete
    later, _ = read(kafka, open_bounds(settings_for(kafka), [name], starts=reader.reached))
    assert values(later) == [b"after", b"after"]


def test_a_partition_whose_last_records_were_compacted_away_is_complete(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    name = topic(1, config=config)
    kafka.produce(name, [Record(b"%d" % number, b"same") for number in range(20)])
    kafka.produce(name, [Record(None, b"same")])

    def compacted() -> bool:
        # A new record rolls the segment: only then are the others cleaned.
        kafka.produce(name, [Record(None, b"same")])
        return len(kafka.read_all(name)) < 10

    wait_until(compacted, 60, "the compaction")
    bounds = open_bounds(settings_for(kafka), [name])
    found, reader = read(kafka, bounds)
    assert reader.complete
    assert all(value is None for value in values(found))
    assert bounds.offsets > len(found)


def test_what_retention_took_before_is_said_and_the_rest_is_read(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(1)
    kafka.produce(name, [b"%d" % number for number in range(10)])
    kafka.delete_records(name, {0: 6})
    found, reader = read_all(kafka, name)
    assert values(found) == [b"6", b"7", b"8", b"9"]
    assert reader.complete
    bounds = open_bounds(settings_for(kafka), [name], Filter(at=(Places(name, 0, 3, 7),)))
    assert bounds.expired == (f"{name}/0 begins at 6: what was before is no longer in the log (retention).",)
    found, _ = read(kafka, bounds)
    assert values(found) == [b"6", b"7"]
    gone, _ = read_one(settings_for(kafka), name, 0, 3)
    assert gone == NoRecord(f"it is no longer in the log: {name}/0 begins at 6 (retention)")


def test_what_retention_takes_meanwhile_is_counted(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(2)
    kafka.produce(name, [Record(b"%d" % number, partition=0) for number in range(10)])
    kafka.produce(name, [Record(b"other", partition=1)])
    bounds = open_bounds(settings_for(kafka), [name])
    kafka.delete_records(name, {0: 7})
    found, reader = read(kafka, bounds)
    assert sorted(filter(None, values(found))) == [b"7", b"8", b"9", b"other"]
    assert reader.expired == {(name, 0): 7}
    assert reader.complete
    kafka.delete_records(name, {0: 10})
    found, reader = read(kafka, bounds)
    assert values(found) == [b"other"]
    assert reader.expired == {(name, 0): 10}
    assert reader.complete


def test_a_topic_that_was_recreated_meanwhile_is_no_complete_read(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(1)
    kafka.produce(name, [b"%d" % number for number in range(10)])
    kafka.delete_records(name, {0: 5})
    bounds = open_bounds(settings_for(kafka), [name])
    kafka.delete_topic(name)
    kafka.create_topic(1, name=name)
    kafka.produce(name, [b"another"])
    with pytest.raises(ReadError, match=r"recreated or truncated|deleted"):
        read(kafka, bounds)


def test_a_recreated_topic_whose_log_is_as_long_is_told_by_its_id(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(1)
    kafka.produce(name, [b"old"] * 3)
    settings = settings_for(kafka)
    bounds = open_bounds(settings, [name])
    assert recreated(settings, bounds) == []
    kafka.delete_topic(name)
    assert recreated(settings, bounds) == [name]
    kafka.create_topic(1, name=name)
    kafka.produce(name, [b"new"] * 3)
    assert recreated(settings, bounds) == [name]
    with pytest.raises(ReadError, match="was deleted or made anew while it was exported"):
        export_letters(settings, bounds, Filter(), io.BytesIO())


def test_an_open_transaction_is_not_waited_for_and_is_told(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(1)
    kafka.produce(name, [b"before"])
    producer = Producer(kafka.producer_config(**{"transactional.id": unique_name("tx")}))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"open")
    producer.flush(30)
    kafka.produce(name, [b"behind it"])
    bounds = open_bounds(settings_for(kafka), [name])
    assert bounds.hidden == {(name, 0): 2}
    found, reader = read(kafka, bounds)
    assert values(found) == [b"before"]
    assert reader.complete
    held_back, _ = read_one(settings_for(kafka), name, 0, 2)
    assert held_back == NoRecord("a transaction that is still open holds it back")
    everything = open_bounds(settings_for(kafka), [name], read_committed=False)
    assert values(read(kafka, everything)[0]) == [b"before", b"open", b"behind it"]
    producer.abort_transaction(30)
    wait_until(lambda: not open_bounds(settings_for(kafka), [name]).hidden, 30, "the abort marker")
    assert values(read_all(kafka, name)[0]) == [b"before", b"behind it"]


def test_a_time_is_where_the_read_begins(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(1)
    now = time.time()
    hour = 3_600_000
    stamps = [round(now * 1000) - hours * hour for hours in (5, 4, 3, 2, 1)]
    kafka.produce(name, [Record(b"%d" % at, timestamp=stamp) for at, stamp in enumerate(stamps)])
    bounds = open_bounds(settings_for(kafka), [name], Filter(since=now - 2.5 * 3600))
    assert bounds.ranges[name, 0].start == 3
    found, _ = read(kafka, bounds)
    assert values(found) == [b"3", b"4"]
    nothing = open_bounds(settings_for(kafka), [name], Filter(since=now + 3600))
    assert nothing.offsets == 0
    assert read(kafka, nothing)[1].complete
    all_of_it = open_bounds(settings_for(kafka), [name], Filter(since=0.0))
    assert all_of_it.ranges[name, 0].start == 0


def test_hostile_records_come_byte_for_byte(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(1, config={"max.message.bytes": str(4 * 1024 * 1024)})
    headers = (
        ("same", b"1"),
        ("same", b"2"),
        ("null", None),
        ("bytes", b"\xff\xfe"),
        ("empty", b""),
        ("näme", b"\x1b[2J"),
    )
    large = bytes(range(256)) * (6 * 1024)
    given = [
        Record(large, b"large", headers),
        Record(None, b"tombstone"),
        Record(b"", None),
        Record(b"\x80", b"\xff\x00"),
    ]
    kafka.produce(name, given[1:])
    producer = Producer(kafka.producer_config(**{"message.max.bytes": 4 * 1024 * 1024}))
    producer.produce(name, large, b"large", headers=list(headers))
    assert producer.flush(30) == 0
    letters = [letter_of(message) for message in read_all(kafka, name)[0]]
    assert [(each.key, each.value) for each in letters] == [
        (b"tombstone", None),
        (None, b""),
        (b"\xff\x00", b"\x80"),
        (b"large", large),
    ]
    assert letters[3].headers == list(headers)
    assert letters[0].headers == []


def test_many_large_records_are_asked_for_few_at_a_time(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(2)
    large = b"x" * 900_000
    for _ in range(4):
        kafka.produce(name, [Record(large, partition=number % 2) for number in range(12)])
    bounds = open_bounds(settings_for(kafka), [name])
    with BoundedReader(settings_for(kafka), bounds, idle_timeout=SOON) as reader:
        sizes = [len(batch) for batch in reader]
    assert sum(sizes) == 48
    assert max(sizes) <= 16  # the first batch, before any size is known
    assert max(sizes[1:]) <= 10


def test_a_broker_that_restarts_meanwhile_is_waited_for(fresh_kafka: KafkaCluster) -> None:
    kafka = fresh_kafka
    name = kafka.create_topic(1)
    for _ in range(10):
        kafka.produce(name, [b"x" * 1000] * 5_000)
    bounds = open_bounds(settings_for(kafka), [name])
    seen = 0
    with BoundedReader(settings_for(kafka), bounds, idle_timeout=90) as reader:
        for batch in reader:
            if not seen:
                # The prefetch holds a part only: the rest has to come from the broker that starts again.
                kafka.nodes[0].kill()
                kafka.restart(kafka.nodes[0])
            seen += len(batch)
    assert seen == 50_000
    assert reader.complete


def test_a_leader_that_stays_away_is_named(fresh_kafka: KafkaCluster) -> None:
    kafka = fresh_kafka
    name = kafka.create_topic(1)
    kafka.produce(name, [b"x"] * 10)
    bounds = open_bounds(settings_for(kafka), [name])
    kafka.nodes[0].kill()
    with pytest.raises(ReadError, match=rf"Nothing came from {name}/0 for 2 s.* 10 offsets"):
        read(kafka, bounds, idle_timeout=2)
    with pytest.raises(ReadError, match="No Kafka broker answers"):
        open_bounds(settings_for(kafka), [name], timeout=2)


def test_stopping_ends_the_read_and_says_so(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(1)
    kafka.produce(name, [b"%d" % number for number in range(2_000)])
    stop = threading.Event()
    bounds = open_bounds(settings_for(kafka), [name])
    told: list[Any] = []
    with BoundedReader(
        settings_for(kafka), bounds, stop=stop, batch=100, progress=told.append, idle_timeout=SOON
    ) as reader:
        seen = 0
        for batch in reader:
            seen += len(batch)
            stop.set()
    assert 0 < seen <= 100
    assert not reader.complete
    assert reader.offsets_left == 2_000 - seen
    assert told[-1].records == seen
    assert told[-1].offsets_total == 2_000
    rest, again = read(kafka, open_bounds(settings_for(kafka), [name], starts=reader.reached))
    assert values(rest)[0] == b"%d" % seen
    assert len(rest) == 2_000 - seen
    assert again.complete


def test_a_reader_joins_no_group_and_commits_nothing(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(1)
    kafka.produce(name, [b"x"] * 10)
    settings = settings_for(kafka)
    with BoundedReader(settings, open_bounds(settings, [name]), idle_timeout=SOON) as reader:
        for _ in reader:
            assert kafka.members(settings.group) == {}
    assert reader.complete
    assert kafka.committed(settings.group, name) == {}


def test_a_place_without_a_record_says_why(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(1)
    kafka.produce_transaction(name, [b"a"])
    settings = settings_for(kafka)
    found, bounds = read_one(settings, name, 0, 0)
    assert not isinstance(found, NoRecord)
    assert found.value() == b"a"
    assert bounds.topic_ids[name] not in ("", "unknown")
    marker, _ = read_one(settings, name, 0, 1)
    assert isinstance(marker, NoRecord)
    assert "marker" in marker.reason
    later, _ = read_one(settings, name, 0, 7)
    assert later == NoRecord(f"{name}/0 has no offset 7 yet: its last offset is 1")
    with pytest.raises(ReadError, match="has the partitions 0 to 0, not 4"):
        read_one(settings, name, 4, 0)
    missing = unique_name("no-such")
    with pytest.raises(ReadError, match=f"The topic {missing} does not exist"):
        read_one(settings, missing, 0, 0)
    assert not kafka.topic_exists(missing)
