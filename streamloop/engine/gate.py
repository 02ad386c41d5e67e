"""Watermarks, and the reasons that hold a partition.

:class:`Capacity` is the only thing, besides a wake-up event and the engine's heartbeat, that the poller's
thread and the engine's thread share: four counters that only grow, each written by one thread. The free
capacity is a difference, so that no counter has two writers. Beside them the poller says until when handlers
may start without another word of it.
"""

from __future__ import annotations

import math

from streamloop.engine.events import Reason

FIRST_FETCH = 10
"""Messages asked for the first time, when the size of a message is not known yet."""

RECENT = 16
"""Fetches after which a larger message seen earlier is forgotten in the estimate."""


class Capacity:
    """What one Consumer may still take, in messages and bytes.

    Everything that is not yet acknowledged counts: queued, running, waiting for a retry, waiting for a
    publish. ``taken_*`` is written by the poller alone, ``released_*`` by the engine alone.
    """

    __slots__ = (
        "_asked",
        "_largest",
        "_largest_before",
        "high_bytes",
        "high_messages",
        "low_bytes",
        "low_messages",
        "peak_bytes",
        "peak_messages",
        "released_bytes",
        "released_messages",
        "start_until",
        "taken_bytes",
        "taken_messages",
    )

    def __init__(self, high_messages: int, high_bytes: int, low: float = 0.5) -> None:
        if high_messages < 1 or high_bytes < 1 or not 0 <= low < 1:
            raise ValueError("watermarks: high must be at least 1 message and 1 byte, low a fraction below 1")
        self.high_messages = high_messages
        self.high_bytes = high_bytes
        self.low_messages = int(high_messages * low)
        self.low_bytes = int(high_bytes * low)
        self.taken_messages = 0
        self.taken_bytes = 0
        self.released_messages = 0
        self.released_bytes = 0
        self.peak_messages = 0
        self.peak_bytes = 0
        self.start_until = math.inf
        """Until when handlers may start (engine clock, seconds). Written by the poller alone, which puts it
        off with each turn: after a stall the group may have gone on without this member, and what is buffered
        may be another's. No limit where no poller sets one.
        """
        self._largest = 0
        self._largest_before = 0
        self._asked = 0

    @property
    def messages(self) -> int:
        """Messages taken and not yet released."""
        return self.taken_messages - self.released_messages

    @property
    def bytes(self) -> int:
        """Bytes taken and not yet released."""
        return self.taken_bytes - self.released_bytes

    def room(self) -> int:
        """How many messages the poller may ask for now; 0 when the buffer is full."""
        free = self.high_messages - self.taken_messages + self.released_messages
        free_bytes = self.high_bytes - self.taken_bytes + self.released_bytes
        if free <= 0 or free_bytes <= 0:
            return 0
        if self.taken_messages == 0:
            return min(free, FIRST_FETCH)
        by_bytes = free_bytes // (max(self._largest_before, self._largest) or 1)
        if by_bytes >= free:
            return free
        return max(1, by_bytes)

    def took(self, messages: int, size: int, largest: int) -> None:
        """The poller took ``messages`` of together ``size`` bytes, the largest of ``largest`` bytes."""
        self.taken_messages += messages
        self.taken_bytes += size
        if largest > self._largest:
            self._largest = largest
        self._asked += 1
        if self._asked >= RECENT:
            self._asked = 0
            self._largest_before = self._largest
            self._largest = largest
        if self.messages > self.peak_messages:
            self.peak_messages = self.messages
        if self.bytes > self.peak_bytes:
            self.peak_bytes = self.bytes

    def released(self, messages: int, size: int) -> None:
        """The engine has let go of ``messages`` of together ``size`` bytes."""
        self.released_messages += messages
        self.released_bytes += size

    def is_low(self) -> bool:
        """The buffer has fallen to the low watermark: a hold for WATERMARK may end."""
        return self.messages <= self.low_messages and self.bytes <= self.low_bytes

    def __repr__(self) -> str:
        return (
            f"<Capacity {self.messages}/{self.high_messages} messages {self.bytes}/{self.high_bytes} bytes>"
        )


STOPS_DISPATCH = frozenset(
    {Reason.BREAKER, Reason.OPERATOR, Reason.ASSIGNING, Reason.TOPIC_GONE, Reason.DEAD_LETTER_RATE}
)
"""Reasons that also keep what is already buffered from starting; the others only stop the intake."""
