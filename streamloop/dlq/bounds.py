"""Where a reading begins and ends, fixed before it begins: nothing that comes later is read.

Asks the brokers for what a partition's log has now, again until everything is told or the time is over. It
joins no group and creates no topic. Called by whatever reads dead-letter topics or the ledger, through
``reading``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamloop.dlq.filters import ALL
from streamloop.errors import ConfigurationError, StreamLoopError
from streamloop.kafka.config import admin_config
from streamloop.kafka.topic_admin import BrokersUnreachableError, TopicAdmin
from streamloop.kafka.topics import Commands, TopicFacts, Untold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamloop.dlq.filters import Filter, Places
    from streamloop.settings import Settings

Partition = tuple[str, int]
"""Topic and partition."""

TIMEOUT: Final = 30.0
"""Seconds for all questions about where topics begin and end."""
SKEW_MS: Final = 5 * 60_000
"""A record bears the time at which it was sent or stored; the clock that says when it died may be behind."""
ASK_AGAIN: Final = 0.25


class ReadError(StreamLoopError):
    """A topic can't be read to the bound that was set. A sentence that names it."""


class Range(NamedTuple):
    """What is to be read of one partition: ``start`` (included) to ``end`` (not included).

    ``log_start`` and ``log_end`` are where the log began and ended when the bounds were set; records from
    ``end`` on up to ``hidden_end`` were held back then by a transaction that was open.
    """

    start: int
    end: int
    log_start: int
    log_end: int
    hidden_end: int

    @property
    def offsets(self) -> int:
        """Offsets to go through; not each of them has a record."""
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is to be read, fixed once.

    ``topic_ids``: each topic's id ('unknown' where the broker has none). ``expired``: sentences about what
    was asked for and is no longer in the log.
    """

    ranges: Mapping[Partition, Range]
    topic_ids: Mapping[str, str]
    cluster_id: str
    read_committed: bool = True
    expired: tuple[str, ...] = ()

    @property
    def offsets(self) -> int:
        """Offsets to go through in all partitions."""
        return sum(each.offsets for each in self.ranges.values())

    @property
    def ends(self) -> dict[Partition, int]:
        """Where a later reading goes on: give these as ``starts``."""
        return {place: max(each.start, each.end) for place, each in self.ranges.items()}

    @property
    def hidden(self) -> dict[Partition, int]:
        """Partitions whose last offsets were held back by an open transaction, and how many offsets."""
        return {
            place: each.hidden_end - each.log_end
            for place, each in self.ranges.items()
            if each.hidden_end > each.log_end
        }


def topic_admin(settings: Settings) -> TopicAdmin:
    """Asks the brokers about topics with these settings; never creates or changes one here."""
    return TopicAdmin(admin_config(settings), Commands(",".join(settings.brokers)))


def open_bounds(
    settings: Settings,
    topics: Sequence[str],
    where: Filter = ALL,
    *,
    starts: Mapping[Partition, int] | None = None,
    read_committed: bool = True,
    timeout: float = TIMEOUT,
    admin: TopicAdmin | None = None,
) -> Bounds:
    """Fix what is to be read of ``topics``: from where to where, in each partition.

    It begins at the log's start, at ``starts`` (what an earlier reading's ``ends`` said; partitions that it
    did not have begin at their start), or later where the filter's ``at`` and ``since`` allow it. It ends at
    the last stable offset, so that no open transaction is waited for; without ``read_committed`` at the end
    of the log. Waits up to ``timeout`` seconds for brokers and leaders.

    Raises ReadError for a topic that does not exist or can't be asked about, ConfigurationError for a place
    of the filter in another topic.
    """
    strange = sorted({each.topic for each in where.at} - set(topics))
    if strange:
        raise ConfigurationError(
            f"The dead letters of {strange[0]} are none of those that are read here "
            f"({', '.join(topics) or 'none'}): name that topic with --topic."
        )
    wanted = [
        topic for topic in dict.fromkeys(topics) if not where.at or topic in {e.topic for e in where.at}
    ]
    asking = _Asking(admin or topic_admin(settings), ",".join(settings.brokers), timeout)
    facts = asking.facts(wanted)
    places: list[Partition] = [
        (topic, partition)
        for topic in wanted
        for partition in range(facts[topic].partitions)
        if not where.at
        or any(each.topic == topic and each.partition in (None, partition) for each in where.at)
    ]
    for each in where.at:
        if each.partition is not None and each.partition >= facts[each.topic].partitions:
            raise ReadError(
                f"The topic {each.topic} has the partitions 0 to {facts[each.topic].partitions - 1}, "
                f"not {each.partition}."
            )
    # The ends last: what came while the others were asked for is read, too.
    log_starts = asking.offsets(places, "earliest")
    begins = dict(log_starts)
    if where.since is not None and places:
        stamp_ms = max(0, round(where.since * 1000) - SKEW_MS)
        for place, offset in asking.since(places, stamp_ms, stable=read_committed).items():
            begins[place] = max(begins[place], offset)
    # In this order what comes between the two questions is not taken for held back.
    hidden = asking.offsets(places, "latest", stable=False) if read_committed else {}
    ends = asking.offsets(places, "latest", stable=read_committed)
    ranges: dict[Partition, Range] = {}
    expired: list[str] = []
    for place in places:
        start, end = begins[place], ends[place]
        if starts is not None and place in starts:
            start = max(start, starts[place])
        first, last = _asked(where.at, place)
        if first is not None:
            start = max(start, first)
            if 0 < first < log_starts[place]:
                expired.append(
                    f"{place[0]}/{place[1]} begins at {log_starts[place]}: what was before is no longer in "
                    "the log (retention)."
                )
        if last is not None:
            end = min(end, last + 1)
        ranges[place] = Range(
            start, max(start, end), log_starts[place], ends[place], max(hidden.get(place, 0), ends[place])
        )
    ids = {topic: facts[topic].topic_id for topic in wanted}
    return Bounds(ranges, ids, asking.cluster_id(), read_committed, tuple(expired))


def _asked(places: Sequence[Places], place: Partition) -> tuple[int | None, int | None]:
    """The first and the last offset that the filter can mean in this partition; None: no such bound."""
    mine = [each for each in places if each.topic == place[0] and each.partition in (None, place[1])]
    if not mine:
        return None, None
    lasts = [each.last for each in mine]
    last = None if None in lasts else max(each for each in lasts if each is not None)
    return min(each.first for each in mine), last


def recreated(settings: Settings, bounds: Bounds, *, admin: TopicAdmin | None = None) -> list[str]:
    """Topics within ``bounds`` that are others now than when these were fixed: deleted, or made anew.

    A reading can't always tell by itself: a new log may be as long as the old one. Raises ReadError.
    """
    asking = admin or topic_admin(settings)
    try:
        described = asking.describe(bounds.topic_ids, TIMEOUT, configs=False)
    except BrokersUnreachableError as error:
        raise ReadError(str(error)) from None
    return [
        name
        for name, facts in described.items()
        if facts is None or (isinstance(facts, TopicFacts) and facts.topic_id != bounds.topic_ids[name])
    ]


def narrowed(bounds: Bounds, within: Bounds) -> Bounds:
    """``bounds``, but nothing beyond the ends of ``within``, which were fixed before.

    Raises ReadError when a topic is another one than then.
    """
    for topic, topic_id in bounds.topic_ids.items():
        if within.topic_ids.get(topic, topic_id) != topic_id:
            raise ReadError(_made_anew(topic))
    ranges = {}
    for place, each in bounds.ranges.items():
        known = within.ranges.get(place)
        end = each.start if known is None else max(each.start, min(each.end, known.end))
        ranges[place] = each._replace(end=end)
    return replace(bounds, ranges=ranges)


def refuse_recreated(settings: Settings, bounds: Bounds, *, admin: TopicAdmin | None = None) -> None:
    """Raise ReadError when one of the topics is another now than when the bounds were set.

    What was read before this returns was of the topics that the bounds name.
    """
    for topic in recreated(settings, bounds, admin=admin):
        raise ReadError(_made_anew(topic))


def _made_anew(topic: str) -> str:
    return (
        f"The topic {topic} was deleted or made anew meanwhile: its records can't be told from those of the "
        "old one. Start again."
    )


class _Asking:
    """Questions about topics, repeated until everything is told or the time is over."""

    def __init__(self, admin: TopicAdmin, brokers: str, timeout: float) -> None:
        self._admin = admin
        self._brokers = brokers
        self._timeout = timeout
        self._until = time.monotonic() + timeout

    def _left(self) -> float:
        return max(0.1, self._until - time.monotonic())

    def cluster_id(self) -> str:
        return self._admin.cluster_id(self._left())

    def facts(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        found: dict[str, TopicFacts] = {}
        while True:
            missing = [topic for topic in topics if topic not in found]
            try:
                described = self._admin.describe(missing, self._left(), configs=False)
            except BrokersUnreachableError as error:
                raise ReadError(str(error)) from None
            found |= {name: facts for name, facts in described.items() if isinstance(facts, TopicFacts)}
            gone = [name for name, facts in described.items() if facts is None]
            if gone:
                raise ReadError(f"The topic {gone[0]} does not exist on {self._brokers}.")
            untold = {name: facts for name, facts in described.items() if isinstance(facts, Untold)}
            if not untold:
                return found
            name, why = next(iter(untold.items()))
            self._again(f"What the topic {name} is can't be told: {why.reason}")

    def offsets(
        self, places: Sequence[Partition], which: Any, *, stable: bool = True
    ) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        while True:
            missing = [place for place in places if place not in found]
            if not missing:
                return found
            told = self._admin.resolve_offsets(missing, which, self._left(), stable=stable)
            found |= {place: offset for place, offset in told.items() if isinstance(offset, int)}
            untold = {place: offset for place, offset in told.items() if isinstance(offset, Untold)}
            if untold:
                (topic, partition), why = next(iter(untold.items()))
                self._again(f"Where {topic}/{partition} begins and ends can't be told: {why.reason}")

    def since(self, places: Sequence[Partition], stamp_ms: int, *, stable: bool) -> dict[Partition, int]:
        """The first record with this timestamp or a later one; nothing from brokers that can't look it up."""
        if self.cluster_id().startswith("mockCluster"):
            return {}
        return self.offsets(places, stamp_ms, stable=stable)

    def _again(self, problem: str) -> None:
        if time.monotonic() >= self._until:
            raise ReadError(f"{problem.rstrip('.')} (tried for {self._timeout:g} s).")
        time.sleep(min(ASK_AGAIN, self._left()))
