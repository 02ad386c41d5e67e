"""Drain and bounds: what is running ends, nothing new starts, and a run that has a bound ends by itself."""

from __future__ import annotations

import pytest

from streamloop.engine import events as ev
from streamloop.engine.consumer import ConsumerSpec
from streamloop.engine.retry import Failure, Kind
from streamloop.engine.states import State
from tests.engine.driver import ORDERS, OTHERS, PERMANENT, RETRY, TRANSIENT, UNAVAILABLE, Shell

# ---------------------------------------------------------------------------------------------------- drain


def test_a_drain_starts_nothing_lets_run_what_runs_and_commits_what_finished() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=3))
    shell.assign()
    first, second, third, fourth = shell.fetch(keys=[None] * 4)
    shell.begin(first, second)
    shell.step(ev.Drain())
    assert shell.of(ev.Drained) == []
    assert not third.begin(shell.now)
    shell.give_back(third)
    shell.step(ev.Finished([first]))
    assert shell.of(ev.Drained) == []
    shell.step(ev.Finished([second]))
    kinds = [type(effect) for effect in shell.effects if isinstance(effect, ev.Commit | ev.Drained)]
    assert kinds == [ev.Commit, ev.Drained]
    assert shell.last_commit().offset == 2
    shell.wait(2)
    assert len(shell.all(ev.Drained)) == 1
    assert shell.ready == []
    assert fourth.state is State.FETCHED


def test_a_drain_with_nothing_running_is_done_at_once() -> None:
    shell = Shell()
    shell.step(ev.Drain())
    assert len(shell.of(ev.Drained)) == 1


def test_a_drain_waits_for_routing_but_for_no_back_off() -> None:
    shell = Shell()
    shell.assign()
    routed, back_off, running = shell.fetch(keys=[b"a", b"b", b"c"])
    shell.fail(routed, PERMANENT)
    shell.fail(back_off, TRANSIENT)
    shell.begin(running)
    shell.step(ev.Drain())
    running.failure = TRANSIENT
    shell.step(ev.Finished([running]))
    assert running.state is State.BACKOFF
    assert shell.of(ev.Drained) == []
    shell.step(ev.Published(routed))
    assert len(shell.of(ev.Drained)) == 1
    shell.wait(5)
    assert shell.ready == []
    assert shell.last_commit().offset == 1


def test_a_drain_does_not_wait_for_a_lane_that_a_former_epoch_holds_up() -> None:
    shell = Shell()
    shell.assign()
    (old,) = shell.fetch(keys=[b"a"])
    shell.begin(old)
    shell.close(ORDERS)
    shell.assign(offset=0)
    shell.fetch(keys=[b"a"])
    shell.step(ev.Drain())
    assert len(shell.of(ev.Drained)) == 1
    shell.step(ev.Finished([old]))
    assert shell.ready == []


def test_a_partition_that_comes_during_a_drain_starts_nothing() -> None:
    shell = Shell()
    shell.step(ev.Drain())
    shell.assign()
    shell.fetch(keys=[None] * 3)
    shell.wait(1)
    assert shell.ready == []
    shell.revoking(ORDERS)
    assert len(shell.of(ev.Quiet)) == 1
    shell.close(ORDERS)
    shell.balanced()


def test_nothing_is_taken_early_to_its_retry_topic_during_a_drain() -> None:
    shell = Shell(high=8, backoff_share=0.25)
    shell.assign()
    for record in shell.fetch(keys=[None] * 4):
        record.failure = Failure(Kind.TRANSIENT, "E", "", "0" * 16, after=60)
        shell.begin(record)
    shell.step(ev.Drain(), ev.Finished(list(shell.part().ledger.outstanding)))
    shell.wait(1)
    assert shell.all(ev.Route) == []
    assert len(shell.all(ev.Drained)) == 1


def test_H2_what_is_stopped_when_the_drain_is_cut_short_is_no_failure_of_the_message() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=4), commit_interval=60)
    shell.assign()
    first, second, stopped, returned = shell.fetch(keys=[None] * 4)
    shell.begin(first, second, stopped, returned)
    shell.step(ev.Finished([first]))
    shell.step(ev.Finished([second]))
    shell.step(ev.Drain())
    assert not shell.of(ev.Drained)
    assert not shell.of(ev.Commit)

    shell.step(ev.CutShort())
    assert [commit.offset for commit in shell.of(ev.Commit)] == [2]  # at once: the partition leaves now
    shell.revoking(ORDERS)
    assert len(shell.of(ev.Quiet)) == 1  # the drain was what there was to wait
    stopped.failure = PERMANENT
    shell.step(ev.Finished([stopped, returned]))
    assert len(shell.of(ev.Drained)) == 1
    assert (stopped.state, returned.state) == (State.HALTED, State.ACKED)
    assert shell.all(ev.Route) == []
    assert shell.part().ledger.committable == 2
    shell.close(ORDERS)
    shell.balanced()


# --------------------------------------------------------------------------------------------- max_messages


def reached(shell: Shell) -> list[str]:
    return [effect.bound for effect in shell.all(ev.BoundReached)]


def test_max_messages_starts_so_many_and_says_when_they_are_over() -> None:
    shell = Shell(max_messages=5)
    shell.assign()
    shell.fetch(keys=[None] * 9)
    assert len(shell.ready) == 5
    retried, routed, *rest = shell.ready
    shell.done(*rest)
    shell.fail(retried)
    shell.fail(routed, PERMANENT)
    assert reached(shell) == []
    shell.step(ev.Published(routed))
    shell.wait(1)
    assert shell.ready == [retried], "a retry of one that was started is no new message"
    assert reached(shell) == []
    shell.done(retried)
    assert reached(shell) == ["max_messages"]
    shell.wait(2)
    assert reached(shell) == ["max_messages"]
    assert shell.committable() == 5


def test_max_messages_does_not_count_what_was_given_back_before_it_started() -> None:
    shell = Shell(max_messages=3)
    shell.assign()
    shell.fetch(keys=[None] * 5)
    shell.give_back(*shell.ready)
    shell.give_back(*shell.ready)
    assert len(shell.ready) == 3
    shell.done(*shell.ready)
    assert reached(shell) == ["max_messages"]
    assert shell.engine.consumers[0].counts.succeeded == 3


def test_max_messages_does_not_count_what_left_with_its_partition_before_it_started() -> None:
    shell = Shell(max_messages=3)
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    shell.fetch(ORDERS, keys=[None] * 3)
    gone = list(shell.ready)
    shell.close(ORDERS)
    shell.fetch(OTHERS, keys=[None] * 9)
    assert shell.ready == gone
    shell.give_back(*gone)
    assert [record.part.name for record in shell.ready] == [OTHERS] * 3
    shell.done(*shell.ready)
    assert reached(shell) == ["max_messages"]


def test_max_messages_is_not_spent_by_a_lane_that_a_former_epoch_holds_up() -> None:
    shell = Shell(max_messages=3)
    shell.assign()
    (old,) = shell.fetch(keys=[b"a"])
    shell.begin(old)
    shell.close(ORDERS)
    shell.assign(offset=0)
    held, other, third = shell.fetch(keys=[b"a", b"b", b"c"])
    assert shell.ready == [other, third]
    shell.done(other, third)
    assert reached(shell) == [], "its handler still runs"
    shell.step(ev.Finished([old]))
    assert reached(shell) == ["max_messages"]
    assert held.state is State.FETCHED


def test_max_messages_waits_for_what_is_stalled_by_a_hold() -> None:
    shell = Shell(max_messages=1)
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record)
    shell.step(ev.HoldChanged(ORDERS, 1, ev.Reason.OPERATOR, held=True))
    shell.wait(2)
    assert reached(shell) == []
    shell.step(ev.HoldChanged(ORDERS, 1, ev.Reason.OPERATOR, held=False))
    shell.done(record)
    assert reached(shell) == ["max_messages"]


@pytest.mark.parametrize("batch_size", [0, 4])
def test_max_messages_holds_for_batches(batch_size: int) -> None:
    shell = Shell(ConsumerSpec("billing", batch_size=batch_size, concurrency=50), max_messages=6)
    shell.assign()
    shell.fetch(keys=[b"a", b"b", b"c"] * 6)
    while shell.ready:
        shell.done(*shell.ready)
    assert shell.engine.consumers[0].counts.succeeded == 6
    assert reached(shell) == ["max_messages"]


# ------------------------------------------------------------------------------------------------ until_end


def test_R16_until_end_ends_at_an_end_of_markers() -> None:
    shell = Shell(until_end=True)
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    records = shell.fetch(keys=[None] * 3)
    shell.step(ev.EndOfPartition(ORDERS, 1, 5), ev.EndOfPartition(OTHERS, 1, 0))
    assert reached(shell) == []
    shell.done(*records)
    assert reached(shell) == ["until_end"]


def test_until_end_means_the_end_when_it_was_first_reached() -> None:
    shell = Shell(until_end=True)
    shell.assign()
    first = shell.fetch(keys=[None] * 3)
    shell.step(ev.EndOfPartition(ORDERS, 1, 3))
    shell.fetch(keys=[None] * 3)
    shell.step(ev.EndOfPartition(ORDERS, 1, 6))
    shell.done(*first)
    assert reached(shell) == ["until_end"]


def test_until_end_waits_for_retries_in_place_but_not_for_retry_topics() -> None:
    shell = Shell(until_end=True)
    shell.assign(ORDERS)
    shell.assign(RETRY)
    one, two = shell.fetch(keys=[b"a", b"b"])
    shell.fetch(RETRY, due=shell.now + 30)
    shell.step(ev.EndOfPartition(ORDERS, 1, 2))
    shell.fail(one)
    shell.fail(two, PERMANENT)
    shell.step(ev.Published(two))
    assert reached(shell) == []
    shell.wait(1)
    shell.done(one)
    assert reached(shell) == ["until_end"]


def test_until_end_does_not_end_without_a_partition() -> None:
    shell = Shell(until_end=True)
    shell.wait(1)
    assert reached(shell) == []
    shell.assign()
    shell.step(ev.EndOfPartition(ORDERS, 1, 0))
    assert reached(shell) == ["until_end"]


def test_until_end_an_end_of_a_former_epoch_does_not_count() -> None:
    shell = Shell(until_end=True)
    shell.assign()
    shell.fetch(keys=[None])
    shell.step(ev.EndOfPartition(ORDERS, 1, 1))
    shell.close(ORDERS)
    shell.assign(offset=0)
    shell.step(ev.EndOfPartition(ORDERS, 1, 1))
    assert reached(shell) == []


# ----------------------------------------------------------------------------------------------- next_due


def test_next_due_is_the_earliest_of_retries_commits_and_looks() -> None:
    shell = Shell()
    shell.step()
    shell.step(wait=1)
    assert shell.engine.next_due() is None
    shell.assign()
    first, second = shell.fetch(keys=[b"a", b"b"])
    shell.done(first)
    shell.fail(second, UNAVAILABLE)
    due = shell.engine.next_due()
    assert due is not None
    # A shell that steps only then has the retry started in time, and the commit asked for.
    for _ in range(20):
        due = shell.engine.next_due()
        if due is None or second in shell.ready:
            break
        shell.step(wait=max(0.0, due - shell.now))
    assert second in shell.ready
    shell.done(second)
    for _ in range(20):
        due = shell.engine.next_due()
        if due is None:
            break
        shell.step(wait=max(0.0, due - shell.now))
    assert shell.last_commit().offset == 2
