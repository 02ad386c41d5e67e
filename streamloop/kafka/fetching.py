"""Makes engine events of what a Consumer handed out: the hot path of the poller.

What it is for: a list of messages becomes one Fetched event for each run of messages of the same partition.
It must never deliver a message of a partition without an open epoch, and does nothing for a message that
could be done for a run. Called by the poller's thread alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from streamloop.engine.events import Fetched
from streamloop.engine.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamloop.engine.events import Event, TopicPartition
    from streamloop.engine.gate import Capacity
    from streamloop.kafka.slots import Slots

__all__ = ["MESSAGE_OVERHEAD", "Fetching"]

MESSAGE_OVERHEAD: Final = 512
"""Bytes that a message takes in memory besides its key and value, as counted against the watermark: the
client's and our own objects, and some headers."""


class Fetching:
    """Takes messages. ``emit`` adds an event to the next delivery; ``prepare`` reads a run's headers."""

    def __init__(
        self,
        slots: Slots,
        capacity: Capacity,
        emit: Callable[[Event], None],
        on_error: Callable[[Any], None],
        prepare: Callable[[TopicPartition, list[Record]], None] | None,
    ) -> None:
        self._slots = slots
        self._capacity = capacity
        self._emit = emit
        self._on_error = on_error
        self._prepare = prepare
        self.messages = 0
        self.bytes = 0
        self.dropped = 0
        """Messages without an open epoch."""
        self.stamps: dict[TopicPartition, int] = {}
        """The timestamp (epoch ms) of the last message taken of each partition, for its lag in seconds."""

    def take(self, messages: Sequence[Any]) -> None:
        """Take what one call of the Consumer returned, in order."""
        record = Record
        overhead = MESSAGE_OVERHEAD
        topic: str | None = None
        partition = -1
        records: list[Record] = []
        add = records.append
        size = largest = 0
        for message in messages:
            if message.error() is not None:
                if records:
                    self._run(topic, partition, records, size, largest)
                    records = []
                    add = records.append
                    size = largest = 0
                self._on_error(message)
                continue
            own_topic = message.topic()
            own_partition = message.partition()
            if own_partition != partition or own_topic != topic:
                if records:
                    self._run(topic, partition, records, size, largest)
                    records = []
                    add = records.append
                    size = largest = 0
                topic = own_topic
                partition = own_partition
            key = message.key()
            own_size = len(message) + overhead
            if key is not None:
                own_size += len(key)
            if own_size > largest:
                largest = own_size
            size += own_size
            epoch = message.leader_epoch()
            add(record(message.offset(), key, own_size, -1 if epoch is None else epoch, message))
        if records:
            self._run(topic, partition, records, size, largest)

    def _run(self, topic: str | None, partition: int, records: list[Record], size: int, largest: int) -> None:
        slot = self._slots.by_name.get((topic, partition))  # type: ignore[call-overload]  # a tuple is as good
        if slot is None or not slot.open or slot.unresolved is not None or not slot.moved:
            # Fetched before its epoch ended, or before the partition was put where it belongs.
            self.dropped += len(records)
            return
        first = records[0].offset
        if slot.born == self._slots.call and first != slot.position:
            # Its epoch began inside the very call that returned this: it may have been taken before.
            self.dropped += len(records)
            slot.moved = False
            self._slots.unsettled = True
            return
        slot.position = records[-1].offset + 1
        if self._prepare is not None:
            self._prepare(slot.name, records)
        kind, stamp = records[-1].message.timestamp()
        if kind:
            self.stamps[slot.name] = stamp
        self._capacity.took(len(records), size, largest)
        self.messages += len(records)
        self.bytes += size
        self._emit(Fetched(slot.name, slot.epoch, records))
