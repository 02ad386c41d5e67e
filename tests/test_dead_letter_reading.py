"""Bounded reads, turn by turn: what ends a partition, what never does, and what ends the reading in error.

What a broker does is in tests/broker/test_dead_letter_reading.py; here each answer of the client is given by
hand.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from streamloop.dlq.reading import (
    BATCH_BYTES,
    FETCH_BYTES,
    BoundedReader,
    Bounds,
    Range,
    ReadError,
    open_bounds,
    reader_config,
)
from streamloop.errors import ConfigurationError
from streamloop.kafka.topic_admin import BrokersUnreachableError
from streamloop.kafka.topics import TopicFacts, Untold
from streamloop.settings import KafkaSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS = Settings(brokers=("kafka:9092",), group="billing")
EOF = KafkaError._PARTITION_EOF
OUT_OF_RANGE = -140


class Told:
    """A message of the client: a record, or an error about a partition."""

    def __init__(
        self,
        partition: int | None,
        offset: int,
        error: int | None = None,
        size: int = 10,
        *,
        fatal: bool = False,
    ) -> None:
        self._partition, self._offset, self._size = partition, offset, size
        self._error = None if error is None else KafkaError(error, "it said so", fatal=fatal)

    def topic(self) -> str | None:
        return None if self._partition is None else "dlq"

    def partition(self) -> int | None:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def __len__(self) -> int:
        return self._size


class Scripted:
    """A Consumer that gives these batches, then nothing. ``low``, ``high``: the log as it is now."""

    def __init__(self, *batches: Sequence[Told], low: int = 0, high: int = 100) -> None:
        self.batches = list(batches)
        self.low, self.high = low, high
        self.calls: list[tuple[str, Any]] = []
        self.closed = 0

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("assign", [(each.partition, each.offset) for each in partitions]))

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("pause", [each.partition for each in partitions]))

    def consume(self, count: int, _timeout: float) -> list[Told]:
        self.calls.append(("consume", count))
        return list(self.batches.pop(0)) if self.batches else []

    def get_watermark_offsets(self, _partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        return self.low, self.high

    def close(self) -> None:
        self.closed += 1

    def called(self, name: str) -> list[Any]:
        return [what for each, what in self.calls if each == name]


def bounds(**ranges: tuple[int, int]) -> Bounds:
    return Bounds(
        {("dlq", int(name[1:])): Range(start, end, start, end, end) for name, (start, end) in ranges.items()},
        {"dlq": "T1"},
        "C1",
    )


def read(client: Scripted, fixed: Bounds, **options: Any) -> tuple[list[tuple[int, int]], BoundedReader]:
    options.setdefault("idle_timeout", 0)
    with BoundedReader(SETTINGS, fixed, consumer_factory=lambda _config: client, **options) as reader:
        found = [(each.partition(), each.offset()) for batch in reader for each in batch]
    assert client.closed == 1
    return found, reader


def test_the_last_offset_below_the_bound_ends_a_partition() -> None:
    client = Scripted([Told(0, 5), Told(0, 6), Told(0, 7), Told(0, 8)])
    found, reader = read(client, bounds(p0=(5, 7)))
    assert found == [(0, 5), (0, 6)]
    assert reader.complete
    assert reader.reached == {("dlq", 0): 7}
    assert client.called("assign") == [[(0, 5)]]


def test_a_record_past_the_bound_ends_it_too_and_is_not_given() -> None:
    found, reader = read(Scripted([Told(0, 5)], [Told(0, 9)]), bounds(p0=(5, 7)))
    assert found == [(0, 5)]
    assert reader.complete


def test_the_end_of_the_partition_ends_it_only_at_or_past_the_bound() -> None:
    early = [Told(0, 5), Told(0, 6, EOF)]  # a leader that does not know the rest yet
    with pytest.raises(ReadError, match=r"Nothing came from dlq/0 for 0 s.* though 1 offsets"):
        read(Scripted(early), bounds(p0=(5, 7)))
    found, reader = read(Scripted(early, [Told(0, 7, EOF)]), bounds(p0=(5, 7)))
    assert found == [(0, 5)]
    assert reader.complete


def test_nothing_to_read_asks_nobody() -> None:
    told: list[Any] = []
    client = Scripted()
    reader = BoundedReader(
        SETTINGS, bounds(p0=(7, 7)), consumer_factory=lambda _config: client, progress=told.append
    )
    assert list(reader) == []
    assert reader.complete
    assert client.calls == []
    assert told[-1].offsets_total == 0


def test_a_finished_partition_is_fetched_no_more_and_others_go_on() -> None:
    client = Scripted([Told(0, 0), Told(1, 0)], [Told(0, 1), Told(1, 1)], [Told(1, 2, EOF)])
    found, reader = read(client, bounds(p0=(0, 1), p1=(0, 2)))
    assert found == [(0, 0), (1, 0), (1, 1)]
    assert client.called("pause") == [[0]]
    assert reader.complete


def test_what_retention_took_is_counted_and_the_rest_assigned_anew() -> None:
    client = Scripted(
        [Told(1, 0), Told(0, -1, OUT_OF_RANGE), Told(1, 1)], [Told(1, 1), Told(1, 2)], [Told(0, 4)], low=4
    )
    found, reader = read(client, bounds(p0=(0, 5), p1=(0, 3)))
    assert found == [(1, 0), (1, 1), (1, 2), (0, 4)]  # what was fetched twice is given once
    assert reader.expired == {("dlq", 0): 4}
    assert client.called("assign") == [[(0, 0), (1, 0)], [(0, 4), (1, 2)]]
    assert reader.complete


def test_retention_that_took_all_of_it_completes_the_partition() -> None:
    found, reader = read(Scripted([Told(0, -1, OUT_OF_RANGE)], low=50), bounds(p0=(2, 5)))
    assert found == []
    assert reader.expired == {("dlq", 0): 3}
    assert reader.complete


def test_a_log_that_ends_before_what_was_to_be_read_is_an_error() -> None:
    with pytest.raises(ReadError, match=r"dlq/0 ends at 1 now.*\(2 to 4\): it was recreated or truncated"):
        read(Scripted([Told(0, -1, OUT_OF_RANGE)], low=0, high=1), bounds(p0=(2, 5)))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Told(0, -1, KafkaError.UNKNOWN_TOPIC_OR_PART), "Was the topic deleted"),
        (Told(0, -1, KafkaError.TOPIC_AUTHORIZATION_FAILED), "dlq/0 may not be read"),
        (Told(None, -1, KafkaError._FATAL, fatal=True), "dlq/0 can't be read: it said so"),
    ],
)
def test_what_does_not_pass_is_an_error_at_once(message: Told, said: str) -> None:
    with pytest.raises(ReadError, match=said):
        read(Scripted([message], [Told(0, 0)]), bounds(p0=(0, 1)))


def test_what_passes_is_waited_for_and_named_when_it_does_not() -> None:
    away = Told(None, -1, KafkaError._ALL_BROKERS_DOWN)
    leader = Told(0, -1, KafkaError.NOT_LEADER_FOR_PARTITION)
    found, _ = read(Scripted([away, leader], [Told(0, 0)]), bounds(p0=(0, 1)), idle_timeout=60)
    assert found == [(0, 0)]
    with pytest.raises(ReadError, match=r"for 0 s \(it said so\)"):
        read(Scripted([away]), bounds(p0=(0, 1)))


def test_many_silent_partitions_are_counted() -> None:
    with pytest.raises(ReadError, match=r"dlq/0, dlq/1, dlq/2, dlq/3, dlq/4 and 2 more"):
        read(Scripted(), bounds(**{f"p{at}": (0, 1) for at in range(7)}))


def test_as_many_are_asked_for_as_fit_after_the_largest_that_came() -> None:
    large = BATCH_BYTES // 4
    client = Scripted(
        [Told(0, 0, size=large)], [Told(0, 1, size=100)], [Told(0, 2, size=BATCH_BYTES * 3)], [Told(0, 3)]
    )
    read(client, bounds(p0=(0, 4)))
    assert client.called("consume") == [16, 4, 500, 1]


def test_stopping_ends_it_between_two_batches() -> None:
    stop = threading.Event()
    client = Scripted([Told(0, 0)], [Told(0, 1)])
    reader = BoundedReader(SETTINGS, bounds(p0=(0, 2)), consumer_factory=lambda _config: client, stop=stop)
    for _ in reader:
        stop.set()
    assert not reader.complete
    assert (reader.records, reader.offsets_left) == (1, 1)
    assert reader.reached == {("dlq", 0): 1}


def test_progress_adds_up() -> None:
    told: list[Any] = []
    client = Scripted([Told(0, 1), Told(0, 4)], [], [Told(0, 6, EOF)])
    read(client, bounds(p0=(0, 6)), progress=told.append, idle_timeout=60)
    assert [(each.records, each.offsets_done, each.offsets_total) for each in told] == [
        (2, 5, 6),
        (2, 5, 6),
        (2, 6, 6),
    ]


def test_an_exception_of_the_client_is_a_sentence() -> None:
    class Refusing(Scripted):
        def assign(self, partitions: Sequence[TopicPartition]) -> None:
            raise KafkaException(KafkaError(KafkaError._STATE, "it can't."))

    with pytest.raises(ReadError, match=r"^dlq/0 can't be read: it can't\.$"):
        read(Refusing(), bounds(p0=(0, 1)))


def test_a_reader_has_no_part_in_any_group() -> None:
    settings = Settings(
        brokers=("kafka:9092",),
        group="billing",
        kafka=KafkaSettings(consumer={"group.instance.id": "me", "receive.message.max.bytes": 2_000_000}),
    )
    config = reader_config(settings)
    assert "group.instance.id" not in config
    assert (config["enable.auto.commit"], config["enable.auto.offset.store"]) == (False, False)
    assert config["auto.offset.reset"] == "error"
    assert config["isolation.level"] == "read_committed"
    assert config["fetch.max.bytes"] == 2_000_000 - 512
    assert reader_config(SETTINGS)["fetch.max.bytes"] == FETCH_BYTES
    assert reader_config(SETTINGS, read_committed=False)["isolation.level"] == "read_uncommitted"
    assert reader_config(Settings(brokers=("kafka:9092",)))["group.id"]


# ----------------------------------------------------------------------------------------------------- bounds


class Admin:
    """Answers about one topic of two partitions; ``untold`` questions get no answer first."""

    def __init__(self, *, untold: int = 0, gone: bool = False) -> None:
        self.untold, self.gone = untold, gone

    def cluster_id(self, _timeout: float) -> str:
        return "C1"

    def describe(self, names: Sequence[str], _timeout: float, *, configs: bool) -> dict[str, Any]:
        assert not configs
        if self._asked_again():
            return dict.fromkeys(names, Untold("no broker answered in time"))
        if self.gone:
            return dict.fromkeys(names)
        return {name: TopicFacts(name, "T1", 2) for name in names}

    def resolve_offsets(
        self, places: Sequence[tuple[str, int]], which: Any, _timeout: float, *, stable: bool
    ) -> dict[tuple[str, int], Any]:
        if self._asked_again():
            return dict.fromkeys(places, Untold("the leader moves."))
        offset = {"earliest": 10, "latest": 100 if stable else 120}.get(which, 50)
        return dict.fromkeys(places, offset)

    def _asked_again(self) -> bool:
        self.untold -= 1
        return self.untold >= 0


def opened(where: Any = None, admin: Any = None, **options: Any) -> Bounds:
    from streamloop.dlq.filters import Filter

    given = Filter.parse(**where) if where else Filter()
    client: Any = admin or Admin()
    return open_bounds(SETTINGS, ["dlq"], given, admin=client, **options)


def test_p2_bounds_are_the_logs_start_and_its_last_stable_offset() -> None:
    found = opened()
    assert found.ranges == {("dlq", at): Range(10, 100, 10, 100, 120) for at in (0, 1)}
    assert found.topic_ids == {"dlq": "T1"}
    assert found.cluster_id == "C1"
    assert found.offsets == 180
    assert found.hidden == {("dlq", 0): 20, ("dlq", 1): 20}
    assert opened(read_committed=False).ends == {("dlq", 0): 120, ("dlq", 1): 120}
    assert opened(read_committed=False).hidden == {}


def test_what_comes_while_the_ends_are_asked_for_is_not_taken_for_held_back() -> None:
    class Growing(Admin):
        end = 100

        def resolve_offsets(
            self, places: Sequence[tuple[str, int]], which: Any, _timeout: float, *, stable: bool
        ) -> dict[tuple[str, int], Any]:
            if which == "latest":
                self.end += 10
                return dict.fromkeys(places, self.end)
            return super().resolve_offsets(places, which, _timeout, stable=stable)

    assert opened(admin=Growing()).hidden == {}


@pytest.mark.parametrize(
    ("where", "ranges"),
    [
        ({"at": ["dlq/1"]}, {1: (10, 100)}),
        ({"at": ["dlq/1/17"]}, {1: (17, 18)}),
        ({"at": ["dlq/1:20-29", "dlq/1:40-49"]}, {1: (20, 50)}),
        ({"at": ["dlq/1:20-", "dlq/0:-15"]}, {0: (10, 16), 1: (20, 100)}),
        ({"at": ["dlq", "dlq/0/17"]}, {0: (10, 100), 1: (10, 100)}),
        ({"at": ["dlq/0:150-160"]}, {0: (150, 150)}),
        ({"at": ["dlq/0:0-5"]}, {0: (10, 10)}),
        ({"since": "1h"}, {0: (50, 100), 1: (50, 100)}),
        ({"since": "1h", "at": ["dlq/0:60-"]}, {0: (60, 100)}),
    ],
)
def test_p1_a_filter_that_names_places_or_a_time_reads_no_more_than_it_needs(
    where: dict[str, Any], ranges: dict[int, tuple[int, int]]
) -> None:
    found = opened(where)
    assert {at: (each.start, each.end) for (_, at), each in found.ranges.items()} == ranges


def test_a_later_reading_goes_on_where_an_earlier_one_ended() -> None:
    found = opened(starts={("dlq", 0): 70, ("dlq", 5): 3})
    assert [each.start for each in found.ranges.values()] == [70, 10]
    assert opened(starts={("dlq", 0): 170}).ranges["dlq", 0].offsets == 0


def test_offsets_that_expired_are_named() -> None:
    assert opened({"at": ["dlq/0:3-20"]}).expired == (
        "dlq/0 begins at 10: what was before is no longer in the log (retention).",
    )
    assert opened({"at": ["dlq/0:0-20"]}).expired == ()  # it asked for the beginning, whatever that is


def test_what_is_untold_is_asked_again_until_the_time_is_over() -> None:
    assert opened(admin=Admin(untold=2)).offsets == 180
    with pytest.raises(
        ReadError, match=r"What the topic dlq is can't be told: no broker answered in time \("
    ):
        opened(admin=Admin(untold=10**6), timeout=0.01)


def test_places_that_do_not_exist_are_named() -> None:
    with pytest.raises(ReadError, match="The topic dlq does not exist on kafka:9092"):
        opened(admin=Admin(gone=True))
    with pytest.raises(ReadError, match="has the partitions 0 to 1, not 2"):
        opened({"at": ["dlq/2/0"]})
    with pytest.raises(ConfigurationError, match=r"The dead letters of other are none of those .*\(dlq\)"):
        opened({"at": ["other/2/0"]})


def test_no_broker_at_all_is_a_sentence() -> None:
    class Away(Admin):
        def describe(self, names: Sequence[str], _timeout: float, *, configs: bool) -> dict[str, Any]:
            raise BrokersUnreachableError("No Kafka broker answers at kafka:9092.")

    with pytest.raises(ReadError, match="No Kafka broker answers"):
        opened(admin=Away())
