"""Order: what may run at once, and whose turn it is.

A lane is a chain of records that must be handled one after the other: one for each key (``key``), one for the
partition (``partition``), none (``none``; also records without a key). The records themselves are the chain
(``Record.following``), and a dict holds each lane's last one, so that a message costs no extra object.
:class:`Turns` gives the partitions of a consumer equal turns.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from streamloop.engine.partition import Partition
    from streamloop.engine.record import Record


class Ordering(Enum):
    """What is kept in order. The same key on two topics is two keys; a record without a key is unordered."""

    KEY = "key"
    PARTITION = "partition"
    NONE = "none"


WHOLE_PARTITION: Final = ""
"""The lane's name under ordering by partition. A str, so that it equals no key (bytes)."""

Lane = bytes | str | None


class Lanes:
    """The lanes of one partition: ``tails`` has the last record of each, ``ready`` the heads that may run."""

    __slots__ = ("ordering", "ready", "tails")

    def __init__(self, ordering: Ordering) -> None:
        self.ordering = ordering
        self.tails: dict[bytes | str, Record] = {}
        self.ready: deque[Record] = deque()

    def add(self, part: Partition, records: list[Record]) -> None:
        """Put records at the ends of their lanes; the head of an empty lane becomes ready."""
        ready = self.ready.append
        ordering = self.ordering
        if ordering is Ordering.NONE:
            for record in records:
                record.part = part
                record.lane = None
            self.ready.extend(records)
            return
        tails = self.tails
        tail_of = tails.get
        by_key = ordering is Ordering.KEY
        for record in records:
            record.part = part
            lane: Lane = record.key if by_key else WHOLE_PARTITION
            record.lane = lane
            if lane is None:
                ready(record)
                continue
            tail = tail_of(lane)
            tails[lane] = record
            if tail is None:
                record.place = 0
                ready(record)
            else:
                record.place = tail.place + 1
                tail.following = record

    def release(self, record: Record) -> None:
        """The head is done: the next of its lane becomes ready."""
        lane = record.lane
        if lane is None:
            return
        following = record.following
        if following is None:
            del self.tails[lane]
        else:
            record.following = None
            self.ready.append(following)

    def give_back(self, record: Record) -> None:
        """A head was handed out and has not started: it is ready again, before the others."""
        self.ready.appendleft(record)

    def behind(self, record: Record) -> int:
        """How many wait behind this head in its lane."""
        lane = record.lane
        return 0 if lane is None else self.tails[lane].place - record.place

    def clear(self) -> None:
        """The partition has left."""
        self.tails.clear()
        self.ready.clear()


class Run:
    """What of one lane is in a batch."""

    __slots__ = ("back", "last", "open")

    def __init__(self, records: list[Record]) -> None:
        self.open = dict.fromkeys(records)
        """Not done yet, in offset order."""
        self.back = 0
        """How many of these were given back."""
        self.last = records[-1]


class BatchLanes(Lanes):
    """Lanes of a batch consumer: a run of a lane's records is handed over together, in offset order.

    The lane is free again when every record of the run is done, so that a lane is never in two batches. What
    the runner gives back is handed over again when nothing else of the run is out.
    """

    __slots__ = ("_runs", "_size")

    def __init__(self, ordering: Ordering, size: int) -> None:
        super().__init__(ordering)
        self._size = size
        self._runs: dict[bytes | str, Run] = {}

    def run(self, head: Record, most: int, now: float) -> list[Record]:
        """The head and what follows it in its lane and is due, at most ``most`` and at most a batch."""
        lane = head.lane
        if lane is None:
            return [head]
        run = self._runs.get(lane)
        if run is not None:
            records = list(run.open)[:most]
            run.back = len(run.open) - len(records)
            return records
        records = [head]
        most = min(most, self._size)
        following = head.following
        while following is not None and len(records) < most:
            if following.attempts is not None and following.attempts.due > now:
                break
            records.append(following)
            following = following.following
        self._runs[lane] = Run(records)
        return records

    def release(self, record: Record) -> None:
        """The record is done; when it was the run's last to be so, the lane's next becomes ready."""
        lane = record.lane
        if lane is None:
            return
        run = self._runs[lane]
        del run.open[record]
        if record is not run.last:
            record.following = None
        if run.open:
            self._offer(run)
            return
        del self._runs[lane]
        following = run.last.following
        if following is None:
            del self.tails[lane]
        else:
            run.last.following = None
            self.ready.append(following)

    def give_back(self, record: Record) -> None:
        """A record of a batch has not started: its run goes on when nothing else of it is out."""
        if record.lane is None:
            self.ready.appendleft(record)
            return
        run = self._runs[record.lane]
        run.back += 1
        self._offer(run)

    def _offer(self, run: Run) -> None:
        if run.back == len(run.open):
            self.ready.appendleft(next(iter(run.open)))

    def clear(self) -> None:
        """The partition has left."""
        super().clear()
        self._runs.clear()


class Turns:
    """Whose turn it is among the partitions of one consumer that have something ready."""

    __slots__ = ("_ring",)

    def __init__(self) -> None:
        self._ring: deque[Partition] = deque()

    def __bool__(self) -> bool:
        return bool(self._ring)

    def enter(self, part: Partition) -> None:
        """The partition has something ready (nothing happens when it is in the ring, or may not start)."""
        if not part.in_turns and not part.stopped and part.lanes.ready:
            part.in_turns = True
            self._ring.append(part)

    def take(self, room: int) -> list[Record]:
        """At most ``room`` records, the partitions in turn, each with an equal share of the room."""
        ring = self._ring
        taken: list[Record] = []
        while room > 0 and ring:
            share = room // len(ring) or 1
            for _ in range(len(ring)):
                part = ring.popleft()
                ready = part.lanes.ready
                if part.stopped or not ready:
                    part.in_turns = False
                    continue
                count = len(ready)
                if count <= share and count <= room:
                    taken += ready
                    ready.clear()
                    part.in_turns = False
                else:
                    count = min(share, room)
                    taken += [ready.popleft() for _ in range(count)]
                    ring.append(part)
                room -= count
                if room <= 0:
                    break
        return taken
