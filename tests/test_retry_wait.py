"""When a record of a retry topic may start, whatever the clocks of two machines say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from streamloop.engine.events import TopicPartition
from streamloop.engine.record import Record
from streamloop.kafka.retry_wait import MOST_KNOWN, RetryWait

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = TopicPartition("orders.billing.retry.30s", 0)
DELAY = 30.0


class Fetched:
    """What is asked of a broker's record here."""

    def __init__(self, headers: list[tuple[str, bytes]]) -> None:
        self._headers = headers

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers


class Reader:
    """A RetryWait with clocks that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = 1_900_000_000.0
        self.wait = RetryWait(
            lambda _topic: DELAY,
            "billing",
            anew=lambda topic: topic.endswith(".replay"),
            clock=lambda: self.now,
            wall=lambda: self.wall,
        )

    def read(self, offsets: Sequence[int], not_before: float | None = None, **headers: str) -> list[Any]:
        """The attempts that records at these offsets get; ``not_before``: seconds from now by the wall."""
        given = {
            "original-topic": "orders",
            "original-partition": "0",
            "original-offset": "7",
            "original-group": "billing",
            "attempt": "3",
            **headers,
        }
        if not_before is not None:
            given["not-before"] = str(int((self.wall + not_before) * 1000))
        raw = [(f"streamloop-{name}", value.encode()) for name, value in given.items()]
        records = [Record(offset, None, 1, 0, Fetched(raw)) for offset in offsets]
        self.wait(NAME, records)
        return [record.attempts for record in records]

    def waits(self, offsets: Sequence[int], not_before: float) -> list[float]:
        """How long each has to wait from now."""
        return [round(each.due - self.now, 3) if each.due else 0.0 for each in self.read(offsets, not_before)]


def test_a_record_waits_until_its_time_and_keeps_its_attempts() -> None:
    reader = Reader()
    [attempts] = reader.read([0], 12, **{"first-failed-at": "2030-03-17T17:46:00Z"})
    assert attempts.due == reader.now + 12
    assert attempts.before == 3
    assert attempts.first_failed_at == reader.now - 40


def test_what_is_due_or_has_no_time_starts_at_once() -> None:
    reader = Reader()
    assert reader.waits([0], -5) == [0.0]
    assert reader.read([1])[0].due == 0.0


def test_a_record_of_another_group_is_a_new_one() -> None:
    reader = Reader()
    assert reader.read([0], 12, **{"original-group": "another"}) == [None]


def test_no_wait_is_longer_than_the_delay_also_when_it_is_read_again() -> None:
    reader = Reader()
    assert reader.waits([0, 1], 3600) == [30.0, 30.0]
    reader.now += 20
    assert reader.waits([0, 1, 2], 3600) == [10.0, 10.0, 30.0]
    reader.now += 10
    reader.wall -= 86_400
    assert reader.waits([0, 1, 2], 86_400 + 3600) == [0.0, 0.0, 20.0]
    assert reader.waits([2, 3], 3600) == [20.0, 30.0]


def test_a_read_from_an_earlier_offset_begins_anew() -> None:
    reader = Reader()
    assert reader.waits([5, 6], 3600) == [30.0, 30.0]
    reader.now += 29
    assert reader.waits([0, 5], 3600) == [30.0, 30.0]


def test_what_is_remembered_is_bounded_and_never_makes_a_record_early() -> None:
    reader = Reader()
    for last in range(3 * MOST_KNOWN):
        reader.now += 0.1
        waits = reader.waits(range(last + 1), 3600)
        assert len(reader.wait._seen[NAME]) <= MOST_KNOWN
        for offset, wait in enumerate(waits):
            assert wait >= round(30 - 0.1 * (last - offset), 3)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.floats(0, 40)), min_size=1, max_size=30))
def test_a_wait_that_is_cut_to_the_delay_counts_from_when_the_record_was_first_seen(
    reads: list[tuple[int, int, float]],
) -> None:
    reader = Reader()
    head = 0
    first_seen: dict[int, float] = {}
    for step, count, passed in reads[:MOST_KNOWN]:
        head += step  # a Consumer goes forward, and back to what it has not taken
        offsets = range(head, head + count)
        for offset in offsets:
            first_seen.setdefault(offset, reader.now)
        for offset, attempts in zip(offsets, reader.read(offsets, 3600), strict=True):
            assert abs(attempts.due - (first_seen[offset] + DELAY)) < 1e-6
        reader.now += passed
