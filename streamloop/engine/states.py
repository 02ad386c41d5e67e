"""The life of one message: its states, what can happen to it, and the one table that joins them.

Every change goes through :data:`TABLE`. What the table does not have raises
:class:`IllegalTransitionError` and changes nothing. The diagram in docs/architecture.md is made from it
(:func:`mermaid`), and a test fails when they differ.

What each state promises:

========================  ================================================================================
FETCHED                   received, not started; its offset holds the commit position
PROCESSING                the handler runs
SUCCEEDED                 the handler returned; what it asked to publish on success may still be unconfirmed
FAILED                    the handler raised; the next step is being decided (never seen between two steps)
BACKOFF                   waits for an in-place retry, keeping its lane
ROUTING_RETRY             on its way to a retry topic; not yet confirmed by the broker
ROUTED                    the retry topic has it (the broker said so)
ROUTING_DEAD              on its way to the dead-letter topic; not yet confirmed by the broker
DEAD_LETTERED             the dead-letter topic has it (the broker said so)
ACKED                     all that this message required is durable; its offset may be committed; terminal
HALTED                    a fatal error or a stop; never acknowledged; terminal
REVOKED                   its partition left this member; terminal
========================  ================================================================================
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class State(IntEnum):
    """Where a message is. The integer values are an index into the table and carry no other meaning."""

    FETCHED = 0
    PROCESSING = 1
    SUCCEEDED = 2
    FAILED = 3
    BACKOFF = 4
    ROUTING_RETRY = 5
    ROUTED = 6
    ROUTING_DEAD = 7
    DEAD_LETTERED = 8
    ACKED = 9
    HALTED = 10
    REVOKED = 11


class Happened(IntEnum):
    """What can happen to a message."""

    START = 0
    SUCCEED = 1
    FAIL = 2
    BACK_OFF = 3
    UNAVAILABLE = 4
    ROUTE_RETRY = 5
    ROUTE_DEAD = 6
    UNDECODABLE = 7
    CONFIRM = 8
    ACKNOWLEDGE = 9
    ALREADY_ACKNOWLEDGED = 10
    HALT = 11
    REVOKE = 12


class IllegalTransitionError(Exception):
    """An event that the table does not have for that state. The message's state is unchanged."""

    def __init__(self, state: State, happened: Happened) -> None:
        super().__init__(f"a message in state {state.name} cannot take {happened.name}")
        self.state = state
        self.happened = happened


_S = State
_H = Happened

TABLE: Final[dict[State, dict[Happened, State]]] = {
    _S.FETCHED: {
        _H.START: _S.PROCESSING,
        _H.UNDECODABLE: _S.ROUTING_DEAD,
        _H.ALREADY_ACKNOWLEDGED: _S.ACKED,
        _H.HALT: _S.HALTED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.PROCESSING: {
        _H.SUCCEED: _S.SUCCEEDED,
        _H.FAIL: _S.FAILED,
        _H.UNAVAILABLE: _S.BACKOFF,
        _H.HALT: _S.HALTED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.SUCCEEDED: {
        _H.ACKNOWLEDGE: _S.ACKED,
        _H.FAIL: _S.FAILED,
        _H.HALT: _S.HALTED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.FAILED: {
        _H.BACK_OFF: _S.BACKOFF,
        _H.ROUTE_RETRY: _S.ROUTING_RETRY,
        _H.ROUTE_DEAD: _S.ROUTING_DEAD,
        _H.HALT: _S.HALTED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.BACKOFF: {
        _H.START: _S.PROCESSING,
        _H.UNDECODABLE: _S.ROUTING_DEAD,
        _H.ROUTE_RETRY: _S.ROUTING_RETRY,
        _H.ROUTE_DEAD: _S.ROUTING_DEAD,
        _H.HALT: _S.HALTED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.ROUTING_RETRY: {
        _H.CONFIRM: _S.ROUTED,
        _H.ROUTE_DEAD: _S.ROUTING_DEAD,
        _H.HALT: _S.HALTED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.ROUTED: {
        _H.ACKNOWLEDGE: _S.ACKED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.ROUTING_DEAD: {
        _H.CONFIRM: _S.DEAD_LETTERED,
        _H.HALT: _S.HALTED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.DEAD_LETTERED: {
        _H.ACKNOWLEDGE: _S.ACKED,
        _H.REVOKE: _S.REVOKED,
    },
    _S.ACKED: {},
    _S.HALTED: {_H.REVOKE: _S.REVOKED},
    _S.REVOKED: {},
}

# The same table as nested tuples: two index operations a transition on the hot path.
_NEXT: Final[tuple[tuple[State | None, ...], ...]] = tuple(
    tuple(TABLE[state].get(happened) for happened in Happened) for state in State
)


def after(state: State, happened: Happened) -> State:
    """The state that follows.

    Raises:
        IllegalTransitionError: the table has no such event for that state.
    """
    following = _NEXT[state][happened]
    if following is None:
        raise IllegalTransitionError(state, happened)
    return following


def mermaid() -> str:
    """The table as a Mermaid state diagram, for docs/architecture.md."""
    lines = ["stateDiagram-v2", "    [*] --> FETCHED"]
    for state, row in TABLE.items():
        lines += [f"    {state.name} --> {to.name}: {happened.name}" for happened, to in row.items()]
    lines += [f"    {state.name} --> [*]" for state in (State.ACKED, State.REVOKED)]
    return "\n".join(lines) + "\n"
