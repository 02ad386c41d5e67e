"""Watermarks: how much may be asked for, in messages and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.engine.gate import FIRST_FETCH, RECENT, Capacity

MIB = 1 << 20


def test_the_first_fetch_asks_for_ten() -> None:
    assert FIRST_FETCH == 10
    assert Capacity(2_000, 64 * MIB).room() == 10
    assert Capacity(4, 64 * MIB).room() == 4


def test_free_messages_or_free_bytes_whichever_is_less() -> None:
    capacity = Capacity(2_000, 64 * MIB)
    capacity.took(10, 10_000, 1_000)
    assert capacity.room() == 1_990
    capacity = Capacity(2_000, 64 * MIB)
    capacity.took(10, 10 * MIB, MIB)
    assert capacity.room() == 54
    capacity.took(54, 54 * MIB, MIB)
    assert capacity.room() == 0


def test_a_message_larger_than_what_is_free_is_asked_for_alone() -> None:
    capacity = Capacity(2_000, 10 * MIB)
    capacity.took(1, 9 * MIB, 9 * MIB)
    assert capacity.room() == 1
    capacity.took(1, 9 * MIB, 9 * MIB)
    assert capacity.room() == 0


def test_full_in_messages_asks_for_nothing() -> None:
    capacity = Capacity(3, MIB)
    capacity.took(3, 3, 1)
    assert capacity.room() == 0
    capacity.released(1, 1)
    assert capacity.room() == 1


def test_a_large_message_is_remembered_for_a_while_and_then_forgotten() -> None:
    capacity = Capacity(1_000_000, 64 * MIB)
    capacity.took(1, MIB, MIB)
    capacity.released(1, MIB)
    rooms = []
    for _ in range(2 * RECENT):
        capacity.took(1, 1_000, 1_000)
        capacity.released(1, 1_000)
        rooms.append(capacity.room())
    assert rooms[: RECENT - 1] == [64] * (RECENT - 1)
    assert rooms[-1] == 64 * MIB // 1_000


def test_messages_without_any_size_are_asked_for_by_their_number() -> None:
    capacity = Capacity(2_000, MIB)
    capacity.took(10, 0, 0)
    assert capacity.room() == 1_990


def test_low_means_both_messages_and_bytes() -> None:
    capacity = Capacity(100, 1_000, low=0.5)
    capacity.took(50, 500, 10)
    assert capacity.is_low()
    capacity.took(1, 0, 10)
    assert not capacity.is_low()
    capacity.released(2, 0)
    capacity.took(1, 1, 10)
    assert not capacity.is_low()
    capacity.released(0, 1)
    assert capacity.is_low()


def test_peaks_are_kept() -> None:
    capacity = Capacity(100, 1_000)
    capacity.took(40, 400, 10)
    capacity.released(30, 300)
    capacity.took(20, 200, 10)
    assert (capacity.peak_messages, capacity.peak_bytes) == (40, 400)


@pytest.mark.parametrize(("messages", "size", "low"), [(0, 1, 0.5), (1, 0, 0.5), (1, 1, 1.0), (1, 1, -0.1)])
def test_watermarks_that_cannot_work_are_refused(messages: int, size: int, low: float) -> None:
    with pytest.raises(ValueError, match="watermarks"):
        Capacity(messages, size, low)


@given(
    st.integers(1, 500),
    st.integers(1, 50_000),
    st.lists(st.tuples(st.lists(st.integers(1, 3_000), min_size=1, max_size=300), st.integers(0, 100))),
)
def test_B1_buffered_never_exceeds_high_by_more_than_one_fetch(
    high: int, high_bytes: int, turns: list[tuple[list[int], int]]
) -> None:
    capacity = Capacity(high, high_bytes)
    held: list[int] = []
    for offered, let_go in turns:
        room = capacity.room()
        assert room >= 0
        before = capacity.bytes
        fetch = offered[:room]
        if fetch:
            # Only when something is free is anything taken, and no more messages than are free.
            assert before < high_bytes
            capacity.took(len(fetch), sum(fetch), max(fetch))
            held += fetch
        assert capacity.messages == len(held) <= high
        assert capacity.bytes == sum(held)
        assert capacity.bytes - sum(fetch) < high_bytes or not fetch
        gone, held = held[:let_go], held[let_go:]
        capacity.released(len(gone), sum(gone))
    capacity.released(len(held), sum(held))
    assert (capacity.messages, capacity.bytes) == (0, 0)


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=60), st.integers(1_000, 100_000))
def test_B1_messages_no_larger_than_seen_before_never_exceed_high_bytes(sizes: list[int], high: int) -> None:
    capacity = Capacity(1_000_000, high)
    capacity.took(1, 1_000, 1_000)
    capacity.released(1, 1_000)
    for size in sizes[: RECENT - 1]:
        room = capacity.room()
        if room > 1:
            capacity.took(room, room * size, size)
            assert capacity.bytes <= high
