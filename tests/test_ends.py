"""Where partitions end: what flows is known, what is held is asked for, what is unknown is left out."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from streamloop.engine.events import Reason, TopicPartition
from streamloop.kafka.commits import CommitBook
from streamloop.kafka.ends import ASK_EVERY, LOOK_EVERY, Ends
from streamloop.kafka.positions import Offsets, Question
from streamloop.kafka.slots import Slot, Slots
from streamloop.kafka.topics import Untold

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
UNKNOWN = -1001


class Client:
    """What a Consumer has in its cache."""

    def __init__(self, **ends: int) -> None:
        self.ends = ends
        self.calls = 0

    def get_watermark_offsets(self, ref: Any, *, cached: bool) -> tuple[int, int]:
        assert cached
        self.calls += 1
        end = self.ends.get(f"p{ref.partition}")
        if end is None:
            raise KafkaException(KafkaError(-190))
        return (0, end)


class Lookup:
    """Who is asked; the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[TopicPartition], Any, Question]] = []

    def offsets(self, partitions: Any, start: Any) -> Question:
        question = Question()
        self.asked.append((list(partitions), start, question))
        return question

    def identities(self, _topics: Any) -> Question:
        raise AssertionError


class Bench:
    """Ends of two partitions, with a clock of the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slots = Slots("source", lambda _event: None, CommitBook(), lambda: self.now)
        self.stamps: dict[TopicPartition, int] = {}
        self.ends = Ends(self.slots, self.stamps, clock=lambda: self.now)
        self.lookup = Lookup()
        self.ends.lookup = self.lookup
        for number, name in enumerate((P0, P1), 1):
            self.slots.by_name[name] = Slot(name, number, position=10, open=True, paused=False)

    def look(self, client: Client, after: float = LOOK_EVERY) -> None:
        self.now += after
        self.ends.look(client, self.now)


def test_the_end_is_what_librdkafka_knows_and_an_unknown_one_is_left_out() -> None:
    bench = Bench()
    bench.look(Client(p0=25, p1=UNKNOWN))
    assert bench.ends.known.keys() == {P0}
    assert (bench.ends.known[P0].offset, bench.ends.known[P0].epoch) == (25, 1)
    bench.look(Client())
    assert bench.ends.known == {}


def test_it_looks_at_most_once_a_second() -> None:
    bench = Bench()
    client = Client(p0=25, p1=25)
    bench.look(client)
    bench.look(client, 0.5)
    assert client.calls == 2
    bench.look(client, 0.5)
    assert client.calls == 4


def test_the_end_is_never_before_the_position() -> None:
    bench = Bench()
    bench.look(Client(p0=3, p1=10))
    assert bench.ends.known[P0].offset == 10
    assert bench.ends.known[P0].behind_since is None


def test_since_when_nothing_comes_though_the_end_is_past_the_position() -> None:
    bench = Bench()
    bench.stamps[P0] = 1_700_000_000_000
    bench.look(Client(p0=25, p1=10))
    first = bench.ends.known[P0]
    assert (first.behind_since, first.stamp) == (bench.now, 1_700_000_000_000)
    began = bench.now
    bench.look(Client(p0=30, p1=10))
    assert bench.ends.known[P0].behind_since == began
    bench.slots.by_name[P0].position = 12
    bench.look(Client(p0=30, p1=10))
    assert bench.ends.known[P0].behind_since == bench.now
    bench.slots.by_name[P0].position = 30
    bench.look(Client(p0=30, p1=10))
    assert bench.ends.known[P0].behind_since is None


def test_the_end_of_a_held_partition_is_asked_for_and_grows_with_the_answer() -> None:
    bench = Bench()
    client = Client(p0=25, p1=25)
    bench.slots.by_name[P1].paused = True
    bench.slots.by_name[P1].reasons = frozenset({Reason.OPERATOR})
    bench.look(client)
    [(asked, start, question)] = bench.lookup.asked
    assert (asked, start) == ([P1], "latest")
    bench.look(client, ASK_EVERY)
    assert len(bench.lookup.asked) == 1  # one question at a time
    question.answer(Offsets({P1: 90}))
    bench.look(client)
    assert bench.ends.known[P1].offset == 90
    assert bench.ends.known[P0].offset == 25
    assert len(bench.lookup.asked) == 2


def test_an_answer_for_an_ended_epoch_and_one_that_could_not_be_told_change_nothing() -> None:
    bench = Bench()
    client = Client(p0=25, p1=25)
    for slot in bench.slots.by_name.values():
        slot.paused = True
    bench.look(client)
    [(_, _, question)] = bench.lookup.asked
    bench.slots.by_name[P0] = Slot(P0, 9, position=10, open=True, paused=True)
    question.answer(Offsets({P0: 90, P1: Untold("no broker")}))
    bench.look(client)
    assert (bench.ends.known[P0].offset, bench.ends.known[P1].offset) == (25, 25)


def test_a_partition_whose_start_is_not_known_has_no_end_and_a_revoked_one_is_gone() -> None:
    bench = Bench()
    bench.slots.by_name[P0].open = False
    del bench.slots.by_name[P1]
    bench.look(Client(p0=25, p1=25))
    assert bench.ends.known == {}


def test_without_anybody_to_ask_what_is_cached_is_what_is_known() -> None:
    bench = Bench()
    bench.ends.lookup = None
    bench.slots.by_name[P0].paused = True
    bench.look(Client(p0=25, p1=UNKNOWN))
    assert bench.ends.known.keys() == {P0}
