"""Commit metadata that does not belong to what is seen at the assignment skips nothing."""

import pytest

from tests.broker.apps import team as fixtures
from tests.broker.apps.team import Team, works
from tests.broker.apps.work import Work
from tests.realkafka import wait_until
from tests.realkafka.client import unique_name

protocol = fixtures.protocol
team = fixtures.team

SOMEBODYS = (
    "checkpoint 17 of the nightly job",
    "sl9.AAECAwQFBgcICQ",
    "sl1.no base64 at all",
    '{"done": [6]}',
)


def ignored(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that metadata is not believed."""
    return [each.getMessage() for each in caplog.records if getattr(each, "kind", None) == "metadata_ignored"]


def test_R9_metadata_of_another_program_or_a_newer_version_is_ignored_with_a_warning(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    name = team.topic(len(SOMEBODYS))
    for partition in range(len(SOMEBODYS)):
        team.send(name, works(range(partition * 10, partition * 10 + 10)), partition)
    team.kafka.commit(team.group, name, {number: (5, text) for number, text in enumerate(SOMEBODYS)})
    a = team.local("a", name)
    team.await_lag_0(name)
    expected = [partition * 10 + offset for partition in range(len(SOMEBODYS)) for offset in range(5, 10)]
    assert sorted(team.journal.ids("end")) == expected
    assert len(ignored(caplog)) == len(SOMEBODYS)
    assert any("another program" in text for text in ignored(caplog))
    assert any("another version" in text for text in ignored(caplog))
    assert a.loop.health().live
    # The next commit replaces it.
    done = [team.acknowledged(name, partition) for partition in range(len(SOMEBODYS))]
    assert done == [set(range(10))] * len(SOMEBODYS)


def test_R14_metadata_that_was_copied_to_another_group_topic_or_offset_skips_nothing_there(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    name = team.topic()
    team.send(name, [Work(0, gate="g"), *works(range(1, 10))])
    a = team.local("a", name)
    team.journal.await_lines("end", range(1, 10))
    wait_until(lambda: team.acknowledged(name, 0) == set(range(1, 10)), message="the metadata")
    text = team.kafka.committed(team.group, name)[0].metadata
    assert a.stop().exit_code == 3  # its first message is stuck

    original, team.group = team.group, unique_name("copy")
    elsewhere = team.topic()
    team.send(elsewhere, works(range(100, 110)))
    team.kafka.commit(team.group, name, {0: (0, text)})
    team.kafka.commit(team.group, elsewhere, {0: (0, text)})
    team.open("g.b")
    team.local("b", name, elsewhere)
    team.journal.await_lines("end", [*range(10), *range(100, 110)], member="b")
    assert len(ignored(caplog)) == 2

    # The same group at another offset: somebody has reset it, and wants it handled again.
    caplog.clear()
    team.group = original
    team.kafka.commit(team.group, name, {0: (3, text)})
    team.local("c", name)
    team.journal.await_lines("end", range(3, 10), member="c")
    assert len(ignored(caplog)) == 1
    assert 0 not in team.journal.ids("start", member="c")
