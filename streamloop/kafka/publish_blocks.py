"""Which targets take no records now, what waits for them, and which single record probes each.

Pure bookkeeping of the publisher: given failures, answers and now, it decides what waits, what flows and what
is sent as a probe. It must never do I/O, read a clock or lose an entry. Only the publisher's thread calls it.

A block begins with the first failure that is no verdict on a record, and belongs to the whole topic. It sends
one probe at a time, its oldest record (of another partition each time), at growing intervals. When the target
answers about a probe, the block ends and all flow. One refinement: where the reason may be one partition's
own (a time-out, too few replicas) and another partition answers, the partitions that failed go on as blocks
of their own, each with a probe at once, so that one partition without a leader does not stop the others of
its topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamloop.kafka.produce_errors import Meaning, meaning_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from streamloop.kafka.publishing import PublishRequest

__all__ = ["BlockedTarget", "Blocks", "Entry"]


@dataclass(slots=True, eq=False)
class Entry:
    """A request in the publisher's hands. ``seq`` is its place in the order of submission."""

    seq: int
    request: PublishRequest
    sent_at: float = 0.0
    """When it was handed to the client last, on the publisher's clock."""
    alone: bool = False
    """It failed with its batch: from now on it is sent in a batch of its own."""
    reported_blocked: bool = False
    cancelled: bool = False
    block: Block | None = None
    """The block it waits in, or whose probe it is."""


@dataclass(slots=True, eq=False)
class Block:
    topic: str
    partition: int | None
    """None: the whole topic. -1: the records that are placed by key."""
    code: int
    reason: str
    since: float
    next_probe: float
    attempts: int = 1
    probe: Entry | None = None
    waiting: dict[int, Entry] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    """Requested partitions that a record failed for."""
    probed: set[int] = field(default_factory=set)
    """Requested partitions that had their turn as a probe in this round."""


@dataclass(frozen=True, slots=True)
class BlockedTarget:
    """A target that takes no records now. ``since`` is on the publisher's clock, in seconds.

    ``partition`` is None for the whole topic, -1 for the records that are placed by key. ``waiting`` counts
    records, the probe included.
    """

    topic: str
    partition: int | None
    code: int
    reason: str
    since: float
    waiting: int


class Blocks:
    """All blocks of a publisher.

    ``backoff`` gives seconds for the n-th attempt; ``release`` is called with what flows again, in order;
    ``blocked`` and ``unblocked`` when that is news for the entry's owner.
    """

    def __init__(
        self,
        *,
        backoff: Callable[[int], float],
        release: Callable[[Entry], None],
        blocked: Callable[[Entry, int, str], None],
        unblocked: Callable[[Entry], None],
        log: logging.Logger,
    ) -> None:
        self.changed = False
        """Set by every change; who takes a snapshot clears it."""
        self._backoff = backoff
        self._release = release
        self._blocked = blocked
        self._unblocked = unblocked
        self._log = log
        self._blocks: dict[tuple[str, int | None], Block] = {}

    def must_wait(self, entry: Entry) -> bool:
        """Keep it here if its target is blocked and it is not the probe. False: it may be sent."""
        if not self._blocks:
            return False
        block = self._of(entry)
        if block is None or block.probe is entry:
            return False
        self._hold(entry, block)
        return True

    def failed(self, entry: Entry, code: int, reason: str, now: float) -> None:
        """The target did not take it, for a reason that is not the record's: it waits here."""
        whole = meaning_of(code) is not Meaning.PARTITION_BLOCKED
        block = entry.block or self._of(entry)
        if block is None and entry.cancelled:
            return
        if block is None or (whole and block.partition is not None):
            block = self._begin(entry, code, reason, now, whole=whole)
        block.code, block.reason = code, reason
        block.failed.add(entry.request.partition)
        if block.probe is entry:
            block.probe = None
            block.attempts += 1
            block.next_probe = now + self._backoff(block.attempts)
        entry.block = None
        if entry.cancelled:
            self._drop_if_empty(block)
        else:
            self._hold(entry, block)

    def answered(self, entry: Entry, now: float) -> None:
        """The target took it, or refused this very record: end the block that this proves wrong."""
        if not self._blocks:
            return
        partition = entry.request.partition
        block = entry.block or self._of(entry)
        entry.block = None
        if block is None:
            return
        whole = block.partition is not None or meaning_of(block.code) is not Meaning.PARTITION_BLOCKED
        if block.probe is entry:
            block.probe = None
        elif whole or partition in block.failed:
            return  # sent before the block began: it says nothing about now
        self._end(block, set() if whole else block.failed - {partition}, now)

    def gone(self, entry: Entry) -> None:
        """It is no longer wanted, or said nothing about the target: if it was the probe, another one goes."""
        block, entry.block = entry.block, None
        if block is None:
            return
        if block.probe is entry:
            block.probe = None  # its time has come: the next turn sends another one
        else:
            block.waiting.pop(entry.seq, None)
        self._drop_if_empty(block)

    def take_probes(self, now: float) -> list[Entry]:
        """The probes that are due: to be sent, each the only record on its way to its target."""
        probes = []
        for block in self._blocks.values():
            if block.probe is not None or now < block.next_probe:
                continue
            candidates = [s for s, e in block.waiting.items() if e.request.partition not in block.probed]
            if not candidates:
                block.probed.clear()
                candidates = list(block.waiting)
            entry = block.waiting.pop(min(candidates))
            block.probe = entry
            block.probed.add(entry.request.partition)
            probes.append(entry)
        return probes

    def next_probe(self) -> float | None:
        """When the next probe is due; None: none is waiting for its time."""
        return min((b.next_probe for b in self._blocks.values() if b.probe is None), default=None)

    def snapshot(self) -> tuple[BlockedTarget, ...]:
        return tuple(
            BlockedTarget(
                b.topic, b.partition, b.code, b.reason, b.since, len(b.waiting) + (b.probe is not None)
            )
            for b in self._blocks.values()
        )

    def _of(self, entry: Entry) -> Block | None:
        topic = entry.request.topic
        return self._blocks.get((topic, None)) or self._blocks.get((topic, entry.request.partition))

    def _hold(self, entry: Entry, block: Block) -> None:
        entry.block = block
        block.waiting[entry.seq] = entry
        self.changed = True
        if not entry.reported_blocked:
            entry.reported_blocked = True
            self._blocked(entry, block.code, block.reason)

    def _begin(self, entry: Entry, code: int, reason: str, now: float, *, whole: bool) -> Block:
        topic = entry.request.topic
        narrow = [b for (t, p), b in self._blocks.items() if t == topic and p is not None]
        # Where a topic has blocked partitions beside others that work, a failure is that partition's own.
        scope = entry.request.partition if narrow and not whole else None
        block = Block(topic, scope, code, reason, now, now + self._backoff(1))
        if scope is None:
            for old in narrow:
                self._absorb(block, old)
        self._blocks[topic, scope] = block
        self._log.warning(
            "%s takes no records now, they are tried again for ever: %s", _name(topic, scope), reason
        )
        return block

    def _absorb(self, block: Block, old: Block) -> None:
        del self._blocks[old.topic, old.partition]
        block.failed |= old.failed
        block.since = min(block.since, old.since)
        block.waiting.update(old.waiting)
        for entry in old.waiting.values():
            entry.block = block
        if old.probe is not None:
            old.probe.block = None  # its report counts as any other record's

    def _end(self, block: Block, still_failed: set[int], now: float) -> None:
        del self._blocks[block.topic, block.partition]
        self.changed = True
        for partition in still_failed:
            self._go_on_as(partition, block, now)
        if block.probe is not None and block.probe.block is block:
            block.probe.block = None
        self._log.warning("%s takes records again", _name(block.topic, block.partition))
        for seq in sorted(block.waiting):
            entry = block.waiting[seq]
            entry.block = None
            if entry.reported_blocked:
                entry.reported_blocked = False
                self._unblocked(entry)
            self._release(entry)

    def _go_on_as(self, partition: int, block: Block, now: float) -> None:
        """Split one partition's records off a block that ends."""
        waiting = {s: e for s, e in block.waiting.items() if e.request.partition == partition}
        probe = block.probe if block.probe and block.probe.request.partition == partition else None
        if not waiting and probe is None:
            return
        own = Block(block.topic, partition, block.code, block.reason, block.since, now, block.attempts)
        own.failed.add(partition)
        own.waiting, own.probe = waiting, probe
        for seq, entry in waiting.items():
            del block.waiting[seq]
            entry.block = own
        if probe is not None:
            probe.block = own
        self._blocks[block.topic, partition] = own

    def _drop_if_empty(self, block: Block) -> None:
        self.changed = True
        if not block.waiting and block.probe is None:
            self._blocks.pop((block.topic, block.partition), None)


def _name(topic: str, partition: int | None) -> str:
    if partition is None:
        return f"topic {topic}"
    return f"topic {topic}, {'records by key' if partition < 0 else f'partition {partition}'}"
