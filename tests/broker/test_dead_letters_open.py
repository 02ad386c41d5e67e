"""How many dead letters are open: counted from the topic and the ledger, on a real Apache Kafka."""

import threading
import time
from functools import partial
from typing import Any

import pytest

from streamloop.dlq import counting
from streamloop.dlq.counting import Open, OpenLetters
from streamloop.dlq.ledger import entry_key
from streamloop.dlq.reading import ReadError, topic_admin
from streamloop.kafka.topics import shown_id
from streamloop.settings import Settings
from tests.broker.apps import team as fixtures
from tests.broker.apps.team import LocalMember, Protocol, Team, works
from tests.realkafka import KafkaCluster, Record, wait_until
from tests.realkafka.client import unique_name

team = fixtures.team


@pytest.fixture
def protocol() -> Protocol:
    """Counting knows nothing of the group's protocol."""
    return "consumer"


class Letters:
    """A dead-letter topic of a group of its own, and who counts it."""

    def __init__(self, kafka: KafkaCluster, partitions: int = 1) -> None:
        self.kafka = kafka
        self.group = unique_name("g")
        self.topic = f"orders.{self.group}.dlq"
        self.ledger = f"{self.group}.replays"
        self.settings = Settings.load({"brokers": kafka.bootstrap, "group": self.group}).settings
        self.partitions = partitions
        self.make()
        self.counter = OpenLetters(self.settings, self.topic, topic_admin(self.settings), threading.Event())

    def make(self) -> None:
        self.kafka.create_topic(self.partitions, name=self.topic)

    def put(self, count: int, partition: int = 0, *, at: float | None = None) -> None:
        stamp = None if at is None else round(at * 1000)
        self.kafka.produce(
            self.topic, [Record(b"x", partition=partition, timestamp=stamp) for _ in range(count)]
        )

    def close(self, *places: tuple[int, int], state: str = "replayed") -> None:
        """Ledger entries of these partitions and offsets."""
        if not self.kafka.topic_exists(self.ledger):
            self.kafka.create_topic(1, name=self.ledger, config={"cleanup.policy": "compact"})
        topic_id = topic_id_of(self, self.topic)
        self.kafka.produce(
            self.ledger,
            [
                Record(b'{"state": "%s"}' % state.encode(), entry_key(topic_id, self.topic, *place))
                for place in places
            ],
        )

    @property
    def open(self) -> int:
        found = self.counter.count()
        assert found is not None
        return found.letters


def topic_id_of(letters: Letters, topic: str) -> str:
    described: Any = topic_admin(letters.settings).describe([topic], 10, configs=False)[topic]
    return shown_id(described.topic_id)


def test_open_are_those_without_an_entry_whatever_its_state_and_the_oldest_of_them_has_the_age(
    kafka: KafkaCluster,
) -> None:
    letters = Letters(kafka, 2)
    assert letters.counter.count() == Open(0, None)
    now = round(time.time())
    for number in range(4):
        letters.put(1, 0, at=now - 1_000 + number)
    letters.put(3, 1, at=now - 500)
    assert letters.counter.count() == Open(7, now - 1_000)
    letters.close((0, 0), state="purged")
    letters.close((0, 1))
    letters.close((1, 2), state="imported")
    assert letters.counter.count() == Open(4, now - 998)
    letters.close((0, 2), (0, 3))
    assert letters.counter.count() == Open(2, now - 500)
    letters.put(1, 0, at=now - 10)
    letters.close((1, 0), (1, 1), (0, 4), (0, 99))  # one of them is not there yet
    assert letters.counter.count() == Open(0, None)
    letters.close((0, 5))
    letters.put(1, 0)  # its entry came first
    assert letters.open == 0


def test_markers_aborted_records_and_what_retention_removed_are_no_dead_letters(kafka: KafkaCluster) -> None:
    letters = Letters(kafka)
    kafka.produce_transaction(letters.topic, [b"a", b"b"])
    kafka.produce_transaction(letters.topic, [b"c", b"d", b"e"], abort=True)
    letters.put(2)
    kafka.produce_transaction(letters.topic, [b"f"])
    assert letters.open == 5
    kafka.delete_records(letters.topic, {0: 1})
    assert letters.open == 4
    kafka.delete_records(letters.topic, {0: kafka.end_offsets(letters.topic)[0]})
    assert letters.counter.count() == Open(0, None)


def test_a_topic_or_a_ledger_that_was_made_anew_is_counted_anew(kafka: KafkaCluster) -> None:
    letters = Letters(kafka)
    letters.put(3)
    letters.close((0, 0), (0, 1))
    assert letters.open == 1
    kafka.delete_topic(letters.topic)
    with pytest.raises(ReadError, match="does not exist"):
        letters.counter.count()
    letters.make()
    letters.put(5)
    assert letters.open == 5  # the old ledger's entries are about another topic
    letters.close((0, 4))
    assert letters.open == 4
    kafka.delete_topic(letters.ledger)
    assert letters.open == 5
    letters.close((0, 0), (0, 1))
    assert letters.open == 3


def test_a_first_reading_is_slow_on_purpose_and_ends_early_when_it_is_not_ours_any_more(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = Letters(kafka)
    letters.put(2_000)
    waited: list[float] = []
    monkeypatch.setattr(counting, "RECORDS_A_SECOND", 10)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    letters.counter._stop = Stop()
    mine = iter([True, False])
    assert letters.counter.count(lambda: next(mine)) is None
    assert letters.open == 2_000  # it went on from where it was
    assert max(waited) > 10


def metric(member: LocalMember, name: str) -> float | None:
    series = member.loop.metrics().get(name, {})
    return next(iter(series.values()), None)


def test_one_member_of_the_group_counts_and_another_one_when_it_has_left(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "EVERY", 0.3)
    monkeypatch.setattr(counting, "SHARE", 1)
    name = team.topic(2)
    settings: dict[str, Any] = {"in_place_attempts": 1, "ops_address": "127.0.0.1:0", "dead_letter": True}
    members = {each: team.local(each, name, **settings) for each in ("a", "b")}
    wait_until(lambda: all((name in {p for p, _ in m.parts}) for m in members.values()), message="one each")
    for partition in range(2):
        team.send(name, works(range(partition * 10, partition * 10 + 5), fails=99), partition)
    team.journal.await_lines("failed", [*range(5), *range(10, 15)])
    opened = "loop_dead_letters_open"
    wait_until(lambda: 10.0 in [metric(m, opened) for m in members.values()], message="ten, by one of them")
    [counts] = [each for each, member in members.items() if metric(member, opened) is not None]
    assert (name, 0) in members[counts].parts
    [labels] = members[counts].loop.metrics()[opened]
    assert dict(labels) == {"group": team.group, "topic": name}
    oldest = metric(members[counts], "loop_dead_letters_oldest_seconds")
    assert oldest is not None
    assert 0 < oldest < 120
    members[counts].stop()
    [other] = set(members) - {counts}
    wait_until(lambda: metric(members[other], opened) == 10.0, message="the other one counts")


def runs(member: LocalMember) -> bool:
    return member.loop._run is not None and member.loop._run.phase.value == "running"


def test_nobody_counts_where_nobody_looks_or_where_it_is_off(team: Team) -> None:
    name = team.topic(1)
    quiet = team.local("quiet", name, dead_letter=True)
    off = team.local("off", name, dead_letter=True, ops_address="127.0.0.1:0", count_dead_letters=False)
    for member in (quiet, off):
        wait_until(partial(runs, member), message="that it runs")
        assert "streamloop-dead-letters" not in {each.name for each in threading.enumerate()}
        assert metric(member, "loop_dead_letters_open") is None
