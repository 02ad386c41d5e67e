"""What must be true of the topics we write to, whether it is, and the command that mends what is not. Pure.

What it is for: plan_topics() says which retry, replay and dead-letter topics a source topic needs,
check_topic() compares one that exists with its plan, TopicWatch says what changed while we run. It must never
do I/O or read a clock (topic_admin.py asks the brokers). Called by the app at its start and by its topic
watch.

Why the rules: a compacted topic drops all but the newest record of a key. Retention counts from a record's
time stamp: a retry topic has to keep a record for its delay, and for a week in which nobody may be there to
read it. A routed record is larger than the original by our headers. What replaces a source record must be as
safe as that.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from streamloop.settings.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "UNKNOWN_ID",
    "Change",
    "Commands",
    "Purpose",
    "TopicChange",
    "TopicFacts",
    "TopicSpec",
    "TopicWatch",
    "Untold",
    "Violation",
    "check_topic",
    "describe_missing_source",
    "plan_topics",
    "shown_id",
    "unknown_facts",
]

UNKNOWN_ID = "unknown"
"""A cluster's or a topic's id that can't be had. It equals only itself."""
_NO_ID: Final = "A" * 22
"""Kafka's zero id: the broker is too old to have ids."""
_AS_KAFKA_WRITES: Final = str.maketrans("+/", "-_")


def shown_id(topic_id: object) -> str:
    """A topic's id as Kafka's own tools write it, or 'unknown' where the broker has none.

    The client in Python writes + and / where Kafka writes - and _. Ids stand in commits, in the ledger and in
    exports for years: one spelling, whatever a later client does.
    """
    text = _NO_ID if topic_id is None else str(topic_id).translate(_AS_KAFKA_WRITES)
    return UNKNOWN_ID if text == _NO_ID else text


DAY_S = 86_400.0
MS = 1000
RETRY_RETENTION_S = 14 * DAY_S
RETRY_SLACK_S = 7 * DAY_S
"""A retry topic keeps a record at least this much longer than its delay."""
HEADER_ROOM_BYTES = 64 * 1024
"""What our headers may add to a record: a target's max.message.bytes is at least the source's and this."""
FOREVER_MS = -1
GONE_AFTER_S = 10.0
"""A topic is taken for gone only when no answer named it for this long: a broker that starts may not know it
yet."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the brokers describe it. None: could not be had (no right to describe it, a simpler broker).

    ``retention_ms`` is -1 where records are kept for ever. ``replicas`` are the broker ids of each partition.
    """

    name: str
    topic_id: str
    partitions: int
    replication_factor: int | None = None
    cleanup_policy: str | None = None
    retention_ms: int | None = None
    max_message_bytes: int | None = None
    min_insync_replicas: int | None = None
    replicas: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Untold:
    """Whether a topic exists could not be told, with the reason in words."""

    reason: str


class Purpose(enum.Enum):
    """What a topic of ours is for."""

    RETRY = "retry"
    REPLAY = "replay"
    DEAD_LETTER = "dead letter"


BROKERS_CHOICE: Final = -1
"""Partitions or replicas as the broker's defaults say."""


@dataclass(frozen=True, slots=True)
class PlainTopic:
    """A topic as it is to be created, with no demand on one that exists. -1: as the broker's defaults say."""

    name: str
    partitions: int = BROKERS_CHOICE
    replication_factor: int = BROKERS_CHOICE
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that has to exist: how it is created, and what an existing one must at least have.

    ``replication_factor`` -1 leaves it to the broker; None leaves a setting out. ``replicas`` are the
    source's, for the command that raises a replication factor.
    """

    name: str
    purpose: Purpose
    source: str
    partitions: int
    replication_factor: int
    retention_ms: int
    least_retention_ms: int | None
    max_message_bytes: int | None
    min_insync_replicas: int | None
    replicas: tuple[tuple[int, ...], ...] = ()

    @property
    def config(self) -> dict[str, str]:
        """The topic's configuration when it is created."""
        values = {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms)}
        if self.max_message_bytes is not None:
            values["max.message.bytes"] = str(self.max_message_bytes)
        if self.min_insync_replicas is not None:
            values["min.insync.replicas"] = str(self.min_insync_replicas)
        return values


@dataclass(frozen=True, slots=True)
class Violation:
    """Something about a topic that would lose records: the sentence that says so, and the command that mends
    it."""

    topic: str
    problem: str
    command: str
    missing: bool = False
    """The topic does not exist."""

    def __str__(self) -> str:
        return f"{self.problem} Mend it with:\n    {self.command}"


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of Kafka's own tools, ready to be pasted.

    ``brokers`` as in the setting; ``login`` adds the option for brokers that ask for one.
    """

    brokers: str
    login: bool = False

    def create(self, spec: TopicSpec) -> str:
        """Create a topic as planned."""
        factor = f" --replication-factor {spec.replication_factor}" if spec.replication_factor > 0 else ""
        configs = "".join(f" --config {name}={value}" for name, value in spec.config.items())
        return self._tool(
            "topics", f"--create --topic {spec.name} --partitions {spec.partitions}{factor}{configs}"
        )

    def create_source(self, topic: str) -> str:
        """Create a source topic with the broker's defaults."""
        return self._tool("topics", f"--create --topic {topic}")

    def alter(self, topic: str, name: str, value: object) -> str:
        """Set one configuration of a topic."""
        return self._tool(
            "configs", f"--alter --entity-type topics --entity-name {topic} --add-config {name}={value}"
        )

    def reassign(self, topic: str, replicas: Sequence[Sequence[int]]) -> str:
        """Give each partition these replicas. Writes reassign.json into the current folder."""
        plan = {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": partition, "replicas": list(brokers)}
                for partition, brokers in enumerate(replicas)
            ],
        }
        tool = self._tool("reassign-partitions", "--reassignment-json-file reassign.json --execute")
        return f"echo '{json.dumps(plan, separators=(',', ':'))}' > reassign.json && {tool}"

    def _tool(self, tool: str, options: str) -> str:
        login = " --command-config client.properties" if self.login else ""
        return f"kafka-{tool}.sh --bootstrap-server {self.brokers}{login} {options}"


def plan_topics(
    source: TopicFacts,
    *,
    retry: Sequence[tuple[float, str]],
    dead_letter: str | None,
    replay: str | None = None,
    retention: float = RETRY_RETENTION_S,
    replication_factor: int | None = None,
) -> list[TopicSpec]:
    """The topics that ``source`` needs.

    ``retry`` are (delay in seconds, topic name) in the order of use, ``dead_letter`` and ``replay`` are those
    topics' names or None: the settings make the names and check them. ``retention`` (seconds, default 14
    days) is that of the retry and replay topics that are created, and never less than the delay and 7 days.
    ``replication_factor`` of topics that are created, never less than the source's; None: the source's, or
    the broker's default where that is unknown.
    """
    room = None if source.max_message_bytes is None else source.max_message_bytes + HEADER_ROOM_BYTES
    factor = max(replication_factor or -1, source.replication_factor or -1)

    def spec(name: str, purpose: Purpose, retention_ms: int, least_retention_ms: int | None) -> TopicSpec:
        return TopicSpec(
            name=name,
            purpose=purpose,
            source=source.name,
            partitions=source.partitions,
            replication_factor=factor,
            retention_ms=retention_ms,
            least_retention_ms=least_retention_ms,
            max_message_bytes=room,
            min_insync_replicas=source.min_insync_replicas,
            replicas=source.replicas,
        )

    specs = []
    waits = [(delay, name, Purpose.RETRY) for delay, name in retry]
    if replay is not None:
        waits.append((0.0, replay, Purpose.REPLAY))
    for delay, name, purpose in waits:
        least = round((delay + RETRY_SLACK_S) * MS)
        specs.append(spec(name, purpose, max(round(retention * MS), least), least))
    if dead_letter is not None:
        specs.append(spec(dead_letter, Purpose.DEAD_LETTER, FOREVER_MS, None))
    return specs


def check_topic(spec: TopicSpec, facts: TopicFacts, commands: Commands) -> list[Violation]:
    """What about an existing topic would lose records. What is unknown is no violation (see
    unknown_facts())."""
    found: list[Violation] = []
    name, what = facts.name, f"The {spec.purpose.value} topic {facts.name}"

    def add(problem: str, command: str) -> None:
        found.append(Violation(name, f"{what} {problem}", command))

    if facts.cleanup_policy is not None and "compact" in facts.cleanup_policy:
        add(
            f"has cleanup.policy={facts.cleanup_policy}: compaction would delete all but the newest message "
            "of a key. It must be delete.",
            commands.alter(name, "cleanup.policy", "delete"),
        )
    kept, least = facts.retention_ms, spec.least_retention_ms
    if kept is not None and least is not None and kept != FOREVER_MS and kept < least:
        wait = "to be read" if spec.purpose is Purpose.REPLAY else "for their retry"
        add(
            f"keeps messages for {show_duration(kept / MS)} (retention.ms={kept}): those that wait {wait} "
            f"would be deleted. It must keep them for at least its delay and 7 days, {least} ms.",
            commands.alter(name, "retention.ms", max(spec.retention_ms, least)),
        )
    size, room = facts.max_message_bytes, spec.max_message_bytes
    if size is not None and room is not None and size < room:
        add(
            f"takes messages of at most {size} bytes (max.message.bytes), too few for the largest ones of "
            f"{spec.source} with the headers that are added. It must take {room}.",
            commands.alter(name, "max.message.bytes", room),
        )
    in_sync, least_in_sync = facts.min_insync_replicas, spec.min_insync_replicas
    if in_sync is not None and least_in_sync is not None and in_sync < least_in_sync:
        add(
            f"has min.insync.replicas={in_sync}, less than the {least_in_sync} of {spec.source}: a message "
            "could be lost that the source topic would have kept.",
            commands.alter(name, "min.insync.replicas", least_in_sync),
        )
    factor = facts.replication_factor
    least_factor = len(spec.replicas[0]) if spec.replicas else None
    if factor is not None and least_factor is not None and factor < least_factor:
        # Each gets the replicas of a partition of the source: those brokers exist, and are spread already.
        replicas = [spec.replicas[p % len(spec.replicas)] for p in range(facts.partitions)]
        add(
            f"has {factor} replicas of each partition, less than the {least_factor} of {spec.source}.",
            commands.reassign(name, replicas),
        )
    return found


def unknown_facts(spec: TopicSpec, facts: TopicFacts) -> list[str]:
    """Warnings about an existing topic: what the broker does not tell, and dead letters that will be
    deleted."""
    warnings = []
    untold = [
        setting
        for setting, value in (
            ("cleanup.policy", facts.cleanup_policy),
            ("retention.ms", facts.retention_ms),
            ("max.message.bytes", facts.max_message_bytes),
            ("min.insync.replicas", facts.min_insync_replicas),
        )
        if value is None
    ]
    if facts.replication_factor is None:
        untold.append("the replication factor")
    if untold:
        warnings.append(
            f"The broker does not tell {', '.join(untold)} of the {spec.purpose.value} topic {facts.name}: "
            "it could not be checked that the topic loses no message."
        )
    kept = facts.retention_ms
    if spec.purpose is Purpose.DEAD_LETTER and kept is not None and kept != FOREVER_MS:
        warnings.append(
            f"The dead letter topic {facts.name} deletes messages after {show_duration(kept / MS)} "
            f"(retention.ms={kept}): what is not looked at by then is gone. retention.ms=-1 keeps them."
        )
    return warnings


def describe_missing_source(topic: str, commands: Commands) -> str:
    """The sentence about a source topic that does not exist."""
    return (
        f"The topic {topic} does not exist. Create it, for example with:\n"
        f"    {commands.create_source(topic)}\nor correct the topic's name."
    )


# ------------------------------------------------------------------------------------------ while running


class Change(enum.Enum):
    """What happened to a topic."""

    APPEARED = "appeared"
    GONE = "gone"
    RECREATED = "recreated"
    """It has another id: a new topic of the same name. Nothing known of the old one is true of it."""
    PARTITIONS_ADDED = "partitions added"


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A change of one topic. ``before`` is what was known last, ``after`` None when it is gone."""

    topic: str
    change: Change
    before: TopicFacts | None
    after: TopicFacts | None


@dataclass(slots=True)
class _Watched:
    facts: TopicFacts | None = None
    """What was known last; stays when the topic goes."""
    present: bool = False
    missing_since: float | None = None
    former_ids: set[str] = field(default_factory=set)


class TopicWatch:
    """Tells what changed about topics, from one description to the next.

    Feed it with what the brokers say every few seconds. An answer that could not tell changes nothing. A
    topic is gone when no answer named it for ``gone_after`` seconds. An id that another one replaced is not
    believed again: a broker that lags behind may still give it.
    """

    def __init__(
        self, known: Mapping[str, TopicFacts | Untold | None], *, gone_after: float = GONE_AFTER_S
    ) -> None:
        self._gone_after = gone_after
        self._topics = {name: _Watched() for name in known}
        for name, facts in known.items():
            if isinstance(facts, TopicFacts):
                self._topics[name] = _Watched(facts, present=True)

    @property
    def names(self) -> list[str]:
        """The topics it watches."""
        return list(self._topics)

    def facts(self, topic: str) -> TopicFacts | None:
        """What is known of a topic; None: it is not there, or nothing is known yet."""
        watched = self._topics[topic]
        return watched.facts if watched.present else None

    def update(self, now: float, described: Mapping[str, TopicFacts | Untold | None]) -> list[TopicChange]:
        """Take a description; ``now`` is monotonic, in seconds. Returns what changed, in the order given."""
        changes: list[TopicChange] = []
        for name, facts in described.items():
            if isinstance(facts, Untold):
                continue
            watched = self._topics.setdefault(name, _Watched())
            change = self._missing(watched, now) if facts is None else self._there(watched, facts)
            if change is not None:
                before = watched.facts
                watched.facts = facts or before
                changes.append(TopicChange(name, change, before, facts))
        return changes

    def _missing(self, watched: _Watched, now: float) -> Change | None:
        if not watched.present:
            return None
        if watched.missing_since is None:
            watched.missing_since = now
        if now - watched.missing_since < self._gone_after:
            return None
        watched.present = False
        return Change.GONE

    def _there(self, watched: _Watched, facts: TopicFacts) -> Change | None:
        known = watched.facts
        if facts.topic_id in watched.former_ids:
            return None
        was_present = watched.present
        watched.missing_since = None
        watched.present = True
        if known is not None and _is_another(known.topic_id, facts.topic_id):
            watched.former_ids.add(known.topic_id)
            return Change.RECREATED
        if not was_present:
            return Change.APPEARED
        assert known is not None
        if facts.partitions > known.partitions:
            return Change.PARTITIONS_ADDED
        if known.topic_id == UNKNOWN_ID:
            watched.facts = facts
        return None


def _is_another(known_id: str, topic_id: str) -> bool:
    return UNKNOWN_ID not in (known_id, topic_id) and known_id != topic_id
