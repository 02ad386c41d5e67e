"""Signals and exit codes of ``streamloop run`` on a real broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.broker.loops.inprocess import Running, loop_on
from tests.broker.loops.processes import READY, last_words, logged, orders, printed, start_service
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster, Member, Members

PROTOCOLS = pytest.mark.parametrize("protocol", ["consumer", "classic"])


def begun(member: Member, count: int) -> None:
    """Wait until so many handlers run or ran."""
    wait_until(
        lambda: len(printed(member, "begin")) >= count,
        60,
        lambda: f"{count} handlers to begin; {member.name} printed:\n" + "\n".join(member.lines),
    )


@PROTOCOLS
def test_H1_sigterm_lets_running_handlers_finish_commits_leaves_and_exits_0(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, protocol: str
) -> None:
    source = topic(2)
    kafka.produce(source, orders(*[{"sleep": 1.5}] * 3) + orders({"sleep": 1.5}, partition=1))
    # Concurrency 2: two run when the signal comes, two are buffered and not started.
    member = start_service(members, kafka, group, source, "--group-protocol", protocol, "--concurrency", "2")
    begun(member, 2)
    member.terminate()

    assert member.wait(60) == 0
    assert len(printed(member, "end")) == len(printed(member, "begin")) == 2
    assert printed(member, "shutdown") == ['{"live": true, "ready": false}']
    assert kafka.members(group) == {}
    done = {tuple(map(int, line.split()[0].split("/")[1:])) for line in printed(member, "end")}
    committed = kafka.committed_offsets(group, source)
    for partition in (0, 1):
        offset = 0
        while (partition, offset) in done:
            offset += 1
        assert committed.get(partition, 0) == offset


def test_H1_sigint_drains_as_sigterm_does(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({"sleep": 1.0}))
    member = start_service(members, kafka, group, source)
    begun(member, 1)
    member.interrupt()
    assert member.wait(60) == 0
    assert len(printed(member, "end")) == 1
    assert kafka.committed_offsets(group, source) == {0: 1}
    assert last_words(member) == "SIGINT received"


def test_H1_a_retry_that_waits_in_place_does_not_delay_the_end_and_is_not_committed(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({}, {"do": "fail"}, {}))
    member = start_service(
        members,
        kafka,
        group,
        source,
        *("--in-place-attempts", "5", "--backoff-base", "10m", "--backoff-cap", "1h"),
        *("--drain-timeout", "60s"),
    )
    begun(member, 3)
    wait_until(lambda: kafka.committed_offsets(group, source) == {0: 1}, 60, "the commit before it")
    member.terminate()
    assert member.wait(30) == 0
    assert kafka.committed_offsets(group, source) == {0: 1}


def test_H1_a_drain_that_takes_too_long_ends_with_3_and_the_stack_of_what_hangs(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({}, {"do": "swallow"}, {}))
    member = start_service(members, kafka, group, source, "--drain-timeout", "1s", "--timeout", "5m")
    begun(member, 3)
    member.terminate()

    assert member.wait(60) == 3
    [hanging] = logged(member, "handler_hangs")
    assert f"{source}/0/1" in hanging["message"]
    assert "asyncio.sleep(3600)" in hanging["message"]
    assert "its message is not acknowledged" in hanging["message"]
    assert kafka.committed_offsets(group, source) == {0: 1}
    assert kafka.members(group) == {}
    assert last_words(member) == (
        f"the drain was cut short: 1 s are over; 1 handler still runs: handle ({source}/0/1) "
        "(after: SIGTERM received)"
    )


def test_H2_a_thread_that_never_returns_does_not_keep_the_process(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({}, {"do": "hang"}, {}))
    member = start_service(
        members,
        kafka,
        group,
        source,
        "--drain-timeout",
        "1s",
        "--timeout",
        "5m",
        module="threads",
    )
    begun(member, 3)
    wait_until(lambda: sorted(printed(member, "end")) == ["0", "2"], message="the others to end")
    member.terminate()

    assert member.wait(60) == 3
    [hanging] = logged(member, "handler_hangs")
    assert f"handle ({source}/0/1)" in hanging["message"]
    assert "threading.Event().wait()" in hanging["message"]
    assert kafka.committed_offsets(group, source) == {0: 1}
    # What was done beyond it is not done again: it travels in the commit metadata.
    again = start_service(
        members,
        kafka,
        group,
        source,
        "--until-end",
        "--timeout",
        "1s",
        "--kill-after",
        "1s",
        module="threads",
    )
    assert again.wait(60) == 70
    assert printed(again, "begin") == ["1"]


@pytest.mark.parametrize("second", ["SIGTERM", "SIGINT"])
def test_H7_a_second_signal_stops_at_once(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, second: str
) -> None:
    source = topic()
    kafka.produce(source, orders({}, {"sleep": 300}))
    member = start_service(members, kafka, group, source, "--drain-timeout", "5m", "--timeout", "10m")
    begun(member, 2)
    member.terminate()
    wait_until(lambda: not member.running or kafka.members(group), message="the drain")
    began = time.monotonic()
    if second == "SIGTERM":
        member.terminate()
    else:
        member.interrupt()
    assert member.wait(30) == 3
    assert time.monotonic() - began < 30
    assert kafka.committed_offsets(group, source).get(0, 0) <= 1


def test_H7_a_second_signal_stops_a_process_whose_event_loop_is_blocked(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({"do": "block"}))
    member = start_service(members, kafka, group, source, "--drain-timeout", "5m", "--timeout", "10m")
    begun(member, 1)
    wait_until(lambda: bool(logged(member, "event_loop_blocked")), message="the watchdog to see it")
    [blocked] = logged(member, "event_loop_blocked")
    assert blocked["handler"] == "handle"
    assert "hold.wait()" in blocked["message"]
    member.terminate()
    member.interrupt()
    assert member.wait(30) == 3
    assert kafka.committed_offsets(group, source).get(0, 0) == 0


@PROTOCOLS
def test_H1_a_rolling_restart_handles_each_message_once(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, protocol: str
) -> None:
    source = topic(4)
    options = ("--group-protocol", protocol, "--concurrency", "4")
    produced = 0

    def produce() -> None:
        nonlocal produced
        for partition in range(4):
            kafka.produce(source, orders(*[{"sleep": 0.05}] * 25, partition=partition))
        produced += 100

    running = [start_service(members, kafka, group, source, *options) for _ in range(2)]
    everyone = list(running)
    for member in running:  # before that, a signal ends a process as any other
        member.wait_for_line(READY, timeout=60)

    def ended() -> list[str]:
        return [line.split()[0] for member in everyone for line in printed(member, "end")]

    for old in list(running):
        replacement = start_service(members, kafka, group, source, *options)
        replacement.wait_for_line(READY)
        everyone.append(replacement)
        before = len(ended())
        produce()
        wait_until(lambda before=before: len(ended()) > before, 60, "some to be handled")  # type: ignore[misc]
        old.terminate()
        produce()
        assert old.wait(60) == 0
    wait_until(
        lambda: len(set(ended())) == produced, 90, lambda: f"all to be handled; {len(set(ended()))} were"
    )
    wait_until(lambda: kafka.lag(group, source) == 0, 30, "all to be committed")
    assert len(ended()) == produced


@PROTOCOLS
def test_H1_a_member_without_partitions_leaves_too_so_that_nobody_waits_for_its_session(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, protocol: str
) -> None:
    source = topic(1)

    def member() -> Running:
        loop = loop_on(kafka, group, group_protocol=protocol, retry_topics=[])

        @loop.consumer(source)
        async def handle(value: bytes) -> None: ...

        return Running(loop)

    with member() as first, member() as second:
        both = (first, second)

        def settled() -> bool:
            assigned = sum(running.partition(source, 0) is not None for running in both)
            found = kafka.members(group)
            return len(found) == 2 and assigned == 1 and sum(map(len, found.values())) == 1

        first.until(settled, what="both to be members, and one of them to have the partition")
        idle = next(running for running in both if running.partition(source, 0) is None)
        assert idle.stop().exit_code == 0
        assert len(kafka.members(group)) == 1
    assert kafka.members(group) == {}
