"""Offsets of one partition: what was received, what is acknowledged, what may be committed and survives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamloop.engine.ledger import Ledger
from streamloop.engine.metadata import Identity, Restored, decode
from streamloop.engine.record import Record
from streamloop.engine.states import State

HERE = Identity("cluster-1", "topic-1")


def records(*offsets: int, epoch: int = 1) -> list[Record]:
    return [Record(offset, None, 100, epoch, object()) for offset in offsets]


def ack(ledger: Ledger, *offsets: int) -> None:
    for record in ledger.outstanding:
        if record.offset in offsets:
            record.state = State.ACKED
    ledger.advance()


def restarted(ledger: Ledger) -> Ledger:
    """What the next owner starts with after a crash right after a commit."""
    offset, metadata, _ = ledger.snapshot()
    known = decode(metadata, HERE, offset)
    assert known is None or isinstance(known, Restored)
    return Ledger(offset, HERE, known)


def offsets(handled: list[Record]) -> list[int]:
    return [record.offset for record in handled]


def test_the_lowest_offset_that_is_not_acknowledged_holds_the_commit() -> None:
    ledger = Ledger(10, HERE)
    assert ledger.committable == 10
    ledger.receive(records(10, 11, 12, 13))
    ack(ledger, 11, 12)
    assert (ledger.committable, ledger.gap) == (10, 4)
    assert ledger.holder is not None
    assert ledger.holder.offset == 10
    ack(ledger, 10)
    assert (ledger.committable, ledger.gap) == (13, 1)
    ack(ledger, 13)
    assert (ledger.committable, ledger.gap) == (14, 0)


def test_R11_offsets_that_never_came_do_not_hold_the_commit() -> None:
    ledger = Ledger(0, HERE)
    ledger.receive(records(3, 4, 9, 200))
    assert ledger.committable == 3
    ack(ledger, 3, 4)
    assert ledger.committable == 9
    ack(ledger, 9, 200)
    assert ledger.committable == 201


def test_R11_a_run_goes_on_over_offsets_that_do_not_exist() -> None:
    ledger = Ledger(0, HERE)
    ledger.receive(records(0, 3, 9, 20, 40))
    ack(ledger, 3, 9, 40)
    offset, metadata, _ = ledger.snapshot()
    assert decode(metadata, HERE, offset) == Restored(((3, 10), (40, 41)), 1)


def test_R16_a_partition_that_ends_in_markers_commits_its_position() -> None:
    ledger = Ledger(0, HERE)
    ledger.receive(records(0, 1, 2))
    ledger.reached(4)
    assert ledger.committable == 0
    ack(ledger, 0, 1)
    assert ledger.committable == 2
    ack(ledger, 2)
    assert ledger.committable == 4


def test_R16_an_end_that_moves_on_is_worth_a_commit_and_one_that_was_known_is_not() -> None:
    ledger = Ledger(7, HERE)
    before = ledger.version
    ledger.reached(9)
    assert (ledger.committable, ledger.version) == (9, before + 1)
    ledger.reached(9)
    ledger.reached(8)
    assert (ledger.committable, ledger.version) == (9, before + 1)


# ----------------------------------------------------------------------------------------- R8: after a crash


def test_R8_after_a_crash_only_what_was_not_acknowledged_comes_again() -> None:
    ledger = Ledger(1, HERE)
    ledger.receive(records(*range(1, 101)))
    ack(ledger, *range(2, 101))
    after = restarted(ledger)
    assert offsets(after.receive(records(*range(1, 121)))) == [1, *range(101, 121)]
    ack(after, 1)
    assert after.committable == 101


def test_R8_a_second_crash_before_all_was_received_again_forgets_nothing() -> None:
    ledger = Ledger(1, HERE)
    ledger.receive(records(*range(1, 101)))
    ack(ledger, *range(20, 40), *range(60, 101))
    second = restarted(ledger)
    # It receives up to 30 only, and handles all of that but 5.
    assert offsets(second.receive(records(*range(1, 31)))) == [*range(1, 20)]
    ack(second, *(set(range(1, 20)) - {5}))
    third = restarted(second)
    assert third.committable == 5
    assert offsets(third.receive(records(*range(5, 101)))) == [5, *range(40, 60)]


def test_R8_what_was_known_right_behind_the_position_survives_a_second_crash() -> None:
    ledger = Ledger(1, HERE)
    ledger.receive(records(*range(1, 11)))
    ack(ledger, *range(5, 11))
    second = restarted(ledger)
    second.receive(records(1, 2, 3, 4))
    ack(second, 1, 2, 3, 4)
    # Nothing is outstanding: the commit is at 5, which is itself known to be acknowledged.
    third = restarted(second)
    assert third.committable == 5
    assert third.receive(records(*range(5, 12)))[0].offset == 11


def test_R8_crashes_without_receiving_anything_forget_nothing() -> None:
    ledger = Ledger(1, HERE)
    ledger.receive(records(1, 2, 3, 4, 5))
    ack(ledger, 2, 4)
    for _ in range(3):
        ledger = restarted(ledger)
    assert offsets(ledger.receive(records(1, 2, 3, 4, 5))) == [1, 3, 5]


def test_R8_known_records_that_compaction_removed_do_not_hold_the_commit() -> None:
    ledger = Ledger(1, HERE)
    ledger.receive(records(1, 2, 3, 4, 5))
    ack(ledger, 3, 4, 5)
    after = restarted(ledger)
    assert offsets(after.receive(records(1, 2, 9))) == [1, 2, 9]
    ack(after, 1, 2, 9)
    offset, metadata, _ = after.snapshot()
    assert offset == 10
    restored = decode(metadata, HERE, 10)
    assert isinstance(restored, Restored)
    assert restored.runs == ()


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, set[int]]]]:
    """A log with gaps, and for each life how many records it receives and which it acknowledges."""
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 7]), min_size=1, max_size=60))
    log, at = [], 0
    for gap in gaps:
        at += gap
        log.append(at)
    lives = draw(
        st.lists(st.tuples(st.integers(0, len(log)), st.sets(st.sampled_from(log))), min_size=1, max_size=6)
    )
    return log, lives


@given(histories())
def test_R8_R11_over_any_number_of_crashes_a_record_is_handled_until_acknowledged_and_then_never_again(
    history: tuple[list[int], list[tuple[int, set[int]]]],
) -> None:
    log, lives = history
    acknowledged: set[int] = set()
    ledger = Ledger(0, HERE)
    for count, acks in lives:
        coming = [offset for offset in log if offset >= ledger.position][:count]
        handled = offsets(ledger.receive(records(*coming))) if coming else []
        assert set(handled) == set(coming) - acknowledged
        ack(ledger, *(acks & set(handled)))
        acknowledged |= acks & set(handled)
        open_offsets = [offset for offset in log if offset < ledger.position and offset not in acknowledged]
        assert ledger.committable == (open_offsets[0] if open_offsets else ledger.position)
        ledger = restarted(ledger)
    rest = [offset for offset in log if offset >= ledger.position]
    if rest:
        assert set(offsets(ledger.receive(records(*rest)))) == set(rest) - acknowledged


# ------------------------------------------------------------------------------------------- leader epochs


def known(*runs: tuple[int, int], epoch: int) -> Restored:
    return Restored(runs, epoch)


def test_a_record_of_a_newer_leader_epoch_is_handled_though_its_offset_was_acknowledged() -> None:
    ledger = Ledger(5, HERE, known((7, 10), epoch=3))
    assert offsets(ledger.receive(records(5, 6, 7, epoch=3) + records(8, 9, epoch=4))) == [5, 6, 8, 9]


def test_an_older_leader_epoch_is_believed() -> None:
    ledger = Ledger(5, HERE, known((7, 10), epoch=3))
    assert offsets(ledger.receive(records(5, 6, 7, 8, 9, epoch=2))) == [5, 6]


def test_an_unknown_leader_epoch_is_believed_only_by_metadata_without_one() -> None:
    assert offsets(Ledger(5, HERE, known((5, 8), epoch=3)).receive(records(5, 6, 7, epoch=-1))) == [5, 6, 7]
    assert offsets(Ledger(5, HERE, known((5, 8), epoch=-1)).receive(records(5, 6, 7, epoch=-1))) == []
    assert offsets(Ledger(5, HERE, known((5, 8), epoch=-1)).receive(records(5, 6, 7, epoch=0))) == [5, 6, 7]


def test_after_a_newer_leader_epoch_older_metadata_is_not_written_again() -> None:
    # The log was cut at 30 and written anew by leader epoch 5, after epoch 3 had acknowledged 50..59.
    ledger = Ledger(25, HERE, known((50, 60), epoch=3))
    ledger.receive(records(25, 26, epoch=3) + records(*range(30, 41), epoch=5))
    ack(ledger, *range(30, 41))
    after = restarted(ledger)
    handled = offsets(after.receive(records(25, 26, epoch=3) + records(*range(30, 60), epoch=5)))
    assert handled == [25, 26, *range(41, 60)]


def test_one_acknowledged_record_of_unknown_epoch_makes_the_written_epoch_unknown() -> None:
    ledger = Ledger(0, HERE)
    ledger.receive(records(0, 1, epoch=4) + records(2, epoch=-1) + records(3, epoch=4))
    ack(ledger, 1, 2, 3)
    offset, metadata, _ = ledger.snapshot()
    assert decode(metadata, HERE, offset) == Restored(((1, 4),), -1)
    assert offsets(restarted(ledger).receive(records(0, 1, 2, 3, epoch=4))) == [0, 1, 2, 3]


def test_the_highest_acknowledged_leader_epoch_is_written() -> None:
    ledger = Ledger(0, HERE)
    ledger.receive(records(0, 1, epoch=4) + records(2, 3, epoch=6) + records(4, epoch=9))
    ack(ledger, 1, 3)
    offset, metadata, _ = ledger.snapshot()
    assert decode(metadata, HERE, offset) == Restored(((1, 2), (3, 4)), 6)


def test_restored_knowledge_is_let_go_once_it_is_behind() -> None:
    ledger = Ledger(0, HERE, known((2, 4), epoch=1))
    ledger.receive(records(0, 1, 2))
    assert ledger.restored is not None
    ledger.receive(records(3, 4))
    assert ledger.restored is None
