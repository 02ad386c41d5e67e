"""Reasons that hold a partition: each begins and ends by itself, and what holds is named."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from streamloop.engine import events as ev
from streamloop.engine.consumer import ConsumerSpec
from streamloop.engine.events import Reason
from streamloop.engine.gate import STOPS_DISPATCH
from streamloop.engine.lanes import Ordering
from tests.engine.driver import ORDERS, OTHERS, PERMANENT, RETRY, Shell

if TYPE_CHECKING:
    from collections.abc import Callable


def hold(shell: Shell, reason: Reason, held: bool = True) -> None:
    shell.step(ev.HoldChanged(ORDERS, shell.epochs[ORDERS], reason, held=held, detail=reason.value))


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_B4_clearing_one_reason_leaves_the_others(order: tuple[int, ...]) -> None:
    shell = Shell(gap_limit=10)
    shell.assign()
    first, second, *rest = shell.fetch(keys=[None] * 12)
    shell.fail(second, PERMANENT)
    shell.step(ev.PublishBlocked(second, "full"))
    hold(shell, Reason.OPERATOR)
    hold(shell, Reason.TOPIC_GONE)
    reasons = {Reason.GAP, Reason.PUBLISH_BLOCKED, Reason.OPERATOR, Reason.TOPIC_GONE}
    assert shell.reasons() == reasons
    clear: list[tuple[Reason, Callable[[], object]]] = [
        (Reason.GAP, lambda: shell.done(first, *rest)),
        (Reason.PUBLISH_BLOCKED, lambda: shell.step(ev.PublishUnblocked(second))),
        (Reason.OPERATOR, lambda: hold(shell, Reason.OPERATOR, held=False)),
        (Reason.TOPIC_GONE, lambda: hold(shell, Reason.TOPIC_GONE, held=False)),
    ]
    # The gap goes on holding as long as the routed one is not confirmed and the limit is above half.
    for index in order:
        reason, act = clear[index]
        act()
        if reason is Reason.GAP:
            shell.step(ev.Published(second))
            reasons -= {Reason.PUBLISH_BLOCKED}
        reasons -= {reason}
        assert shell.reasons() == reasons
    assert shell.part().holds == {}
    assert not shell.part().stopped


def test_a_hold_that_goes_on_for_another_reason_in_words_says_so_and_counts_from_when_it_began() -> None:
    shell = Shell()
    shell.assign()
    hold(shell, Reason.OPERATOR)
    began = shell.part().outside[Reason.OPERATOR].since
    shell.step(
        ev.HoldChanged(ORDERS, shell.epochs[ORDERS], Reason.OPERATOR, held=True, detail="bob, too"), wait=5
    )
    assert shell.part().outside[Reason.OPERATOR] == (began, "bob, too")
    hold(shell, Reason.OPERATOR, held=False)
    assert Reason.OPERATOR not in shell.part().outside


@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_from_outside_stops_what_is_buffered_only_where_it_must(reason: Reason) -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=1))
    shell.assign()
    first, second = shell.fetch(keys=[None, None])
    shell.begin(first)
    hold(shell, reason)
    shell.step(ev.Finished([first]))
    assert shell.ready == ([] if reason in STOPS_DISPATCH else [second])
    hold(shell, reason, held=False)
    assert shell.ready == [second]
    shell.done(second)
    assert shell.committable() == 2


def test_a_retry_that_becomes_due_while_held_starts_when_it_is_released() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record)
    hold(shell, Reason.OPERATOR)
    shell.wait(5)
    assert shell.ready == []
    hold(shell, Reason.TOPIC_GONE)
    hold(shell, Reason.OPERATOR, held=False)
    assert shell.ready == []
    hold(shell, Reason.TOPIC_GONE, held=False)
    assert shell.ready == [record]


def test_the_pollers_own_reasons_are_kept_but_not_told_back() -> None:
    shell = Shell()
    shell.assign()
    for reason in (Reason.WATERMARK, Reason.ENGINE_SILENT):
        hold(shell, reason)
    assert shell.reasons() == set()
    assert set(shell.part().outside) == {Reason.WATERMARK, Reason.ENGINE_SILENT}
    shell.wait(2)
    for reason in (Reason.WATERMARK, Reason.ENGINE_SILENT):
        hold(shell, reason, held=False)
    assert shell.engine.held_seconds[Reason.WATERMARK] == pytest.approx(2)


def test_a_hold_is_said_once_however_often_it_is_told() -> None:
    shell = Shell()
    shell.assign()
    for _ in range(3):
        hold(shell, Reason.OPERATOR)
    assert len(shell.all(ev.Hold)) == 1
    assert len(shell.notices("held")) == 1
    hold(shell, Reason.OPERATOR, held=False)
    hold(shell, Reason.OPERATOR, held=False)
    assert len(shell.all(ev.Hold)) == 2


def test_a_hold_that_begins_and_ends_in_one_step_is_not_said() -> None:
    shell = Shell()
    shell.assign()
    epoch = shell.epochs[ORDERS]
    shell.step(
        ev.HoldChanged(ORDERS, epoch, Reason.OPERATOR, held=True),
        ev.HoldChanged(ORDERS, epoch, Reason.OPERATOR, held=False),
    )
    assert shell.of(ev.Hold) == []


def test_B3_a_new_epoch_inherits_no_hold_and_flows() -> None:
    shell = Shell()
    shell.assign(RETRY)
    shell.fetch(RETRY, due=shell.now + 600)
    assert shell.reasons(RETRY) == {Reason.RETRY_NOT_DUE}
    shell.close(RETRY, lost=True)
    assert shell.engine.held_seconds[Reason.RETRY_NOT_DUE] == 0
    shell.assign(RETRY, offset=0)
    assert shell.reasons(RETRY) == set()
    (record,) = shell.fetch(RETRY, due=shell.now - 1)
    assert shell.ready == [record]
    # The former epoch's timer releases and starts nothing here.
    shell.wait(601, every=5)
    assert shell.ready == [record]
    assert shell.all(ev.Hold)[-1].epoch == 1


def test_B3_what_a_former_epoch_is_told_holds_nothing_now() -> None:
    shell = Shell()
    shell.assign()
    shell.close(ORDERS)
    shell.assign()
    shell.step(ev.HoldChanged(ORDERS, 1, Reason.OPERATOR, held=True))
    (record,) = shell.fetch()
    assert shell.ready == [record]


def test_seconds_held_are_counted_when_a_hold_ends_by_release_or_by_the_epochs_end() -> None:
    shell = Shell()
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    hold(shell, Reason.OPERATOR)
    shell.step(ev.HoldChanged(OTHERS, 1, Reason.OPERATOR, held=True))
    shell.wait(3)
    hold(shell, Reason.OPERATOR, held=False)
    shell.wait(4)
    shell.close(OTHERS)
    shell.wait(5)
    assert shell.engine.held_seconds[Reason.OPERATOR] == pytest.approx(3 + 7)


# ---------------------------------------------------------------------------------------------- B8: the gap


def test_B8_the_gap_limit_holds_intake_names_the_message_and_lets_other_keys_go_on() -> None:
    shell = Shell(gap_limit=20)
    shell.assign(offset=1_000)
    slow, *rest = shell.fetch(keys=[b"slow", *(b"k%d" % n for n in range(20))])
    shell.begin(slow)
    assert shell.reasons() == {Reason.GAP}
    shell.done(*rest)
    assert shell.reasons() == {Reason.GAP}
    (notice,) = shell.notices("held")
    assert notice.warning
    assert "offset 1000" in notice.text
    assert "gap_limit=20" in notice.text
    assert notice.fields["holding_offset"] == 1_000
    assert notice.fields["topic"] == "orders"
    assert notice.fields["holding_state"] == "FETCHED"
    shell.step(ev.Finished([slow]))
    assert shell.reasons() == set()
    assert shell.committable() == 1_021


def test_B8_the_age_and_the_state_of_the_message_that_holds_are_told() -> None:
    shell = Shell(gap_limit=20)
    shell.assign()
    (slow,) = shell.fetch(keys=[b"slow"])
    shell.begin(slow)
    shell.wait(90, every=1)
    shell.done(*shell.fetch(keys=[None] * 21))
    (notice,) = shell.notices("held")
    assert "PROCESSING, received 90.0 s ago" in notice.text
    assert notice.fields["holding_age_seconds"] == pytest.approx(90)
    assert notice.fields["holding_state"] == "PROCESSING"


def test_B8_the_gap_is_left_at_half_its_limit_not_at_its_edge() -> None:
    shell = Shell(gap_limit=20)
    shell.assign()
    records = shell.fetch(keys=[None] * 21)
    assert shell.reasons() == {Reason.GAP}
    shell.done(*records[:10])
    assert shell.reasons() == {Reason.GAP}
    shell.done(records[10])
    assert shell.reasons() == set()


# ----------------------------------------------------------------------------- fair shares, lanes, and time


def test_B8_a_lane_above_its_limit_that_does_not_move_holds_the_partition_and_is_named() -> None:
    shell = Shell(lane_limit=10, dwell=0.5)
    shell.assign()
    first, *_ = shell.fetch(keys=[b"slow"] * 12 + [b"a", b"b"])
    shell.begin(first)
    shell.wait(0.4)
    assert shell.reasons() == set()
    shell.wait(0.4)
    assert shell.reasons() == {Reason.WATERMARK}
    (notice,) = shell.notices("held")
    assert "12 messages of one key wait, above lane_limit=10" in notice.text
    assert notice.fields["holding_offset"] == 0
    # Other keys go on; the lane is released at half its limit.
    assert [record.key for record in shell.ready] == [b"a", b"b"]
    shell.done(*shell.ready)
    shell.step(ev.Finished([first]))
    for _ in range(5):
        shell.done(*shell.ready)
    shell.wait(0.2)
    assert shell.reasons() == {Reason.WATERMARK}
    shell.done(*shell.ready)
    shell.wait(0.2)
    assert shell.reasons() == set()


def test_a_lane_under_order_by_partition_is_named_as_the_partition() -> None:
    shell = Shell(ConsumerSpec("billing", ordering=Ordering.PARTITION), lane_limit=10)
    shell.assign()
    shell.fetch(keys=[None] * 12)
    shell.begin(*shell.ready)
    shell.wait(1)
    assert "12 messages of the partition wait" in shell.notices("held")[0].text


def test_a_partition_above_its_fair_share_that_does_not_move_is_held() -> None:
    shell = Shell(high=200)
    for number in range(4):
        shell.assign(ORDERS._replace(partition=number))
    shell.fetch(keys=[None] * 101)
    shell.begin(*shell.ready)
    shell.wait(1)
    assert shell.reasons() == {Reason.WATERMARK}
    assert "101 messages, above its fair share of 100" in shell.notices("held")[0].text
    assert shell.reasons(OTHERS) == set()


def test_a_busy_partition_that_flows_is_never_held_for_its_share() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=1_000), high=200)
    for number in range(4):
        shell.assign(ORDERS._replace(partition=number))
    waiting = shell.fetch(keys=[None] * 150)
    for _ in range(40):
        shell.done(*waiting[:75], wait=0.1)
        waiting = waiting[75:] + shell.fetch(keys=[None] * 75)
    assert shell.all(ev.Hold) == []


def test_what_is_held_for_its_share_is_released_though_nothing_but_time_happens() -> None:
    shell = Shell(high=100)
    for number in range(4):
        shell.assign(ORDERS._replace(partition=number))
    records = shell.fetch(keys=[None] * 70)
    shell.begin(*records)
    shell.wait(1)
    assert shell.reasons() == {Reason.WATERMARK}
    shell.step(ev.Finished(records), wait=0.01)
    # A shell that steps only when it is told to, and when next_due() says so.
    for _ in range(10):
        due = shell.engine.next_due()
        if due is None:
            break
        shell.step(wait=max(0.0, due - shell.now))
    assert due is None
    assert shell.reasons() == set()
