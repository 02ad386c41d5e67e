"""Retry and dead-letter topics that take nothing for a while: nothing is lost or skipped, others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamloop import Message, Reject, topic_watching
from streamloop.kafka import publisher
from tests.broker.loops.inprocess import Running, loop_on
from tests.broker.loops.processes import committed_after_restart, logged, orders, printed, start_service
from tests.realkafka.client import Record
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster, Members

# The shortest that is allowed: a record for a topic that is gone gets its report only then.
SOON = {"producer": {"delivery.timeout.ms": 5000}}


@pytest.fixture(autouse=True)
def _quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "BACKOFF_CAP_S", 1.0)
    monkeypatch.setattr(topic_watching, "WATCH_TOPICS", 0.5)


def origins(cluster: KafkaCluster, dead_letters: str) -> set[tuple[int, int]]:
    """Partition and offset of the originals of all dead letters."""
    return {
        (
            int(record.header("streamloop-original-partition") or b"-1"),
            int(record.header("streamloop-original-offset") or b"-1"),
        )
        for record in cluster.read_all(dead_letters)
    }


def test_D2_a_dead_letter_topic_deleted_while_running_holds_its_partition_until_it_is_there_again(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(4)
    dead_letters = f"{source}.{group}.dlq"
    loop = loop_on(kafka, group, retry_topics=[], kafka=SOON)
    handled: list[int] = []

    @loop.consumer(source, ordering="partition")
    async def handle(value: bytes, message: Message) -> None:
        if value == b"bad":
            raise Reject("no")
        handled.append(message.partition)

    with Running(loop) as running:
        kafka.produce(source, [Record(b"bad", None, (), 3)])
        running.until(lambda: running.counts()["dead_lettered"] == 1, what="the first dead letter")
        kafka.delete_topic(dead_letters)
        kafka.produce(source, [Record(b"bad", None, (), 3), *[Record(b"fine", None, (), 3)] * 3])
        running.until(lambda: "publish_blocked" in running.held(source, 3), what="the partition to be held")
        assert dead_letters in running.held(source, 3)["publish_blocked"]
        assert any(dead_letters in each for each in running.status().blocked_targets)
        kafka.produce(source, [Record(b"fine", None, (), partition) for partition in (0, 1, 2)])
        running.until(lambda: sorted(handled)[:3] == [0, 1, 2], what="the other partitions to go on")
        assert loop.health().live
        assert loop.health().ready
        assert running.metric("loop_held_partitions", reason="publish_blocked") == 1
        assert running.metric("loop_publish_failures_total") > 0
        part = running.partition(source, 3)
        assert part is not None
        assert part.holder is not None
        assert (part.holder.offset, part.holder.state) == (1, "ROUTING_DEAD")
        assert kafka.committed_offsets(group, source)[3] == 1

        # Made by hand, with fewer partitions than the source has: partition 3 is no more.
        kafka.create_topic(2, name=dead_letters)
        running.until(lambda: running.counts()["dead_lettered"] == 2, 90, "the dead letter that waited")
        running.until(lambda: running.held(source, 3) == {}, what="the partition to be released")
        running.until(lambda: handled.count(3) == 3, what="what was behind it")
        assert running.stop().exit_code == 0
    [record] = kafka.read_all(dead_letters)
    assert (record.partition, record.value) == (1, b"bad")
    assert kafka.committed_offsets(group, source) == {0: 1, 1: 1, 2: 1, 3: 5}


def test_D2_a_forbidden_retry_topic_holds_and_goes_on_when_it_is_allowed(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    retry = f"{source}.{group}.retry.300ms"
    loop = loop_on(kafka, group, retry_topics=["300ms"], in_place_attempts=1)
    done: list[bytes] = []

    @loop.consumer(source)
    async def handle(value: bytes, message: Message) -> None:
        if value == b"bad" and message.attempt == 1:
            raise ConnectionError("once")
        done.append(value)

    with Running(loop) as running:
        running.until(lambda: running.partition(source, 1) is not None)
        with kafka.writes_forbidden(retry):
            kafka.produce(source, [Record(b"bad", None, (), 0), Record(b"fine", None, (), 1)])
            running.until(lambda: "publish_blocked" in running.held(source, 0), what="the hold")
            assert "authorization" in running.held(source, 0)["publish_blocked"].lower()
            running.until(lambda: done == [b"fine"], what="the other partition")
            assert loop.health().live
        running.until(lambda: done == [b"fine", b"bad"], what="the retry")
        running.until(lambda: kafka.lag(group, source) == 0, what="the commit")


def test_D2_missing_topics_with_create_topics_off_refuse_to_start_with_the_commands(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic(3)
    member = start_service(members, kafka, group, source, "--no-create-topics")
    assert member.wait(60) == 2
    said = "\n".join(member.lines)
    for name in (f"{source}.{group}.retry.300ms", f"{source}.{group}.dlq"):
        assert (
            f"kafka-topics.sh --bootstrap-server {kafka.bootstrap} --create --topic {name} --partitions 3"
            in said
        )
        assert not kafka.topic_exists(name)
    assert "create_topics is off" in said
    assert "Traceback" not in said


def test_D2_a_drain_while_a_dead_letter_can_t_be_written_names_it_and_acknowledges_nothing(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    dead_letters = f"{source}.{group}.dlq"
    loop = loop_on(kafka, group, retry_topics=[], drain_timeout=1)

    @loop.consumer(source)
    async def handle(value: bytes) -> None:
        raise Reject("no")

    with Running(loop) as running:
        running.until(lambda: running.partition(source, 0) is not None)
        with kafka.writes_forbidden(dead_letters):
            kafka.produce(source, [b"bad"])
            running.until(lambda: "publish_blocked" in running.held(source, 0), what="the hold")
            result = running.stop()
    assert result.exit_code == 3
    assert dead_letters in result.reason
    assert kafka.committed_offsets(group, source).get(0, 0) == 0


def test_D1_a_broker_that_dies_with_dead_letters_in_flight_loses_none_and_committed_none_too_early(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    total = 3_000
    dead_letters = f"{source}.{group}.dlq"
    kafka.produce(source, orders(*[{"do": "reject"}] * total))
    [node] = kafka.nodes
    quiet = ("--log-level", "WARNING", "--commit-interval", "20ms")
    member = start_service(members, kafka, group, source, *quiet)
    wait_until(lambda: len(printed(member, "begin")) > 500, 60, "some to be in flight")
    node.kill()
    member.kill()  # what it had acknowledged is what the broker has, and nothing else
    assert len(printed(member, "begin")) < total
    kafka.close()
    kafka.restart(node)

    committed = committed_after_restart(kafka, group, source).get(0, 0)
    assert {(0, offset) for offset in range(committed)} <= origins(kafka, dead_letters)
    again = start_service(members, kafka, group, source, *quiet, "--until-end")
    assert again.wait(90) == 0
    assert origins(kafka, dead_letters) == {(0, offset) for offset in range(total)}
    assert kafka.committed_offsets(group, source) == {0: total}


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_D1_a_broker_that_restarts_with_retries_in_flight_loses_none(
    kafka3: KafkaCluster, protocol: str, group: str
) -> None:
    source = kafka3.create_topic(3, prefix="d1", replication_factor=3)
    total = 600
    loop = loop_on(
        kafka3,
        group,
        retry_topics=["300ms"],
        in_place_attempts=1,
        group_protocol=protocol,
        high_watermark_messages=100,
    )
    done: set[tuple[int, int]] = set()

    @loop.consumer(source, ordering="none")
    async def handle(value: bytes, message: Message) -> None:
        if message.attempt == 1:
            raise ConnectionError("once")
        done.add((message.partition, message.offset))

    kafka3.produce(source, [Record(b"x", None, (), n % 3) for n in range(total)])
    with Running(loop) as running:
        running.until(lambda: running.counts()["routed"] > total // 10, what="retries in flight")
        victim = kafka3.nodes[0]
        victim.kill()
        running.until(lambda: len(done) > total // 4, 90, "it to go on with two brokers")
        kafka3.restart(victim)
        running.until(lambda: len(done) == total, 90, "all to be handled")
        running.until(lambda: kafka3.lag(group, source) == 0, 60, "all to be committed")
        assert running.stop().exit_code == 0
    assert done == {(n % 3, n // 3) for n in range(total)}


def test_D2_what_is_blocked_is_said_once_and_not_for_each_message(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    dead_letters = f"{source}.{group}.dlq"
    kafka.create_topic(1, name=dead_letters, config={"max.message.bytes": "2000000"})
    kafka.produce(source, orders(*[{"do": "reject"}] * 20))
    with kafka.writes_forbidden(dead_letters):
        member = start_service(members, kafka, group, source)
        wait_until(lambda: bool(logged(member, "held")), 60, "the hold to be said")
        [held] = [record for record in logged(member, "held") if record["reason"] == "publish_blocked"]
        assert held["level"] == "WARNING"
        assert dead_letters in held["message"]
        assert held["holding_offset"] == 0
    wait_until(lambda: kafka.lag(group, source) == 0, 60, "all to be dead letters")
    member.terminate()
    assert member.wait(60) == 0
