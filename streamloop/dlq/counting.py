"""Counts the dead letters that wait for a decision: those that no entry of the ledger says are dealt with.

One member of a group counts those of a dead-letter topic: the one that has partition 0 of the source topic
(of the first one, where several share it), so that they move with the assignment and nobody is elected. The
topic is read once, at a bounded rate, and from then on only what is new. Memory is a bit for each letter and
each entry. What is not known is absent, never 0. Called by a run that shows metrics, on a thread of its own;
it never touches the handling.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamloop.dlq.filters import Filter, Places
from streamloop.dlq.ledger import OPEN, LedgerView, identity_of, ledger_topic
from streamloop.dlq.letter import letter_of
from streamloop.dlq.offsets import OffsetSet
from streamloop.dlq.reading import BoundedReader, ReadError, open_bounds
from streamloop.errors import StreamLoopError
from streamloop.kafka.topics import Untold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamloop.dlq.reading import Bounds, Partition
    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.settings import Settings

log = logging.getLogger("streamloop.dlq")

TIMEOUT: Final = 10.0
EVERY: Final = 30.0
"""Seconds between two counts: a person who replays sees them go down while he looks."""
SHARE: Final = 10
"""A count that took t is not repeated before 10 t."""
BYTES_A_SECOND: Final = 8 * 1024 * 1024
RECORDS_A_SECOND: Final = 20_000
"""The first reading of a large topic may take neither the network nor the processor of the handling."""
STALE: Final = 300.0
"""Seconds after which a count that could not be renewed is not known any more."""


class Open(NamedTuple):
    """The open dead letters of one topic. ``oldest``: when the first died (epoch seconds), or None."""

    letters: int
    oldest: float | None


@dataclass(frozen=True, slots=True)
class Counted:
    """A dead-letter topic and who counts it. ``label``: as which topic the metrics show it.

    ``owner``: the source topic of whose partition 0 a member must be the reader.
    """

    topic: str
    label: str
    owner: str


def counted_of(dead: Iterable[tuple[str, str]]) -> list[Counted]:
    """Of (source topic, its dead-letter topic), in the order declared.

    The metrics show the source topic; for a dead-letter topic that several share, the dead-letter topic.
    """
    sources: dict[str, list[str]] = {}
    for source, topic in dead:
        sources.setdefault(topic, []).append(source)
    return [
        Counted(topic, names[0] if len(names) == 1 else topic, names[0]) for topic, names in sources.items()
    ]


@dataclass(slots=True)
class _Part:
    """One partition: its open letters, and when the first of them died."""

    open: OffsetSet = field(default_factory=OffsetSet)
    first: int = -1
    died: float | None = None


class OpenLetters:
    """The open letters of one dead-letter topic, followed from count to count. Belongs to one thread."""

    def __init__(self, settings: Settings, topic: str, admin: TopicAdmin, stop: threading.Event) -> None:
        self.topic = topic
        self._settings = settings
        self._admin = admin
        self._stop = stop
        self._topic_id = self._ledger_id = ""
        self._parts: dict[int, _Part] = {}
        self._reached: dict[Partition, int] = {}
        self._ledger = LedgerView(ledger_topic(settings))

    def count(self, mine: Callable[[], bool] = lambda: True) -> Open | None:
        """Read on, and count. None: told to stop before the end, or it is not ``mine`` any more.

        Raises ReadError.
        """
        self._look_at_topics()
        bounds = open_bounds(self._settings, [self.topic], starts=self._reached, admin=self._admin)
        if bounds.topic_ids[self.topic] != self._topic_id:
            return None
        # The letters first: one that is replayed meanwhile is then found in the ledger.
        if not self._read(bounds, mine):
            return None
        if not self._ledger.update(self._settings, stop=self._stop, admin=self._admin, each=self._entry):
            return None
        for (_, partition), found in bounds.ranges.items():
            self._expire(self._part(partition), found.log_start)
        self._look_up_first()
        died = [part.died for part in self._parts.values() if part.first >= 0 and part.died is not None]
        return Open(sum(len(part.open) for part in self._parts.values()), min(died, default=None))

    def _look_at_topics(self) -> None:
        """Of another topic of one of the names nothing is true that was known: begin anew."""
        name = self._ledger.topic
        described = self._admin.describe([self.topic, name], TIMEOUT, configs=False)
        topic, ledger = described[self.topic], described[name]
        if isinstance(topic, Untold) or isinstance(ledger, Untold):
            why = next(each.reason for each in (topic, ledger) if isinstance(each, Untold))
            raise ReadError(f"What {self.topic} and {name} are can't be told: {why}.")
        if topic is None:
            raise ReadError(f"The topic {self.topic} does not exist.")
        ledger_id = ledger.topic_id if ledger is not None else ""
        if topic.topic_id != self._topic_id or (self._ledger_id and ledger_id != self._ledger_id):
            self._topic_id, self._parts, self._reached = topic.topic_id, {}, {}
            self._ledger = LedgerView(name)
        self._ledger_id = ledger_id

    def _part(self, partition: int) -> _Part:
        part = self._parts.get(partition)
        if part is None:
            part = self._parts[partition] = _Part()
        return part

    def _read(self, bounds: Bounds, mine: Callable[[], bool]) -> bool:
        began = time.monotonic()
        size = records = 0
        with BoundedReader(self._settings, bounds, stop=self._stop) as reader:
            for batch in reader:
                for message in batch:
                    self._letter(message)
                    size += len(message)
                self._reached = reader.reached
                if not mine():
                    return False
                records += len(batch)
                ahead = max(size / BYTES_A_SECOND, records / RECORDS_A_SECOND)
                self._stop.wait(max(0.0, ahead - (time.monotonic() - began)))
            self._reached = reader.reached
            return reader.complete

    def _letter(self, message: Any) -> None:
        partition, offset = message.partition(), message.offset()
        if self._ledger.state_at(self._topic_id, self.topic, partition, offset) == OPEN:
            self._part(partition).open.add(offset)

    def _entry(self, key: bytes, _value: Mapping[str, Any]) -> None:
        """An entry of the ledger that is new."""
        identity, _, rest = key.decode("utf-8", "replace").rpartition("/")[0].rpartition("/")
        if identity != identity_of(self._topic_id, self.topic):
            return
        offset = key.rpartition(b"/")[2]
        if rest.isdigit() and offset.isdigit() and int(rest) in self._parts:
            partition, at = int(rest), int(offset)
            if self._ledger.state_at(self._topic_id, self.topic, partition, at) != OPEN:
                self._parts[partition].open.discard(at)

    @staticmethod
    def _expire(part: _Part, log_start: int) -> None:
        """Retention, or a purge that freed disk, has removed these."""
        for offset in list(takewhile(lambda each: each < log_start, part.open)):
            part.open.discard(offset)

    def _look_up_first(self) -> None:
        """When the first open letter of each partition died: read again only where that is another one."""
        wanted: dict[int, _Part] = {}
        for partition, part in self._parts.items():
            first = next(iter(part.open), -1)
            if first != part.first:
                part.first, part.died = first, None
            if first >= 0 and part.died is None:
                wanted[partition] = part
        if not wanted:
            return
        places = tuple(Places(self.topic, number, part.first, part.first) for number, part in wanted.items())
        bounds = open_bounds(self._settings, [self.topic], Filter(at=places), admin=self._admin)
        with BoundedReader(self._settings, bounds, stop=self._stop) as reader:
            for batch in reader:
                for message in batch:
                    part = wanted[message.partition()]
                    if message.offset() == part.first:
                        part.died = letter_of(message).died_at


class DeadLetterCounter:
    """Counts for one run, on a thread of its own.

    ``owns``: whether this member has partition 0 of a topic.
    """

    def __init__(
        self,
        settings: Settings,
        admin: TopicAdmin,
        counted: list[Counted],
        owns: Callable[[str], bool],
        *,
        make: Callable[[Settings, str, TopicAdmin, threading.Event], OpenLetters] = OpenLetters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stop = threading.Event()
        self._counted = counted
        self._owns = owns
        self._letters = {each.topic: make(settings, each.topic, admin, self._stop) for each in counted}
        self._found: dict[str, tuple[float, Open]] = {}
        self._said: dict[str, str] = {}
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="streamloop-dead-letters", daemon=True)

    def start(self) -> None:
        """Begin. Returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End soon; waits for nothing."""
        self._stop.set()

    @property
    def open(self) -> dict[str, Open]:
        """What is known now, by the topic that the metrics show. From any thread."""
        now = self._clock()
        found = {}
        for each in self._counted:
            known = self._found.get(each.topic)
            if known is not None and now - known[0] <= STALE and self._owns(each.owner):
                found[each.label] = known[1]
        return found

    def turn(self) -> None:
        """Count what is this member's to count."""
        for each in self._counted:
            if self._stop.is_set():
                return
            if not self._owns(each.owner):
                self._found.pop(each.topic, None)
                continue
            try:
                found = self._letters[each.topic].count(partial(self._owns, each.owner))
            except StreamLoopError as error:
                self._say(each.topic, str(error))
            except Exception as error:
                log.exception("counting the dead letters of %s failed", each.topic, extra={"kind": "dlq"})
                self._said[each.topic] = repr(error)
            else:
                self._said.pop(each.topic, None)
                if found is not None:
                    self._found[each.topic] = (self._clock(), found)

    def _say(self, topic: str, why: str) -> None:
        if self._said.get(topic) != why:
            self._said[topic] = why
            log.warning(
                "the open dead letters of %s can't be counted: %s It is tried again.",
                topic,
                why,
                extra={"kind": "dlq"},
            )

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            # The assignment comes within seconds: it is not waited for as long as the next count is.
            if not any(self._owns(each.owner) for each in self._counted):
                self._found.clear()
                wait = 1.0
                continue
            begin = self._clock()
            self.turn()
            wait = max(EVERY, SHARE * (self._clock() - begin))
