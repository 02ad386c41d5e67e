"""Groups of dead letters: alike errors together, bounded, and honest about what is not in them."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from streamloop.dlq.groups import LONGEST_MESSAGE, MOST_NAMES, OPEN, Group, Grouper
from streamloop.dlq.letter import letter_of
from tests.dead_letters import CONNECT, STAMP_MS, message, own


def only(grouper: Grouper) -> Group:
    [group] = grouper.found()
    return group


def test_alike_errors_are_one_group_with_its_first_and_last_time_and_its_newest_letter() -> None:
    grouper = Grouper()
    for offset, seconds in ((5, 10), (6, 30), (7, 20)):
        grouper.add(own(offset, now_ms=STAMP_MS + seconds * 1000, original=("orders", 1, 100 + offset)))
    group = only(grouper)
    assert (group.count, group.open) == (3, 3)
    assert group.first_seen == STAMP_MS / 1000 + 10
    assert group.last_seen == STAMP_MS / 1000 + 30
    assert group.sample.place == "orders.billing.dlq/0/6"
    assert group.sample.original == "orders/1/106"
    assert group.originals == {"orders": 3}
    assert group.topics == {"orders.billing.dlq": 3}
    assert group.groups == {"billing": 3}


def test_the_sample_is_of_the_open_letters_where_there_are_any() -> None:
    grouper = Grouper()
    grouper.add(own(1, now_ms=STAMP_MS + 9_000), "replayed")
    assert only(grouper).sample.offset == 1
    grouper.add(own(2, now_ms=STAMP_MS))
    assert only(grouper).sample.offset == 2
    grouper.add(own(3, now_ms=STAMP_MS + 9_500), "purged")
    assert only(grouper).sample.offset == 2
    grouper.add(own(4, now_ms=STAMP_MS + 1))
    assert only(grouper).sample.offset == 4
    assert only(grouper).states == {"replayed": 1, OPEN: 2, "purged": 1}
    assert grouper.states == {"replayed": 1, OPEN: 2, "purged": 1}


def test_groups_with_the_most_open_letters_come_first() -> None:
    grouper = Grouper()
    for offset in range(5):
        grouper.add(own(offset, fingerprint="aa"), "replayed")
    for offset in range(2):
        grouper.add(own(offset, fingerprint="bb"))
    grouper.add(own(9, fingerprint="cc"))
    assert [each.fingerprint for each in grouper.found()] == ["bb", "cc", "aa"]


def test_letters_beyond_the_groups_that_are_kept_are_counted() -> None:
    grouper = Grouper(most=2)
    for number in range(10):
        grouper.add(own(number, fingerprint=f"f{number}"))
    grouper.add(own(11, fingerprint="f1"))
    assert [each.count for each in grouper.found()] == [2, 1]
    assert (grouper.letters, grouper.others) == (11, 8)
    assert grouper.states == {OPEN: 11}


def test_many_original_topics_are_named_up_to_a_bound() -> None:
    grouper = Grouper()
    for number in range(MOST_NAMES + 5):
        grouper.add(own(number, original=(f"t{number}", 0, 0)))
    group = only(grouper)
    assert len(group.originals) == MOST_NAMES
    assert group.other_names == 5
    grouper.add(own(99, original=("t0", 0, 0)))
    assert group.originals["t0"] == 2


def test_letters_of_which_nothing_is_known_are_a_group_too() -> None:
    grouper = Grouper()
    grouper.add(letter_of(message([], stamp_ms=None)))
    group = only(grouper)
    assert (group.error_class, group.sample.error_message, group.sample.original) == ("", "", "")
    assert (group.first_seen, group.last_seen) == (None, None)
    assert group.originals == {"": 1}
    grouper.add(letter_of(message([], stamp_ms=STAMP_MS)))
    assert group.first_seen == group.last_seen == STAMP_MS / 1000


def test_neither_values_nor_long_texts_are_kept() -> None:
    tracemalloc.start()
    try:
        grouper = Grouper()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(50):
            what = f"{number:04x}" + "x" * 500_000
            grouper.add(own(number, fingerprint=f"f{number}", value=b"v" * 500_000, error_message=what))
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()
    assert all(len(each.sample.error_message) == LONGEST_MESSAGE for each in grouper.found())


def test_a_group_serialises_to_json() -> None:
    grouper = Grouper()
    grouper.add(own())
    grouper.add(letter_of(message(CONNECT)))
    for group in grouper.found():
        assert json.loads(json.dumps(group.to_json()))["sample"]["place"] == group.sample.place


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcde"),
            st.none() | st.integers(0, 10**6),
            st.sampled_from([OPEN, "replayed", "purged"]),
        ),
        max_size=60,
    ),
    st.integers(1, 4),
)
def test_the_sums_meet(given_letters: list[tuple[str, int | None, str]], most: int) -> None:
    grouper = Grouper(most)
    base = own()
    for at, (fingerprint, failed, state) in enumerate(given_letters):
        letter = dataclasses.replace(base, fingerprint=fingerprint, failed_at=failed, offset=at)
        grouper.add(letter, state)
    found = grouper.found()
    assert len(found) <= most
    assert sum(each.count for each in found) + grouper.others == grouper.letters == len(given_letters)
    assert sum(grouper.states.values()) == len(given_letters)
    for each in found:
        mine = [letter for letter in given_letters if letter[0] == each.fingerprint]
        assert each.count == len(mine) == sum(each.states.values())
        assert each.open == sum(state == OPEN for _, _, state in mine)
        sample = given_letters[each.sample.offset]
        assert sample[0] == each.fingerprint
        if each.open:
            assert sample[2] == OPEN
