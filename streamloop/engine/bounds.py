"""When something is over: a partition that leaves is quiet, a drain is done, a run's bound is reached.

Part of the engine (it shares :class:`~streamloop.engine.engine.Engine`'s state and is called by it alone). It
only looks and says so, once; it starts and stops nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop.engine import events as ev

if TYPE_CHECKING:
    from streamloop.engine.engine import Engine
    from streamloop.engine.partition import Partition


class Bounds:
    """What waits for an end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.leaving: dict[Partition, None] = {}
        """Partitions that are being revoked, not quiet yet."""
        self._drained_said = False
        self._bound_said = False

    def quiet(self) -> None:
        """Say of partitions that are being revoked that nothing of theirs goes on, or is waited for."""
        engine = self._engine
        for part in [part for part in self.leaving if engine.cut_short or not (part.running or part.routing)]:
            del self.leaving[part]
            if part in engine.commits.dirty or part.ledger.version != part.emitted:
                engine.commits.emit(part)
            engine.emit(ev.Quiet(part.intake.index, part.name, part.epoch))

    def look(self) -> None:
        """Say that the drain is done, or the bound reached."""
        engine = self._engine
        if engine.draining:
            busy = any(part.running or part.routing for part in engine.parts.values())
            if not busy and not self._drained_said:
                self._drained_said = True
                engine.commits.flush()
                engine.emit(ev.Drained())
            return
        if self._bound_said:
            return
        if engine.budget == 0 and self.idle():
            self._bound_said = True
            engine.emit(ev.BoundReached("max_messages"))
        elif engine.config.until_end and self._at_end():
            self._bound_said = True
            engine.emit(ev.BoundReached("until_end"))

    def idle(self) -> bool:
        """Nothing runs, waits for a retry in place, or is being published."""
        engine = self._engine
        return (
            not any(consumer.running or consumer.due for consumer in engine.consumers)
            and not any(intake.backoff for intake in engine.intakes)
            and not any(part.routing or part.dead_waiting for part in engine.parts.values())
        )

    def _at_end(self) -> bool:
        parts = self._engine.intakes[0].parts
        return bool(parts) and all(
            part.end is not None and part.ledger.committable >= part.end for part in parts.values()
        )
