"""What ends a run by itself on a real broker: a fatal error, a stuck handler, a thread of ours that died."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamloop import Fatal, Message
from streamloop.kafka.poller import Poller
from tests.broker.loops.inprocess import Running, loop_on
from tests.broker.loops.processes import READY, last_words, logged, orders, printed, start_service
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.realkafka import KafkaCluster, Members


QUICK_WATCHDOG = ("--timeout", "500ms", "--kill-after", "500ms")


def test_D8_a_fatal_error_stops_the_process_with_1_and_its_message_comes_again(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({}, {}, {"do": "fatal"}, {"sleep": 0.5}))
    member = start_service(members, kafka, group, source)

    assert member.wait(60) == 1
    assert last_words(member) == (
        f"stopped at {source}/0/2: fatal error streamloop.outcomes.Fatal: the licence has run out"
    )
    [halted] = logged(member, "halted")
    assert halted["error_class"] == "streamloop.outcomes.Fatal"
    assert not any("Traceback" in line for line in member.lines)
    # What ran was finished; the fatal one is not acknowledged, so the position stays before it.
    assert len(printed(member, "end")) == 3
    assert kafka.committed_offsets(group, source) == {0: 2}
    assert kafka.members(group) == {}
    assert kafka.read_all(f"{source}.{group}.dlq") == []

    again = start_service(members, kafka, group, source)
    assert again.wait(60) == 1
    assert [line.split()[0] for line in printed(again, "begin")] == [f"{source}/0/2"]


def test_D8_a_fatal_cause_counts(kafka: KafkaCluster, topic: Callable[..., str], group: str) -> None:
    source = topic()
    kafka.produce(source, [b"a", b"b"])
    loop = loop_on(kafka, group)

    class ConnectionPoolGone(Exception):
        pass

    @loop.consumer(source, fatal=[ConnectionPoolGone], ordering="partition", retry_topics=[])
    async def handle(value: bytes) -> None:
        if value == b"b":
            try:
                raise ConnectionPoolGone("closed")
            except ConnectionPoolGone as error:
                raise ValueError("could not charge") from error

    with Running(loop) as running:
        result = running.wait()
    assert result.exit_code == 1
    assert f"{source}/0/1" in result.reason
    assert kafka.committed_offsets(group, source) == {0: 1}


def test_a_fatal_error_ends_the_run_in_code_with_its_result_and_the_counts(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, [b"a", b"b", b"c"])
    loop = loop_on(kafka, group)

    @loop.consumer(source, ordering="partition")
    def handle(value: bytes) -> None:
        if value == b"b":
            raise Fatal("stop")

    with Running(loop) as running:
        result = running.wait()
    assert (result.exit_code, result.counts["handle"]["acked"], result.hanging) == (1, 1, ())


@pytest.mark.parametrize(("module", "do"), [("service", "swallow"), ("threads", "hang")])
def test_H2_a_handler_that_does_not_come_back_ends_the_process_with_70(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, module: str, do: str
) -> None:
    source = topic()
    kafka.produce(source, orders({}, {"do": do}, {}))
    member = start_service(members, kafka, group, source, *QUICK_WATCHDOG, module=module)

    assert member.wait(60) == 70
    [stuck] = logged(member, "handler_stuck")
    assert f"{source}/0/1" in stuck["message"]
    assert f"loops/{module}.py" in stuck["message"]
    assert last_words(member) == "handler handle did not come back within kill_after of its timeout"
    assert kafka.committed_offsets(group, source) == {0: 1}
    assert kafka.members(group) == {}


def test_H8_a_handler_that_blocks_the_event_loop_is_named_and_ends_the_process_with_70(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({"do": "block"}))
    member = start_service(members, kafka, group, source, "--timeout", "2s", "--kill-after", "1s")

    assert member.wait(60) == 70
    [blocked] = logged(member, "event_loop_blocked")
    assert blocked["handler"] == "handle"
    assert "hold.wait()" in blocked["message"]
    assert kafka.committed_offsets(group, source).get(0, 0) == 0


def test_H8_a_handler_that_holds_the_interpreters_lock_is_ended_by_a_timer_in_c(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({"do": "hold the lock"}))
    member = start_service(members, kafka, group, source, *QUICK_WATCHDOG)

    assert member.wait(90) == 1
    assert any("Timeout (" in line for line in member.lines)
    assert any("service.py" in line and "in handle" in line for line in member.lines)
    assert kafka.committed_offsets(group, source).get(0, 0) == 0


@pytest.mark.parametrize("part", ["POLLER", "PUBLISHER"])
def test_H4_a_thread_of_ours_that_dies_takes_the_process_out_of_the_group_with_1(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, tmp_path: Path, part: str
) -> None:
    source = topic()
    flag = tmp_path / "break"
    member = start_service(members, kafka, group, source, env={f"BREAK_{part}": str(flag)})
    member.wait_for_line(READY)
    kafka.produce(source, orders({}, {"do": "reject"}))
    wait_until(lambda: kafka.committed_offsets(group, source) == {0: 2}, 60, "both to be acknowledged")
    flag.touch()

    assert member.wait(60) == 1
    assert "a bug that nobody knows" in last_words(member)
    assert printed(member, "shutdown") == ['{"live": false, "ready": false}']
    assert kafka.members(group) == {}
    assert kafka.members(f"{group}.retry") == {}


def test_H4_liveness_fails_while_a_dead_poller_is_drained(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic(2)
    kafka.produce(source, orders({}) + orders({}, partition=1))
    loop = loop_on(kafka, group)
    seen: list[Message] = []
    broken = False

    @loop.consumer(source)
    async def handle(value: bytes, message: Message) -> None:
        seen.append(message)

    whole = Poller._turn

    def turn(self: Poller) -> None:
        if broken and self.label == "source":
            raise RuntimeError("a bug")
        whole(self)

    monkeypatch.setattr(Poller, "_turn", turn)
    live: list[bool] = []

    @loop.on_shutdown
    async def look() -> None:
        live.append(loop.health().live)

    with Running(loop) as running:
        running.until(lambda: len(seen) == 2)
        assert loop.health().live
        broken = True
        result = running.wait()
    assert result.exit_code == 1
    assert "a poller's thread ended: a bug" in result.reason
    assert live == [False]
