"""Where a failed message goes, and the record that is published there.

Knows the topics of a loop (whose they are, which retry topic comes next, how many partitions they have) and
makes publish requests: the original's key, value and headers byte for byte, our headers replaced. A record
that the target finds too large loses optional headers first (``kafka.headers.shrink``), never its value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from streamloop.engine.engine import Role
from streamloop.engine.events import Route, Target
from streamloop.errors import TopicError
from streamloop.kafka import headers as hd
from streamloop.kafka.publishing import PublishRequest, Report, ReportKind

if TYPE_CHECKING:
    from streamloop.engine.record import Record
    from streamloop.kafka.headers import RawHeaders
    from streamloop.message import RawMessage
    from streamloop.telemetry.tracing import Tracing

REFUSED_AGAIN: Final = 30.0
"""Seconds until a record that the target refuses is tried again: somebody may have changed the topic."""

LEAST_HEADERS: Final = 256
"""Bytes of headers below which a record is given up as too large, where the target's limit is unknown."""


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """One retry topic of a source topic. ``delay`` in seconds."""

    name: str
    delay: float


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A source topic and where what fails from it goes. ``dead`` is None when there is no dead letter.

    ``replay``: where its dead letters come back.
    """

    name: str
    consumer: int
    retry: tuple[RetryTopic, ...] = ()
    dead: str | None = None
    replay: str | None = None


@dataclass(slots=True)
class TargetFacts:
    """What is known of a topic that we publish to; None: unknown."""

    partitions: int | None = None
    max_message_bytes: int | None = None


class Topics:
    """All topics of a loop. Filled before the run begins; patterns add topics while it runs."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceTopic] = {}
        self.facts: dict[str, TargetFacts] = {}
        self._hops: dict[str, tuple[SourceTopic, int]] = {}

    def add(self, source: SourceTopic) -> None:
        """Add a source topic with its retry topics and its replay topic.

        Raises TopicError when one of the names is taken: each topic is read in one role.
        """
        names = [source.name, *(retry.name for retry in source.retry)]
        if source.replay is not None:
            names.append(source.replay)
        for name in names:
            if name in self.sources or name in self._hops or names.count(name) > 1:
                raise TopicError(
                    f"topic {name} is used twice in this loop: a topic has one consumer, and retry and "
                    "replay topics are not read as source topics; use another topic, or a loop (a group) of "
                    "its own"
                )
        self.sources[source.name] = source
        for at, retry in enumerate(source.retry):
            self._hops[retry.name] = (source, at + 1)
        if source.replay is not None:
            # What is replayed has its whole plan before it.
            self._hops[source.replay] = (source, 0)

    def is_source(self, topic: str) -> bool:
        """Whether the topic is read as a source; False: it is a retry or replay topic of ours."""
        return topic not in self._hops

    def is_replay(self, topic: str) -> bool:
        """Whether it is a replay topic: attempts and age start anew there."""
        return topic in self._hops and self._hops[topic][1] == 0

    def role(self, topic: str) -> Role:
        """What the topic is to the loop, in the engine's form."""
        source = self.sources.get(topic)
        if source is not None:
            return Role(source.consumer, 0)
        of, hop = self._hops[topic]
        return Role(of.consumer, hop, own=True)

    def source_of(self, topic: str) -> SourceTopic:
        """The source topic that a topic of the loop belongs to (itself, or a retry or replay topic's)."""
        source = self.sources.get(topic)
        return source if source is not None else self._hops[topic][0]

    def delay_of(self, topic: str) -> float:
        """A retry topic's delay in seconds; 0 for a source or replay topic."""
        source, hop = self._hops.get(topic, (None, 0))
        return source.retry[hop - 1].delay if source is not None and hop else 0.0

    @property
    def own_names(self) -> list[str]:
        """All topics that the retry Consumer reads: retry and replay topics."""
        return list(self._hops)

    def own_names_of(self, source: SourceTopic) -> list[str]:
        """Those of one source topic."""
        return [name for name, (of, _) in self._hops.items() if of is source]

    @property
    def retry_names(self) -> list[str]:
        """All retry topics."""
        return [name for name, (_, hop) in self._hops.items() if hop]

    @property
    def dead_names(self) -> list[str]:
        """All dead-letter topics."""
        return sorted({source.dead for source in self.sources.values() if source.dead})

    def partition_of(self, target: str, source_partition: int) -> int:
        """Source partition % partitions of the target, as Kafka's own dead-letter queues do (KIP-1191)."""
        facts = self.facts.get(target)
        if facts is None or not facts.partitions:
            return -1
        return source_partition % facts.partitions


class Again(NamedTuple):
    """What to do with a refused record: publish ``request`` after ``delay`` seconds; ``reason``: hold."""

    request: PublishRequest
    delay: float
    reason: str


class _Routed(NamedTuple):
    request: PublishRequest
    """With all headers."""
    last: PublishRequest
    """As it was sent last."""
    source_partition: int


class Router:
    """Makes publish requests of failed messages, and remembers them until they are confirmed."""

    def __init__(self, topics: Topics, group: str, tracing: Tracing | None = None) -> None:
        self._topics = topics
        self._group = group
        self._tracing = tracing
        self._routed: dict[int, _Routed] = {}

    def request(self, number: int, route: Route, wall: float) -> PublishRequest:
        """The record to publish. ``wall``: epoch seconds now."""
        record: Record = route.record
        raw: RawMessage = record.message
        topic = raw.topic() or ""
        source = self._topics.source_of(topic)
        kind, timestamp = raw.timestamp()
        here = hd.Coordinates(topic, raw.partition() or 0, raw.offset() or 0, timestamp if kind else None)
        own = not self._topics.is_source(topic)
        headers = hd.headers_of(raw)
        routing = hd.read_routing(headers, group=self._group) if own else None
        if routing is not None and self._topics.is_replay(topic):
            routing = replace(routing, first_failed_at=None)  # the age starts anew
        now_ms = int(wall * 1000)
        not_before: int | None = None
        if route.target is Target.RETRY:
            retry = source.retry[route.retry_index]
            target, kind_of_target = retry.name, hd.Target.RETRY
            not_before = now_ms + int(retry.delay * 1000)
        else:
            assert source.dead is not None
            target, kind_of_target = source.dead, hd.Target.DEAD
        original_partition = routing.original_partition if routing is not None else here.partition
        partition = self._topics.partition_of(target, original_partition)
        request = PublishRequest(number, target, partition, raw.key(), raw.value())
        trace: tuple[str, str | None] | None = None
        if self._tracing is not None:
            headers, trace = self._tracing.routed(request, headers, route.failure, route.attempt)
        request.headers = hd.route_headers(
            headers,
            target=kind_of_target,
            routing=routing,
            source=here,
            failure=route.failure,
            group=self._group,
            attempt=route.attempt,
            now_ms=now_ms,
            not_before_ms=not_before,
            trace=trace,
        )
        self._routed[number] = _Routed(request, request, original_partition)
        return request

    def forget(self, number: int) -> None:
        """It is confirmed, or no longer wanted."""
        self._routed.pop(number, None)

    def fresh(self, number: int) -> PublishRequest:
        """The record with all its headers again."""
        whole, _, partition = self._routed[number]
        self._routed[number] = _Routed(whole, whole, partition)
        return whole

    def retarget(self, topic: str) -> list[PublishRequest]:
        """The topic has another number of partitions: the requests whose partition is another one now."""
        moved: list[PublishRequest] = []
        for number, routed in list(self._routed.items()):
            whole, last, source_partition = routed
            if whole.topic != topic:
                continue
            partition = self._topics.partition_of(topic, source_partition)
            if partition != whole.partition:
                whole, last = replace(whole, partition=partition), replace(last, partition=partition)
                self._routed[number] = _Routed(whole, last, source_partition)
                moved.append(last)
        return moved

    def refused(self, report: Report) -> Again:
        """The target refused this very record: send less of its headers, or hold and say what to change."""
        whole, last, partition = self._routed[report.id]
        if report.kind is ReportKind.REFUSED:
            return Again(
                whole,
                REFUSED_AGAIN,
                f"{report.topic} refuses this record ({report.reason}): check the topic's settings "
                "(cleanup.policy, message.timestamp.*); it is tried again every "
                f"{REFUSED_AGAIN:g} s",
            )
        smaller = self._smaller(last)
        if smaller is None:
            size = hd.record_size(whole.key, whole.value, [])
            return Again(
                whole,
                REFUSED_AGAIN,
                f"{report.topic} takes no record of this size ({size} bytes without headers): raise its "
                f"max.message.bytes; it is tried again every {REFUSED_AGAIN:g} s",
            )
        request = PublishRequest(report.id, whole.topic, whole.partition, whole.key, whole.value, smaller)
        self._routed[report.id] = _Routed(whole, request, partition)
        return Again(request, 0.0, "")

    def _smaller(self, last: PublishRequest) -> RawHeaders | None:
        facts = self._topics.facts.get(last.topic)
        size = hd.headers_size(last.headers)
        limit = facts.max_message_bytes if facts is not None else None
        if limit is not None:
            budget = limit - hd.record_size(last.key, last.value, [])
            if budget < size:
                return hd.shrink(last.headers, budget) if budget > 0 else None
        # The limit is unknown, or not what it was: less and less, as long as there is something to leave out.
        if size <= LEAST_HEADERS:
            return None
        return hd.shrink(last.headers, size * 3 // 4)
