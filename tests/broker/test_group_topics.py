"""Topics that grow, go, come back, or end in what is no message."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.apps import team as fixtures
from tests.broker.apps.team import LocalMember, Protocol, Team, works
from tests.broker.apps.work import Work
from tests.realkafka import KafkaCluster, Members, Record, wait_until

protocol = fixtures.protocol
team = fixtures.team


def await_partitions(topic: str, total: int, *members: LocalMember) -> None:
    """Wait until the members share so many partitions, and each has as many."""
    wait_until(
        lambda: all(
            sum(name == topic for name, _ in member.parts) == total // len(members) for member in members
        ),
        message=lambda: f"{total} partitions of {topic}, not {[sorted(each.parts) for each in members]}",
    )


def test_R12_partitions_that_are_added_while_two_members_run_are_consumed_from_their_start(
    team: Team,
) -> None:
    name = team.topic(2)
    team.send(name, works(range(5)), 0)
    a, b = team.local("a", name, start="latest"), team.local("b", name, start="latest")
    await_partitions(name, 2, a, b)
    wait_until(lambda: team.committed(name) == {0: 5, 1: 0}, message="the starts")
    team.kafka.add_partitions(name, 4)
    # Here before any member can know of them.
    team.send(name, works(range(100, 110)), 2)
    team.send(name, works(range(200, 210)), 3)
    await_partitions(name, 4, a, b)
    team.journal.await_lines("end", [*range(100, 110), *range(200, 210)])
    team.await_lag_0(name)
    assert min(team.journal.ids("start")) == 100


def test_R13_a_topic_that_is_recreated_while_two_members_run_is_handled_whole_and_nothing_of_the_old_is_left(
    team: Team,
) -> None:
    name = team.topic(2)
    for partition in range(2):
        first = partition * 100
        team.send(name, [Work(first, gate="old"), *works(range(first + 1, first + 20))], partition)
    a, b = team.local("a", name), team.local("b", name)
    await_partitions(name, 2, a, b)
    team.journal.await_lines("end", [*range(1, 20), *range(101, 120)])
    # Acknowledged beyond a message that runs: in the ledger, in the metadata, and dirty in a moment.
    wait_until(lambda: team.acknowledged(name, 0) == set(range(1, 20)), message="the metadata")
    team.kafka.delete_topic(name)
    team.topic(2, name=name)
    for partition in range(2):
        first = 1000 + partition * 100
        team.send(name, works(range(first, first + 30)), partition)
    team.open("old")
    expected = [*range(1000, 1030), *range(1100, 1130)]
    team.journal.await_lines("end", expected, timeout=60)
    team.await_lag_0(name)
    assert {line.offset for line in team.journal.lines("end") if line.id in expected} == set(range(30))
    for member in (a, b):
        assert member.loop.health().live
        assert not member.held


def test_R13_a_topic_that_was_recreated_while_all_were_stopped_is_handled_whole(team: Team) -> None:
    name = team.topic()
    team.send(name, [Work(0, gate="old"), *works(range(1, 20))])
    a = team.local("a", name, drain_timeout="0.2s")
    team.journal.await_lines("end", range(1, 20))
    wait_until(lambda: team.acknowledged(name, 0) == set(range(1, 20)), message="the metadata")
    before = team.kafka.committed(team.group, name)[0]
    a.stop()
    team.kafka.delete_topic(name)
    team.topic(name=name)
    team.send(name, works(range(1000, 1030)))
    # Somebody who keeps positions elsewhere puts them back, or the broker had kept them.
    team.kafka.commit(team.group, name, {0: (before.offset, before.metadata)})
    team.local("b", name)
    team.journal.await_lines("end", range(1000, 1030), member="b")
    team.await_lag_0(name)
    assert team.journal.ids("end", member="b") == list(range(1000, 1030))


def test_R16_a_run_until_the_end_ends_with_lag_0_though_its_partitions_end_in_transaction_markers(
    team: Team,
) -> None:
    name = team.topic(3)
    team.send(name, works(range(3)), 0)
    for partition, abort in ((0, False), (1, True), (2, False), (2, True)):
        # A committed transaction is read to its marker; an aborted one leaves offsets that nobody receives.
        record = Record(b'{"id": %d}' % (100 + partition), b"k", partition=partition)
        team.kafka.produce_transaction(name, [record], abort=abort)
    a = team.process("a", name, arguments=["--until-end"])
    assert a.process.wait(60) == 0
    assert sorted(team.journal.ids("end")) == [0, 1, 2, 100, 102]
    ends = team.kafka.end_offsets(name)
    assert ends == {0: 5, 1: 2, 2: 4}
    assert team.committed(name) == ends


def test_R11_gaps_of_aborted_transactions_and_compaction_advance_the_commit_position(team: Team) -> None:
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "100",
    }
    name = team.kafka.create_topic(1, prefix="t", config=compacted)
    same_key = [Record(b'{"id": %d}' % number, b"same") for number in range(50)]
    team.kafka.produce(name, same_key)
    team.kafka.produce_transaction(name, [Record(b'{"id": 99}', b"gone")], abort=True)

    def compacted_by_now() -> bool:
        # Only what is in an older segment is compacted, and only a later record begins a new one.
        team.send(name, [Work(100)])
        return sum(record.key == b"same" for record in team.kafka.read_all(name)) == 1

    wait_until(compacted_by_now, message="the compaction")
    team.send(name, [Work(101, gate="g")])
    stuck = team.kafka.end_offsets(name)[0] - 1
    team.local("a", name)
    team.journal.await_lines("start", [101])
    # Nothing but the message that runs holds the position: it is right behind the gaps.
    wait_until(lambda: team.committed(name) == {0: stuck}, message="the position of the message that runs")
    assert [number for number in team.journal.ids("end") if number != 100] == [49]
    team.open("g")
    team.await_lag_0(name)


def test_R17_a_topic_that_is_deleted_does_not_keep_the_commits_of_another(team: Team) -> None:
    stays, goes = team.topic(), team.topic()
    team.send(goes, [Work(0, gate="g"), *works(range(1, 10))])
    a = team.local("a", stays, goes)
    team.journal.await_lines("end", range(1, 10))
    team.kafka.delete_topic(goes)
    team.open("g")  # its acknowledgement is to be committed to what is no longer there
    team.send(stays, works(range(100, 130)))
    team.journal.await_lines("end", range(100, 130))
    team.await_lag_0(stays)
    wait_until(
        lambda: (goes, 0) not in a.parts or "topic_gone" in a.held.get((goes, 0), ()),
        message="the topic's partition held or gone",
    )
    team.send(stays, works(range(130, 140)))
    team.await_lag_0(stays)
    assert a.loop.health().live
    assert (stays, 0) not in a.held


@pytest.fixture(scope="module")
def narrow_kafka() -> Iterator[KafkaCluster]:
    """A broker that takes only short commit metadata."""
    with KafkaCluster(properties={"offset.metadata.max.bytes": "40"}) as cluster:
        yield cluster


def test_R17_metadata_that_the_broker_refuses_costs_only_that_partitions_metadata(
    narrow_kafka: KafkaCluster, protocol: Protocol, members: Members, tmp_path: Path
) -> None:
    team = Team(narrow_kafka, "narrow-" + protocol, protocol, members, tmp_path)
    try:
        name = team.topic(2)
        a = team.local("a", name)
        await_partitions(name, 2, a)
        team.send(name, [*works(range(3)), Work(3, gate="g"), *works(range(4, 20))], 0)
        team.send(name, works(range(100, 120)), 1)
        team.journal.await_lines("end", [*range(3), *range(4, 20), *range(100, 120)])
        # The stuck message holds its partition's position, and what is beyond does not fit: left out.
        wait_until(lambda: team.committed(name) == {0: 3, 1: 20}, message="both positions")
        assert team.kafka.committed(team.group, name)[0].metadata == ""
        team.send(name, works(range(120, 130)), 1)
        wait_until(lambda: team.committed(name) == {0: 3, 1: 30}, message="the other goes on")
        team.open("g")
        team.await_lag_0(name)
        assert not a.held
    finally:
        team.close()
