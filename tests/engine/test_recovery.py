"""What becomes of messages that fail: none is acknowledged before it is durable, and none is dropped."""

from __future__ import annotations

import pytest

from streamloop.engine import events as ev
from streamloop.engine.consumer import BREAKER_TRIPS_AFTER, MAX_ERROR_TYPES, ConsumerSpec
from streamloop.engine.events import Reason, Target
from streamloop.engine.retry import Failure, Kind, RetryPlan
from streamloop.engine.states import State
from tests.engine.driver import (
    FATAL,
    ORDERS,
    OTHERS,
    PERMANENT,
    REPLAY,
    RETRY,
    SKIP,
    TRANSIENT,
    UNAVAILABLE,
    Shell,
)

NO_TOPICS = RetryPlan(retry_delays=())


# ------------------------------------------------------------------------------------- routing, dead letter


@pytest.mark.parametrize(
    ("failure", "target", "state"),
    [(TRANSIENT, Target.RETRY, State.ROUTING_RETRY), (PERMANENT, Target.DEAD_LETTER, State.ROUTING_DEAD)],
)
def test_D1_the_offset_is_committed_only_after_the_broker_confirmed_the_routed_record(
    failure: Failure, target: Target, state: State
) -> None:
    shell = Shell(plan=RetryPlan(in_place_attempts=1))
    shell.assign()
    first, second = shell.fetch(keys=[b"a", b"b"])
    shell.fail(first, failure)
    (route,) = shell.of(ev.Route)
    assert (route.record, route.target, route.attempt) == (first, target, 1)
    shell.done(second)
    shell.wait(5)
    assert first.state is state
    assert shell.last_commit().offset == 0
    shell.step(ev.Published(first))
    assert first.state is State.ACKED
    shell.step(wait=2)
    assert shell.last_commit().offset == 2
    shell.balanced()


def test_D1_the_lane_goes_on_only_when_the_routed_record_is_confirmed() -> None:
    shell = Shell(plan=RetryPlan(in_place_attempts=1))
    shell.assign()
    first, second = shell.fetch(keys=[b"a", b"a"])
    shell.fail(first)
    assert shell.ready == []
    shell.step(ev.Published(first))
    assert shell.ready == [second]


def test_D2_a_target_that_takes_nothing_holds_its_partition_and_no_other() -> None:
    shell = Shell()
    for name in (ORDERS, OTHERS):
        shell.assign(name)
    one, two, three = shell.fetch(keys=[b"a", b"b", b"c"])
    (elsewhere,) = shell.fetch(OTHERS)
    shell.fail(one, PERMANENT)
    shell.fail(two, PERMANENT)
    shell.step(ev.PublishBlocked(one, "orders.billing.dlq does not exist"))
    shell.step(ev.PublishBlocked(two, "orders.billing.dlq does not exist"))
    assert shell.reasons() == {Reason.PUBLISH_BLOCKED}
    assert shell.reasons(OTHERS) == set()
    (notice,) = shell.notices("held")
    assert notice.text == "orders.billing.dlq does not exist"
    assert notice.fields["holding_offset"] == 0
    # What is buffered goes on; nothing is skipped.
    shell.done(three, elsewhere)
    shell.wait(100, every=5)
    assert shell.committable() == 0
    shell.step(ev.PublishUnblocked(one))
    assert shell.reasons() == {Reason.PUBLISH_BLOCKED}
    shell.step(ev.Published(two))
    assert shell.reasons() == set()
    shell.step(ev.Published(one))
    assert shell.committable() == 3
    shell.balanced()


def test_D7_what_cannot_be_decoded_is_dead_at_once_and_once_and_the_loop_goes_on() -> None:
    shell = Shell()
    shell.assign()
    bad, good = shell.fetch(keys=[b"a", b"a"])
    shell.undecodable(bad)
    (route,) = shell.of(ev.Route)
    assert (route.record, route.target, route.attempt) == (bad, Target.DEAD_LETTER, 1)
    shell.wait(5)
    assert len(shell.all(ev.Route)) == 1
    shell.step(ev.Published(bad))
    assert shell.ready == [good]
    shell.done(good)
    assert shell.committable() == 2
    counts = shell.engine.consumers[0].counts
    assert (counts.undecodable, counts.dead_lettered, counts.succeeded, counts.acked) == (1, 1, 1, 2)


@pytest.mark.parametrize("failure", [TRANSIENT, UNAVAILABLE])
def test_D7_an_undecodable_message_that_the_rules_call_otherwise_is_an_attempt_like_any_other(
    failure: Failure,
) -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.undecodable(record, failure)
    assert record.state is State.BACKOFF
    shell.wait(1)
    assert shell.ready == [record]
    shell.done(record)
    assert shell.committable() == 1
    shell.balanced()


@pytest.mark.parametrize(("failure", "state"), [(SKIP, State.ACKED), (FATAL, State.HALTED)])
def test_D7_an_undecodable_message_may_be_skipped_or_fatal(failure: Failure, state: State) -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.undecodable(record, failure)
    assert record.state is state
    shell.balanced()


def test_D7_an_undecodable_message_in_its_retry_goes_to_dead_letter() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record)
    shell.wait(1)
    shell.undecodable(record)
    assert [route.target for route in shell.of(ev.Route)] == [Target.DEAD_LETTER]


def test_D8_what_no_class_describes_is_retried_in_place_then_routed() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    for attempt in (1, 2):
        assert record.attempt == attempt
        shell.fail(record)
        assert record.state is State.BACKOFF
        shell.wait(1)
        assert shell.ready == [record]
    shell.fail(record)
    (route,) = shell.of(ev.Route)
    assert (route.target, route.retry_index, route.attempt) == (Target.RETRY, 0, 3)


def test_D8_a_permanent_error_goes_straight_to_dead_letter() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record, PERMANENT)
    assert [route.target for route in shell.of(ev.Route)] == [Target.DEAD_LETTER]


def test_D8_a_fatal_error_halts_and_its_message_is_never_committed() -> None:
    shell = Shell()
    shell.assign()
    first, second, third = shell.fetch(keys=[b"a", b"b", b"c"])
    shell.begin(first, second)
    shell.fail(first, FATAL)
    (halt,) = shell.of(ev.Halt)
    assert halt.record is first
    assert "SystemExit" in halt.note
    assert shell.engine.halted
    assert not third.begin(shell.now)
    # What runs ends, and is acknowledged; the halted one holds the commit.
    assert shell.of(ev.Drained) == []
    shell.step(ev.Finished([second]), wait=2)
    assert len(shell.of(ev.Drained)) == 1
    assert shell.last_commit().offset == 0
    shell.revoking(ORDERS)
    shell.close(ORDERS)
    assert first.state is State.REVOKED
    assert max(commit.offset for commit in shell.all(ev.Commit)) == 0


def test_D8_without_dead_letter_the_loop_halts_instead_of_dropping() -> None:
    shell = Shell(plan=RetryPlan(dead_letter=False))
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record, PERMANENT)
    assert len(shell.of(ev.Halt)) == 1
    assert shell.all(ev.Route) == []


def test_a_skipped_message_is_acknowledged_and_counted_apart() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record, SKIP)
    counts = shell.engine.consumers[0].counts
    assert (record.state, counts.skipped, counts.succeeded, counts.failed) == (State.ACKED, 1, 0, 0)
    assert shell.committable() == 1
    shell.balanced()


def test_a_record_of_a_retry_topic_gets_one_attempt_and_moves_on_with_its_count() -> None:
    shell = Shell()
    shell.assign(RETRY)
    (record,) = shell.fetch(RETRY, due=shell.now, before=3)
    assert record.attempt == 4
    shell.fail(record)
    (route,) = shell.of(ev.Route)
    assert (route.target, route.retry_index, route.attempt) == (Target.RETRY, 1, 4)


def test_D12_above_the_dead_letter_rate_the_partition_is_held_and_nothing_is_dropped() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=4, dead_letters_per_minute=2))
    for name in (ORDERS, OTHERS):
        shell.assign(name)
    records = shell.fetch(keys=[None] * 8)
    for record in records[:4]:
        shell.fail(record, PERMANENT)
    assert [route.record for route in shell.all(ev.Route)] == records[:2]
    assert shell.reasons() == {Reason.DEAD_LETTER_RATE}
    assert shell.reasons(OTHERS) == set()
    assert "dead_letter_max_per_minute" in shell.notices("held")[0].text
    assert records[7] not in shell.ready, "what is buffered waits too"
    for record in [record for record in shell.ready if record in records]:
        shell.give_back(record)
    shell.step(ev.Published(records[0]), ev.Published(records[1]))
    assert shell.committable() == 2
    shell.wait(58, every=1)
    assert len(shell.all(ev.Route)) == 2
    shell.wait(3, every=0.5)
    assert [route.record for route in shell.all(ev.Route)] == records[:4]
    assert shell.reasons() == set()
    shell.step(ev.Published(records[2]), ev.Published(records[3]))
    shell.done(*records[4:])
    assert shell.committable() == 8
    shell.balanced()


@pytest.mark.parametrize("tenth", range(1, 30))
def test_D12_the_dead_letter_rates_timer_ends_whatever_the_clock_shows(tenth: int) -> None:
    # 0.3 + 60 - 60 is less than 0.3: a timer that asks another way than it was set would fire for ever.
    shell = Shell(ConsumerSpec("billing", dead_letters_per_minute=1))
    shell.now = tenth / 10
    shell.assign()
    first, second = shell.fetch(keys=[None, None])
    shell.fail(first, PERMANENT)
    shell.fail(second, PERMANENT)
    due = shell.now + 60.0
    shell.now = due
    shell.step()
    assert [route.record for route in shell.all(ev.Route)] == [first, second]


def test_dead_letters_that_wait_for_the_rate_are_not_unrouted_when_their_partition_leaves() -> None:
    shell = Shell(ConsumerSpec("billing", dead_letters_per_minute=1))
    shell.assign()
    sent, unsent = shell.fetch(keys=[None, None])
    shell.fail(sent, PERMANENT)
    shell.fail(unsent, PERMANENT)
    shell.close(ORDERS)
    assert [effect.record for effect in shell.of(ev.Unroute)] == [sent]
    shell.wait(120, every=5)
    assert len(shell.all(ev.Route)) == 1


def test_D14_strict_order_retries_in_place_and_no_later_message_of_the_key_overtakes() -> None:
    plan = RetryPlan(in_place_attempts=6, retry_delays=(), strict_order=True)
    shell = Shell(plan=plan)
    shell.assign()
    first, second, other = shell.fetch(keys=[b"k", b"k", b"x"])
    for _ in range(5):
        shell.fail(first)
        assert first.state is State.BACKOFF
        if other in shell.ready:
            shell.done(other)
        shell.wait(10)
        assert shell.ready == [first]
    shell.done(first)
    assert shell.ready == [second]
    assert shell.all(ev.Route) == []


@pytest.mark.parametrize("delay", [lambda *_: 1 / 0, lambda *_: -3, lambda *_: "soon"])
def test_D16_a_delay_function_that_fails_is_logged_and_the_default_delay_is_used(delay: object) -> None:
    shell = Shell(plan=RetryPlan(delay=delay))  # type: ignore[arg-type]
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record)
    (notice,) = shell.notices("retry_plan")
    assert notice.warning
    assert "the default delay is used" in notice.text
    assert notice.fields == {"topic": "orders", "partition": 0, "offset": 0}
    shell.wait(0.2)
    assert shell.ready == [record]


def test_many_classes_of_errors_are_counted_by_name_up_to_a_limit() -> None:
    shell = Shell(ConsumerSpec("billing", plan=NO_TOPICS, concurrency=200))
    shell.assign()
    records = shell.fetch(keys=[None] * (MAX_ERROR_TYPES + 10))
    for number, record in enumerate(records):
        shell.fail(record, Failure(Kind.PERMANENT, f"app.Error{number}", "", "0" * 16))
    by_type = shell.engine.consumers[0].counts.failed_by_type
    assert len(by_type) == MAX_ERROR_TYPES + 1
    assert by_type["other"] == 10


# --------------------------------------------------------------------------------------- D9: retry topics


def test_D9_a_head_that_is_not_due_holds_its_partition_and_is_resumed_once_when_it_is_due() -> None:
    shell = Shell()
    shell.assign(RETRY)
    shell.fetch(RETRY, keys=[None] * 3, due=shell.now + 1_800)
    (seek,) = shell.of(ev.Seek)
    assert (seek.partition, seek.offset) == (RETRY, 0)
    assert shell.reasons(RETRY) == {Reason.RETRY_NOT_DUE}
    assert shell.capacity(RETRY).messages == 0
    shell.step(ev.Sought(RETRY, 1, seek.token))
    shell.wait(1_799, every=10)
    assert len(shell.all(ev.Hold)) == 1
    assert shell.engine.next_due() is not None
    shell.wait(1.5)
    assert [hold.reasons for hold in shell.all(ev.Hold)] == [{Reason.RETRY_NOT_DUE}, frozenset()]
    shell.next_offset[RETRY] = 0
    records = shell.fetch(RETRY, keys=[None] * 3, due=shell.now - 0.1)
    assert shell.ready == records
    shell.done(*records)
    assert shell.committable(RETRY) == 3
    assert len(shell.all(ev.Seek)) == 1


def test_D9_a_due_record_of_another_partition_is_handled_on_time() -> None:
    shell = Shell()
    other = RETRY._replace(partition=1)
    shell.assign(RETRY)
    shell.assign(other)
    shell.fetch(RETRY, due=shell.now + 1_800)
    (due,) = shell.fetch(other, due=shell.now - 1)
    assert shell.ready == [due]
    assert shell.reasons(other) == set()


def test_D9_due_records_before_one_that_is_not_are_handled() -> None:
    shell = Shell()
    shell.assign(RETRY)
    records = shell.records(RETRY, [None] * 2, due=shell.now - 1)
    records += shell.records(RETRY, [None] * 2, due=shell.now + 30)
    shell.step(ev.Fetched(RETRY, 1, records))
    assert shell.ready == records[:2]
    assert [seek.offset for seek in shell.of(ev.Seek)] == [2]
    assert shell.capacity(RETRY).messages == 2
    shell.done(*records[:2])
    assert shell.committable(RETRY) == 2
    shell.balanced()


def test_D9_a_record_due_within_a_second_waits_here_and_starts_on_time() -> None:
    shell = Shell()
    shell.assign(RETRY)
    first, second = shell.fetch(RETRY, keys=[b"a", b"a"], due=shell.now + 0.8)
    assert shell.of(ev.Seek) == []
    shell.wait(0.7)
    assert shell.ready == []
    shell.wait(0.2)
    assert shell.ready == [first]
    shell.done(first)
    assert shell.ready == [second]
    shell.done(second)
    assert shell.committable(RETRY) == 2


def test_D9_the_next_of_a_key_waits_for_its_own_time() -> None:
    shell = Shell()
    shell.assign(RETRY)
    first = shell.records(RETRY, [b"a"], due=shell.now)
    second = shell.records(RETRY, [b"a"], due=shell.now + 0.9)
    shell.step(ev.Fetched(RETRY, 1, first + second))
    shell.done(*first)
    assert shell.ready == []
    shell.wait(1)
    assert shell.ready == second


def test_D9_a_batch_of_a_retry_topic_does_not_take_along_what_is_not_due() -> None:
    shell = Shell(ConsumerSpec("billing", batch_size=10))
    shell.assign(RETRY)
    first = shell.records(RETRY, [b"a"], due=shell.now)
    second = shell.records(RETRY, [b"a"], due=shell.now + 0.9)
    shell.step(ev.Fetched(RETRY, 1, first + second))
    assert shell.ready == first
    shell.done(*first)
    shell.wait(1)
    assert shell.ready == second


def test_D9_what_was_fetched_before_the_seek_is_carried_out_is_dropped() -> None:
    shell = Shell()
    shell.assign(RETRY)
    shell.fetch(RETRY, due=shell.now + 30)
    (seek,) = shell.of(ev.Seek)
    shell.fetch(RETRY, keys=[None] * 4, due=shell.now - 1)
    shell.step(ev.EndOfPartition(RETRY, 1, 5))
    assert shell.ready == []
    assert shell.capacity(RETRY).messages == 0
    assert shell.committable(RETRY) == 0
    # Neither another seek's token nor a former epoch's opens it.
    shell.step(ev.Sought(RETRY, 1, seek.token + 1), ev.Sought(RETRY, 0, seek.token))
    shell.fetch(RETRY, due=shell.now - 1)
    assert shell.ready == []
    shell.step(ev.Sought(RETRY, 1, seek.token))
    shell.next_offset[RETRY] = 0
    records = shell.fetch(RETRY, due=shell.now - 1)
    assert shell.ready == records


def test_D9_a_seek_of_a_former_epoch_is_nothing_to_the_next_one() -> None:
    shell = Shell()
    shell.assign(RETRY)
    shell.fetch(RETRY, due=shell.now + 30)
    (seek,) = shell.of(ev.Seek)
    shell.close(RETRY)
    shell.assign(RETRY, offset=0)
    assert shell.reasons(RETRY) == set()
    shell.step(ev.Sought(RETRY, 1, seek.token))
    records = shell.fetch(RETRY, due=shell.now - 1)
    assert shell.ready == records
    shell.wait(31, every=1)
    assert shell.ready == records


def test_records_of_the_replay_topic_have_no_delay() -> None:
    shell = Shell()
    shell.assign(REPLAY)
    records = shell.fetch(REPLAY, keys=[None] * 2)
    assert shell.ready == records
    shell.fail(records[0])
    assert records[0].state is State.BACKOFF, "attempts start anew: in place first"


# ------------------------------------------------------------------------------------- D13: unavailability


def trip(shell: Shell, count: int = BREAKER_TRIPS_AFTER, **fields: object) -> list[object]:
    """As many unavailable outcomes in a row."""
    records = shell.fetch(keys=[None] * count, **fields)  # type: ignore[arg-type]
    for record in records:
        shell.fail(record, UNAVAILABLE)
    return list(records)


def test_D13_unavailable_spends_no_attempt_and_makes_no_dead_letter() -> None:
    shell = Shell(plan=RetryPlan(in_place_attempts=2, retry_delays=(), max_attempts=2))
    shell.assign()
    (record,) = shell.fetch()
    for _ in range(4):
        shell.fail(record, UNAVAILABLE)
        assert record.state is State.BACKOFF
        assert record.attempt == 1
        shell.wait(40, every=1)
    for _ in range(20):
        shell.fail(record, UNAVAILABLE)
        shell.wait(40, every=1)
        assert shell.ready == [record]
    assert shell.all(ev.Route) == []
    shell.done(record)
    assert shell.committable() == 1


def test_D13_five_in_a_row_hold_the_consumers_partitions_and_one_message_probes() -> None:
    shell = Shell(ConsumerSpec("billing"), ConsumerSpec("paying"))
    payments = OTHERS._replace(topic="payments")
    for name in (ORDERS, OTHERS, payments):
        shell.assign(name)
    records = trip(shell)
    assert shell.reasons(ORDERS) == shell.reasons(OTHERS) == {Reason.BREAKER}
    assert shell.reasons(payments) == set()
    assert "payments is unavailable (connection refused)" in shell.notices("held")[0].text
    shell.fetch(OTHERS, keys=[None] * 3)
    (paid,) = shell.fetch(payments)
    assert shell.ready == [paid], "other consumers go on"
    shell.done(paid)
    shell.wait(31, every=0.5)
    assert shell.ready == [records[-1]], "one probe, though all are due"
    shell.fail(shell.ready[0], UNAVAILABLE)
    assert shell.reasons() == {Reason.BREAKER}
    shell.wait(31, every=0.5)
    assert len(shell.ready) == 1
    shell.done(shell.ready[0])
    assert shell.reasons(ORDERS) == shell.reasons(OTHERS) == set()
    shell.step()
    assert len(shell.ready) == 4 + 3
    shell.done(*shell.ready)
    assert (shell.committable(ORDERS), shell.committable(OTHERS)) == (5, 3)
    assert all(record.attempt == 1 for record in shell.ready)
    shell.balanced()


def test_D13_five_that_are_not_in_a_row_hold_nothing() -> None:
    shell = Shell()
    shell.assign()
    trip(shell, 4)
    shell.done(*shell.fetch())
    trip(shell, 4)
    assert shell.reasons() == set()
    # What could not be decoded says nothing of the dependency.
    (undecodable,) = shell.fetch()
    shell.undecodable(undecodable)
    trip(shell, 1)
    assert shell.reasons() == {Reason.BREAKER}


def test_D13_another_messages_success_does_not_lose_the_probe() -> None:
    shell = Shell()
    shell.assign()
    (beside,) = shell.fetch()
    shell.begin(beside)
    trip(shell)
    shell.step(ev.Finished([beside]))
    assert shell.reasons() == {Reason.BREAKER}, "only the probe decides"
    shell.wait(31, every=0.5)
    (probe,) = shell.ready
    shell.done(probe)
    assert shell.reasons() == set()


@pytest.mark.parametrize("failure", [TRANSIENT, PERMANENT, SKIP])
def test_D13_any_other_outcome_of_the_probe_ends_it(failure: Failure) -> None:
    shell = Shell()
    shell.assign()
    trip(shell)
    shell.wait(31, every=0.5)
    (probe,) = shell.ready
    shell.fail(probe, failure)
    assert shell.reasons() == set()


def test_D13_a_partition_that_comes_meanwhile_is_held_too() -> None:
    shell = Shell()
    shell.assign(ORDERS)
    trip(shell)
    shell.assign(OTHERS)
    assert shell.reasons(OTHERS) == {Reason.BREAKER}
    shell.fetch(OTHERS, keys=[None] * 3)
    assert shell.ready == []
    shell.wait(31, every=0.5)
    shell.done(shell.ready[0])
    assert shell.reasons(OTHERS) == set()


@pytest.mark.parametrize("waited", [0.0, 31.0])
def test_D13_when_the_probes_partition_leaves_another_message_probes(waited: float) -> None:
    shell = Shell()
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    elsewhere = shell.fetch(OTHERS, keys=[None] * 2)
    for record in elsewhere:
        shell.fail(record, UNAVAILABLE)
    trip(shell, 3)
    if waited:
        shell.wait(waited, every=0.5)
        shell.begin(*shell.ready)
    shell.close(ORDERS)
    shell.wait(31, every=0.5)
    (probe,) = shell.ready
    assert probe in elsewhere
    shell.done(probe)
    assert shell.reasons(OTHERS) == set()
    shell.done(*shell.ready)
    assert shell.committable(OTHERS) == 2


def test_D13_when_all_that_waits_has_left_the_consumer_flows_and_finds_out_again() -> None:
    shell = Shell()
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    trip(shell)
    fresh = shell.fetch(OTHERS, keys=[None] * 8)
    assert shell.ready == []
    shell.close(ORDERS)
    assert shell.reasons(OTHERS) == set()
    assert shell.ready == fresh
    for record in fresh[:5]:
        shell.fail(record, UNAVAILABLE)
    assert shell.reasons(OTHERS) == {Reason.BREAKER}


def test_D13_a_message_that_waits_for_an_ordinary_retry_can_become_the_probe() -> None:
    shell = Shell()
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    (ordinary,) = shell.fetch(OTHERS)
    shell.fail(ordinary, TRANSIENT)
    trip(shell)
    shell.wait(0.15)
    assert ordinary not in shell.ready
    shell.close(ORDERS)
    shell.wait(1)
    assert ordinary in shell.ready
    shell.done(ordinary)
    assert shell.reasons(OTHERS) == set()


def test_D13_a_probe_whose_partition_an_operator_holds_hands_over() -> None:
    shell = Shell()
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    (elsewhere,) = shell.fetch(OTHERS)
    shell.fail(elsewhere, UNAVAILABLE)
    records = trip(shell, 4)
    shell.step(ev.HoldChanged(ORDERS, 1, Reason.OPERATOR, held=True, detail="paused"))
    shell.wait(31, every=0.5)
    assert shell.ready == [elsewhere]
    shell.done(elsewhere)
    assert shell.reasons(OTHERS) == set()
    assert shell.reasons(ORDERS) == {Reason.OPERATOR}
    assert shell.ready == []
    shell.step(ev.HoldChanged(ORDERS, 1, Reason.OPERATOR, held=False))
    assert set(shell.ready) == set(records)


def test_D13_a_probe_that_is_given_back_probes_again() -> None:
    shell = Shell()
    shell.assign()
    trip(shell)
    shell.wait(31, every=0.5)
    (probe,) = shell.ready
    shell.give_back(probe)
    assert shell.ready == [probe]
    shell.done(probe)
    assert shell.reasons() == set()


def test_D13_a_probe_that_cannot_be_decoded_any_more_hands_over() -> None:
    shell = Shell()
    shell.assign()
    trip(shell)
    shell.wait(31, every=0.5)
    (probe,) = shell.ready
    shell.undecodable(probe)
    (another,) = shell.ready
    assert another is not probe
    shell.done(another)
    assert shell.reasons() == set()


def test_D13_the_fifth_outcome_of_a_partition_that_leaves_does_not_hold_the_others_for_good() -> None:
    shell = Shell()
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    (elsewhere,) = shell.fetch(OTHERS)
    shell.fail(elsewhere, UNAVAILABLE)
    records = shell.fetch(keys=[None] * 4)
    shell.begin(*records)
    shell.revoking(ORDERS)
    for record in records:
        record.failure = UNAVAILABLE
    shell.step(ev.Finished(records))
    shell.wait(2)
    assert shell.ready == [elsewhere]
    shell.done(elsewhere)
    assert shell.reasons(OTHERS) == set()


# ------------------------------------------------------------------- B7: what waits in back-off has a share


def test_B7_above_their_share_the_oldest_in_back_off_take_the_next_step_early() -> None:
    shell = Shell(high=40, backoff_share=0.25)
    shell.assign()
    records = shell.fetch(keys=[None] * 14)
    for record in records:
        shell.fail(record, Failure(Kind.TRANSIENT, "E", "", "0" * 16, after=3_600))
    shell.wait(0.2)
    assert [route.record for route in shell.all(ev.Route)] == records[:4]
    assert {route.target for route in shell.all(ev.Route)} == {Target.RETRY}
    assert shell.reasons() == set()
    assert shell.engine.consumers[0].counts.early == 4
    shell.step(*(ev.Published(record) for record in records[:4]))
    assert shell.committable() == 4
    shell.balanced()


def test_B7_what_waits_behind_a_back_off_counts_with_it() -> None:
    shell = Shell(high=40, backoff_share=0.25)
    shell.assign()
    first, *_ = shell.fetch(keys=[b"k"] * 11)
    shell.fail(first, Failure(Kind.TRANSIENT, "E", "", "0" * 16, after=3_600))
    shell.wait(0.2)
    assert [route.record for route in shell.all(ev.Route)] == [first]


def test_B7_without_a_next_step_their_partition_is_held_until_they_are_fewer() -> None:
    shell = Shell(high=40, backoff_share=0.25, plan=NO_TOPICS)
    shell.assign()
    records = shell.fetch(keys=[None] * 14)
    for record in records:
        shell.fail(record, Failure(Kind.TRANSIENT, "E", "", "0" * 16, after=5))
    shell.wait(0.2)
    assert shell.all(ev.Route) == []
    assert shell.reasons() == {Reason.WATERMARK}
    assert "backoff_share" in shell.notices("held")[0].text
    shell.wait(5)
    shell.done(*records)
    shell.wait(0.3)
    assert shell.reasons() == set()


def test_B7_a_message_taken_early_is_not_started_when_its_back_off_is_over() -> None:
    shell = Shell(high=4, backoff_share=0.25)
    shell.assign()
    records = shell.fetch(keys=[None] * 3)
    for record in records:
        shell.fail(record, Failure(Kind.TRANSIENT, "E", "", "0" * 16, after=2))
    shell.wait(0.2)
    early = [route.record for route in shell.all(ev.Route)]
    assert len(early) == 2
    shell.wait(3)
    assert shell.ready == [record for record in records if record not in early]


def test_B7_messages_of_a_partition_that_leaves_are_not_taken_early() -> None:
    shell = Shell(high=4, backoff_share=0.25)
    shell.assign()
    for record in shell.fetch(keys=[None] * 4):
        shell.fail(record, Failure(Kind.TRANSIENT, "E", "", "0" * 16, after=60))
    seen = len(shell.all(ev.Route))
    shell.revoking(ORDERS)
    assert len(shell.of(ev.Quiet)) == (0 if seen else 1)
    shell.wait(1)
    assert len(shell.all(ev.Route)) == seen
