"""Epochs, acknowledgements, commits and dispatch: what a rebalance, a crash or a late result may not do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamloop.engine import events as ev
from streamloop.engine.consumer import ConsumerSpec
from streamloop.engine.events import Reason
from streamloop.engine.lanes import Ordering
from streamloop.engine.retry import Failure, Kind, RetryPlan
from streamloop.engine.states import State
from tests.engine.driver import (
    ORDERS,
    OTHERS,
    PERMANENT,
    REPLAY,
    RETRY,
    TRANSIENT,
    UNAVAILABLE,
    Shell,
)

if TYPE_CHECKING:
    from streamloop.engine.record import Record


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


# ------------------------------------------------------------------------------------------ what is counted


def test_B1_everything_that_is_not_acknowledged_counts_wherever_it_waits() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=3, plan=RetryPlan(in_place_attempts=2)))
    shell.assign()
    back_off, routed, running, *queued = shell.fetch(keys=[None] * 6)
    shell.fail(back_off)
    shell.fail(routed, PERMANENT)
    shell.begin(running)
    assert [r.state for r in (back_off, routed, running, queued[-1])] == [
        State.BACKOFF,
        State.ROUTING_DEAD,
        State.PROCESSING,
        State.FETCHED,
    ]
    assert (shell.capacity().messages, shell.capacity().bytes) == (6, 600)
    shell.balanced()
    shell.step(ev.Published(routed))
    shell.step(ev.Finished([running]))
    assert shell.capacity().messages == 4
    shell.wait(1)
    shell.done(back_off)
    shell.done(*queued)
    assert (shell.capacity().messages, shell.capacity().bytes) == (0, 0)
    shell.balanced()


def test_nothing_is_dispatched_twice_while_it_is_out() -> None:
    shell = Shell()
    shell.assign()
    records = shell.fetch(keys=[b"a", None, b"b"])
    for _ in range(3):
        shell.step()
    assert shell.ready == records
    shell.begin(*records)
    for _ in range(3):
        shell.step(wait=1)
    assert shell.ready == []


def test_a_record_that_is_received_twice_in_an_epoch_is_handled_once() -> None:
    shell = Shell()
    shell.assign()
    first, _ = shell.fetch(keys=[b"a", b"b"])
    shell.begin(first)
    shell.next_offset[ORDERS] = 0
    shell.fetch(keys=[b"a", b"b", b"c"])
    assert offsets(shell.ready) == [1, 2]
    assert shell.capacity().messages == 3
    shell.next_offset[ORDERS] = 0
    shell.fetch(keys=[b"a", b"b"])
    shell.step(ev.Finished([first]))
    shell.done(*shell.ready)
    assert shell.committable() == 3
    shell.balanced()


def test_a_message_of_an_ended_epoch_is_let_go_though_its_back_off_is_long() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record, Failure(Kind.TRANSIENT, "E", "", "0" * 16, after=86_400))
    assert record.message is not None
    shell.close(ORDERS)
    assert record.message is None


def test_no_more_is_dispatched_than_there_are_workers() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=4))
    shell.assign()
    shell.fetch(keys=[None] * 50)
    assert len(shell.ready) == 4
    shell.begin(*shell.ready[:2])
    shell.step()
    assert len(shell.ready) == 2


def test_records_of_no_open_epoch_are_dropped_and_given_back_to_the_consumer_that_took_them() -> None:
    shell = Shell()
    for name in (ORDERS, RETRY, REPLAY):
        shell.assign(name)
        shell.close(name)
        shell.fetch(name, keys=[None] * 3)
        assert shell.ready == []
        assert [capacity.messages for capacity in shell.capacities] == [0, 0], name
    assert shell.engine.late == 3


def test_an_empty_fetch_changes_nothing() -> None:
    shell = Shell()
    shell.assign()
    assert shell.step(ev.Fetched(ORDERS, 1, [])) == []


# ------------------------------------------------------------------------------------------------ commits


def test_a_commit_carries_the_lowest_offset_that_is_not_acknowledged_once_an_interval() -> None:
    shell = Shell(commit_interval=1.0)
    shell.assign()
    records = shell.fetch(keys=[None] * 10)
    shell.done(*records[:5])
    assert shell.last_commit().offset == 5
    shell.done(records[5], wait=0.2)
    shell.done(records[6], wait=0.2)
    assert shell.of(ev.Commit) == []
    assert shell.engine.next_due() is not None
    shell.step(wait=0.7)
    assert [commit.offset for commit in shell.of(ev.Commit)] == [7]
    shell.wait(5)
    assert shell.last_commit().offset == 7
    assert len(shell.all(ev.Commit)) == 2


def test_R8_messages_behind_a_stuck_one_are_not_handled_again_after_a_crash() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=200))
    shell.assign(offset=1)
    stuck, *rest = shell.fetch(keys=[None] * 100)
    shell.begin(stuck)
    shell.done(*rest)
    commit = shell.last_commit()
    assert commit.offset == 1

    again = Shell(ConsumerSpec("billing", concurrency=200))
    again.assign(offset=commit.offset, metadata=commit.metadata)
    again.fetch(keys=[None] * 120)
    assert offsets(again.ready) == [1, *range(101, 121)]
    assert again.engine.consumers[0].counts.restored == 99
    again.balanced()
    again.step(wait=2)
    assert again.last_commit().offset == 1
    again.done(*again.ready)
    assert again.committable() == 121


def test_R8_records_known_from_an_earlier_commit_give_their_room_back_at_once() -> None:
    shell = Shell()
    shell.assign(offset=0)
    first, *rest = shell.fetch(keys=[None] * 50)
    shell.begin(first)
    shell.done(*rest)
    commit = shell.last_commit()
    again = Shell()
    again.assign(offset=commit.offset, metadata=commit.metadata)
    again.fetch(keys=[None] * 50)
    assert (again.capacity().messages, again.capacity().bytes) == (1, 100)


def test_R11_gaps_of_compaction_and_markers_advance_the_commit_position() -> None:
    shell = Shell()
    shell.assign(offset=0)
    shell.done(*shell.fetch_at(ORDERS, 3, 9, 17))
    assert shell.last_commit().offset == 18
    shell.step(ev.EndOfPartition(ORDERS, 1, 25), wait=2)
    assert shell.last_commit().offset == 25


def test_R16_lag_reaches_zero_at_an_end_of_markers_once_all_is_acknowledged() -> None:
    shell = Shell()
    shell.assign()
    records = shell.fetch(keys=[None] * 3)
    shell.step(ev.EndOfPartition(ORDERS, 1, 4))
    assert shell.committable() == 0
    shell.done(*records)
    shell.step(wait=2)
    assert shell.last_commit().offset == 4


# --------------------------------------------------------------------------------- R18: the start position


def test_R18_the_start_is_committed_before_anything_is_dispatched() -> None:
    shell = Shell()
    shell.assign(offset=40, committed=False)
    (commit,) = shell.of(ev.Commit)
    assert commit.offset == 40
    assert shell.reasons() == {Reason.ASSIGNING}
    shell.fetch(keys=[None] * 3)
    shell.wait(5)
    assert shell.ready == []
    shell.step(ev.Committed(ORDERS, 1, 40, commit.version))
    assert shell.reasons() == set()
    assert offsets(shell.ready) == [40, 41, 42]


def test_R18_a_confirmation_for_a_former_epoch_does_not_open_this_one() -> None:
    shell = Shell()
    shell.assign(offset=40, committed=False)
    shell.close(ORDERS)
    shell.assign(offset=40, committed=False)
    shell.fetch(keys=[None])
    shell.step(ev.Committed(ORDERS, 1, 40, 1))
    assert shell.ready == []
    assert shell.engine.late == 1


# ---------------------------------------------------------------------------------------------- rebalances


def test_R1_revoked_while_a_message_waits_for_its_retry() -> None:
    shell = Shell()
    shell.assign()
    first, second = shell.fetch(keys=[b"a", b"b"])
    shell.fail(first)
    shell.done(second)
    shell.revoking(ORDERS)
    assert len(shell.of(ev.Quiet)) == 1
    shell.close(ORDERS)
    assert first.state is State.REVOKED
    assert {commit.offset for commit in shell.all(ev.Commit)} <= {0}
    assert (shell.capacity().messages, shell.capacity().bytes) == (0, 0)
    assert shell.engine.idle()
    shell.wait(10)
    assert shell.ready == []
    shell.step(wait=1)
    assert shell.engine.next_due() is None


def test_R2_fetched_but_not_started_at_a_revoke_is_not_committed() -> None:
    shell = Shell()
    shell.assign()
    first, second, third = shell.fetch(keys=[None] * 3)
    shell.done(first)
    shell.revoking(ORDERS)
    for record in (second, third):
        assert not record.begin(shell.now)
    shell.give_back(second, third)
    shell.close(ORDERS)
    assert shell.last_commit().offset == 1
    assert shell.ready == []
    assert shell.engine.consumers[0].running == 0
    shell.balanced()


def test_R7_what_finishes_before_the_partition_is_closed_is_committed() -> None:
    shell = Shell()
    shell.assign()
    first, second, third = shell.fetch(keys=[None] * 3)
    shell.begin(first, second)
    shell.revoking(ORDERS)
    assert shell.of(ev.Quiet) == []
    shell.step(ev.Finished([first]))
    # Not at the next interval: the poller keeps the newest snapshot for its last commit.
    assert [commit.offset for commit in shell.of(ev.Commit)] == [1]
    assert shell.of(ev.Quiet) == []
    shell.step(ev.Finished([second]))
    kinds = [type(effect) for effect in shell.effects if isinstance(effect, ev.Commit | ev.Quiet)]
    assert kinds == [ev.Commit, ev.Quiet]
    assert shell.last_commit().offset == 2
    shell.close(ORDERS)
    assert third.state is State.REVOKED


def test_R7_a_routing_that_is_not_confirmed_is_waited_for_too() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record, PERMANENT)
    shell.revoking(ORDERS)
    assert shell.of(ev.Quiet) == []
    shell.step(ev.Published(record))
    assert len(shell.of(ev.Quiet)) == 1
    assert shell.last_commit().offset == 1


def test_a_quiet_partition_says_so_at_once_and_once() -> None:
    shell = Shell()
    shell.assign()
    shell.revoking(ORDERS)
    assert len(shell.of(ev.Quiet)) == 1
    shell.wait(1)
    assert len(shell.all(ev.Quiet)) == 1


def test_R3_a_result_after_the_revoke_acknowledges_nothing() -> None:
    shell = Shell()
    shell.assign()
    (old,) = shell.fetch(keys=[b"a"])
    shell.begin(old)
    shell.close(ORDERS)
    (cancel,) = shell.of(ev.Cancel)
    assert cancel.records == [old]
    commits = len(shell.all(ev.Commit))
    shell.step(ev.Finished([old]), wait=5)
    assert old.state is State.REVOKED
    assert len(shell.all(ev.Commit)) == commits
    assert shell.engine.consumers[0].counts.late == 1
    assert shell.engine.consumers[0].running == 0


def test_R3_a_late_result_is_not_mistaken_for_the_redelivered_message() -> None:
    shell = Shell(ConsumerSpec("billing", ordering=Ordering.NONE))
    shell.assign()
    (old,) = shell.fetch()
    shell.begin(old)
    shell.close(ORDERS)
    shell.assign(offset=0)
    (new,) = shell.fetch()
    shell.begin(new)
    shell.step(ev.Finished([old]), wait=5)
    assert (old.state, new.state) == (State.REVOKED, State.PROCESSING)
    assert shell.committable() == 0
    assert shell.engine.consumers[0].counts.redelivered == 1
    shell.step(ev.Finished([new]), wait=5)
    assert shell.last_commit().offset == 1
    shell.balanced()


def test_R3_late_reports_of_publishes_acknowledge_and_hold_nothing() -> None:
    shell = Shell()
    shell.assign()
    first, second = shell.fetch(keys=[None, None])
    shell.fail(first, PERMANENT)
    shell.fail(second, PERMANENT)
    shell.step(ev.PublishBlocked(second, "orders.dlq is full"))
    shell.close(ORDERS)
    assert [effect.record for effect in shell.of(ev.Unroute)] == [first, second]
    shell.assign(offset=0)
    shell.step(
        ev.Published(first),
        ev.PublishBlocked(first, "orders.dlq is full"),
        ev.PublishUnblocked(second),
        ev.Published(second),
    )
    assert shell.effects == []
    assert shell.committable() == 0
    assert (first.state, second.state) == (State.REVOKED, State.REVOKED)
    assert shell.engine.consumers[0].counts.late == 2


@pytest.mark.parametrize("ordering", [Ordering.KEY, Ordering.PARTITION])
def test_R3_a_lane_waits_for_its_handler_of_a_former_epoch(ordering: Ordering) -> None:
    shell = Shell(ConsumerSpec("billing", ordering=ordering))
    shell.assign()
    (old,) = shell.fetch(keys=[b"a"])
    shell.begin(old)
    shell.close(ORDERS)
    shell.assign(offset=0)
    again, other = shell.fetch(keys=[b"a", b"b"])
    assert shell.ready == ([other] if ordering is Ordering.KEY else [])
    shell.wait(5)
    assert again not in shell.ready
    old.failure = TRANSIENT
    shell.step(ev.Finished([old]))
    assert again in shell.ready
    shell.done(again)
    assert again.state is State.ACKED
    shell.balanced()


def test_R3_a_lane_waits_over_two_epochs_for_all_handlers_that_still_run() -> None:
    shell = Shell()
    shell.assign()
    (one,) = shell.fetch(keys=[b"a"])
    shell.begin(one)
    shell.close(ORDERS)
    shell.assign(offset=0)
    shell.fetch(keys=[b"a"])
    shell.close(ORDERS)
    shell.assign(offset=0)
    (three,) = shell.fetch(keys=[b"a"])
    assert three not in shell.ready
    shell.step(ev.Finished([one]))
    assert shell.ready == [three]


def test_R3_a_held_up_lane_leaves_the_workers_to_the_others() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=2))
    shell.assign()
    (old,) = shell.fetch(keys=[b"a"])
    shell.begin(old)
    shell.close(ORDERS)
    shell.assign(offset=0)
    shell.fetch(keys=[b"a", b"b"])
    assert offsets(shell.ready) == [1]


def test_R3_a_dispatched_record_that_never_began_holds_up_and_frees_no_lane() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=10))
    shell.assign()
    (never,) = shell.fetch(keys=[b"a"])
    shell.close(ORDERS)
    shell.assign(offset=0)
    (second,) = shell.fetch(keys=[b"a"])
    assert second in shell.ready
    shell.begin(second)
    shell.close(ORDERS)
    shell.assign(offset=0)
    (third,) = shell.fetch(keys=[b"a"])
    assert third not in shell.ready
    # It could not be decoded, and is reported only now: the second one's handler still runs.
    never.failure = PERMANENT
    shell.ready.remove(never)
    shell.step(ev.Finished([never]))
    assert third not in shell.ready
    shell.step(ev.Finished([second]))
    assert shell.ready == [third]


def test_R15_messages_of_a_former_epoch_are_never_handled_as_the_new_ones() -> None:
    shell = Shell()
    shell.assign(offset=0)
    stale = shell.records(ORDERS, [None] * 3)
    shell.close(ORDERS, lost=True)
    # Meanwhile another member handled and committed up to 20.
    shell.assign(offset=20)
    shell.step(ev.Fetched(ORDERS, 1, stale), ev.EndOfPartition(ORDERS, 1, 3))
    assert shell.ready == []
    assert shell.committable() == 20
    assert shell.capacity().messages == 0
    assert shell.engine.late == 2
    shell.fetch(keys=[None])
    assert offsets(shell.ready) == [20]
    assert not [commit for commit in shell.all(ev.Commit) if commit.offset < 20]


def test_R6_lost_commits_nothing_and_nothing_of_it_is_acknowledged_later() -> None:
    shell = Shell()
    shell.assign()
    first, second, third = shell.fetch(keys=[None] * 3)
    shell.done(first)
    shell.step(wait=2)
    before = len(shell.all(ev.Commit))
    shell.begin(second)
    shell.step(ev.Finished([second]), ev.Closed([(ORDERS, 1)], lost=True))
    assert shell.of(ev.Commit) == []
    assert not third.begin(shell.now)
    shell.wait(3)
    assert len(shell.all(ev.Commit)) == before
    assert (shell.capacity().messages, shell.capacity().bytes) == (0, 0)


def test_a_partition_that_ends_in_the_step_of_an_acknowledgement_gives_its_room_back_once() -> None:
    shell = Shell()
    shell.assign()
    records = shell.fetch(keys=[None] * 4)
    shell.begin(*records)
    shell.step(ev.Finished(records[:3]), ev.Closed([(ORDERS, 1)], lost=False))
    assert (shell.capacity().messages, shell.capacity().bytes) == (0, 0)


def test_an_assignment_over_an_open_epoch_ends_that_epoch() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.begin(record)
    shell.assign(offset=0)
    assert record.state is State.REVOKED
    assert shell.capacity().messages == 0
    assert [effect.records for effect in shell.of(ev.Cancel)] == [[record]]


def test_R13_a_topic_made_again_while_running_starts_anew_and_nothing_old_is_committed_there() -> None:
    shell = Shell()
    shell.assign(offset=0, topic_id="old")
    records = shell.fetch(keys=[None] * 50)
    shell.begin(*records)
    shell.step(ev.Finished(records[:20]))
    shell.step(ev.Finished(records[20:40]), ev.Closed([(ORDERS, 1)], lost=True))
    old = len(shell.all(ev.Commit))
    shell.assign(offset=0, committed=False, topic_id="new")
    shell.step(ev.Committed(ORDERS, 2, 0, 1))
    fresh = shell.fetch(keys=[None] * 5)
    shell.step(ev.Finished(records[40:]))
    assert [record for record in shell.ready if record in fresh] == fresh
    shell.done(*fresh)
    shell.wait(2)
    assert {commit.epoch for commit in shell.all(ev.Commit)[old:]} == {2}
    assert shell.last_commit().offset == 5


def test_events_of_partitions_that_never_came_are_counted_and_change_nothing() -> None:
    shell = Shell()
    shell.step(
        ev.EndOfPartition(OTHERS, 1, 5),
        ev.Revoking([(OTHERS, 1)]),
        ev.Closed([(OTHERS, 1)], False),
        ev.Committed(OTHERS, 1, 5, 1),
        ev.HoldChanged(OTHERS, 1, Reason.OPERATOR, held=True),
        ev.Sought(OTHERS, 1, 1),
    )
    assert shell.effects == []
    assert shell.engine.late == 6


# ---------------------------------------------------------------------------------- a recorded run again


def test_a_recorded_run_gives_the_same_effects_in_the_same_order() -> None:
    def run() -> list[str]:
        shell = Shell(ConsumerSpec("billing", concurrency=5, plan=RetryPlan(in_place_attempts=2)))
        junk = []
        for name in (OTHERS, ORDERS):
            shell.assign(name)
            junk.append(object())
        for turn in range(30):
            shell.fetch(ORDERS, keys=[b"a", b"b", None])
            shell.fetch(OTHERS, keys=[None, b"c"])
            batch = shell.ready[: 1 + turn % 4]
            shell.begin(*batch)
            for record in batch[::3]:
                record.failure = (TRANSIENT, PERMANENT, UNAVAILABLE)[turn % 3]
            shell.step(ev.Finished(batch), wait=0.3)
        return [
            f"{type(effect).__name__} {getattr(effect, 'records', None) or effect}" for effect in shell.seen
        ]

    first = run()
    keep = [object() for _ in range(10_000)]  # other addresses
    assert run() == first
    del keep


def test_time_that_goes_back_counts_as_no_time() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record)
    due = shell.engine.next_due()
    shell.engine.step(shell.now - 50, [ev.Tick()])
    assert shell.engine.now == shell.now
    assert shell.engine.next_due() == due
    shell.step(wait=1)
    assert shell.ready == [record]


def test_the_largest_offsets_are_committed() -> None:
    shell = Shell()
    last = 2**63 - 10
    shell.assign(offset=last)
    first, *rest = shell.fetch(keys=[None] * 5)
    shell.begin(first)
    shell.done(*rest)
    commit = shell.last_commit()
    again = Shell()
    again.assign(offset=commit.offset, metadata=commit.metadata)
    again.fetch(keys=[None] * 6)
    assert offsets(again.ready) == [last, last + 5]


# ------------------------------------------------------------------------------- a poller that stood still


def test_R15_a_retry_that_becomes_due_while_the_poller_stands_still_waits_too() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record)
    shell.capacity().start_until = shell.now
    shell.wait(5)
    assert shell.ready == []
    shell.capacity().start_until = shell.now + 10
    shell.step()
    assert shell.ready == [record]
