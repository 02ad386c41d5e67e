"""What holds partitions or handlers for a long time costs no member its place in the group."""

from collections.abc import Callable
from typing import Any

from tests.broker.apps import team as fixtures
from tests.broker.apps.team import LocalMember, Team, now, works
from tests.broker.apps.work import Work
from tests.realkafka import wait_until

protocol = fixtures.protocol
team = fixtures.team

POLL_INTERVAL = 6.0
"""Seconds: max.poll.interval.ms of these members."""
IMPATIENT = {"max.poll.interval.ms": int(POLL_INTERVAL * 1000)}


def has(member: LocalMember, topic: str, count: int) -> Callable[[], bool]:
    """Whether the member has so many partitions of the topic."""
    return lambda: sum(name == topic for name, _ in member.parts) == count


def epochs(*members: LocalMember) -> list[dict[Any, int]]:
    """The epoch of each partition: it changes with every assignment."""
    return [{name: part.epoch for name, part in member.parts.items()} for member in members]


def test_B3_paused_for_a_retry_delay_lost_and_gained_again_it_flows_for_each_owner_when_it_is_due(
    team: Team,
) -> None:
    name = team.topic(2)
    retry = f"{name}.{team.group}.retry.5s"
    settings: dict[str, Any] = {"retry_topics": "5s", "in_place_attempts": 1}
    a = team.local("a", name, **settings)
    team.send(name, [Work(0, fails=1)], 0)
    team.send(name, [Work(1, fails=1)], 1)
    wait_until(
        lambda: all("retry_not_due" in a.held.get((retry, partition), ()) for partition in range(2)),
        message="both retry partitions held by a",
    )
    b = team.local("b", name, **settings)
    wait_until(lambda: has(b, retry, 1)() and has(a, retry, 1)(), message="a retry partition each")
    ((_, moved),) = [part for part in b.parts if part[0] == retry]
    assert not team.journal.lines("end")
    team.journal.await_lines("end", [moved], member="b")
    team.journal.await_lines("end", [1 - moved], member="a")

    # b is left holding it, and a, whose client has not forgotten its pause of before, gets it back.
    team.send(name, [Work(2, fails=1)], moved)
    wait_until(lambda: "retry_not_due" in b.held.get((retry, moved), ()), message="the hold at b")
    b.stop()
    wait_until(has(a, retry, 2), message="both retry partitions at a")
    assert 2 not in team.journal.ids("end")
    team.journal.await_lines("end", [2], member="a")
    wait_until(lambda: not a.held, message="nothing held any more")
    for number in range(3):
        ((failed,), (end,)) = (team.journal.lines(event, number=number) for event in ("failed", "end"))
        assert end.at - failed.at > 4.5
        assert end.attempt == 2
        assert end.read_from == retry
    wait_until(lambda: team.kafka.lag(f"{team.group}.retry", retry) == 0, message="lag 0 of the retry topic")


def test_B5_everything_held_for_longer_than_max_poll_interval_and_nothing_rebalances(team: Team) -> None:
    name = team.topic(4)
    settings: dict[str, Any] = {"high_watermark_messages": 20, "dwell": "0.2s", "properties": IMPATIENT}
    a, b = (team.local(member, name, **settings) for member in "ab")
    wait_until(lambda: has(a, name, 2)() and has(b, name, 2)(), message="two partitions each")
    for partition in range(4):
        team.send(name, works(range(partition * 50, partition * 50 + 50), gate="g"), partition)
    wait_until(lambda: len(a.held) == 2 and len(b.held) == 2, message="all four held")
    before = epochs(a, b), a.rebalances(), b.rebalances(), team.kafka.members(team.group)
    since = now()
    wait_until(lambda: now() - since > POLL_INTERVAL + 1.5, message="longer than the interval")
    assert len(a.held) == len(b.held) == 2
    team.open("g")
    team.journal.await_lines("end", range(200))
    team.await_lag_0(name)
    assert (epochs(a, b), a.rebalances(), b.rebalances(), team.kafka.members(team.group)) == before
    assert team.journal.times("start") == dict.fromkeys(range(200), 1)


def test_B6_handlers_longer_than_the_session_and_the_poll_interval_on_three_members_stop_none_of_them(
    team: Team,
) -> None:
    name = team.topic(6)
    team_of_three = [
        team.local("a", name, properties=IMPATIENT),
        team.local("b", name, properties=IMPATIENT),
        team.local("c", name, properties=IMPATIENT, consumer={"threads": True}),
    ]
    wait_until(lambda: all(has(member, name, 2)() for member in team_of_three), message="two each")
    before = epochs(*team_of_three), [member.rebalances() for member in team_of_three]
    for partition in range(6):
        team.send(name, [Work(partition, seconds=POLL_INTERVAL + 1.5)], partition)
    team.journal.await_lines("start", range(6))
    # They poll: what comes meanwhile is handled meanwhile.
    for partition in range(6):
        team.send(name, [Work(10 + partition)], partition)
    team.journal.await_lines("end", range(10, 16))
    assert not set(team.journal.ids("end")) & set(range(6))
    assert all(member.loop.health().live for member in team_of_three)
    team.journal.await_lines("end", range(6))
    team.await_lag_0(name)
    assert (epochs(*team_of_three), [member.rebalances() for member in team_of_three]) == before
    assert set(team.journal.times("start").values()) == {1}
