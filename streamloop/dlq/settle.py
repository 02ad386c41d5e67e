"""What became of replayed dead letters: acknowledged, failed again, dead again, or not known yet.

Told from the outside, so that it needs nothing of the members: a record in a retry or dead-letter topic with
this run's id has failed again; one that the group's committed offset (or its metadata) is past, and that is
not there, is acknowledged. The committed offsets are asked for first and those topics read to their end after
that: a routed record is confirmed before its message is acknowledged.

It joins no group and commits nothing. Called by a replay, and by the status of one later.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from streamloop.dlq.offsets import OffsetSet
from streamloop.dlq.reading import BoundedReader, ReadError, open_bounds, reader_config
from streamloop.engine.metadata import Identity, Restored, decode
from streamloop.kafka import headers as hd

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from streamloop.dlq.reading import Partition, Progress
    from streamloop.dlq.writer import Placed
    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.settings import Settings

COMMITTED_TIMEOUT: Final = 10.0
_PLACE: Final = re.compile("([^/]+)/([0-9]{1,10})/([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How many of the replayed letters came to what."""

    acked: int = 0
    failed_again: int = 0
    """Failed again and is to be tried again, or was handled in a later hop."""
    dead: int = 0
    unknown: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.acked + self.failed_again + self.dead + self.unknown

    @property
    def bad(self) -> int:
        """Those that failed again, dead ones included."""
        return self.failed_again + self.dead

    @property
    def share_bad(self) -> float:
        """Of those that are known, the share that failed again; 0 while none is known."""
        known = self.total - self.unknown
        return self.bad / known if known else 0.0

    def to_json(self) -> dict[str, int]:
        """By name."""
        return {
            "acked": self.acked,
            "failed_again": self.failed_again,
            "dead": self.dead,
            "unknown": self.unknown,
        }


class _Sent:
    """What was replayed of one partition of a dead-letter topic: 20 bytes for each letter."""

    __slots__ = ("offsets", "ordered", "target_offsets", "targets")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.targets = array("i")
        self.target_offsets = array("q")
        self.ordered = True

    def has(self, offset: int) -> bool:
        if not self.ordered:
            return offset in self.offsets
        at = bisect_left(self.offsets, offset)
        return at < len(self.offsets) and self.offsets[at] == offset


class Settling:
    """Follows what one run has replayed.

    ``group``: whose committed offsets say what is acknowledged.
    """

    def __init__(self, settings: Settings, run: str, *, group: str, admin: TopicAdmin) -> None:
        self._settings = settings
        self._run = run.encode()
        self._group = group
        self._admin = admin
        self._sent: dict[Partition, _Sent] = {}
        self._targets: list[Partition] = []
        self._target_numbers: dict[Partition, int] = {}
        self._failed: dict[Partition, OffsetSet] = {}
        self._dead: dict[Partition, OffsetSet] = {}
        self._starts: dict[Partition, int] = {}
        self._dead_topics: set[str] = set()
        self._scanned: set[str] = set()
        self._committed: dict[Partition, tuple[int, tuple[tuple[int, int], ...]]] = {}
        self._consumer: Any = None
        self._whole = True
        """Whether the last scan saw all: it was not stopped, and no open transaction hid anything."""
        self.count = 0
        """Letters that were replayed."""

    # ---------------------------------------------------------------------------------------- what is known

    def watch(self, topics: Iterable[str], dead: Iterable[str]) -> dict[str, dict[str, int]]:
        """Look for this run's records in these topics, from where they end now on; before they are written.

        Topics that do not exist are left out. Returns where each begins, for the run's record. Raises
        ReadError.
        """
        self._dead_topics.update(dead)
        wanted = [name for name in dict.fromkeys((*topics, *dead)) if name not in self._scanned]
        there = [name for name in wanted if self._exists(name)]
        if not there:
            return {}
        bounds = open_bounds(self._settings, there, admin=self._admin)
        begins: dict[str, dict[str, int]] = {}
        for (topic, partition), each in bounds.ranges.items():
            begins.setdefault(topic, {})[str(partition)] = each.log_end
        self.go_on_from(begins, ())
        return begins

    def go_on_from(self, scan_from: dict[str, dict[str, int]], dead: Iterable[str]) -> None:
        """The same, from where a run's record says."""
        self._dead_topics.update(dead)
        for topic, starts in scan_from.items():
            self._scanned.add(topic)
            for partition, offset in starts.items():
                self._starts[topic, int(partition)] = offset

    def _exists(self, topic: str) -> bool:
        found = self._admin.describe([topic], COMMITTED_TIMEOUT, configs=False)[topic]
        return found is not None

    def sent(self, topic: str, partition: int, offset: int, placed: Placed) -> None:
        """A letter was replayed to a place."""
        sent = self._sent.setdefault((topic, partition), _Sent())
        if sent.offsets and offset < sent.offsets[-1]:
            sent.ordered = False
        target = (placed.topic, placed.partition)
        number = self._target_numbers.get(target)
        if number is None:
            number = self._target_numbers[target] = len(self._targets)
            self._targets.append(target)
        sent.offsets.append(offset)
        sent.targets.append(number)
        sent.target_offsets.append(placed.offset)
        self.count += 1

    # ---------------------------------------------------------------------------------------------- looking

    def look(
        self,
        *,
        stop: threading.Event | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Outcomes:
        """What is known now. Raises ReadError when the brokers can't be asked."""
        committed = self._ask_committed()
        self.scan(stop=stop, progress=progress)
        if self._whole:
            # Only now: what failed again is confirmed before its message is committed, and was seen.
            self._committed |= committed
        return self._outcomes()

    def scan(
        self,
        *,
        stop: threading.Event | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> int:
        """Read on in the retry and dead-letter topics; how many letters have failed again so far."""
        if self._scanned:
            bounds = open_bounds(
                self._settings, sorted(self._scanned), starts=self._starts, admin=self._admin
            )
            with BoundedReader(self._settings, bounds, stop=stop, progress=progress) as reader:
                for batch in reader:
                    for message in batch:
                        self._seen(message)
                self._starts = reader.reached
                self._whole = reader.complete and not bounds.hidden
        return self.bad

    @property
    def bad(self) -> int:
        """Letters that were seen to have failed again."""
        return sum(map(len, self._failed.values()))

    @property
    def dead(self) -> int:
        """Letters that were seen to be dead again."""
        return sum(map(len, self._dead.values()))

    def close(self) -> None:
        """End the client."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _seen(self, message: Any) -> None:
        headers = hd.headers_of(message)
        if not headers:
            return
        named = dict(headers)
        if named.get(hd.REPLAY_ID) != self._run:
            return
        place = place_of(named.get(hd.REPLAYED_FROM))
        if place is None:
            return
        topic, partition, offset = place
        sent = self._sent.get((topic, partition))
        if sent is None or not sent.has(offset):
            return
        self._failed.setdefault((topic, partition), OffsetSet()).add(offset)
        if message.topic() in self._dead_topics:
            self._dead.setdefault((topic, partition), OffsetSet()).add(offset)

    def _ask_committed(self) -> dict[Partition, tuple[int, tuple[tuple[int, int], ...]]]:
        found: dict[Partition, tuple[int, tuple[tuple[int, int], ...]]] = {}
        if not self._targets:
            return found
        if self._consumer is None:
            self._consumer = Consumer({**reader_config(self._settings), "group.id": self._group})
        asked = [TopicPartition(*target) for target in self._targets]
        try:
            answers = self._consumer.committed(asked, timeout=COMMITTED_TIMEOUT)
        except KafkaException as error:
            raise ReadError(
                f"What the group {self._group} has committed can't be had: "
                f"{str(error.args[0].str()).rstrip('.')}."
            ) from None
        cluster = self._admin.cluster_id(COMMITTED_TIMEOUT)
        names = sorted({topic for topic, _ in self._targets})
        facts = self._admin.describe(names, COMMITTED_TIMEOUT, configs=False)
        for answer in answers:
            if answer.error is not None or answer.offset < 0:
                continue
            topic_id = getattr(facts.get(answer.topic), "topic_id", None)
            runs: tuple[tuple[int, int], ...] = ()
            if topic_id is not None and answer.metadata:
                identity = Identity(cluster, topic_id, self._settings.group)
                known = decode(answer.metadata, identity, answer.offset)
                runs = known.runs if isinstance(known, Restored) else ()
            found[answer.topic, answer.partition] = (answer.offset, runs)
        return found

    def _outcomes(self) -> Outcomes:
        acked = failed = dead = 0
        nothing = OffsetSet()
        for place, sent in self._sent.items():
            bad, gone = self._failed.get(place, nothing), self._dead.get(place, nothing)
            for offset, number, target_offset in zip(
                sent.offsets, sent.targets, sent.target_offsets, strict=True
            ):
                if offset in gone:
                    dead += 1
                elif offset in bad:
                    failed += 1
                elif self._is_past(self._targets[number], target_offset):
                    acked += 1
        return Outcomes(acked, failed, dead, self.count - acked - failed - dead)

    def _is_past(self, target: Partition, offset: int) -> bool:
        committed, runs = self._committed.get(target, (-1, ()))
        return 0 <= offset < committed or any(first <= offset < end for first, end in runs)


def place_of(raw: Any) -> tuple[str, int, int] | None:
    """Topic, partition and offset that a text or a header names; None when it names none."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    match = _PLACE.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[2]) > 2**31 - 1 or int(match[3]) > 2**63 - 1:
        return None
    return match[1], int(match[2]), int(match[3])
