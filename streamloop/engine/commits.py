"""When a commit position is worth telling the broker, and what it then carries.

Part of the engine (it shares :class:`~streamloop.engine.engine.Engine`'s state and is called by it alone). It
asks for a commit of each partition that changed, once an interval, and of one that is about to leave as soon
as it changes; sending, coalescing and repeating them is the poller's. It never asks for a partition whose
epoch has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop.engine import events as ev
from streamloop.engine.events import Reason

if TYPE_CHECKING:
    from streamloop.engine.engine import Engine
    from streamloop.engine.partition import Partition


class Commits:
    """The partitions whose position changed since the last Commit that was asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0.0
        self.dirty: dict[Partition, None] = {}
        """In the order in which they changed, so that a recorded run gives the same effects again."""

    def due(self) -> float | None:
        """When the next commit is due (engine clock), or None."""
        return self._next if self.dirty else None

    def ask(self) -> None:
        """Commit what is dirty, if the interval is over; what is about to leave at once."""
        engine = self._engine
        if engine.now < self._next:
            for part in [part for part in self.dirty if part.revoking]:
                self.emit(part)
            return
        self._next = engine.now + engine.config.commit_interval
        self.flush()

    def flush(self) -> None:
        """Commit all that is dirty now."""
        for part in list(self.dirty):
            self.emit(part)

    def emit(self, part: Partition) -> None:
        """Ask for a commit of the partition's present position."""
        self.dirty.pop(part, None)
        offset, metadata, version = part.ledger.snapshot()
        part.emitted = version
        self._engine.emit(ev.Commit(part.intake.index, part.name, part.epoch, offset, metadata, version))

    def confirmed(self, part: Partition, version: int) -> None:
        """The broker has it. The first one of a group without an offset lets its partition start."""
        part.ledger.confirmed = max(part.ledger.confirmed, version)
        self._engine.release(part, Reason.ASSIGNING)
