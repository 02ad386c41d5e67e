"""A broker that is away when the service starts, while it runs, and while it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop import Message  # noqa: TC001 - handlers' annotations are resolved
from tests.broker.loops.inprocess import Running, loop_on
from tests.broker.loops.processes import READY, committed_after_restart, logged, orders, start_service
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster, Member, Members


def kafka_is_missed(running: Running) -> bool:
    """A Consumer's connection is gone: librdkafka has said so."""
    parts = running.loop._run.parts if running.loop._run is not None else None
    return parts is not None and any(poller.stats.errors for poller in parts.pollers)


def test_H5_without_a_broker_it_waits_says_so_and_works_when_the_broker_comes(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({}, {"do": "reject"}))
    [node] = kafka.nodes
    node.kill()
    member = start_service(members, kafka, group, source)
    member.wait_for_line(f"No Kafka broker answers at {kafka.bootstrap}.*Trying again")
    assert member.running
    [said] = logged(member, "broker_unreachable")
    assert said["level"] == "WARNING"
    assert not any("Traceback" in line or line.startswith("%") for line in member.lines)

    kafka.restart(node)
    member.wait_for_line(READY, timeout=60)
    wait_until(lambda: committed_after_restart(kafka, group, source) == {0: 2}, 60, "both to be acknowledged")
    member.terminate()
    assert member.wait(60) == 0


def test_H5_while_it_waits_it_lives_is_not_ready_and_stops_when_it_is_told(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    [node] = kafka.nodes
    node.kill()
    loop = loop_on(kafka, group)

    @loop.consumer(source)
    async def handle(value: bytes) -> None: ...

    with Running(loop) as running:
        running.until(lambda: loop.health().reasons == ("waiting for the broker",))
        assert loop.health().live
        assert not loop.health().ready
        assert loop.status() is None
        assert loop.metrics() == {}
        result = running.stop(timeout=5)  # the question that is under way would take 10
    assert (result.exit_code, result.reason) == (0, "stop() was called")


def test_H5_the_broker_restarts_while_it_runs_and_everything_is_handled(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    loop = loop_on(kafka, group, in_place_attempts=1, retry_topics=["200ms"])
    handled: dict[tuple[int, int], int] = {}

    @loop.consumer(source, ordering="none")
    async def handle(value: bytes, message: Message) -> None:
        if message.offset % 3 == 0 and message.attempt == 1:
            raise ConnectionError("once")
        handled[message.partition, message.offset] = handled.get((message.partition, message.offset), 0) + 1

    [node] = kafka.nodes
    with Running(loop) as running:
        kafka.produce(source, orders(*[{}] * 10) + orders(*[{}] * 10, partition=1))
        running.until(lambda: len(handled) == 20, what="the first messages")
        node.kill()
        kafka.close()
        running.until(lambda: kafka_is_missed(running), what="the loop to notice")
        assert loop.health().live
        assert loop.health().ready  # it was once, and a broker that is away does not change that
        kafka.restart(node)
        kafka.produce(source, orders(*[{}] * 10) + orders(*[{}] * 10, partition=1))
        running.until(lambda: len(handled) == 40, 90, "the messages after the restart")
        running.until(lambda: running.partition(source, 1) is not None, 60, "the group to go on")
        running.until(lambda: kafka.lag(group, source) == 0, 60, "the commit of all")
        result = running.stop()
    assert result.exit_code == 0


def test_H1_a_broker_that_is_gone_when_it_stops_does_not_keep_the_process(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({"sleep": 1.0}, {"do": "reject"}))
    groups = {protocol: f"{group}-{protocol}" for protocol in ("consumer", "classic")}

    def start(protocol: str, *options: str) -> Member:
        return start_service(members, kafka, groups[protocol], source, "--group-protocol", protocol, *options)

    first = [start(protocol, "--drain-timeout", "2s") for protocol in groups]
    for member in first:
        member.wait_for_line(rf"^begin {source}/0/1", timeout=60)
    [node] = kafka.nodes
    node.kill()
    for member in first:
        member.terminate()
    # Drain (2 s), what is left of the handlers (1 s), the groups (10 s), the publisher (5 s), and a margin.
    for member in first:
        # 0 where the broker had confirmed the dead letter before it went.
        assert member.wait(40) in (0, 3)
        said = [line for line in member.lines if "streamloop.librdkafka" in line]
        assert len(said) < 50, "librdkafka says it some twenty times a second"

    kafka.close()
    kafka.restart(node)
    again = start("consumer", "--until-end")
    assert again.wait(90) == 0
    assert committed_after_restart(kafka, groups["consumer"], source) == {0: 2}
