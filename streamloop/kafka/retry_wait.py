"""When a record of our own retry topics may start, from its headers.

The header says a wall-clock time, and the clocks of two machines differ and jump. So a wait is never longer
than the topic's delay, and it is counted on the monotonic clock from when the record was first seen: a
retry that is not due is sought back to and read again, and must not begin to wait anew each time.

It must never do I/O or raise: it runs on the poller's thread, for every run of records of a retry topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from streamloop.engine.record import Attempts
from streamloop.kafka.headers import headers_of, read_routing

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.engine.events import TopicPartition
    from streamloop.engine.record import Record

__all__ = ["RetryWait"]

MOST_KNOWN: Final = 16
"""Runs remembered of a partition. Of more than that the last two count as seen when the later one was."""


class _Seen(NamedTuple):
    """The records from ``first`` to ``last`` (offsets) were there at ``at`` (monotonic seconds)."""

    first: int
    last: int
    at: float


class RetryWait:
    """Reads the headers of what a retry Consumer has fetched. ``delay_of``: a topic's delay in seconds.

    ``anew``: whether attempts and age start anew in a topic, whatever a header says (a replay topic, which
    somebody may have filled by hand). ``clock``: monotonic seconds. ``wall``: epoch seconds.
    """

    def __init__(
        self,
        delay_of: Callable[[str], float],
        group: str,
        *,
        anew: Callable[[str], bool],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._anew = anew
        self._delay_of = delay_of
        self._group = group
        self._clock = clock
        self._wall = wall
        self._seen: dict[TopicPartition, list[_Seen]] = {}

    def __call__(self, name: TopicPartition, records: list[Record]) -> None:
        """Give the records of one partition their attempts and the time before which they may not start."""
        if self._anew(name.topic):
            return
        delay = self._delay_of(name.topic)
        epoch, now = self._wall(), self._clock()
        seen = iter(self._look(name, records, now))
        current = next(seen)
        for record in records:
            while record.offset > current.last:
                current = next(seen)
            routing = read_routing(headers_of(record.message), group=self._group)
            if routing is None:
                continue
            due = 0.0
            if routing.not_before_ms is not None:
                wait = routing.not_before_ms / 1000 - epoch
                if wait > 0:
                    due = min(now + wait, current.at + delay)
            first = routing.first_failed_at
            record.attempts = Attempts(
                before=routing.attempt,
                due=due,
                first_failed_at=now - max(0.0, epoch - first) if first is not None else None,
            )

    def _look(self, name: TopicPartition, records: list[Record], now: float) -> list[_Seen]:
        """What is known of these records, in order: it has them all."""
        head, last = records[0].offset, records[-1].offset
        known = self._seen.get(name, [])
        if known and head < known[0].first:
            known = []  # from an earlier offset than before: another epoch, or another topic of this name
        known = [each for each in known if each.last >= head]
        if not known or known[-1].last < last:
            first = known[-1].last + 1 if known else head
            if len(known) >= MOST_KNOWN:
                first = known.pop().first
            known.append(_Seen(first, last, now))
        self._seen[name] = known
        return known
