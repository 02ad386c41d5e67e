"""A dependency that is unavailable: its consumer's partitions are held, and one message probes.

Part of the engine (it shares :class:`~streamloop.engine.engine.Engine`'s state and is called by it alone).
What is held waits without spending attempts and without dead letters. As long as a consumer is broken there
is a probe, or a message in back-off that becomes it when it is due: when neither is left, the consumer flows
again and its next messages find out. So nothing that happens to a probe can hold a consumer for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop.engine.consumer import BREAKER_TRIPS_AFTER
from streamloop.engine.events import Reason
from streamloop.engine.states import State

if TYPE_CHECKING:
    from streamloop.engine.consumer import ConsumerState
    from streamloop.engine.engine import Engine
    from streamloop.engine.partition import Partition
    from streamloop.engine.record import Record
    from streamloop.engine.retry import Failure


class Breaker:
    """Holds a consumer after five unavailable outcomes in a row, until one message has another outcome."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def unavailable(self, record: Record, failure: Failure) -> None:
        """A dependency is away. The record is in BACKOFF (in limbo when its partition is closing)."""
        consumer = record.part.consumer
        consumer.unavailable += 1
        if not consumer.broken and consumer.unavailable >= BREAKER_TRIPS_AFTER:
            consumer.broken = True
            consumer.probe = record
            dependency = failure.dependency or failure.error_class
            consumer.trouble = f"{dependency} is unavailable ({failure.message}); one message probes it"
            for part in self._engine.parts.values():
                self.assigned(part)
        if record.part.closing:
            self.gave_up(record)

    def assigned(self, part: Partition) -> None:
        """A partition of a broken consumer is held, whenever it comes."""
        if part.consumer.broken:
            self._engine.hold(part, Reason.BREAKER, part.consumer.trouble)

    def may_start(self, record: Record) -> bool:
        """Whether a due record of a stopped partition may start: as the probe, when only this holds it."""
        consumer = record.part.consumer
        if not consumer.broken or not record.part.only_broken():
            return False
        if consumer.probe is None:
            consumer.probe = record
        return consumer.probe is record

    def answered(self, record: Record) -> None:
        """A handler's outcome other than 'unavailable'."""
        consumer = record.part.consumer
        if not consumer.broken:
            consumer.unavailable = 0
        elif consumer.probe is None or consumer.probe is record:
            self._close(consumer)

    def succeeded(self, consumer: ConsumerState) -> None:
        """Handlers have returned; the probe may be among them."""
        if not consumer.broken:
            consumer.unavailable = 0
        elif consumer.probe is None or consumer.probe.state is State.ACKED:
            self._close(consumer)

    def gave_up(self, record: Record) -> None:
        """This message will not run soon, or never again: if it was the probe, another one is."""
        consumer = record.part.consumer
        if consumer.broken and consumer.probe is record:
            self._choose(consumer)

    def left(self, part: Partition) -> None:
        """The partition has left, maybe with the probe, or with the last message that would become it."""
        consumer = part.consumer
        if consumer.broken and (consumer.probe is None or consumer.probe.part is part):
            self._choose(consumer)

    def _choose(self, consumer: ConsumerState) -> None:
        """What is due is offered again, and the first of it becomes the probe."""
        consumer.probe = None
        for part in self._engine.parts.values():
            if part.consumer is consumer and part.only_broken():
                consumer.due.extend(part.stalled)
                part.stalled.clear()
        for intake in self._engine.intakes:
            for record in intake.backoff:
                if record.part.consumer is consumer and record.part.only_broken():
                    return
        self._close(consumer)

    def _close(self, consumer: ConsumerState) -> None:
        consumer.broken = False
        consumer.unavailable = 0
        consumer.probe = None
        for part in self._engine.parts.values():
            if part.consumer is consumer:
                self._engine.release(part, Reason.BREAKER)
