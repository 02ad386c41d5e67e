"""One message inside the engine: where it is, what state it is in, and what order it is part of.

The poller makes a Record for each message that it takes; from then on only the engine's thread touches it.
``message`` is opaque to the engine (the shell's own object).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamloop.engine.states import Happened, State, after

if TYPE_CHECKING:
    from streamloop.engine.partition import Partition
    from streamloop.engine.retry import Failure


_FETCHED = State.FETCHED
_BACKOFF = State.BACKOFF
# What the table says of a start; asked for every message, so looked up once.
_BEGUN = after(State.FETCHED, Happened.START)
assert after(State.BACKOFF, Happened.START) is _BEGUN


class Attempts:
    """What only a message that has failed (or comes from a retry topic) needs. Most never have one."""

    __slots__ = ("before", "due", "first_failed_at", "in_place", "last", "retry_index", "unavailable")

    def __init__(self, before: int = 0, due: float = 0.0, first_failed_at: float | None = None) -> None:
        self.before = before
        """Attempts made in earlier deliveries, since the original or the last replay."""
        self.due = due
        """Not to be started before this time (engine clock, seconds); 0 when it may start at once."""
        self.first_failed_at = first_failed_at
        """When it first failed (engine clock, seconds)."""
        self.in_place = 0
        """Attempts made in this delivery."""
        self.retry_index = -1
        """The retry topic that it is being routed to."""
        self.unavailable = 0
        """Unavailable outcomes in a row; these spend no attempt."""
        self.last: Failure | None = None
        """The last failure."""


class Record:
    """A message of one partition and epoch.

    ``offset``, ``size`` (bytes, as counted against the watermark), ``leader_epoch`` (-1: unknown) and ``key``
    (bytes, or None) are the broker's; ``following`` is the next record of the same lane.
    """

    __slots__ = (
        "attempts",
        "failure",
        "following",
        "key",
        "lane",
        "leader_epoch",
        "message",
        "offset",
        "part",
        "place",
        "size",
        "started",
        "state",
    )

    part: Partition
    lane: bytes | str | None
    """The lane it is part of; None: unordered."""
    place: int
    """Its place in its lane: the difference of two is how many are between them."""
    started: float
    """When its handler began (engine clock, seconds)."""

    def __init__(self, offset: int, key: bytes | None, size: int, leader_epoch: int, message: Any) -> None:
        self.offset = offset
        self.key = key
        self.size = size
        self.leader_epoch = leader_epoch
        self.message = message
        self.state = _FETCHED
        self.attempts: Attempts | None = None
        self.failure: Failure | None = None
        self.following: Record | None = None

    def begin(self, now: float) -> bool:
        """Claim the record for its handler. False: its partition has left, is being drained, or may have left
        because its poller stood still.

        Asked right before the handler is called, since between the decision and the start the partition may
        have gone. Nothing else outside the engine changes a record's state.
        """
        state = self.state
        if state is not _FETCHED and state is not _BACKOFF:
            return False
        part = self.part
        if part.closing or now > part.intake.capacity.start_until:
            return False
        self.state = _BEGUN
        self.started = now
        part.running += 1
        return True

    def may_begin(self, now: float) -> bool:
        """Whether begin() would claim it: for what is done with a record whose handler is not called."""
        part = self.part
        return (
            (self.state is _FETCHED or self.state is _BACKOFF)
            and not part.closing
            and now <= part.intake.capacity.start_until
        )

    @property
    def attempt(self) -> int:
        """The number of the attempt that runs or comes next; 1 is the first."""
        attempts = self.attempts
        return 1 if attempts is None else attempts.before + attempts.in_place + 1

    def __repr__(self) -> str:
        return f"<Record {self.part.name.topic}/{self.part.name.partition}/{self.offset} {self.state.name}>"
