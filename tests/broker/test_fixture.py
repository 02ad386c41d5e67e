"""The fixture itself: if these fail, no other broker test says anything."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException

from tests.realkafka import KafkaCluster, Members, Record, wait_until
from tests.realkafka.client import unique_name

COUNT = 2_000

CONSUMER = """
import sys
from confluent_kafka import Consumer
brokers, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": brokers, "group.id": group, "group.protocol": "consumer",
                     "auto.offset.reset": "earliest", "enable.auto.commit": False})
consumer.subscribe([topic], on_assign=lambda c, parts: print("assigned", len(parts)))
while True:
    for message in consumer.consume(500, 0.1):
        print("got", message.partition(), message.offset())
"""


def test_what_is_produced_on_one_node_is_read_back_with_keys_and_headers(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(4)
    records = [Record(b"v%d" % n, b"k%d" % (n % 10), (("h", b"1"), ("h", None))) for n in range(COUNT)]

    placed = kafka.produce(name, records)

    read = {(record.partition, record.offset): record for record in kafka.read_all(name)}
    assert len(read) == COUNT
    for place, record in zip(placed, records, strict=True):
        assert (read[place].key, read[place].value, read[place].headers) == (
            record.key,
            record.value,
            record.headers,
        )


def test_a_committed_transaction_leaves_a_marker_and_an_aborted_one_nothing_to_read(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()

    kafka.produce_transaction(name, [b"a", b"b", b"c"])
    kafka.produce_transaction(name, [b"lost"], abort=True)

    assert [record.value for record in kafka.read_all(name)] == [b"a", b"b", b"c"]
    assert kafka.end_offsets(name) == {0: 6}


def test_a_forbidden_topic_refuses_records_and_takes_them_again_afterwards(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()

    with kafka.writes_forbidden(name), pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        kafka.produce(name, [b"no"])
    kafka.produce(name, [b"yes"])

    assert [record.value for record in kafka.read_all(name)] == [b"yes"]


def test_offsets_and_metadata_committed_for_a_group_are_read_back(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    name = topic(2)
    kafka.produce(name, [Record(b"x", partition=1) for _ in range(10)])

    kafka.commit(group, name, {1: (7, "text")})

    assert {part: (c.offset, c.metadata) for part, c in kafka.committed(group, name).items()} == {
        1: (7, "text")
    }
    assert kafka.lag(group, name) == 3


def test_the_partitions_of_a_killed_member_go_to_the_one_that_is_left(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, members: Members
) -> None:
    name = topic(4)
    first = members.start_script(CONSUMER, kafka.bootstrap, group, name, name="first")
    first.wait_for_line("assigned 4")
    second = members.start_script(CONSUMER, kafka.bootstrap, group, name, name="second")
    second.wait_for_line("assigned 2")

    first.kill()
    wait_until(
        lambda: [len(parts) for parts in kafka.members(group).values()] == [4],
        message="one member with all 4",
    )
    kafka.produce(name, [Record(b"x", partition=part) for part in range(4)])

    for part in range(4):
        second.wait_for_line(f"got {part} 0")
    assert not first.running
    assert second.running


def test_three_nodes_take_and_keep_every_record_while_one_is_killed_and_comes_back(
    kafka3: KafkaCluster,
) -> None:
    name = kafka3.create_topic(3, prefix="survives")
    before = kafka3.produce(name, [b"before %d" % n for n in range(COUNT)])
    victim = kafka3.nodes[2]

    victim.kill()
    after = kafka3.produce(name, [b"after %d" % n for n in range(COUNT)])

    assert not victim.running
    assert (
        len({(record.partition, record.offset) for record in kafka3.read_all(name)} & {*before, *after})
        == 2 * COUNT
    )
    kafka3.restart(victim)
    wait_until(
        lambda: all(
            len(part.isrs) == 3 for part in kafka3.admin.list_topics(name).topics[name].partitions.values()
        ),
        message="the node to be in sync again",
    )


def test_a_node_keeps_its_port_and_data_across_a_crash_and_a_restart(fresh_kafka: KafkaCluster) -> None:
    name = fresh_kafka.create_topic(name=unique_name("kept"))
    fresh_kafka.produce(name, [b"kept"])
    node, bootstrap = fresh_kafka.nodes[0], fresh_kafka.bootstrap

    node.kill()
    fresh_kafka.heal()

    assert fresh_kafka.bootstrap == bootstrap
    assert [record.value for record in fresh_kafka.read_all(name)] == [b"kept"]
