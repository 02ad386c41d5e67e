"""Which offsets of one partition were received, which are acknowledged, and what may be committed.

Only offsets that were received are tracked: transaction markers and compaction leave gaps that nobody ever
acknowledges. Committable is the lowest offset that was received and is not ACKED; with nothing outstanding it
is the Consumer's position, so that a partition that ends in markers still drains. One Ledger lives for one
assignment epoch; only the engine calls it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from streamloop.engine.metadata import Identity, Restored, Run, encode
from streamloop.engine.states import Happened, State, after

if TYPE_CHECKING:
    from streamloop.engine.record import Record

_ACKED = State.ACKED
_KNOWN = after(State.FETCHED, Happened.ALREADY_ACKNOWLEDGED)


class Ledger:
    """The offsets of one partition in one epoch.

    ``position`` is the offset that the Consumer reads next. ``version`` grows with every change that is worth
    a commit; ``confirmed`` is the version that the broker has.
    """

    __slots__ = (
        "_starts",
        "confirmed",
        "identity",
        "outstanding",
        "position",
        "restored",
        "version",
    )

    def __init__(self, position: int, identity: Identity, restored: Restored | None = None) -> None:
        self.position = position
        self.identity = identity
        self.outstanding: deque[Record] = deque()
        """Received and not yet passed by the commit position, in offset order; the first is not ACKED."""
        self.restored = restored if restored is not None and restored.runs else None
        self._starts = [start for start, _ in self.restored.runs] if self.restored else []
        self.version = 0
        self.confirmed = 0

    @property
    def committable(self) -> int:
        """The offset that may be committed."""
        return self.outstanding[0].offset if self.outstanding else self.position

    @property
    def gap(self) -> int:
        """Offsets from committable to the highest received."""
        return self.position - self.outstanding[0].offset if self.outstanding else 0

    @property
    def holder(self) -> Record | None:
        """The message that holds the commit position."""
        return self.outstanding[0] if self.outstanding else None

    def receive(self, records: list[Record]) -> list[Record]:
        """Take records (ascending offsets, at or above the position); returns those that are to be handled.

        A record that the restored metadata names, and whose leader epoch is not newer than the metadata's,
        is ACKED at once. Leader epochs never fall along a log: from the first newer one on, none of what the
        metadata names is in this log any more, and it is forgotten (else it would travel in our next commit
        beside acknowledged records of the newer epoch, and be believed).
        """
        self.outstanding.extend(records)
        self.position = records[-1].offset + 1
        if self.restored is None:
            return records
        fresh = [record for record in records if not self._known(record)]
        if len(fresh) != len(records):
            self.advance()
        if self.restored is not None and self.position >= self.restored.runs[-1][1]:
            self.restored = None
        return fresh

    def _known(self, record: Record) -> bool:
        restored = self.restored
        if restored is None:
            return False
        epoch = record.leader_epoch
        # A leader elected later may have written another record at that offset. When in doubt, handle it.
        if epoch > restored.leader_epoch or (epoch < 0 <= restored.leader_epoch):
            self.restored = None
            return False
        at = bisect_right(self._starts, record.offset) - 1
        if at < 0 or record.offset >= restored.runs[at][1]:
            return False
        record.state = _KNOWN
        record.message = None
        return True

    def reached(self, position: int) -> None:
        """The Consumer's position is ``position`` with nothing received before it (end of partition)."""
        if position > self.position:
            self.position = position
            self.version += 1

    def advance(self) -> None:
        """Pass over what is ACKED at the front. To be called after records became ACKED."""
        outstanding = self.outstanding
        while outstanding and outstanding[0].state is _ACKED:
            outstanding.popleft()
        self.version += 1

    def snapshot(self) -> tuple[int, str, int]:
        """What to commit now: (offset, metadata, version)."""
        committable = self.committable
        runs, epoch = self._beyond()
        return committable, encode(self.identity, committable, epoch, runs), self.version

    def _beyond(self) -> tuple[list[Run], int]:
        """The acknowledged runs beyond committable, and the highest leader epoch among them.

        The epoch is unknown (-1) as soon as one of them is: then nothing vouches for the others either.
        Offsets between two acknowledged neighbours that were never received do not exist for this consumer
        (markers, compaction, aborted transactions), so that a run goes on over them.
        """
        runs: list[Run] = []
        epoch = -1
        unknown = False
        start = end = -1
        for record in self.outstanding:
            if record.state is _ACKED:
                if start < 0:
                    start = record.offset
                end = record.offset + 1
                if record.leader_epoch > epoch:
                    epoch = record.leader_epoch
                elif record.leader_epoch < 0:
                    unknown = True
            elif start >= 0:
                runs.append((start, end))
                start = -1
        if start >= 0:
            runs.append((start, end))
        if self.restored is not None:
            epoch = self._add_restored(runs, epoch)
        return runs, -1 if unknown else epoch

    def _add_restored(self, runs: list[Run], epoch: int) -> int:
        """What an earlier commit knew beyond the position is still acknowledged, not received again yet."""
        restored = self.restored
        assert restored is not None
        ahead = [(max(start, self.position), end) for start, end in restored.runs if end > self.position]
        if not ahead:
            return epoch
        if runs and runs[-1][1] >= ahead[0][0]:
            runs[-1] = (runs[-1][0], ahead[0][1])
            ahead = ahead[1:]
        runs += ahead
        return max(epoch, restored.leader_epoch)

    def __repr__(self) -> str:
        return (
            f"<Ledger committable={self.committable} position={self.position} "
            f"outstanding={len(self.outstanding)} version={self.version}/{self.confirmed}>"
        )
