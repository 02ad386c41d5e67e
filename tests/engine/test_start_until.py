"""R15: when a poller stood still, what is buffered may be another's: nothing starts until it says so."""

from __future__ import annotations

from streamloop.engine import events as ev
from streamloop.engine.consumer import ConsumerSpec
from streamloop.engine.states import State
from tests.engine.driver import ORDERS, RETRY, Shell


def test_R15_nothing_is_handed_out_while_a_poller_stands_still() -> None:
    shell = Shell()
    shell.assign()
    shell.capacity().start_until = shell.now + 10
    (first,) = shell.fetch(keys=[b"a"])
    assert shell.ready == [first]
    shell.now += 10.1
    (second,) = shell.fetch(keys=[b"b"])
    assert second not in shell.ready
    shell.step(wait=0.05)
    assert second not in shell.ready
    shell.capacity().start_until = shell.now + 10
    shell.step(wait=0.05)
    assert second in shell.ready


def test_R15_what_was_handed_out_before_the_stall_does_not_begin_after_it_and_keeps_its_order() -> None:
    shell = Shell(ConsumerSpec("billing", concurrency=1))
    shell.assign()
    shell.capacity().start_until = shell.now + 10
    records = shell.fetch(keys=[b"a", b"a", b"b"])
    (head,) = shell.ready
    shell.now += 10.1
    assert not head.begin(shell.now)
    assert head.state is State.FETCHED
    shell.give_back(head)
    assert shell.ready == []
    shell.capacity().start_until = shell.now + 10
    shell.step(wait=0.05)
    assert shell.ready == [head]
    shell.done(head)
    shell.done(*shell.ready)
    shell.done(*shell.ready)
    assert all(record.state is State.ACKED for record in records)
    shell.balanced()


def test_R15_what_left_during_the_stall_never_starts() -> None:
    shell = Shell()
    shell.assign()
    shell.capacity().start_until = shell.now + 10
    shell.now += 10.1
    records = shell.fetch(keys=[b"a", b"b"])
    shell.close(ORDERS, lost=True)
    shell.capacity().start_until = shell.now + 10
    shell.step(wait=0.05)
    assert shell.all(ev.Dispatch) == []
    assert {record.state for record in records} == {State.REVOKED}
    shell.balanced()


def test_R15_a_poller_of_retries_that_stands_still_is_waited_for_too() -> None:
    shell = Shell()
    shell.assign()
    shell.assign(RETRY)
    shell.capacity(RETRY).start_until = shell.now - 1
    (record,) = shell.fetch(keys=[b"a"])
    assert shell.ready == []
    shell.capacity(RETRY).start_until = shell.now + 10
    shell.step(wait=0.05)
    assert shell.ready == [record]
