"""What a rebalance does to messages that are queued, running, or waiting for their retry."""

from collections.abc import Callable
from typing import Any

from tests.broker.apps import team as fixtures
from tests.broker.apps.team import LocalMember, Part, Team, now, works
from tests.broker.apps.work import Work
from tests.realkafka import wait_until

protocol = fixtures.protocol
team = fixtures.team

HANDLER_KEEPS_GOING = {"kill_after": "60s"}


def assigned(member: LocalMember, topic: str, count: int) -> Callable[[], bool]:
    """Whether the member has so many partitions of the topic."""
    return lambda: sum(name == topic for name, _ in member.parts) == count


def all_held(member: LocalMember, count: int) -> Callable[[], bool]:
    """Whether it has so many partitions, each held because of the pressure."""
    return lambda: (
        [reasons for reasons in member.held.values() if "watermark" in reasons] == [*member.held.values()]
        and len(member.held) == len(member.parts) == count
    )


def moved(before: LocalMember, after: LocalMember, topic: str) -> Part:
    """Wait until one of two partitions is the new member's; which one."""
    wait_until(
        lambda: assigned(after, topic, 1)() and assigned(before, topic, 1)(), message="one partition each"
    )
    (part,) = [name for name in after.parts if name[0] == topic]
    return part


def other(part: Part) -> int:
    return 1 - part[1]


def test_B2_full_when_a_member_joins_and_leaves_every_partition_obeys_the_pressure_and_resumes_below_low(
    team: Team,
) -> None:
    name, high, each = team.topic(4), 40, 60
    for partition in range(4):
        team.send(name, works(range(partition * each, (partition + 1) * each), gate="g"), partition)
    settings: dict[str, Any] = {
        "high_watermark_messages": high,
        "dwell": "0.2s",
        "concurrency": 10,
        "revoke_wait": "0.5s",
    }
    a = team.local("a", name, **settings)
    wait_until(all_held(a, 4), message="all four held by a")

    b = team.local("b", name, **settings)
    wait_until(assigned(b, name, 2), message="two partitions for b")
    wait_until(assigned(a, name, 2), message="two partitions left for a")
    # What left gave its place back, and what stayed takes it: both fill up, and hold what they have.
    for member in (a, b):
        wait_until(all_held(member, 2), message=f"both partitions held by {member.name}")
    b.stop()
    wait_until(all_held(a, 4), message="four partitions for a again, those that came held as well")
    assert not team.journal.lines("end")

    team.open("g")
    team.journal.await_lines("end", range(4 * each))
    team.await_lag_0(name)
    (intake,) = a.status.intakes
    assert high <= intake.peak_messages <= high + 10
    assert a.held == {}
    assert a.status.held_seconds["watermark"] > 0


def test_R1_revoked_while_a_message_waits_for_its_retry_nothing_is_committed_and_the_counters_return_to_zero(
    team: Team,
) -> None:
    name = team.topic(2)
    waits: dict[str, Any] = {"consumer": {"in_place_attempts": 5, "delay": lambda _attempt, _failure: 120.0}}
    # The broker decides which of the two moves.
    team.send(name, [Work(0, fails=1)], 0)
    team.send(name, [Work(1, fails=1)], 1)
    a = team.local("a", name, **waits)
    team.journal.await_lines("failed", [0, 1])
    wait_until(lambda: a.status.consumers[0].waiting == 2, message="both waiting for their retry")
    assert a.status.intakes[0].buffered == 2

    b = team.local("b", name, **waits)
    left = moved(a, b, name)
    assert a.status.consumers[0].waiting == 1
    assert a.status.intakes[0].buffered == 1
    # The new owner begins at the message, with its first attempt: nothing was committed beyond it.
    wait_until(lambda: team.journal.lines("failed", member="b"), message="the attempt of the new owner")
    (line,) = team.journal.lines("failed", member="b")
    assert (line.partition, line.offset, line.attempt) == (left[1], 0, 1)
    assert team.committed(name) == {0: 0, 1: 0}
    # The polling goes on: what comes is handled, behind the message that waits.
    team.send(name, works([10, 11]), 0)
    team.send(name, works([20, 21]), 1)
    team.journal.await_lines("end", [10, 11, 20, 21])
    assert team.committed(name) == {0: 0, 1: 0}


def test_R2_what_was_fetched_and_not_started_at_the_revoke_is_handled_by_the_next_owner_alone(
    team: Team,
) -> None:
    name = team.topic(2)
    numbers = {partition: range(partition * 100, partition * 100 + 20) for partition in range(2)}
    for partition, ids in numbers.items():
        team.send(name, works(ids, gate="g"), partition)
    settings: dict[str, Any] = {"ordering": "partition", "concurrency": 2, "revoke_wait": "0.5s"}
    a = team.local("a", name, **settings)
    team.journal.await_lines("start", [0, 100])
    wait_until(lambda: a.status.intakes[0].buffered == 40, message="all fetched")

    b = team.local("b", name, **settings)
    left = moved(a, b, name)
    assert team.committed(name) == {0: 0, 1: 0}
    team.open("g.b")
    ids = numbers[left[1]]
    team.journal.await_lines("end", ids, member="b")
    assert team.journal.ids("start", member="b") == list(ids)
    # a had begun with the first one only, which was asked to stop.
    assert set(team.journal.ids("start", member="a")) == {0, 100}
    assert team.journal.ids("cancelled", member="a") == [ids[0]]
    wait_until(lambda: team.committed(name) == {left[1]: 20, other(left): 0}, message="b's commit")


def test_R3_a_handler_that_outlives_its_epoch_acknowledges_nothing_though_its_member_has_the_partition_again(
    team: Team,
) -> None:
    name = team.topic(2)
    team.send(name, [Work(0, gate="g", stubborn=True)], 0)
    team.send(name, [Work(1, gate="g", stubborn=True)], 1)
    settings: dict[str, Any] = {
        "revoke_wait": "0.3s",
        "drain_timeout": "0.2s",
        "consumer": HANDLER_KEEPS_GOING,
    }
    a = team.local("a", name, **settings)
    team.journal.await_lines("start", [0, 1])
    first = {part: status.epoch for part, status in a.parts.items()}

    b = team.local("b", name, **settings)
    left = moved(a, b, name)
    number = left[1]
    team.journal.await_lines("start", [number], member="b")
    b.loop.stop()  # without having finished it
    wait_until(assigned(a, name, 2), message="both partitions back at a")
    assert a.parts[left].epoch > first[left]
    wait_until(lambda: a.parts[left].buffered == 1, message="the message redelivered to a")
    # Its old handler runs still, so the new one must wait: a key is never handled twice at once here.
    assert team.journal.lines("start", member="a", number=number)[-1].run == 1

    team.open("g.a.1")
    team.journal.await_lines("end", [0, 1], member="a")
    wait_until(
        lambda: len(team.journal.lines("start", member="a", number=number)) == 2, message="the new one"
    )
    assert [
        line.event for line in team.journal.lines(member="a", number=number) if line.event != "cancelled"
    ] == [
        "start",
        "end",
        "start",
    ]
    assert a.counts["late"] == 1
    # The partition that stayed was acknowledged by its handler; of the one that moved nothing is.
    wait_until(lambda: team.committed(name)[other(left)] == 1, message="the commit of the other")
    assert team.committed(name)[number] == 0
    assert team.acknowledged(name, number) == set()
    assert a.parts[left].committable == 0

    team.open("g.a")
    wait_until(lambda: team.committed(name) == {0: 1, 1: 1}, message="the commit of the new epoch")


def test_R7_on_revoke_handlers_get_their_time_what_finished_is_committed_only_the_rest_comes_again(
    team: Team,
) -> None:
    name = team.topic(2)
    for partition in range(2):
        slow, quick = partition * 10, partition * 10 + 1
        team.send(name, [Work(slow, gate="never"), Work(quick, gate="g")], partition)
    a = team.local("a", name, revoke_wait="3s")
    team.journal.await_lines("start", [0, 1, 10, 11])

    joined = now()
    b = team.local("b", name)
    # While the callback waits, nothing is decided yet: one of the two finishes in that time.
    wait_until(lambda: a.rebalances()["revoked"], message="the revoke")
    team.open("g")
    left = moved(a, b, name)
    slow, quick = left[1] * 10, left[1] * 10 + 1
    team.journal.await_lines("start", [slow], member="b")
    assert team.journal.ids("start", member="b") == [slow]
    assert team.journal.ids("end", member="a").count(quick) == 1
    (cancelled,) = team.journal.lines("cancelled", member="a", number=slow)
    assert cancelled.at - joined >= 3.0
    assert b.counts["restored"] == 1
    assert team.acknowledged(name, left[1]) == {1}
    team.open("never")
    team.await_lag_0(name)
    assert sorted(team.journal.ids("end")) == [0, 1, 10, 11]
