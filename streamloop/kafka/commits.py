"""Which commit goes out next, and what the broker's answer to it means.

What it is for: the poller's book of commits. It coalesces to the newest position of each partition, keeps one
commit in flight, and decides by the broker's error code. It must never touch a Consumer or a clock: the
poller's thread gives it both, and is the only one that calls it.

Why by code: librdkafka's retriable() is False for errors that a rebalance cures, and an asynchronous commit
of several partitions reports one partition's error for all of them although the broker committed the others.
So after an error each is sent alone, and only the answer about it alone is believed.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from streamloop.engine.events import Reason, TopicPartition
from streamloop.telemetry.durations import Durations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamloop.engine.events import Commit

__all__ = ["ANSWER_BOUND", "CommitBook", "Confirmed", "HeldBy", "ReleasedBy"]

METADATA_TOO_LARGE: Final = 12
UNKNOWN_TOPIC: Final = 3
REFUSED: Final = frozenset({METADATA_TOO_LARGE, UNKNOWN_TOPIC, 29, 30})
"""With 29 and 30, no right to the topic or the group: not cured by trying again soon."""
REBALANCE: Final = frozenset({22, 25, 27, 110, 113})
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH: the
group is changing. What is still assigned afterwards is sent again."""

FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 10.0
HELD_WAIT: Final = 5.0
"""Seconds until a partition whose commit was refused is tried again."""
ANSWER_BOUND: Final = 90.0
"""Seconds after which a commit without an answer counts as failed. librdkafka answers within its own request
time-out (60 s by default); a client with a fatal error may never answer."""

NO_ANSWER: Final = -185
"""librdkafka's 'timed out'."""
NO_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has this commit."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class HeldBy:
    """The broker refuses this partition's commits: hold it, for this reason."""

    partition: TopicPartition
    epoch: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class ReleasedBy:
    """The broker takes this partition's commits again."""

    partition: TopicPartition
    epoch: int
    reason: Reason


Verdict = Confirmed | HeldBy | ReleasedBy


@dataclass(slots=True)
class _Entry:
    """A partition's commits in one epoch."""

    epoch: int
    newest: Commit
    confirmed: int = -1
    """Version of the last one that the broker confirmed."""
    sent: int = -1
    """Version that is in flight; -1: none."""
    alone: bool = False
    """Send it alone: only then does an answer say something about it."""
    too_long: int = NO_LIMIT
    """Characters of metadata that the broker has refused: as many, or more, are left out."""
    not_before: float = 0.0
    failures: int = 0
    held: Reason | None = None

    @property
    def dirty(self) -> bool:
        return self.newest.version > self.confirmed


@dataclass(slots=True)
class _Sent:
    """A commit on its way: its parts, and when to give up waiting for the answer."""

    parts: list[Commit]
    keys: frozenset[tuple[str, int, int]]
    give_up: float
    parting: bool
    """Sent while its partitions were leaving: nobody waits for the answer."""


def _keys(parts: Sequence[Commit]) -> frozenset[tuple[str, int, int]]:
    return frozenset((c.partition.topic, c.partition.partition, c.offset) for c in parts)


@dataclass(slots=True)
class CommitBook:
    """The commits of one Consumer.

    ``jitter`` gives a factor around 1 for each wait, so that members do not try again in step.
    """

    jitter: Callable[[], float] = lambda: 1.0
    results: Counter[str] = field(
        default_factory=lambda: Counter({"ok": 0, "error": 0, "refused": 0, "rebalance": 0, "stale": 0})
    )
    """Partitions by what became of their commit."""
    durations: dict[int, Durations] = field(default_factory=lambda: {0: Durations()})
    """How long commits took until the broker's answer, by its error code."""
    _entries: dict[TopicPartition, _Entry] = field(default_factory=dict)
    _sent: deque[_Sent] = field(default_factory=deque)

    # ---------------------------------------------------------------------------------------- what to send

    def put(self, commit: Commit, *, assigned: int | None) -> None:
        """Take the engine's newest position. What belongs to another epoch than ``assigned`` is dropped."""
        if commit.epoch != assigned:
            self.results["stale"] += 1
            return
        entry = self._entries.get(commit.partition)
        if entry is None or entry.epoch != commit.epoch:
            self._entries[commit.partition] = _Entry(commit.epoch, commit)
        elif commit.version >= entry.newest.version:
            entry.newest = commit

    def take(self, now: float, assigned: Mapping[TopicPartition, int]) -> list[Commit]:
        """The commit to send now: empty when one is in flight, nothing is dirty, or it is not time yet.

        ``assigned`` are the open epochs, asked right before the call: an entry of any other is dropped.
        """
        if any(not sent.parting for sent in self._sent):
            return []
        self._drop_unassigned(assigned)
        ready = [e for e in self._entries.values() if e.dirty and e.not_before <= now and e.sent < 0]
        # Those that go well do not wait for the ones that have to be tried one by one.
        together = [entry for entry in ready if not entry.alone]
        return self._send(together or ready[:1], now, parting=False)

    def take_parting(
        self, partitions: Mapping[TopicPartition, int], now: float, *, recreated: frozenset[str] = frozenset()
    ) -> list[Commit]:
        """The last commit of partitions that are leaving: what changed since the last confirmed or sent one.

        ``recreated`` topics have another id by now: their positions mean nothing there, and are dropped.
        """
        entries = [e for e in self._parting(partitions) if e.newest.partition.topic not in recreated]
        return self._send(entries, now, parting=True)

    def has_parting(self, partitions: Mapping[TopicPartition, int]) -> bool:
        """Whether take_parting() would have something."""
        return any(True for _ in self._parting(partitions))

    def _parting(self, partitions: Mapping[TopicPartition, int]) -> Iterator[_Entry]:
        for name, epoch in partitions.items():
            entry = self._entries.get(name)
            if entry is None or entry.epoch != epoch:
                continue
            if entry.newest.version > max(entry.confirmed, entry.sent):
                yield entry

    def _send(self, entries: Sequence[_Entry], now: float, *, parting: bool) -> list[Commit]:
        parts: list[Commit] = []
        for entry in entries:
            entry.sent = entry.newest.version
            parts.append(entry.newest)
        if parts:
            self._sent.append(_Sent(parts, _keys(parts), now + ANSWER_BOUND, parting))
        return parts

    def metadata(self, commit: Commit) -> str:
        """What goes along with it: nothing, once the broker has refused metadata as too large."""
        entry = self._entries.get(commit.partition)
        long = entry is not None and len(commit.metadata) >= entry.too_long
        return "" if long else commit.metadata

    def forget(self, partitions: Mapping[TopicPartition, int]) -> None:
        """The epochs have ended: nothing more of them is sent."""
        for name, epoch in partitions.items():
            entry = self._entries.get(name)
            if entry is not None and entry.epoch == epoch:
                del self._entries[name]

    def due(self, now: float) -> float | None:
        """Seconds until take() may have something; None: nothing is dirty or one is in flight."""
        if any(not sent.parting for sent in self._sent):
            return None
        times = [entry.not_before - now for entry in self._entries.values() if entry.dirty]
        return max(0.0, min(times)) if times else None

    def _drop_unassigned(self, assigned: Mapping[TopicPartition, int]) -> None:
        gone = [name for name, entry in self._entries.items() if assigned.get(name) != entry.epoch]
        for name in gone:
            if self._entries[name].dirty:
                self.results["stale"] += 1
            del self._entries[name]

    # --------------------------------------------------------------------------------------------- answers

    def answered(
        self,
        now: float,
        code: int,
        text: str,
        partitions: Sequence[tuple[str, int, int, int]],
    ) -> list[Verdict]:
        """The broker's answer. ``code`` of the whole commit (0: none); ``partitions`` as (topic, partition,
        offset, code).

        An answer that belongs to nothing in flight (it came after its bound) changes nothing.
        """
        keys = frozenset((topic, partition, offset) for topic, partition, offset, _ in partitions)
        sent = next((each for each in self._sent if each.keys == keys), None)
        if sent is None:
            return []
        self._sent.remove(sent)
        self.durations.setdefault(code, Durations()).observe(max(0.0, now - (sent.give_up - ANSWER_BOUND)))
        codes = {(topic, partition): own for topic, partition, _, own in partitions}
        verdicts: list[Verdict] = []
        for commit in sent.parts:
            own = codes.get((commit.partition.topic, commit.partition.partition), code) or code
            self._judge(commit, own, text, now, verdicts, alone=len(sent.parts) == 1)
        return verdicts

    def failed(self, now: float, parts: Sequence[Commit], code: int, text: str) -> list[Verdict]:
        """commit() itself refused them."""
        return self.answered(now, code, text, [(*c.partition, c.offset, code) for c in parts])

    def give_up_waiting(self, now: float) -> list[Verdict]:
        """Commits whose answer did not come within its bound count as failed."""
        verdicts: list[Verdict] = []
        while self._sent and self._sent[0].give_up <= now:
            sent = self._sent.popleft()
            for commit in sent.parts:
                self._judge(commit, NO_ANSWER, "no answer", now, verdicts, alone=False)
        return verdicts

    def _judge(
        self, commit: Commit, code: int, text: str, now: float, verdicts: list[Verdict], *, alone: bool
    ) -> None:
        entry = self._entries.get(commit.partition)
        if entry is not None and entry.epoch != commit.epoch:
            entry = None
        if entry is not None and entry.sent == commit.version:
            entry.sent = -1
        if code == 0:
            self.results["ok"] += 1
            if entry is not None:
                self._confirm(entry, commit, verdicts)
            return
        self.results["rebalance" if code in REBALANCE else "error"] += 1
        if entry is None:
            return
        if not alone and code not in REBALANCE:
            # Whose error it is can't be told from here.
            entry.alone = True
            entry.not_before = now
            return
        if code == METADATA_TOO_LARGE and 0 < len(commit.metadata) < entry.too_long:
            entry.too_long = len(commit.metadata)
            entry.not_before = now
        elif code in REFUSED:
            self.results["refused"] += 1
            entry.not_before = now + HELD_WAIT * self.jitter()
            reason = Reason.TOPIC_GONE if code == UNKNOWN_TOPIC else Reason.COMMIT_REFUSED
            if entry.held is None:
                entry.held = reason
                name = commit.partition
                detail = f"the broker refuses the commit of {name.topic}/{name.partition}: {text}"
                verdicts.append(HeldBy(name, commit.epoch, reason, detail))
        else:
            entry.failures += 1
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(entry.failures - 1, 10))
            entry.not_before = now + wait * self.jitter()

    def _confirm(self, entry: _Entry, commit: Commit, verdicts: list[Verdict]) -> None:
        entry.confirmed = max(entry.confirmed, commit.version)
        entry.failures = 0
        entry.alone = False
        if entry.held is not None:
            verdicts.append(ReleasedBy(commit.partition, commit.epoch, entry.held))
            entry.held = None
        verdicts.append(Confirmed(commit))

    @property
    def dirty(self) -> int:
        """Partitions with a position that the broker has not confirmed."""
        return sum(entry.dirty for entry in self._entries.values())

    @property
    def in_flight(self) -> int:
        """Commits without an answer yet."""
        return len(self._sent)
