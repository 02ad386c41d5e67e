"""Commits that are under way, or refused, while the group rebalances."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest
from confluent_kafka import Consumer

from tests.broker.apps import team as fixtures
from tests.broker.apps.team import HEARTBEAT_MS, LocalMember, Team, works
from tests.realkafka import wait_until

protocol = fixtures.protocol
team = fixtures.team

ROUNDS = 4


@contextmanager
def passer_by(team: Team, topic: str) -> Iterator[None]:
    """Another program that joins the group, gets a partition, and leaves it untouched."""
    config: dict[str, Any] = {
        "bootstrap.servers": team.kafka.bootstrap,
        "group.id": team.group,
        "group.protocol": team.protocol,
        "enable.auto.commit": False,
        "log_level": 0,
    }
    if team.protocol == "classic":
        config |= {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": int(team.session * 1000),
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    try:
        wait_until(lambda: consumer.poll(0.02) is not None or consumer.assignment(), message="its partition")
        yield
    finally:
        consumer.close()


class Watching:
    """Looks at the committed offsets all the time, and keeps those that went back."""

    def __init__(self, team: Team, topic: str) -> None:
        self._team, self._topic = team, topic
        self._stop = threading.Event()
        self.went_back: list[tuple[dict[int, int], dict[int, int]]] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        before: dict[int, int] = {}
        while not self._stop.wait(0.02):
            seen = self._team.committed(self._topic)
            if any(seen[partition] < offset for partition, offset in before.items()):
                self.went_back.append((before, seen))
            before = seen
            self.looks += 1


def commits(member: LocalMember) -> Counter[str]:
    """Partitions by what became of their commit."""
    found: Counter[str] = Counter()
    for labels, value in member.loop.metrics().get("loop_commits_total", {}).items():
        given = dict(labels)
        if given["consumer"] == "source":
            found[given["result"]] += int(value)
    return found


def await_commits(member: LocalMember) -> None:
    """Wait until some more were confirmed."""
    before = commits(member)["ok"]
    wait_until(lambda: commits(member)["ok"] > before + 5, message="commits")


def await_revokes(member: LocalMember, count: int) -> None:
    """Wait until it had to give partitions away so often."""
    wait_until(lambda: member.rebalances()["revoked"] >= count, message=f"revoke {count} of {member.name}")


def test_R4_R5_commits_in_flight_or_refused_while_the_group_rebalances_lose_and_repeat_nothing(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    name, count = team.topic(4), 1500
    for partition in range(4):
        first = partition * count
        team.send(name, works(range(first, first + count), seconds=0.02), partition)
    # One is nearly always in flight, and each rebalance comes upon some.
    a = team.local("a", name, commit_interval="10ms", concurrency=4)
    await_commits(a)
    with Watching(team, name) as watching:
        for number in range(1, ROUNDS + 1):
            with passer_by(team, name):
                await_revokes(a, number)
                await_commits(a)
            wait_until(lambda: len(a.parts) == 4, message="all partitions back")
            await_commits(a)
    if team.protocol == "classic":
        # The broker refuses what comes between a member's join and its assignment.
        assert commits(a)["rebalance"] > 0
    assert a.rebalances()["lost"] == 0
    assert a.stop().exit_code == 0

    assert watching.looks > ROUNDS
    assert watching.went_back == []
    assert not [each for each in caplog.records if getattr(each, "kind", "") == "revoke_wait_over"]
    # Whatever was refused went with a later commit: the broker has all that was handled, and no more.
    for partition in range(4):
        handled = {line.offset for line in team.journal.lines("end") if line.partition == partition}
        assert team.acknowledged(name, partition) == handled
    assert set(team.journal.times("start").values()) == {1}
