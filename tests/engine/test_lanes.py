"""Order: one lane a key, one a partition, none; and turns among partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamloop.engine import events as ev
from streamloop.engine.consumer import ConsumerSpec
from streamloop.engine.events import TopicPartition
from streamloop.engine.lanes import Ordering
from streamloop.engine.states import State
from tests.engine.driver import ORDERS, OTHERS, TRANSIENT, Shell

if TYPE_CHECKING:
    from streamloop.engine.record import Record

PAYMENTS = TopicPartition("payments", 0)


def shell_with(ordering: Ordering, **fields: object) -> Shell:
    return Shell(ConsumerSpec("billing", ordering=ordering, **fields))  # type: ignore[arg-type]


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def test_by_key_records_of_one_key_run_one_after_the_other_and_keys_beside_each_other() -> None:
    shell = shell_with(Ordering.KEY)
    shell.assign()
    a0, _b1, a2, _a3 = shell.fetch(keys=[b"a", b"b", b"a", b"a"])
    assert offsets(shell.ready) == [0, 1]
    shell.done(a0)
    assert offsets(shell.ready) == [1, 2]
    shell.done(a2)
    assert offsets(shell.ready) == [1, 3]


def test_by_key_a_record_that_arrives_later_waits_for_its_key() -> None:
    shell = shell_with(Ordering.KEY)
    shell.assign()
    (first,) = shell.fetch(keys=[b"a"])
    shell.begin(first)
    shell.fetch(keys=[b"a", b"b"])
    assert offsets(shell.ready) == [2]
    shell.done(first)
    assert offsets(shell.ready) == [2, 1]


def test_by_key_records_without_a_key_are_unordered() -> None:
    shell = shell_with(Ordering.KEY)
    shell.assign()
    shell.fetch(keys=[None, None, b"", b"", None])
    # An empty key is a key.
    assert offsets(shell.ready) == [0, 1, 2, 4]


def test_the_same_key_on_two_topics_and_on_two_partitions_is_two_lanes() -> None:
    shell = Shell(ConsumerSpec("billing"), ConsumerSpec("paying"))
    for name in (ORDERS, OTHERS, PAYMENTS):
        shell.assign(name)
        shell.fetch(name, keys=[b"a", b"a"])
    assert [(r.part.name, r.offset) for r in shell.ready] == [(ORDERS, 0), (OTHERS, 0), (PAYMENTS, 0)]


def test_by_partition_everything_of_a_partition_is_one_lane() -> None:
    shell = shell_with(Ordering.PARTITION)
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    zero, _ = shell.fetch(ORDERS, keys=[b"a", None])
    shell.fetch(OTHERS, keys=[None, b"b"])
    assert [(r.part.name, r.offset) for r in shell.ready] == [(ORDERS, 0), (OTHERS, 0)]
    shell.done(zero)
    assert [(r.part.name, r.offset) for r in shell.ready] == [(OTHERS, 0), (ORDERS, 1)]


def test_without_order_all_run_at_once_as_far_as_concurrency_allows() -> None:
    shell = shell_with(Ordering.NONE, concurrency=3)
    shell.assign()
    first, *_ = shell.fetch(keys=[b"a"] * 5)
    assert offsets(shell.ready) == [0, 1, 2]
    shell.begin(*shell.ready)
    shell.step(ev.Finished([first]))
    # One worker is free, and one more is handed out ahead since one has just finished.
    assert offsets(shell.ready) == [3, 4]


def test_a_failed_record_keeps_its_lane_while_it_waits_and_other_lanes_go_on() -> None:
    shell = shell_with(Ordering.KEY)
    shell.assign()
    a0, b1, a2, b3 = shell.fetch(keys=[b"a", b"b", b"a", b"b"])
    shell.fail(a0, TRANSIENT)
    assert a0.state is State.BACKOFF
    shell.done(b1)
    assert offsets(shell.ready) == [3]
    shell.done(b3)
    shell.wait(1)
    assert offsets(shell.ready) == [0]
    shell.done(a0)
    assert offsets(shell.ready) == [2]
    assert a2.attempts is None


# --------------------------------------------------------------------------------------------------- turns


def test_partitions_share_the_workers_however_much_one_of_them_has() -> None:
    shell = shell_with(Ordering.NONE, concurrency=10)
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    shell.engine.consumers[0].running = 10  # all workers are taken
    shell.fetch(ORDERS, keys=[None] * 500)
    shell.fetch(OTHERS, keys=[None] * 5)
    shell.engine.consumers[0].running = 0
    shell.step()
    assert [r.part.name for r in shell.ready] == [ORDERS] * 5 + [OTHERS] * 5


def test_a_partition_with_one_message_is_served_within_one_round_of_turns() -> None:
    shell = shell_with(Ordering.NONE, concurrency=1)
    names = [TopicPartition("orders", number) for number in range(5)]
    for name in names:
        shell.assign(name)
    for name in names:
        shell.fetch(name, keys=[None] * (1 if name.partition == 4 else 50))
    served: list[int] = []
    for _ in range(12):
        record = shell.ready[0]
        served.append(record.part.name.partition)
        shell.begin(record)
        shell.engine.consumers[0].finished = -1  # no worker is handed anything ahead
        shell.step(ev.Finished([record]))
    assert 4 in served[:7]
    for number in range(4):
        assert served.count(number) >= 2


def test_what_is_not_used_of_a_share_goes_to_the_others() -> None:
    shell = shell_with(Ordering.NONE, concurrency=100)
    shell.assign(ORDERS)
    shell.assign(OTHERS)
    shell.engine.consumers[0].running = 100
    shell.fetch(ORDERS, keys=[None] * 300)
    shell.fetch(OTHERS, keys=[None] * 3)
    shell.engine.consumers[0].running = 0
    shell.step()
    assert len(shell.ready) == 100
    assert sum(r.part.name == OTHERS for r in shell.ready) == 3


def test_what_is_given_back_comes_again_first_and_in_order() -> None:
    shell = shell_with(Ordering.NONE, concurrency=3)
    shell.assign()
    shell.fetch(keys=[None] * 6)
    assert offsets(shell.ready) == [0, 1, 2]
    shell.give_back(*shell.ready)
    assert offsets(shell.ready) == [0, 1, 2]
    shell.balanced()


def test_a_record_given_back_while_it_waits_for_its_retry_comes_again() -> None:
    shell = shell_with(Ordering.KEY)
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record)
    shell.wait(0.5)
    assert shell.ready == [record]
    shell.give_back(record)
    assert shell.ready == [record]
    shell.done(record)
    assert shell.committable() == 1


# ------------------------------------------------------------------------------------------------- batches


def test_D15_a_batch_gets_runs_of_lanes_and_a_lane_is_never_in_two() -> None:
    shell = shell_with(Ordering.KEY, batch_size=3, concurrency=2)
    shell.assign()
    records = shell.fetch(keys=[b"a"] * 5 + [b"b"])
    assert offsets(shell.ready) == [0, 1, 2, 5]
    shell.begin(*records[:3])
    shell.step(ev.Finished(records[:2]))
    assert offsets(shell.ready) == [5]
    shell.step(ev.Finished([records[2]]))
    assert offsets(shell.ready) == [5, 3, 4]


def test_D15_one_bad_record_of_a_batch_is_retried_alone_and_holds_its_lane() -> None:
    shell = shell_with(Ordering.KEY, batch_size=3)
    shell.assign()
    zero, one, two, three = shell.fetch(keys=[b"a"] * 4)
    shell.begin(zero, one, two)
    one.failure = TRANSIENT
    shell.step(ev.Finished([zero, one, two]))
    assert (zero.state, one.state, two.state) == (State.ACKED, State.BACKOFF, State.ACKED)
    assert shell.committable() == 1
    assert shell.ready == []
    shell.wait(0.5)
    assert shell.ready == [one]
    shell.done(one)
    assert shell.ready == [three]
    assert shell.committable() == 3


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_what_is_given_back_of_a_batch_is_dispatched_once_more_and_only_once(begun: int) -> None:
    shell = shell_with(Ordering.KEY, batch_size=3)
    shell.assign()
    records = shell.fetch(keys=[b"a"] * 4)
    shell.begin(*records[:begun])
    shell.give_back(*records[begun:3])
    # While another of the same run is out, the lane waits.
    assert offsets(shell.ready) == ([] if begun else [0, 1, 2])
    if begun:
        shell.step(ev.Finished(records[:begun]))
        assert offsets(shell.ready) == list(range(begun, 3))
    shell.done(*records[begun:3])
    assert offsets(shell.ready) == [3]
    shell.done(records[3])
    assert shell.committable() == 4
    shell.balanced()


def test_a_batch_without_order_is_dispatched_as_it_comes() -> None:
    shell = shell_with(Ordering.NONE, batch_size=4, concurrency=1)
    shell.assign()
    shell.fetch(keys=[b"a"] * 6)
    assert offsets(shell.ready) == [0, 1, 2, 3]
    shell.give_back(*shell.ready)
    assert offsets(shell.ready) == [0, 1, 2, 3]
