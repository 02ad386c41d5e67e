"""The transition table: what it has happens, what it does not have raises and changes nothing."""

from __future__ import annotations

from itertools import product

import pytest

from streamloop.engine import events as ev
from streamloop.engine.states import TABLE, Happened, IllegalTransitionError, State, after, mermaid
from tests.engine.driver import FATAL, ORDERS, TRANSIENT, Shell


@pytest.mark.parametrize(("state", "happened"), list(product(State, Happened)))
def test_each_event_follows_the_table_or_is_refused(state: State, happened: Happened) -> None:
    expected = TABLE[state].get(happened)
    if expected is None:
        with pytest.raises(
            IllegalTransitionError, match=f"{state.name} cannot take {happened.name}"
        ) as error:
            after(state, happened)
        assert (error.value.state, error.value.happened) == (state, happened)
    else:
        assert after(state, happened) is expected


def test_acked_and_revoked_are_terminal_and_every_other_state_can_be_revoked() -> None:
    assert TABLE[State.ACKED] == TABLE[State.REVOKED] == {}
    for state in set(State) - {State.ACKED, State.REVOKED}:
        assert after(state, Happened.REVOKE) is State.REVOKED


def test_only_success_confirmed_routing_or_an_earlier_commit_acknowledges() -> None:
    ways = {(state, how) for state, row in TABLE.items() for how, to in row.items() if to is State.ACKED}
    assert ways == {
        (State.SUCCEEDED, Happened.ACKNOWLEDGE),
        (State.ROUTED, Happened.ACKNOWLEDGE),
        (State.DEAD_LETTERED, Happened.ACKNOWLEDGE),
        (State.FETCHED, Happened.ALREADY_ACKNOWLEDGED),
    }


def test_every_state_can_be_reached_and_left_towards_an_end() -> None:
    reached = {State.FETCHED}
    while more := {to for state in reached for to in TABLE[state].values()} - reached:
        reached |= more
    assert reached == set(State)


def test_the_diagram_has_each_transition_once() -> None:
    lines = mermaid().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> FETCHED"]
    drawn = [line for line in lines if ":" in line]
    assert sorted(drawn) == sorted(
        f"    {state.name} --> {to.name}: {happened.name}"
        for state, row in TABLE.items()
        for happened, to in row.items()
    )
    assert "    ACKED --> [*]" in lines
    assert "    REVOKED --> [*]" in lines


@pytest.mark.parametrize("failure", [None, TRANSIENT])
def test_a_result_that_is_reported_twice_raises_and_changes_nothing(failure: object) -> None:
    shell = Shell()
    shell.assign()
    first, second = shell.fetch(keys=[b"a", b"b"])
    shell.begin(second)
    shell.done(first)
    first.failure = TRANSIENT if failure else None
    consumer = shell.engine.consumers[0]
    before = (consumer.running, consumer.finished, shell.capacity().messages, repr(shell.part()))
    with pytest.raises(IllegalTransitionError):
        shell.engine.step(shell.now, [ev.Finished([first])])
    assert first.state is State.ACKED
    assert (consumer.running, consumer.finished, shell.capacity().messages, repr(shell.part())) == before


def test_success_of_a_message_that_never_started_raises_and_changes_nothing() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    with pytest.raises(IllegalTransitionError, match="FETCHED cannot take SUCCEED"):
        shell.engine.step(shell.now, [ev.Finished([record])])
    assert record.state is State.FETCHED
    assert shell.engine.consumers[0].running == 1
    assert shell.committable() == 0


def test_a_halted_message_is_never_acknowledged() -> None:
    shell = Shell()
    shell.assign()
    (record,) = shell.fetch()
    shell.fail(record, FATAL)
    assert record.state is State.HALTED
    assert not record.begin(shell.now)
    assert shell.committable(ORDERS) == record.offset
