"""How far a partition is behind, in messages and in seconds. What is not known is None, never 0.

Reads the engine's partition and what its poller knows of the end; changes nothing. Called by the collection
of metrics and by the status, on any thread: what it reads may change meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from streamloop.engine.states import State
from streamloop.kafka.headers import headers_of, read_routing

if TYPE_CHECKING:
    from streamloop.engine.partition import Partition
    from streamloop.engine.record import Record
    from streamloop.kafka.ends import End


class Lag(NamedTuple):
    """``end``: offset after the last message. ``messages``: from the commit position to it. ``waiting``: of
    those, not received yet. ``seconds``: the age of the oldest message that is not acknowledged.
    """

    end: int | None
    messages: int | None
    waiting: int | None
    seconds: float | None


def lag_of(part: Partition, end: End | None, *, group: str, now: float, wall: float) -> Lag:
    """The lag of one partition. ``now``: monotonic, ``wall``: epoch seconds."""
    ledger = part.ledger
    holder = ledger.holder
    committable = holder.offset if holder is not None else ledger.position
    if end is not None and end.epoch != part.epoch:
        end = None
    last = max(end.offset, ledger.position) if end is not None else None
    waiting = None if last is None else last - ledger.position
    messages = None if last is None else max(0, last - committable)
    seconds: float | None
    if holder is not None and _waits(holder, now):
        seconds = 0.0
    elif holder is not None:
        seconds = _age_of(part, holder.message, group, wall)
        if seconds is None:
            arrived = part.arrived(holder.offset)
            seconds = None if arrived is None else now - arrived
    elif part.not_due_until > now:
        seconds = 0.0
    elif end is None or waiting is None:
        seconds = None
    elif not waiting:
        seconds = 0.0
    else:
        seconds = now - end.behind_since if end.behind_since is not None else 0.0
        if end.stamp is not None and not part.intake.retries:
            seconds = max(seconds, wall - end.stamp / 1000)
    return Lag(last, messages, waiting, None if seconds is None else max(0.0, seconds))


def _waits(record: Record, now: float) -> bool:
    """A record of a retry topic that is here and not due."""
    attempts = record.attempts
    return record.state is State.FETCHED and attempts is not None and attempts.due > now


def _age_of(part: Partition, message: Any, group: str, wall: float) -> float | None:
    """Seconds since the message was written; in a retry topic since it was due, 0 while it is not."""
    if message is None:
        return None
    if part.intake.retries:
        routing = read_routing(headers_of(message), group=group)
        if routing is not None and routing.not_before_ms is not None:
            return wall - routing.not_before_ms / 1000
    kind, stamp = message.timestamp()
    return wall - stamp / 1000 if kind else None
