"""Where a dead letter goes when it is replayed, and the record that is published there.

Asks the brokers about topics and groups and writes nothing: a preview and a replay choose alike. Called by
both.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from streamloop.control.topic import name_of as control_topic
from streamloop.dlq.ledger import ledger_topic
from streamloop.dlq.letter import STREAMLOOP
from streamloop.dlq.reading import TIMEOUT, ReadError
from streamloop.dlq.writer import Publish
from streamloop.errors import ConfigurationError
from streamloop.kafka import headers as hd
from streamloop.kafka.config import admin_config
from streamloop.kafka.topic_admin import BrokersUnreachableError
from streamloop.kafka.topics import FOREVER_MS, RETRY_SLACK_S, TopicFacts, Untold
from streamloop.settings.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamloop.dlq.letter import DeadLetter
    from streamloop.kafka.headers import RawHeaders
    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.settings import ConsumerSettings, Settings

COORDINATOR_MOVES: Final = frozenset({14, 15, 16})
"""Errors of a group's coordinator that is on its way: asked again."""
MOST_GROUPS: Final = 200
"""Groups that are asked whether they read a topic."""


class Target(enum.Enum):
    """Where a replay goes."""

    REPLAY = "replay"
    """The replay topic of the group: nobody else sees it, and it is handled at once."""
    RETRY = "retry"
    """The group's first retry topic: the same after its delay."""
    SOURCE = "source"
    """The topic where it first failed: every group that reads there sees it."""
    TOPIC = "topic"
    """Any topic, by its name."""


class Skip(enum.Enum):
    """Why a letter that the filter means is not replayed."""

    REPLAYED = "replayed before"
    PURGED = "purged"
    IMPORTED = "a copy of it was imported"
    NO_ORIGINAL = "nobody says where it first failed (--to-topic names where it is to go)"
    OTHER_GROUP = "it died in another group (--group, or --to-topic)"
    NO_TARGET = "the topic that it would go to does not exist"
    UNTOLD = "the topic that it would go to can't be looked at"
    NO_RETRY = "its consumer has no retry topic"
    LOSES = (
        "the topic that it would go to would lose it (its cleanup.policy is compact, or its retention.ms is "
        "less than 7 days)"
    )
    FORBIDDEN = "the topic that it would go to is the ledger, the control topic, or one of Kafka's own"
    TOO_LARGE = "the topic that it would go to takes no record of this size"
    OTHER_RECORD = "not the record that was edited: its topic was made anew meanwhile"


@dataclass(frozen=True, slots=True)
class Edit:
    """What takes the place of a single letter's value and of its user's headers. None: as they are.

    ``of``: the letter that was looked at; another record in its place is not replayed.
    """

    value: bytes | None
    headers: RawHeaders | None = None
    of: DeadLetter | None = field(default=None, compare=False)

    def is_of(self, letter: DeadLetter) -> bool:
        """Whether the letter is the record that was edited."""
        return self.of is None or _content(self.of) == _content(letter)


def _content(letter: DeadLetter) -> tuple[object, ...]:
    return letter.timestamp_ms, letter.key, letter.value, letter.headers


class Destination(NamedTuple):
    """A topic that letters go to. ``delay`` in seconds: of a retry topic."""

    topic: str
    partitions: int
    max_message_bytes: int | None
    delay: float | None = None


@dataclass(slots=True)
class Targets:
    """Finds the destination of each letter; asks about each topic once.

    ``sources``: what is in force for source topics that a loop declares; others have the settings of all.
    """

    settings: Settings
    admin: TopicAdmin
    target: Target
    to_topic: str | None = None
    sources: Mapping[str, ConsumerSettings] = field(default_factory=dict)
    _known: dict[str, Destination | Skip] = field(default_factory=dict)
    _usual: ConsumerSettings | None = None

    def __post_init__(self) -> None:
        if (self.target is Target.TOPIC) != (self.to_topic is not None):
            raise ConfigurationError("a replay to any topic needs the topic's name, and no other replay does")

    def consumer(self, source: str) -> ConsumerSettings:
        """What is in force for a source topic."""
        if source in self.sources:
            return self.sources[source]
        if self._usual is None:
            self._usual = self.settings.for_consumer("dlq")
        return self._usual

    def of(self, letter: DeadLetter) -> Destination | Skip:
        """Where a letter goes, or why it does not."""
        if self.to_topic is not None:
            return self._described(self.to_topic)
        if letter.original is None:
            return Skip.NO_ORIGINAL
        source = letter.original.topic
        if self.target is Target.SOURCE:
            return self._described(source)
        if letter.group != self.settings.group and (
            letter.group is not None or letter.written_by == STREAMLOOP
        ):
            return Skip.OTHER_GROUP
        consumer = self.consumer(source)
        try:
            if self.target is Target.REPLAY:
                return self._described(consumer.replay_topic(source))
            names = consumer.retry_topic_names(source)
            if not names:
                return Skip.NO_RETRY
            return self._described(names[0], consumer.retry_topics[0])
        except ConfigurationError:
            return Skip.NO_TARGET  # its header's text makes no topic name

    def known(self) -> list[Destination]:
        """The destinations met so far."""
        return [each for each in self._known.values() if isinstance(each, Destination)]

    def _described(self, topic: str, delay: float | None = None) -> Destination | Skip:
        # A letter's header says where it came from, and anybody may have written it.
        own = (ledger_topic(self.settings), control_topic(self.settings))
        if topic in own or topic.startswith("__"):
            return Skip.FORBIDDEN
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = self._look(topic, delay)
        return found

    def _look(self, topic: str, delay: float | None) -> Destination | Skip:
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                facts = self.admin.describe([topic], max(0.1, until - time.monotonic()))[topic]
            except BrokersUnreachableError as error:
                raise ReadError(str(error)) from None
            if not isinstance(facts, Untold) or time.monotonic() >= until:
                break
            time.sleep(0.25)
        if isinstance(facts, TopicFacts):
            if self.target in (Target.REPLAY, Target.RETRY) and _loses(facts):
                return Skip.LOSES
            return Destination(topic, facts.partitions, facts.max_message_bytes, delay)
        return Skip.NO_TARGET if facts is None else Skip.UNTOLD

    def readers(self, sources: Sequence[str], timeout: float = 10.0) -> dict[str, list[str]]:
        """For each topic that groups other than the one that failed may read: the groups that do."""
        if self.target is Target.TOPIC:
            assert self.to_topic is not None
            topics = [self.to_topic]
        elif self.target is Target.SOURCE:
            topics = list(sources)
        else:
            return {}
        return {topic: groups_that_read(self.settings, topic, timeout) for topic in topics}


def record_for(
    letter: DeadLetter,
    destination: Destination,
    *,
    group: str,
    run: str,
    count: int,
    now_ms: int,
    edit: Edit | None = None,
) -> Publish | Skip:
    """The record that is published: key, value and user's headers byte for byte, unless edited.

    ``count``: how often the letter was replayed, this time included. ``now_ms``: epoch ms.
    """
    if edit is not None and not edit.is_of(letter):
        return Skip.OTHER_RECORD
    user = letter.headers
    if edit is not None and edit.headers is not None:
        user = edit.headers
    value = letter.value if edit is None else edit.value
    headers = hd.replay_headers(
        user,
        original=letter.original,
        group=group,
        replay_id=run,
        replay_count=count,
        replayed_from=letter.place,
        now_ms=now_ms,
        not_before_ms=None if destination.delay is None else now_ms + int(destination.delay * 1000),
    )
    most = destination.max_message_bytes
    if most is not None and hd.record_size(letter.key, value, headers) > most:
        return Skip.TOO_LARGE
    partition = -1
    if letter.original is not None and destination.partitions:
        partition = letter.original.partition % destination.partitions
    return Publish(destination.topic, partition, letter.key, value, headers)


def _loses(facts: TopicFacts) -> bool:
    """Whether it would drop what nobody has handled yet: the rule by which members refuse to start."""
    kept = facts.retention_ms
    return "compact" in (facts.cleanup_policy or "") or (
        kept is not None and kept != FOREVER_MS and kept < RETRY_SLACK_S * 1000
    )


def describe_target(target: Target, to_topic: str | None, settings: Settings) -> str:
    """Where a replay goes, for people."""
    if to_topic is not None:
        return f"the topic {to_topic}"
    if target is Target.SOURCE:
        return "the topics where they first failed"
    usual = settings.for_consumer("dlq")
    if target is Target.RETRY:
        delay = show_duration(usual.retry_topics[0]) if usual.retry_topics else "none"
        return f"the first retry topic ({delay})"
    return f"the replay topic ({usual.replay_topic_name.format(topic='<topic>', group=settings.group)})"


def members_of(settings: Settings, group: str, timeout: float = 10.0) -> int | None:
    """How many members a group has now; None when that can't be told."""
    client: Any = AdminClient(admin_config(settings))
    until = time.monotonic() + timeout
    while True:
        left = max(0.1, until - time.monotonic())
        try:
            described = client.describe_consumer_groups([group], request_timeout=left)[group].result(left)
            return len(described.members)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            if code not in COORDINATOR_MOVES or time.monotonic() >= until:
                return None
        except TimeoutError:
            return None
        time.sleep(0.1)


def groups_that_read(settings: Settings, topic: str, timeout: float) -> list[str]:
    """Groups that have committed offsets for a topic, or members that read it, as far as can be told."""
    client: Any = AdminClient(admin_config(settings))
    until = time.monotonic() + timeout

    def left() -> float:
        return max(0.1, until - time.monotonic())

    try:
        listed = client.list_consumer_groups(request_timeout=left()).result(left())
        names = sorted(group.group_id for group in listed.valid)[:MOST_GROUPS]
        partitions = client.list_topics(timeout=left()).topics[topic].partitions
    except (KafkaException, KeyError, TimeoutError):
        return []
    asked = [TopicPartition(topic, partition) for partition in partitions]
    found = set()
    for name in names:
        try:
            request = [ConsumerGroupTopicPartitions(name, asked)]
            answer = client.list_consumer_group_offsets(request, request_timeout=left())[name].result(left())
        except (KafkaException, TimeoutError):
            continue
        if any(each.offset >= 0 for each in answer.topic_partitions):
            found.add(name)
    if names:
        described = client.describe_consumer_groups(names, request_timeout=left())
        for name, future in described.items():
            try:
                members = future.result(left()).members
            except (KafkaException, TimeoutError):
                continue
            if any(part.topic == topic for member in members for part in member.assignment.topic_partitions):
                found.add(name)
    return sorted(found)
