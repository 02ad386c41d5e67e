"""Members that are killed, stopped, restarted: nothing is lost, only what was not committed comes again."""

import random
from typing import Any

from tests.broker.apps import team as fixtures
from tests.broker.apps.team import ProcessMember, Team, now, works
from tests.broker.apps.work import Work
from tests.realkafka import wait_until

protocol = fixtures.protocol
team = fixtures.team


def assigned(member: ProcessMember, topic: str, count: int) -> None:
    """Wait until the member says that it has so many partitions of the topic."""
    wait_until(
        lambda: sum(name == topic for name, _ in member.parts()) == count,
        message=lambda: f"{count} partitions for {member.name}, not {sorted(member.parts())}",
    )


def test_R8_killed_with_one_message_stuck_only_that_one_and_what_was_in_flight_come_again(team: Team) -> None:
    name = team.topic()
    team.send(name, [Work(0, gate="stuck")])
    team.send(name, works(range(1, 100)))
    team.send(name, works(range(100, 105), gate="flight"))
    a = team.process("a", name)
    team.journal.await_lines("end", range(1, 100))
    team.journal.await_lines("start", [0, *range(100, 105)])
    wait_until(lambda: team.acknowledged(name, 0) == set(range(1, 100)), message="all of it committed")
    assert team.committed(name) == {0: 0}
    a.process.kill()

    team.open("stuck")
    team.open("flight")
    team.process("b", name, arguments=["--until-end"]).process.wait(60)
    assert sorted(team.journal.ids("start", member="b")) == [0, *range(100, 105)]
    assert team.committed(name) == {0: 105}
    assert set(team.journal.times("end")) == set(range(105))


def test_R18_what_arrives_after_the_first_assignment_at_latest_is_not_skipped_by_a_crash(team: Team) -> None:
    name = team.topic(2)
    for partition in range(2):
        team.send(name, works(range(40)), partition)
    a = team.process("a", name, start="latest")
    # Nothing was handled yet, but from here on everything is this group's.
    wait_until(lambda: team.committed(name) == {0: 40, 1: 40}, message="the numbers that it starts at")
    a.process.kill()
    for partition in range(2):
        first = 100 * (partition + 1)
        team.send(name, works(range(first, first + 5)), partition)

    b = team.process("b", name, start="latest")
    expected = [*range(100, 105), *range(200, 205)]
    team.journal.await_lines("end", expected)
    # And so it stays when a handler runs at the crash.
    team.send(name, works([300], gate="g"), 0)
    team.send(name, works([301]), 1)
    team.journal.await_lines("start", [300])
    b.process.kill()
    team.open("g")
    team.process("c", name, start="latest")
    team.journal.await_lines("end", [*expected, 300, 301])
    assert min(team.journal.ids("start")) == 100


def test_R6_what_was_acknowledged_and_not_committed_when_the_member_is_lost_is_never_committed(
    team: Team,
) -> None:
    name = team.topic(2)
    team.send(name, works([99]), 0)
    a = team.process("a", name, commit_interval="60s")
    wait_until(lambda: team.committed(name) == {0: 1, 1: 0}, message="the first commit, which does not wait")
    # One partition is quiet, and its acknowledgements wait for the next commit; in the other a handler runs.
    team.open("halfway.a")
    team.send(name, [*works(range(5)), Work(5, gate="halfway"), *works(range(6, 10))], 0)
    team.send(name, [Work(10, gate="g", stubborn=True)], 1)
    team.journal.await_lines("end", range(10), member="a")
    team.journal.await_lines("start", [10], member="a")
    a.process.suspend()

    # The new owner is not as far as a was: any commit of a's would be seen.
    b = team.local("b", name, ordering="partition", concurrency=2)
    team.journal.await_lines("start", [5, 10], member="b", timeout=60)
    wait_until(lambda: team.committed(name) == {0: 6, 1: 0}, message="b's commit")
    a.process.resume()
    wait_until(lambda: a.log("lost"), timeout=60, message="a's loss")
    team.open("g.a")
    team.journal.await_lines("end", [10], member="a")
    a.process.terminate()
    assert a.process.wait(60) == 0
    assert team.committed(name) == {0: 6, 1: 0}
    assert team.acknowledged(name, 0) == set(range(6))
    assert team.acknowledged(name, 1) == set()
    assert b.rebalances()["lost"] == 0
    team.open("halfway")
    team.open("g")
    team.await_lag_0(name)
    assert sorted(team.journal.ids("end", member="b")) == list(range(11))


def test_R15_stopped_for_longer_than_its_session_it_handles_nothing_stale_and_rewinds_nobody(
    team: Team,
) -> None:
    name = team.topic()
    count = 400
    team.send(name, [*works(range(4)), Work(4, gate="g"), *works(range(5, count))])
    a = team.process("a", name, ordering="partition", concurrency=1)
    team.journal.await_lines("start", [4], member="a")
    wait_until(lambda: a.parts().get((name, 0), {}).get("buffered") == count - 4, message="all fetched by a")
    a.process.suspend()
    stopped = now()

    team.open("g.b")
    b = team.local("b", name, ordering="none", concurrency=100)
    team.journal.await_lines("end", range(4, count), member="b", timeout=60)
    team.await_lag_0(name)
    # With the consumer protocol a member does not know its session; a stall is looked into after 10 s.
    wait_until(lambda: now() - stopped > (11 if team.protocol == "consumer" else 0), message="the stall")
    began = [line.id for line in team.journal.lines("start", member="a")]
    # When it is continued its handler returns at once, and what is queued behind could start before its
    # poller has heard anything of the group.
    team.open("g.a")
    a.process.resume()
    wait_until(lambda: a.log("lost"), timeout=60, message="a's loss")
    # What it had fetched is b's: whatever a starts from here on is what the group gives it anew.
    assert [line.id for line in team.journal.lines("start", member="a")] == began
    assert team.committed(name) == {0: count}
    b.stop()
    assigned(a, name, 1)
    team.send(name, works([count]))
    team.journal.await_lines("end", [count], member="a")
    assert [line.id for line in team.journal.lines("start", member="a")] == [*began, count]
    wait_until(lambda: team.committed(name) == {0: count + 1}, message="the commit of what came")


def test_H1_a_rolling_restart_of_three_members_handles_each_message_once(team: Team) -> None:
    name = team.topic(6)
    sent = 0

    def send_more() -> None:
        nonlocal sent
        team.send(name, works(range(sent, sent + 60), seconds=0.05))
        sent += 60

    send_more()
    old = [team.process(f"old-{n}", name, concurrency=4) for n in range(3)]
    for member in old:
        assigned(member, name, 2)
    for number, member in enumerate(old):
        send_more()
        wait_until(
            lambda member=member: any(  # type: ignore[misc]
                line.event == "start" for line in team.journal.lines(member=member.name)[-1:]
            ),
            message="a handler that runs",
        )
        member.process.terminate()
        send_more()
        assert member.process.wait(30) == 0
        new = team.process(f"new-{number}", name, concurrency=4)
        assigned(new, name, 2)
    send_more()
    team.journal.await_lines("end", range(sent))
    team.await_lag_0(name)
    assert team.journal.times("end") == dict.fromkeys(range(sent), 1)
    assert team.journal.times("start") == dict.fromkeys(range(sent), 1)


def test_H3_killed_at_random_moments_nothing_is_lost_and_nothing_committed_comes_again(team: Team) -> None:
    name = team.topic(4)
    rng = random.Random(848)
    kills, batch = 4, 150
    committed: list[tuple[float, dict[int, set[int]]]] = []
    names = (f"m{n}" for n in range(100))
    settings: dict[str, Any] = {"concurrency": 8, "high_watermark_messages": 50}
    running = [team.process(next(names), name, **settings) for _ in range(2)]
    sent = 0
    for _ in range(kills):
        works_now = [Work(n, seconds=rng.choice([0, 0.01, 0.05])) for n in range(sent, sent + batch)]
        team.send(name, works_now)
        sent += batch
        team.journal.await_lines("end", rng.sample(range(sent - batch, sent), 1), timeout=60)
        victim = running.pop(rng.randrange(len(running)))
        victim.process.kill()
        seen = {n: team.acknowledged(name, n) for n in range(4)}
        committed.append((now(), seen))
        running.append(team.process(next(names), name, **settings))
    team.journal.await_lines("end", range(sent), timeout=60)
    team.await_lag_0(name, timeout=60)

    lines = team.journal.lines("start")
    for at, done in committed:
        again = [line for line in lines if line.at > at and line.offset in done[line.partition]]
        assert not again, "committed, and handled again"
    # What comes again was in the buffer of a member that was killed: never more than its watermark.
    assert len(lines) - sent <= kills * 50
