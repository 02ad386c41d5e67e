"""Acknowledged offsets in commit metadata: exact, bounded, and believed only where they are ours."""

from __future__ import annotations

import base64
import hashlib
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamloop.engine import events as ev
from streamloop.engine.metadata import (
    LIMIT,
    PREFIX,
    UNKNOWN,
    Identity,
    Ignored,
    Restored,
    Run,
    decode,
    encode,
    is_of_recreated,
)
from tests.engine.driver import ORDERS, Shell

HERE = Identity("cluster-1", "topic-1", "billing")
MAX_OFFSET = 2**63 - 1

names = st.text(max_size=40) | st.just(UNKNOWN) | st.uuids().map(str)
identities = st.builds(Identity, names, names, names)
leader_epochs = st.integers(-1, 2**31 - 1)


@st.composite
def commits(draw: st.DrawFn, most: int = 60, widest: int = 300) -> tuple[int, list[Run]]:
    """A committed offset and ascending, disjoint, non-touching runs at or above it."""
    committed = draw(st.integers(0, 5_000) | st.integers(2**40, 2**62))
    runs: list[Run] = []
    at = committed
    for gap, count in draw(
        st.lists(st.tuples(st.integers(1, widest), st.integers(1, widest)), max_size=most)
    ):
        start = at if not runs and gap == 1 else at + gap
        runs.append((start, start + count))
        at = start + count
    return committed, runs


def body_of(text: str) -> bytes:
    coded = text[len(PREFIX) :]
    return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))


def signed(body: bytes) -> str:
    """A metadata string with a right checksum around any body."""
    body += zlib.crc32(body).to_bytes(4, "big")
    return PREFIX + base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def ours(kind: int, payload: bytes, committed: int = 5) -> str:
    group = hashlib.blake2b(b"billing", digest_size=8).digest()
    head = b"\x09cluster-1\x07topic-1" + group + bytes((committed,)) + b"\x04"
    return signed(bytes((kind,)) + head + payload)


@given(identities, commits(), leader_epochs)
def test_what_fits_comes_back_exactly(
    identity: Identity, commit: tuple[int, list[Run]], leader_epoch: int
) -> None:
    committed, runs = commit
    text = encode(identity, committed, leader_epoch, runs)
    if not runs and identity.topic_id == "unknown":
        assert text == ""
        assert decode(text, identity, committed) is None
    else:
        assert decode(text, identity, committed) == Restored(tuple(runs), leader_epoch)


@given(
    identities,
    st.integers(0, 2**50),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 20_000),
    st.integers(1, 40),
)
def test_it_always_fits_and_leaves_out_the_highest_first(
    identity: Identity, committed: int, every: int, width: int, count: int, far: int
) -> None:
    # Regular runs in great number, the last one far away: more than fits in most cases.
    step = every + width
    runs = [(committed + every + n * step, committed + every + n * step + width) for n in range(count)]
    runs.append((runs[-1][1] + 2**far, runs[-1][1] + 2**far + 3))
    text = encode(identity, committed, 3, runs)
    assert len(text) <= LIMIT
    restored = decode(text, identity, committed)
    assert isinstance(restored, Restored)
    kept = restored.runs
    # What came back is the beginning of what was given: the last run that is kept may have been cut short.
    assert list(kept[:-1]) == runs[: len(kept) - 1]
    start, end = runs[len(kept) - 1]
    assert kept[-1][0] == start
    assert start < kept[-1][1] <= end


@settings(max_examples=25)
@given(st.data())
def test_truncation_never_invents_an_acknowledged_offset(data: st.DataObject) -> None:
    # Irregular runs that no form holds in 4,095 characters.
    sizes = data.draw(
        st.lists(st.sampled_from([1, 2, 3, 150, 20_000, 3_000_000]), min_size=8, max_size=8, unique=False)
    )
    committed, at = 7, 7
    runs: list[Run] = []
    for n in range(13_000):
        start = at + sizes[n % 4]
        at = start + sizes[4 + n % 4]
        runs.append((start, at))
    text = encode(HERE, committed, -1, runs)
    assert len(text) <= LIMIT
    restored = decode(text, HERE, committed)
    assert isinstance(restored, Restored)
    assert len(restored.runs) < len(runs)
    for kept, given_run in zip(restored.runs, runs, strict=False):
        assert kept[0] == given_run[0]
        assert kept[1] <= given_run[1]
    assert restored.runs[:-1] == tuple(runs[: len(restored.runs) - 1])


def test_twenty_thousand_offsets_the_gap_limit_fit_in_the_worst_case() -> None:
    alternating = [(offset, offset + 1) for offset in range(1, 20_000, 2)]
    text = encode(Identity("c" * 36, "t" * 36), 0, 2**31 - 1, alternating)
    restored = decode(text, Identity("c" * 36, "t" * 36), 0)
    assert isinstance(restored, Restored)
    assert restored.runs == tuple(alternating)


def test_the_shorter_form_is_used() -> None:
    one_long_run = encode(HERE, 0, 1, [(1, 100_000)])
    alternating = encode(HERE, 0, 1, [(offset, offset + 1) for offset in range(1, 400, 2)])
    assert body_of(one_long_run)[0] == 1
    assert len(one_long_run) < 60
    assert body_of(alternating)[0] == 2


def test_the_largest_offsets_and_ids_are_carried() -> None:
    identity = Identity("c" * 500, "\N{SNOWMAN}" * 500)
    runs = [(MAX_OFFSET - 20, MAX_OFFSET - 10)]
    assert decode(encode(identity, MAX_OFFSET - 30, 2**31 - 1, runs), identity, MAX_OFFSET - 30) == Restored(
        tuple(runs), 2**31 - 1
    )


# ------------------------------------------------------------------------------- R9: what is not ours


@given(st.text(max_size=200))
def test_R9_text_of_another_program_is_ignored_and_never_a_crash(text: str) -> None:
    known = decode(text, HERE, 5)
    assert known is None if text == "" else isinstance(known, Ignored)


@pytest.mark.parametrize("version", ["sl2.", "sl10.AAAA", "sl3.anything at all"])
def test_R9_a_newer_version_of_ours_is_named_and_ignored(version: str) -> None:
    known = decode(version, HERE, 5)
    assert isinstance(known, Ignored)
    assert version.split(".", maxsplit=1)[0] in known.reason
    assert "another version" in known.reason


@pytest.mark.parametrize(
    "text", ["sl.", "slx.AAAA", "sl2", "hello", "sl1", '{"sl1.": 1}', "NONE", " sl1.AAAA"]
)
def test_R9_what_only_looks_like_ours_is_another_programs(text: str) -> None:
    known = decode(text, HERE, 5)
    assert isinstance(known, Ignored)
    assert "another program" in known.reason


@given(commits(most=10), st.data())
def test_R9_one_changed_character_is_noticed(commit: tuple[int, list[Run]], data: st.DataObject) -> None:
    committed, runs = commit
    text = encode(HERE, committed, 1, runs or [(committed + 1, committed + 2)])
    at = data.draw(st.integers(len(PREFIX), len(text) - 1))
    other = data.draw(st.sampled_from("ABab09-_ =!\N{SNOWMAN}").filter(lambda c: c != text[at]))
    damaged = text[:at] + other + text[at + 1 :]
    known = decode(damaged, HERE, committed)
    # The last character may differ in bits that code nothing.
    assert isinstance(known, Ignored) or known == decode(text, HERE, committed)
    if at < len(text) - 1:
        assert isinstance(known, Ignored)


@given(commits(most=10), st.integers(0, 30))
def test_R9_a_cut_off_end_is_noticed(commit: tuple[int, list[Run]], cut: int) -> None:
    committed, runs = commit
    text = encode(HERE, committed, 1, runs or [(committed + 1, committed + 2)])
    assert isinstance(decode(text[: len(text) - 1 - cut], HERE, committed), Ignored)


@given(st.binary(max_size=200))
def test_R9_a_right_checksum_around_nonsense_never_crashes(body: bytes) -> None:
    assert isinstance(decode(signed(body), HERE, 5), Ignored)


@given(st.integers(0, 255), st.binary(max_size=300))
def test_R9_nonsense_behind_a_right_head_is_ignored_or_reads_as_ascending_runs(
    kind: int, payload: bytes
) -> None:
    known = decode(ours(kind, payload), HERE, 5)
    if isinstance(known, Restored):
        assert kind in (1, 2)
        assert all(start < end for start, end in known.runs)
        assert all(one[1] < other[0] for one, other in pairwise(known.runs))
        assert all(start >= 5 and end <= MAX_OFFSET for start, end in known.runs)
    else:
        assert isinstance(known, Ignored)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff" * 10 + b"\x01",  # a number of more than 64 bits
        b"\x80" * 400,  # a number that never ends
        b"\x01",  # a gap without a run
        b"\x01\x00",  # an empty run
        b"\x01\x01\x00\x01",  # two runs that touch
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01",  # an offset beyond what Kafka has
        b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_R9_hostile_numbers_are_malformed(payload: bytes) -> None:
    known = decode(ours(1, payload), HERE, 5)
    assert known == Ignored("it is malformed")


def test_R9_hostile_sizes_take_bounded_memory() -> None:
    hostile = [
        "sl1." + "A" * 5_000_000,
        "sl1." + "/" * 4_000,
        ours(1, b"\x01\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ours(1, b"\x01\x01" * 1_400),
        ours(2, b"\xaa" * 2_900),
        ours(2, b"\xff" * 2_900),
        signed(b"\x01" + b"\xff" * 2_900),
    ]
    tracemalloc.start()
    try:
        for text in hostile:
            decode(text, HERE, 5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


def test_R9_in_the_engine_it_is_a_warning_and_all_records_are_handled() -> None:
    shell = Shell()
    shell.assign(offset=5, metadata="consumer-7@host saved this")
    (notice,) = shell.notices("metadata_ignored")
    assert notice.warning
    assert "orders/0" in notice.text
    assert "another program" in notice.text
    shell.fetch(keys=[b"a", b"b", b"c"])
    assert [record.offset for record in shell.ready] == [5, 6, 7]


# ------------------------------------------------------------------- R14: copied to where it does not belong


@pytest.mark.parametrize(
    ("cluster_id", "topic_id", "group", "offset", "named"),
    [
        ("cluster-2", "topic-1", "billing", 5, "cluster"),
        ("cluster-1", "topic-2", "billing", 5, "topic"),
        (UNKNOWN, "topic-1", "billing", 5, "cluster"),
        ("cluster-1", UNKNOWN, "billing", 5, "topic"),
        ("cluster-1", "topic-1", "shipping", 5, "another group than shipping"),
        ("cluster-1", "topic-1", UNKNOWN, 5, "another group"),
        ("cluster-1", "topic-1", "billing", 4, "committed offset"),
        ("cluster-1", "topic-1", "billing", 6, "committed offset"),
    ],
)
def test_R14_metadata_of_another_cluster_topic_group_or_offset_skips_nothing(
    cluster_id: str, topic_id: str, group: str, offset: int, named: str
) -> None:
    text = encode(HERE, 5, 3, [(7, 10)])
    known = decode(text, Identity(cluster_id, topic_id, group), offset)
    assert isinstance(known, Ignored)
    assert named in known.reason


@given(identities, identities, commits(most=5), leader_epochs)
def test_R14_it_is_believed_exactly_where_it_was_written(
    written: Identity, read: Identity, commit: tuple[int, list[Run]], leader_epoch: int
) -> None:
    committed, runs = commit
    text = encode(written, committed, leader_epoch, runs or [(committed + 1, committed + 2)])
    assert isinstance(decode(text, read, committed), Restored) == (written == read)


def test_R14_unknown_matches_only_unknown() -> None:
    text = encode(Identity(), 5, 3, [(7, 10)])
    assert decode(text, Identity(), 5) == Restored(((7, 10),), 3)
    assert isinstance(decode(text, HERE, 5), Ignored)


@given(identities, identities, st.integers(0, 1_000), st.integers(0, 1_000), leader_epochs)
def test_R13_a_commit_of_an_earlier_topic_of_the_name_is_known_by_the_topics_id_alone(
    written: Identity, read: Identity, committed: int, seen: int, leader_epoch: int
) -> None:
    text = encode(written, committed, leader_epoch, [])
    same = (written.cluster_id, written.group, committed) == (read.cluster_id, read.group, seen)
    known = "unknown" not in (written.topic_id, read.topic_id, written.cluster_id)
    assert is_of_recreated(text, read, seen) == (same and known and written.topic_id != read.topic_id)


@pytest.mark.parametrize(
    "text", ["", "something else", "sl2.abc", "sl1.", "sl1.AAAA", "sl1.\x00", "sl1." + "A" * 5000]
)
def test_R13_other_texts_say_nothing_about_the_offset_beside_them(text: str) -> None:
    assert not is_of_recreated(text, HERE, 5)


def test_R13_R14_metadata_of_a_topic_that_was_made_again_skips_nothing() -> None:
    shell = Shell()
    text = encode(Identity("cluster-1", "topic-id-of-before"), 5, 3, [(7, 10)])
    shell.assign(ORDERS, 5, metadata=text, topic_id="topic-id-of-now")
    shell.fetch(keys=[None] * 5)
    assert [record.offset for record in shell.ready] == [5, 6, 7, 8, 9]
    assert "recreated or copied" in shell.notices("metadata_ignored")[0].text
    assert not [e for e in shell.all(ev.Commit) if e.offset > 5]
