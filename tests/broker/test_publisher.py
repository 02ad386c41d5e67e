"""The publisher on a real broker: what a broker's death, a missing or forbidden topic, or one bad record does
to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamloop.kafka.publisher import Publisher
from streamloop.kafka.publishing import PublishRequest, ReportKind
from tests.publisher_bench import Inbox
from tests.realkafka.client import unique_name
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.realkafka import KafkaCluster
    from tests.realkafka.node import KafkaNode

DELIVERED, BLOCKED, UNBLOCKED = ReportKind.DELIVERED, ReportKind.BLOCKED, ReportKind.UNBLOCKED
MAX_BYTES = 10_000
BOUND_S = 90.0


class Publishing:
    """Makes publishers with their inboxes, and closes them."""

    def __init__(self) -> None:
        self.publishers: list[Publisher] = []

    def __call__(self, cluster: KafkaCluster, **config: Any) -> tuple[Publisher, Inbox]:
        inbox = Inbox()
        config.setdefault("linger.ms", 20)  # long enough for a batch
        config.setdefault("message.max.bytes", MAX_BYTES * 100)
        publisher = Publisher(cluster.producer_config(**config), deliver=inbox.put)
        publisher.start()
        self.publishers.append(publisher)
        return publisher, inbox


@pytest.fixture
def publishing() -> Iterator[Publishing]:
    made = Publishing()
    yield made
    for publisher in made.publishers:
        publisher.close(0)


def records(topic: str, ids: range, key: bytes | None = b"k", partition: int = 0) -> list[PublishRequest]:
    return [PublishRequest(i, topic, partition, key, str(i).encode()) for i in ids]


def values(cluster: KafkaCluster, topic: str) -> list[int]:
    return [int(record.value or b"-1") for record in cluster.read_all(topic)]


def leader_of(cluster: KafkaCluster, topic: str) -> KafkaNode:
    leader = cluster.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    return next(node for node in cluster.nodes if node.node_id == leader)


def bytes_in_log(node: KafkaNode, topic: str) -> int:
    """Size of partition 0's log on this node, whether replicated or not."""
    return sum(segment.stat().st_size for segment in node.folder.rglob(f"{topic}-0/*.log"))


def test_D1_a_broker_that_dies_after_it_wrote_and_before_it_reports_loses_nothing(
    kafka3: KafkaCluster, publishing: Publishing
) -> None:
    topic = kafka3.create_topic(1, prefix="d1", replication_factor=3)
    publisher, inbox = publishing(kafka3)
    publisher.submit(records(topic, range(1)))
    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [0])
    leader = leader_of(kafka3, topic)
    before = bytes_in_log(leader, topic)
    others = [node for node in kafka3.nodes if node is not leader]

    for node in others:
        node.suspend()  # without them the leader can write, and not confirm
    publisher.submit(records(topic, range(1, 200)))
    wait_until(lambda: bytes_in_log(leader, topic) > before, message="the leader to write")
    assert inbox.ids(DELIVERED) == [0]
    leader.kill()
    for node in others:
        node.resume()

    inbox.wait_for(lambda: inbox.ids(DELIVERED) == list(range(200)), BOUND_S)
    assert sorted(values(kafka3, topic)) == list(range(200))
    assert publisher.counters.outstanding == 0


def test_D1_a_broker_that_is_down_blocks_and_delivers_everything_when_it_is_back(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    name = topic()
    publisher, inbox = publishing(kafka, **{"delivery.timeout.ms": 2000})
    publisher.submit(records(name, range(1)))
    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [0])

    (node,) = kafka.nodes
    node.kill()
    publisher.submit(records(name, range(1, 100)))
    inbox.wait_for(lambda: inbox.ids(BLOCKED) == list(range(1, 100)))
    assert inbox.ids(DELIVERED) == [0]
    kafka.restart(node)

    inbox.wait_for(lambda: inbox.ids(DELIVERED) == list(range(100)), BOUND_S)
    assert sorted(set(values(kafka, name))) == list(range(100))


def test_D2_a_missing_topic_blocks_its_records_and_no_others_until_it_is_created(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    there, missing = topic(), unique_name("d2-missing")
    publisher, inbox = publishing(kafka, **{"delivery.timeout.ms": 2000})
    publisher.submit([*records(missing, range(5)), *records(there, range(100, 105))])
    inbox.wait_for(lambda: inbox.ids(DELIVERED) == list(range(100, 105)))
    inbox.wait_for(lambda: inbox.ids(BLOCKED) == list(range(5)))
    wait_until(lambda: publisher.counters.probes > 0, message="a probe")
    publisher.submit(records(there, range(105, 110)))
    inbox.wait_for(lambda: inbox.ids(DELIVERED) == list(range(100, 110)))
    assert [(t.topic, t.waiting) for t in publisher.blocked] == [(missing, 5)]

    kafka.create_topic(1, name=missing)

    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [*range(5), *range(100, 110)], BOUND_S)
    assert values(kafka, missing) == list(range(5))
    assert publisher.blocked == ()


def test_D2_a_topic_deleted_and_created_again_takes_records_again(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    name = topic()
    publisher, inbox = publishing(kafka, **{"delivery.timeout.ms": 2000})
    publisher.submit(records(name, range(1)))
    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [0])
    kafka.delete_topic(name)
    publisher.submit(records(name, range(1, 5)))
    inbox.wait_for(lambda: inbox.ids(BLOCKED) == [1, 2, 3, 4])

    kafka.create_topic(1, name=name)

    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [0, 1, 2, 3, 4], BOUND_S)
    assert values(kafka, name) == [1, 2, 3, 4]


def test_D2_a_forbidden_topic_blocks_until_it_is_allowed(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    name, other = topic(), topic(name=unique_name("d2-allowed"))
    publisher, inbox = publishing(kafka)
    with kafka.writes_forbidden(name):
        publisher.submit([*records(name, range(5)), *records(other, range(100, 105))])
        inbox.wait_for(lambda: inbox.ids(BLOCKED) == list(range(5)))
        publisher.submit(records(name, range(5, 10)))
        inbox.wait_for(lambda: inbox.ids(BLOCKED) == list(range(10)))
        inbox.wait_for(lambda: inbox.ids(DELIVERED) == list(range(100, 105)))
        wait_until(lambda: publisher.counters.probes >= 2, message="two probes")
        assert "authorization" in publisher.blocked[0].reason.lower()

    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [*range(10), *range(100, 105)], BOUND_S)
    assert values(kafka, name) == list(range(10))


def test_D2_too_few_replicas_block_until_there_are_enough(
    kafka3: KafkaCluster, publishing: Publishing
) -> None:
    topic = kafka3.create_topic(1, prefix="d2", replication_factor=2, config={"min.insync.replicas": "2"})
    publisher, inbox = publishing(kafka3, **{"delivery.timeout.ms": 2000})
    placed = kafka3.admin.list_topics(topic, timeout=10).topics[topic].partitions[0]
    follower = next(n for n in kafka3.nodes if n.node_id in placed.replicas and n.node_id != placed.leader)

    follower.kill()
    publisher.submit(records(topic, range(5)))
    inbox.wait_for(lambda: inbox.ids(BLOCKED) == list(range(5)))
    assert inbox.ids(DELIVERED) == []
    kafka3.restart(follower)

    inbox.wait_for(lambda: inbox.ids(DELIVERED) == list(range(5)), BOUND_S)
    assert sorted(set(values(kafka3, topic))) == list(range(5))


def test_D2_a_partition_that_the_topic_does_not_have_blocks_until_it_has(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    name = topic(1)
    publisher, inbox = publishing(kafka, **{"delivery.timeout.ms": 2000})
    publisher.submit([*records(name, range(1)), *records(name, range(1, 3), partition=1)])
    inbox.wait_for(lambda: inbox.ids(BLOCKED) == [1, 2] and inbox.ids(DELIVERED) == [0])
    publisher.submit(records(name, range(3, 4)))
    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [0, 3])

    kafka.add_partitions(name, 2)

    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [0, 1, 2, 3], BOUND_S)


def test_D17_one_record_above_the_topics_limit_takes_none_of_its_batch_with_it(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    name = topic(config={"max.message.bytes": str(MAX_BYTES)})
    publisher, inbox = publishing(kafka)
    big = PublishRequest(500, name, 0, b"k", b"9" * (2 * MAX_BYTES))
    publisher.submit([*records(name, range(50)), big, *records(name, range(50, 100))])

    inbox.wait_for(lambda: len(inbox.ids(DELIVERED)) == 100 and bool(inbox.ids(ReportKind.TOO_LARGE)))
    assert inbox.ids(ReportKind.TOO_LARGE) == [500]
    assert sorted(values(kafka, name)) == list(range(100))

    publisher.submit([PublishRequest(500, name, 0, b"k", b"500")])  # made to fit
    inbox.wait_for(lambda: 500 in inbox.ids(DELIVERED))


def test_D17_a_batch_above_the_topics_limit_with_no_large_record_is_delivered_whole(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    name = topic(config={"max.message.bytes": str(MAX_BYTES)})
    publisher, inbox = publishing(kafka)
    publisher.submit([PublishRequest(i, name, 0, b"k", str(i).encode().rjust(1000, b"0")) for i in range(50)])

    inbox.wait_for(lambda: len(inbox.reports) == 50)
    assert inbox.ids(DELIVERED) == list(range(50))
    assert publisher.counters.sent_alone > 0


def test_D17_one_null_key_in_a_batch_to_a_compacted_topic_is_refused_alone(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    name = topic(config={"cleanup.policy": "compact"})
    publisher, inbox = publishing(kafka)
    publisher.submit(
        [*records(name, range(5)), *records(name, range(500, 501), key=None), *records(name, range(5, 10))]
    )

    inbox.wait_for(lambda: len(inbox.reports) == 11)
    assert inbox.ids(ReportKind.REFUSED) == [500]
    assert inbox.ids(DELIVERED) == list(range(10))
    assert sorted(values(kafka, name)) == list(range(10))


def test_D3_nulls_empty_values_and_repeated_headers_arrive_as_they_were_given(
    kafka: KafkaCluster, publishing: Publishing, topic: Callable[..., str]
) -> None:
    name = topic(2)
    publisher, inbox = publishing(kafka)
    headers = [("h", b"\xff\x00"), ("h", None), ("", b""), ("grün", "ü".encode())]
    given: list[tuple[bytes | None, bytes | None]] = [(None, None), (b"", b""), (b"k\x00", b"v\xff")]
    publisher.submit(
        [PublishRequest(i, name, 1, key, value, headers) for i, (key, value) in enumerate(given)]
    )
    publisher.submit([PublishRequest(9, name, 1, b"none", None)])

    inbox.wait_for(lambda: inbox.ids(DELIVERED) == [0, 1, 2, 9])
    read = kafka.read_all(name)
    assert [(r.partition, r.key, r.value) for r in read] == [(1, *g) for g in given] + [(1, b"none", None)]
    assert all(r.headers == tuple(headers) for r in read[:3])
    assert read[3].headers == ()
    assert {(r.id, r.partition, r.offset) for r in inbox.reports} == {
        (0, 1, 0),
        (1, 1, 1),
        (2, 1, 2),
        (9, 1, 3),
    }
