"""The group acts as one, through its control topic, on a real Apache Kafka."""

import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from streamloop.cli.main import main
from streamloop.control.link import ControlLink
from streamloop.control.outside import GroupControl
from streamloop.control.records import Scope
from streamloop.control.view import GroupView
from streamloop.settings import Settings
from tests.broker.apps import team as fixtures
from tests.broker.apps.team import LocalMember, Protocol, Team, works
from tests.realkafka import Record, wait_until

team = fixtures.team


@pytest.fixture
def protocol() -> Protocol:
    """The control topic knows nothing of the group's protocol: one is enough."""
    return "consumer"


def control(team: Team) -> str:
    return f"{team.group}.control"


def link(member: LocalMember) -> ControlLink:
    run = wait_until(lambda: member.loop._run, message="a run")
    assert run is not None
    found = wait_until(lambda: run.control, message="the link")
    assert found is not None
    return found


def cli(team: Team, *arguments: str) -> Result:
    """A command beside the group, with its settings."""
    given = [*arguments, "--brokers", team.kafka.bootstrap, "--group", team.group]
    return CliRunner().invoke(main, given, catch_exceptions=False)


def looked(team: Team) -> GroupView:
    """The group, as somebody sees it who is no member."""
    settings = Settings.load({"brokers": team.kafka.bootstrap, "group": team.group}).settings
    with GroupControl(settings) as outside:
        return outside.view()


def held(member: LocalMember, topic: str, count: int) -> bool:
    mine = [reasons for (name, _), reasons in member.held.items() if name == topic]
    return len(mine) == count and all("operator" in reasons for reasons in mine)


def test_a_pause_holds_every_member_and_those_that_come_later_until_it_is_resumed(team: Team) -> None:
    name = team.topic(6)
    a, b = team.local("a", name), team.local("b", name)
    wait_until(lambda: len(a.parts) == 3 and len(b.parts) == 3, message="three partitions each")
    wait_until(lambda: link(a).on and link(b).on, message="the control topic")
    assert team.kafka.topic_config(control(team))["cleanup.policy"] == "compact"

    paused = cli(team, "pause", "--reason", "bad deploy", "--by", "alice")
    assert (paused.exit_code, "bad deploy" in paused.output) == (0, True), paused.output
    assert "applied by a, b" in paused.output
    assert held(a, name, 3)
    assert held(b, name, 3)
    detail = a.parts[name, a.status.partitions[0].partition].held["operator"]
    assert "by alice" in detail
    assert "bad deploy" in detail
    [shown] = a.status.paused
    assert (shown.scope, shown.topic, shown.by, shown.reason) == ("group", None, "alice", "bad deploy")

    # A third one takes partitions over, a restarted one finds its own: neither handles anything.
    for partition in range(6):
        team.send(name, works(range(partition * 10, partition * 10 + 10)), partition)
    c = team.local("c", name)
    wait_until(lambda: all(held(each, name, 2) for each in (a, b, c)), message="two held each")
    b.stop()
    again = team.local("b2", name)
    wait_until(lambda: held(again, name, 2), message="the restarted member's hold")
    assert team.journal.lines("start") == []

    resumed = cli(team, "resume", "--by", "bob")
    assert (resumed.exit_code, "resumed" in resumed.output) == (0, True), resumed.output
    team.journal.await_lines("end", range(60))
    team.await_lag_0(name)
    assert team.journal.times("start") == dict.fromkeys(range(60), 1)
    wait_until(lambda: not any(each.held for each in (a, c, again)), message="nothing held")


def test_a_topic_or_a_partition_can_be_held_alone_and_what_nobody_reads_is_refused(team: Team) -> None:
    name, other = team.topic(2), team.topic(1)
    a = team.local("a", name, other)
    wait_until(lambda: len(a.parts) == 3 and link(a).on, message="the member")
    wait_until(lambda: looked(team).topics, message="its status")
    refused = cli(team, "pause", "orderz")
    assert refused.exit_code == 2
    assert "No member" in refused.output
    assert cli(team, "pause", f"{name}/1").exit_code == 0
    assert set(a.held) == {(name, 1)}
    assert cli(team, "pause", other).exit_code == 0
    assert set(a.held) == {(name, 1), (other, 0)}
    assert "was not paused" in cli(team, "resume", name).output
    assert set(a.held) == {(name, 1), (other, 0)}
    seen = cli(team, "group")
    assert seen.exit_code == 0
    assert f"paused: {name}/1" in seen.output
    assert "3 partitions, 2 held" in seen.output
    left = cli(team, "resume", other)
    assert f"still paused: {name}/1" in left.output
    assert set(a.held) == {(name, 1)}
    assert cli(team, "resume").exit_code == 0
    assert a.held == {}


def test_a_member_that_was_killed_is_gone_one_that_left_is_not_there_and_the_table_has_each_partition_once(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = team.topic(4)
    a, b = team.local("a", name), team.local("b", name)
    killed = team.process("killed", name)
    wait_until(lambda: link(a).on, message="the topic")
    wait_until(lambda: {each.name for each in looked(team).members} == {"a", "b", "killed"}, 30, "three")

    def whole() -> bool:
        view = looked(team)
        return len(view.partitions) == 4 and {each.member for each in view.partitions} == {"a", "b", "killed"}

    wait_until(whole, 30, "everybody's partitions")
    killed.process.kill()
    b.stop()
    wait_until(lambda: {each.name for each in looked(team).members} == {"a", "killed"}, message="b has left")
    state = link(a).state
    monkeypatch.setattr(state, "_clock", lambda: time.monotonic() + 46)  # as if that time had passed
    wait_until(
        lambda: (
            {each.name: each.gone_since is None for each in link(a).view().members}
            == {"a": True, "killed": False}
        ),
        30,
        "one gone, and one that is heard of",
    )
    wait_until(
        lambda: [each.member for each in link(a).view().partitions] == ["a"] * 4, 30, "all four partitions"
    )


def test_a_topic_that_may_not_be_made_leaves_each_member_on_its_own_and_it_says_so(team: Team) -> None:
    name = team.topic(1)
    a = team.local("a", name, create_topics=False)
    wait_until(lambda: len(a.parts) == 1, message="the member")
    shown = a.status.control
    assert shown is not None
    assert (shown.state, "create_topics is off" in shown.detail) == ("off", True)
    team.send(name, works(range(5)), 0)
    team.journal.await_lines("end", range(5))
    a.loop.pause()
    wait_until(lambda: a.held == {(name, 0): {"operator"}}, message="its own pause")
    refused = cli(team, "pause")
    assert (refused.exit_code, "--config cleanup.policy=compact" in refused.output) == (1, True)
    assert not team.kafka.topic_exists(control(team))


def test_who_may_not_write_to_the_topic_still_applies_what_is_held_and_says_that_it_is_not_seen(
    team: Team,
) -> None:
    name = team.topic(1)
    before = team.local("before", name)
    wait_until(lambda: link(before).on, message="the topic")
    assert cli(team, "pause").exit_code == 0
    before.stop()
    with team.kafka.writes_forbidden(control(team)):
        a = team.local("a", name)
        wait_until(lambda: held(a, name, 1), message="the hold")
        wait_until(lambda: "may not be written" in link(a).status().detail, message="what it says")
        assert not link(a).on
        assert cli(team, "resume").exit_code == 1
    # It tries again, and is seen.
    wait_until(lambda: link(a).on, 30, "the topic, written again")
    assert cli(team, "resume").exit_code == 0
    wait_until(lambda: not a.held, message="its release")


def test_what_is_held_outlives_the_topic_that_said_so(team: Team) -> None:
    name = team.topic(1)
    a = team.local("a", name)
    wait_until(lambda: link(a).on, message="the topic")
    assert cli(team, "pause", "--by", "alice", "--reason", "audit").exit_code == 0
    former = link(a)._topic_id
    team.kafka.delete_topic(control(team))
    wait_until(lambda: link(a).on and link(a)._topic_id != former, 40, "another topic")
    assert held(a, name, 1)
    wait_until(lambda: team.kafka.end_offsets(control(team))[0] >= 2, message="what was written again")
    [hold] = looked(team).holds
    assert (hold.scope, hold.by, hold.reason) == (Scope(), "alice", "audit")
    assert held(a, name, 1)
    assert cli(team, "resume").exit_code == 0
    wait_until(lambda: not a.held, message="its release")


def test_a_flood_of_hostile_records_is_ignored_and_bounded_and_the_pause_comes_through(team: Team) -> None:
    name = team.topic(1)
    flood: list[Any] = [
        *(Record(b"x" * 200, b"other/%d" % each, partition=0) for each in range(20_000)),
        *(Record(b'{"v":1,"kind":"status","record":{"member":%d}}' % each, b"status/%d" % each, partition=0)
          for each in range(3_000)),
        *(Record(b"[" * 100_000, b"status/deep", partition=0) for _ in range(3)),
        *(Record(b'{"v":1,' + b"x" * 700_000, b"status/large-%d" % each, partition=0) for each in range(20)),
        *(Record(b'{"v":9}', b"operator/*", partition=0) for _ in range(3)),
        Record(b'{"v":1,"kind":"operator","by":7,"since":1e999}', b"operator/t", partition=0),
        Record(None, b"operator/\xff", partition=0),
        Record(b"no key", None, partition=0),
    ]  # fmt: skip
    team.kafka.create_topic(1, name=control(team))  # not compacted: a null key is taken
    team.kafka.produce(control(team), flood)
    a = team.local("a", name)
    wait_until(lambda: link(a).on, 30, "the topic, read to its end")
    state = link(a).state
    assert len(state.members) <= 1_000
    assert state.ignored["no key of ours"] == 20_002
    assert state.ignored["too large"] == 20
    assert state.ignored["another version"] > 0
    assert cli(team, "pause").exit_code == 0
    assert held(a, name, 1)
    team.kafka.produce(control(team), flood)
    assert cli(team, "resume", "--wait", "30s").exit_code == 0
    wait_until(lambda: not a.held, message="its release")
    view = looked(team)
    assert [each.name for each in view.here] == ["a"]
    team.send(name, works(range(5)), 0)
    team.journal.await_lines("end", range(5))
