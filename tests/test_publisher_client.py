"""The publisher on the real client and librdkafka's mock cluster: what breaks, and what then happens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from streamloop.kafka.publisher import Publisher
from streamloop.kafka.publishing import PublishRequest, ReportKind
from tests.mock_cluster import INIT_PRODUCER_ID, PRODUCE, MockCluster
from tests.publisher_bench import Inbox

if TYPE_CHECKING:
    from collections.abc import Iterator

OUT_OF_ORDER_SEQUENCE_NUMBER, CLUSTER_AUTHORIZATION_FAILED, DENIED, INVALID_RECORD = 45, 31, 29, 87
BOUND_S = 30.0


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def publisher(cluster: MockCluster, inbox: Inbox) -> Iterator[Publisher]:
    publisher = Publisher(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "delivery.timeout.ms": 2000,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "linger.ms": 20,
            "log_level": 0,
        },
        deliver=inbox.put,
    )
    publisher.start()
    yield publisher
    publisher.close(0)


def records(topic: str, *ids: int) -> list[PublishRequest]:
    return [PublishRequest(i, topic, 0, b"k", str(i).encode()) for i in ids]


def log_of(cluster: MockCluster, topic: str) -> list[int]:
    """What a reader finds in partition 0, to its end."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        for message in consumer.consume(100, 0.1):
            if message.error():
                consumer.close()
                return found
            found.append(int(message.value() or b"-1"))
    raise AssertionError(f"no end of {topic} within {BOUND_S:.0f} s; found {found}")


def test_D18_a_fatal_error_of_the_client_loses_nothing(
    cluster: MockCluster, publisher: Publisher, inbox: Inbox
) -> None:
    topic = cluster.create_topic("dead")
    publisher.submit(records(topic, 0))
    inbox.wait_for(lambda: inbox.ids(ReportKind.DELIVERED) == [0])
    cluster.fail_next(PRODUCE, OUT_OF_ORDER_SEQUENCE_NUMBER)
    publisher.submit(records(topic, 1, 2, 3))
    inbox.wait_for(lambda: inbox.ids(ReportKind.DELIVERED) == [0, 1, 2, 3])
    assert publisher.counters.replaced_producers == 1
    assert set(log_of(cluster, topic)) == {0, 1, 2, 3}


def test_D18_a_producer_that_may_not_start_is_replaced_until_it_may(
    cluster: MockCluster, publisher: Publisher, inbox: Inbox
) -> None:
    topic = cluster.create_topic("dead")
    cluster.fail_next(INIT_PRODUCER_ID, CLUSTER_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED)
    publisher.submit(records(topic, 1, 2))
    inbox.wait_for(lambda: inbox.ids(ReportKind.DELIVERED) == [1, 2])
    assert publisher.counters.replaced_producers == 2
    assert inbox.ids(ReportKind.BLOCKED) == [1, 2], "the second break in a row is reported"
    assert "authorization" in inbox.reports[0].reason.lower()
    assert log_of(cluster, topic) == [1, 2]


def test_D1_a_broker_that_dies_before_its_answer_leaves_the_record_outstanding_until_it_is_confirmed(
    cluster: MockCluster, publisher: Publisher, inbox: Inbox
) -> None:
    topic = cluster.create_topic("dead")
    publisher.submit(records(topic, 0))
    inbox.wait_for(lambda: inbox.ids(ReportKind.DELIVERED) == [0])
    cluster.take_down()
    publisher.submit(records(topic, 1, 2))
    inbox.wait_for(lambda: inbox.ids(ReportKind.BLOCKED) == [1, 2])
    assert inbox.ids(ReportKind.DELIVERED) == [0]
    assert publisher.counters.outstanding == 2
    cluster.bring_up()
    inbox.wait_for(lambda: inbox.ids(ReportKind.DELIVERED) == [0, 1, 2])
    assert set(log_of(cluster, topic)) == {0, 1, 2}


def test_D2_a_topic_that_is_forbidden_blocks_until_it_is_allowed_and_no_other(
    cluster: MockCluster, publisher: Publisher, inbox: Inbox
) -> None:
    forbidden, free = cluster.create_topic("forbidden"), cluster.create_topic("free")
    cluster.set_topic_error(forbidden, DENIED)
    publisher.submit([*records(forbidden, 1, 2), *records(free, 3)])
    inbox.wait_for(lambda: inbox.ids(ReportKind.BLOCKED) == [1, 2] and inbox.ids(ReportKind.DELIVERED) == [3])
    cluster.set_topic_error(forbidden, 0)
    inbox.wait_for(lambda: inbox.ids(ReportKind.DELIVERED) == [1, 2, 3])


def test_D17_a_batch_refused_for_one_record_is_sent_again_one_by_one(
    cluster: MockCluster, publisher: Publisher, inbox: Inbox
) -> None:
    topic = cluster.create_topic("dead")
    cluster.fail_next(PRODUCE, INVALID_RECORD, INVALID_RECORD)
    publisher.submit(records(topic, 1, 2, 3))
    inbox.wait_for(lambda: len(inbox.reports) == 3)
    assert inbox.ids(ReportKind.REFUSED) == [1], "the first that failed alone, and only that"
    assert inbox.ids(ReportKind.DELIVERED) == [2, 3]
    assert log_of(cluster, topic) == [2, 3]


def test_close_is_bounded_with_the_broker_gone_and_names_what_has_no_report(
    cluster: MockCluster, publisher: Publisher
) -> None:
    topic = cluster.create_topic("dead")
    cluster.answer_after(60_000)
    publisher.submit(records(topic, 1, 2))
    assert sorted(publisher.close(0.5)) == [1, 2]
    assert not publisher.is_alive
