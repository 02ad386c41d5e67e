"""Where a message is or was: asks the brokers for it, for what the group committed, and for its further hops.

It reads with assigned partitions only: it never subscribes, never commits, and so never joins the group that
it asks about. Every wait and every read has a bound, and what was not looked at is part of the answer. Called
by ``streamloop trace``.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from streamloop.engine.metadata import Identity, Ignored, decode
from streamloop.errors import StreamLoopError
from streamloop.kafka import headers as hd
from streamloop.kafka.config import admin_config, consumer_config, retry_group
from streamloop.kafka.topic_admin import BrokersUnreachableError, TopicAdmin
from streamloop.kafka.topics import UNKNOWN_ID, Commands, TopicFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamloop.settings import Settings

TIMEOUT: Final = 10.0
"""Seconds for each question to the brokers."""
SKEW_MS: Final = 5 * 60_000
"""Routed records bear the time of the member that wrote them: its clock may be behind by this much."""
BATCH: Final = 500
COORDINATOR_MOVES: Final = frozenset({14, 15, 16})
_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2}).*")


class FindError(StreamLoopError):
    """What was asked can't be answered. A sentence that says why."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What the group's commit says of the message.

    ``state``: position (the committed offset is past it), metadata (acknowledged beyond that), open (not
    acknowledged by the last commit), none (nothing is committed). ``ignored``: why metadata is not believed.
    """

    group: str
    state: str
    offset: int | None = None
    beyond: int = 0
    """Offsets that the metadata acknowledges beyond the committed one."""
    ignored: str = ""

    @property
    def acknowledged(self) -> bool:
        """Whether the message will not be handled again where it was read."""
        return self.state in ("position", "metadata")


@dataclass(frozen=True, slots=True)
class Original:
    """The message in its source topic. ``found``: its record was read; ``missing``: why it was not."""

    topic: str
    partition: int
    offset: int
    start: int
    end: int
    found: bool = False
    missing: str = ""
    timestamp_ms: int | None = None
    key: bytes | None = None
    size: int | None = None
    leader_epoch: int | None = None
    traceparent: str = ""
    routing: hd.Routing | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """A record in a retry, replay or dead-letter topic that stands for the message.

    ``attempt``: attempts made before it was written. Times in epoch ms. ``committed``: what the group that
    reads the topic says of it; None for dead letters, which nobody reads.
    """

    kind: str
    topic: str
    partition: int
    offset: int
    at_ms: int | None
    attempt: int
    error_class: str
    error_message: str
    not_before_ms: int | None = None
    replay_id: str | None = None
    traceparent: str = ""
    committed: Committed | None = None


@dataclass(slots=True)
class Search:
    """How far the retry and dead-letter topics were read."""

    topics: list[str] = field(default_factory=list)
    records: int = 0
    seconds: float = 0.0
    unread: int = 0
    stopped_by: str = ""
    """The bound that ended it early; '' when everything was read."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Story:
    """All that was found of one message."""

    group: str
    original: Original
    committed: Committed
    hops: tuple[Hop, ...]
    search: Search

    @property
    def trace_ids(self) -> tuple[str, ...]:
        """The ids of the traces that the records name: usually one."""
        given = (self.original.traceparent, *(hop.traceparent for hop in self.hops))
        return tuple(dict.fromkeys(found for each in given if (found := trace_of(each)[0])))


def trace_of(traceparent: str) -> tuple[str, bool]:
    """The trace id of a traceparent, '' without one, and whether it says that the trace is sampled."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or set(match[1]) == {"0"}:
        return "", False
    return match[1], bool(int(match[2], 16) & 1)


def groups_of(settings: Settings, topic: str) -> list[str]:
    """The groups that have a dead-letter or retry topic (of the usual names) of this topic.

    ``topic`` may be one of those topics itself. Raises FindError.
    """
    admin = AdminClient(admin_config(settings))
    try:
        there = set(admin.list_topics(timeout=TIMEOUT).topics)
    except KafkaException as error:
        raise FindError(f"{', '.join(settings.brokers)} can't be reached: {_said(error)}.") from None
    found = set()
    for source in [each for each in there if topic == each or topic.startswith(f"{each}.")]:
        own = re.compile(rf"{re.escape(source)}\.(.+?)\.(?:dlq|replay|retry\..+)")
        for name in there if source == topic else [topic]:
            match = own.fullmatch(name)
            if match is not None:
                found.add(match[1])
    return sorted(found)


class Finder:
    """Questions to one cluster about one group, as a context manager.

    ``progress`` is told (records read, records to read) while topics are read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        most_records: int,
        most_seconds: float,
        progress: Callable[[int, int], None] = lambda _read, _all: None,
    ) -> None:
        self._settings = settings
        self._group = settings.group
        self._most_records = most_records
        self._most_seconds = most_seconds
        self._progress = progress
        # As the members read, without what would make it one of them.
        config = {**consumer_config(settings, "classic"), "log_level": 0}
        config.pop("group.instance.id", None)
        self._config = config
        self._consumer: Any = Consumer(config)
        self._admin = TopicAdmin(admin_config(settings), Commands(",".join(settings.brokers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    # ------------------------------------------------------------------------------------------ the whole

    def story(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        also: Sequence[str] = (),
        all_partitions: bool = False,
        from_start: bool = False,
    ) -> Story:
        """Find everything of one message. Raises FindError.

        A place in one of the group's retry or dead-letter topics leads to the original that is there.
        """
        original = self.original(topic, partition, offset)
        routing = original.routing
        if routing is not None and topic in self.targets(routing.original_topic, also):
            since = routing.original_timestamp
            try:
                original = self.original(
                    routing.original_topic, routing.original_partition, routing.original_offset
                )
            except FindError as error:
                original = Original(
                    routing.original_topic,
                    routing.original_partition,
                    routing.original_offset,
                    0,
                    0,
                    missing=str(error),
                    timestamp_ms=since,
                )
        committed = self.committed(
            self._group, original.topic, original.partition, original.offset, original.leader_epoch
        )
        search = Search()
        hops = self._hops(original, search, also, all_partitions=all_partitions, from_start=from_start)
        return Story(self._group, original, committed, tuple(hops), search)

    # ------------------------------------------------------------------------------------------- original

    def original(self, topic: str, partition: int, offset: int) -> Original:
        """The record at that place, or why there is none. Raises FindError."""
        facts = self._facts([topic])[topic]
        if facts is None:
            raise FindError(f"The topic {topic} does not exist on {', '.join(self._settings.brokers)}.")
        if partition >= facts.partitions:
            raise FindError(
                f"The topic {topic} has the partitions 0 to {facts.partitions - 1}, not {partition}."
            )
        start, end = self._ends(topic, partition)
        place = (topic, partition, offset, start, end)
        if offset >= end:
            last = f"its last offset is {end - 1}" if end > start else "it has no records"
            return Original(*place, missing=f"{topic}/{partition} has no offset {offset} yet: {last}")
        if offset < start:
            gone = f"it is no longer in the log: {topic}/{partition} begins at {start} (retention)"
            return Original(*place, missing=gone)
        record = self._record_at(topic, partition, offset)
        if record is None or record.offset() != offset:
            return Original(
                *place, missing="there is no record at this offset: it was compacted away, or is a marker"
            )
        headers = hd.headers_of(record) or []
        kind, stamp = record.timestamp()
        value, key = record.value(), record.key()
        return Original(
            *place,
            found=True,
            timestamp_ms=stamp if kind else None,
            key=key,
            size=len(value or b"") + len(key or b""),
            leader_epoch=record.leader_epoch(),
            traceparent=_header(headers, hd.TRACEPARENT),
            routing=hd.read_routing(headers, group=self._group),
        )

    def _record_at(self, topic: str, partition: int, offset: int) -> Any:
        until = time.monotonic() + TIMEOUT
        consumer = self._consumer
        consumer.assign([TopicPartition(topic, partition, offset)])
        try:
            while time.monotonic() < until:
                for message in consumer.consume(1, 0.5):
                    error = message.error()
                    if error is None:
                        return message
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                        return None
                    if not _passing(error):
                        raise FindError(f"{topic}/{partition} can't be read: {error.str()}.")
        finally:
            consumer.unassign()
        raise FindError(f"{topic}/{partition} gave no record at {offset} within {TIMEOUT:g} s.")

    # ------------------------------------------------------------------------------------------ committed

    def committed(
        self, group: str, topic: str, partition: int, offset: int, leader_epoch: int | None
    ) -> Committed:
        """What ``group`` has committed, and what that says of the offset. Raises FindError."""
        if group == self._group:
            found = self._committed(self._consumer, group, topic, partition)
        else:
            other = Consumer({**self._config, "group.id": group})
            try:
                found = self._committed(other, group, topic, partition)
            finally:
                other.close()
        if found.offset < 0:
            return Committed(group, "none")
        if offset < found.offset:
            return Committed(group, "position", found.offset)
        facts = self._facts([topic])[topic]
        topic_id = facts.topic_id if facts is not None else UNKNOWN_ID
        identity = Identity(self._admin.cluster_id(TIMEOUT), topic_id, group)
        known = decode(found.metadata or "", identity, found.offset)
        if known is None:
            return Committed(group, "open", found.offset)
        if isinstance(known, Ignored):
            return Committed(group, "open", found.offset, ignored=known.reason)
        beyond = sum(end - start for start, end in known.runs)
        inside = any(start <= offset < end for start, end in known.runs)
        newer = leader_epoch is not None and known.leader_epoch >= 0 and leader_epoch > known.leader_epoch
        return Committed(group, "metadata" if inside and not newer else "open", found.offset, beyond)

    def _committed(self, consumer: Any, group: str, topic: str, partition: int) -> Any:
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                [found] = consumer.committed([TopicPartition(topic, partition)], timeout=TIMEOUT)
                if found.error is not None:
                    raise KafkaException(found.error)
                return found
            except KafkaException as error:
                if _code(error) not in COORDINATOR_MOVES or time.monotonic() > until:
                    raise FindError(
                        f"What group {group} has committed can't be had: {_said(error)}."
                    ) from None
                time.sleep(0.1)

    # ----------------------------------------------------------------------------------------------- hops

    def targets(self, topic: str, also: Sequence[str] = ()) -> dict[str, str]:
        """Topic to kind, of those that this group routes ``topic``'s messages to and that exist."""
        try:
            there = set(self._consumer.list_topics(timeout=TIMEOUT).topics)
        except KafkaException as error:
            raise FindError(f"The topics can't be listed: {_said(error)}.") from None
        usual = self._settings.for_consumer("trace")
        template = usual.retry_topic_name
        fill = {"topic": topic, "group": self._group}
        pattern = re.escape(template.format(**fill, delay="\0")).replace("\0", ".+")
        kinds = {name: "retry" for name in there if re.fullmatch(pattern, name) and name != topic}
        named = {usual.replay_topic(topic): "replay", usual.dead_letter_topic(topic): "dead letter"}
        kinds |= {name: kind for name, kind in named.items() if name in there}
        for name in also:
            if name not in there:
                raise FindError(f"The topic {name} (--also) does not exist.")
            kinds.setdefault(name, "also")
        return kinds

    def _hops(
        self,
        original: Original,
        search: Search,
        also: Sequence[str],
        *,
        all_partitions: bool,
        from_start: bool,
    ) -> list[Hop]:
        kinds = self.targets(original.topic, also)
        search.topics = sorted(kinds)
        if not kinds:
            search.warnings.append(
                f"there is neither a retry nor a dead-letter topic of {original.topic} for group "
                f"{self._group}; topics of other names are given with --also"
            )
            return []
        wanted = []
        for name, facts in self._facts(list(kinds)).items():
            if facts is None:
                continue
            one = [original.partition % facts.partitions]
            wanted += [(name, each) for each in (range(facts.partitions) if all_partitions else one)]
        since = None
        if original.timestamp_ms is not None and not from_start:
            since = min(original.timestamp_ms, round(time.time() * 1000)) - SKEW_MS
        ranges = self._ranges(wanted, since)
        found = self._read(ranges, original, kinds, search)
        hops = [self._judged(hop) for hop in found]
        return sorted(hops, key=lambda hop: (hop.at_ms or 0, hop.attempt, hop.kind == "dead letter"))

    def _ranges(
        self, wanted: Sequence[tuple[str, int]], since_ms: int | None
    ) -> dict[tuple[str, int], tuple[int, int]]:
        begins: Mapping[tuple[str, int], Any] = {}
        if since_ms is not None:
            asked = [TopicPartition(topic, partition, max(0, since_ms)) for topic, partition in wanted]
            try:
                answers = self._consumer.offsets_for_times(asked, timeout=TIMEOUT)
            except KafkaException as error:
                raise FindError(f"Where to begin to read can't be had: {_said(error)}.") from None
            begins = {(each.topic, each.partition): each for each in answers}
        ranges = {}
        for place in wanted:
            start, end = self._ends(*place)
            answer = begins.get(place)
            if answer is not None and answer.error is None:
                # No record is as late: there is nothing to read.
                start = max(start, answer.offset) if answer.offset >= 0 else end
            if start < end:
                ranges[place] = (start, end)
        return ranges

    def _read(
        self,
        ranges: Mapping[tuple[str, int], tuple[int, int]],
        original: Original,
        kinds: Mapping[str, str],
        search: Search,
    ) -> list[Hop]:
        left = dict(ranges)
        at = {place: start for place, (start, _) in ranges.items()}
        total = sum(end - start for start, end in ranges.values())
        found: list[Hop] = []
        began = time.monotonic()
        consumer = self._consumer
        consumer.assign([TopicPartition(*place, start) for place, (start, _) in ranges.items()])
        try:
            while left:
                search.seconds = time.monotonic() - began
                if search.records >= self._most_records:
                    search.stopped_by = f"--max-records {self._most_records}"
                    break
                if search.seconds >= self._most_seconds:
                    search.stopped_by = f"--max-time {self._most_seconds:g}s"
                    break
                for message in consumer.consume(min(BATCH, self._most_records - search.records), 0.2):
                    place = (message.topic(), message.partition())
                    if place not in left:
                        continue
                    error = message.error()
                    if error is not None:
                        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                            at[place] = left.pop(place)[1]
                        elif not _passing(error):
                            search.warnings.append(f"{place[0]}/{place[1]} can't be read: {error.str()}")
                            del left[place]
                        continue
                    if message.offset() >= left[place][1]:
                        at[place] = left.pop(place)[1]
                        continue
                    search.records += 1
                    at[place] = message.offset() + 1
                    hop = _hop(message, original, kinds[place[0]], self._group)
                    if hop is not None:
                        found.append(hop)
                    if at[place] >= left[place][1]:
                        del left[place]
                search.unread = sum(end - at[place] for place, (_, end) in left.items())
                self._progress(total - search.unread, total)
            search.unread = sum(end - at[place] for place, (_, end) in left.items())
        except KafkaException as error:
            raise FindError(f"The retry and dead-letter topics can't be read: {_said(error)}.") from None
        finally:
            consumer.unassign()
        return found

    def _judged(self, hop: Hop) -> Hop:
        if hop.kind not in ("retry", "replay"):
            return hop
        group = retry_group(self._settings)
        committed = self.committed(group, hop.topic, hop.partition, hop.offset, None)
        values = {name: getattr(hop, name) for name in Hop.__slots__ if name != "committed"}
        return Hop(**values, committed=committed)

    # -------------------------------------------------------------------------------------------- brokers

    def _facts(self, names: Sequence[str]) -> dict[str, TopicFacts | None]:
        try:
            described = self._admin.describe(names, TIMEOUT, configs=False)
        except BrokersUnreachableError as error:
            raise FindError(str(error)) from None
        told: dict[str, TopicFacts | None] = {}
        for name, facts in described.items():
            if facts is not None and not isinstance(facts, TopicFacts):
                raise FindError(f"Whether the topic {name} exists can't be told: {facts.reason}.")
            told[name] = facts
        return told

    def _ends(self, topic: str, partition: int) -> tuple[int, int]:
        try:
            ends = self._consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=TIMEOUT, cached=False
            )
        except KafkaException as error:
            raise FindError(
                f"Where {topic}/{partition} begins and ends can't be had: {_said(error)}."
            ) from None
        if ends is None:
            raise FindError(f"Where {topic}/{partition} begins and ends was not told within {TIMEOUT:g} s.")
        return int(ends[0]), int(ends[1])


def _hop(message: Any, original: Original, kind: str, group: str) -> Hop | None:
    headers = hd.headers_of(message) or []
    routing = hd.read_routing(headers, group=group)
    if routing is None or (routing.original_topic, routing.original_partition, routing.original_offset) != (
        original.topic,
        original.partition,
        original.offset,
    ):
        return None
    stamped, at_ms = message.timestamp()
    if kind == "also":
        kind = "retry" if routing.not_before_ms is not None else "dead letter"
    return Hop(
        kind,
        message.topic(),
        message.partition(),
        message.offset(),
        at_ms if stamped else None,
        routing.attempt,
        _header(headers, hd.ERROR_CLASS),
        _header(headers, hd.ERROR_MESSAGE),
        routing.not_before_ms,
        routing.replay_id,
        _header(headers, hd.TRACEPARENT),
    )


def _header(headers: hd.RawHeaders, name: str) -> str:
    value = next((value for each, value in reversed(headers) if each == name), None)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else ""


def _passing(error: KafkaError) -> bool:
    """Whether the client goes on by itself: a broker that is away for a moment."""
    return bool(error.retriable()) or error.code() in (
        KafkaError._TRANSPORT,  # noqa: SLF001 - its only name
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    )


def _code(error: KafkaException) -> int:
    return int(error.args[0].code())


def _said(error: KafkaException) -> str:
    return str(error.args[0].str()).rstrip(".")
