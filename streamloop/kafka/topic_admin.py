"""Asks the brokers about topics and offsets, and creates the topics that are missing.

What it is for: the checks before the start, the watch while running, and start positions as numbers. It must
never block longer than the time-out it is given, never alter or delete a topic, and never take "could not
tell" for "missing". Called by the app and the command line, on any thread but the event loop's and the
pollers'.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from streamloop.errors import StreamLoopError, TopicError
from streamloop.kafka.topics import (
    UNKNOWN_ID,
    Commands,
    TopicFacts,
    TopicSpec,
    Untold,
    Violation,
    check_topic,
    shown_id,
    unknown_facts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["BrokersUnreachableError", "Outcome", "Start", "TopicAdmin"]

Start = Literal["earliest", "latest"] | int
"""Where to start: the oldest record, after the newest one, or the first one with this time stamp (ms) or a
later one."""

UNKNOWN_TOPIC = 3
ALREADY_EXISTS = 36
MOCK_CLUSTER = "mockCluster"
"""So begins the cluster id of librdkafka's mock broker, which leaves requests of the admin API without an
answer."""
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_TELLING = frozenset({-169, -181, -193})  # _AUTHENTICATION, _SSL, _RESOLVE
"""Errors of a connection that say what is wrong with the settings."""
_SINCE = re.compile(r" \(after \d+ms in state [A-Z_]+\)")
"""Each attempt would make another sentence of it."""
LISTED_PAUSE_S = 0.05
"""A topic that was just created is asked for this often until every broker knows it."""


class BrokersUnreachableError(StreamLoopError):
    """No broker answered in time."""


class NewlyMade(Protocol):
    """What is needed to create a topic. -1: as the broker's defaults say."""

    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def replication_factor(self) -> int: ...
    @property
    def config(self) -> Mapping[str, str]: ...


@dataclass(slots=True)
class Outcome:
    """What ensure() found and did. ``facts`` are those of all topics that exist now."""

    facts: dict[str, TopicFacts] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def require(self) -> None:
        """Raise TopicError with every violation and the commands that mend them, if there are any."""
        if self.violations:
            raise TopicError("\n".join(str(violation) for violation in self.violations))


class TopicAdmin:
    """Questions about topics, each bounded by its own time-out in seconds.

    ``config`` are librdkafka properties for the connection. ``commands`` make the text that tells an operator
    what to do. Brokers without the admin API (librdkafka's mock broker) give what their metadata have; the
    rest is unknown.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        commands: Commands,
        *,
        client_factory: Callable[[dict[str, Any]], Any] = AdminClient,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._refusals: deque[KafkaError] = deque(maxlen=20)
        self._client = client_factory({"error_cb": self._refusals.append, **config})
        self.commands = commands
        self._clock = clock
        self._sleep = sleep
        self._cluster_id = UNKNOWN_ID
        self._has_admin_api: bool | None = None

    def cluster_id(self, timeout: float) -> str:
        """The cluster's id, 'unknown' where the brokers have none. Raises BrokersUnreachableError."""
        self._first_look(self._clock() + timeout)
        return self._cluster_id

    def describe(
        self, names: Iterable[str], timeout: float, *, configs: bool = True
    ) -> dict[str, TopicFacts | Untold | None]:
        """What is known of each topic: its facts, None when it does not exist, Untold when that could not be
        told.

        Without ``configs`` only the id and the partitions are asked for. Raises BrokersUnreachableError when
        no broker has answered yet since this object was made; later that makes every topic Untold.
        """
        wanted = list(dict.fromkeys(names))
        # The client ends the process over a name that is no UTF-8; no topic can have one.
        never: dict[str, TopicFacts | Untold | None] = {
            name: None for name in wanted if not name.isascii() or "\0" in name
        }
        wanted = [name for name in wanted if name not in never]
        deadline = self._clock() + timeout
        self._first_look(deadline)
        if not wanted:
            return never
        if not self._has_admin_api:
            return never | self._from_metadata(wanted, deadline)
        described = self._described(wanted, deadline)
        if configs:
            there = [name for name, facts in described.items() if isinstance(facts, TopicFacts)]
            for name, values in self._configs(there, deadline).items():
                facts = described[name]
                assert isinstance(facts, TopicFacts)
                described[name] = _with_config(facts, values)
        return never | described

    def ensure(self, specs: Sequence[TopicSpec], *, create: bool, timeout: float) -> Outcome:
        """Check the topics, and create the missing ones when ``create`` allows it.

        What is missing and may not or can't be created is a violation with the command that creates it.
        Raises BrokersUnreachableError.
        """
        deadline = self._clock() + timeout
        by_name = {spec.name: spec for spec in specs}
        described = self.describe(by_name, timeout)
        outcome = Outcome()
        missing = [by_name[name] for name, facts in described.items() if facts is None]
        if create and missing:
            refused = self._create(missing, outcome, deadline)
            made = [spec.name for spec in missing if spec.name not in refused]
            described.update(self._await_listed(made, deadline))
        else:
            refused = dict.fromkeys((spec.name for spec in missing), "create_topics is off")
        for name, facts in described.items():
            spec = by_name[name]
            if isinstance(facts, TopicFacts):
                outcome.facts[name] = facts
                outcome.violations += check_topic(spec, facts, self.commands)
                outcome.warnings += unknown_facts(spec, facts)
            elif isinstance(facts, Untold):
                outcome.warnings.append(
                    f"Whether the {spec.purpose.value} topic {name} exists could not be told: {facts.reason}"
                )
            else:
                outcome.violations.append(self._missing(spec, refused.get(name)))
        return outcome

    def create(self, topics: Sequence[NewlyMade], timeout: float) -> dict[str, str]:
        """Create these topics and wait until they are listed; returns why not for each that can't be.

        One that exists by now is no error. Raises BrokersUnreachableError.
        """
        deadline = self._clock() + timeout
        self._first_look(deadline)
        refused = self._create(topics, Outcome(), deadline)
        made = [topic.name for topic in topics if topic.name not in refused]
        if made:
            self._await_listed(made, deadline)
        return refused

    def resolve_offsets(
        self, partitions: Iterable[tuple[str, int]], start: Start, timeout: float, *, stable: bool = True
    ) -> dict[tuple[str, int], int | Untold]:
        """Each partition's start position as a number.

        'latest' is the last stable offset: what an open transaction still holds back comes after it. Without
        ``stable`` it is the end of the log. A time stamp (ms) later than all records gives the same. Raises
        BrokersUnreachableError.
        """
        wanted = list(dict.fromkeys(partitions))
        deadline = self._clock() + timeout
        self._first_look(deadline)
        if isinstance(start, int):
            if not self._has_admin_api:
                # The mock broker answers every such question with "none", which would mean the end.
                return dict.fromkeys(wanted, Untold("this broker can't look up time stamps"))
            found = self._offsets(wanted, OffsetSpec.for_timestamp(start), deadline)
            later = [partition for partition, offset in found.items() if offset == -1]
            return {**found, **self._offsets(later, _LATEST, deadline, stable=stable)}
        return self._offsets(wanted, _EARLIEST if start == "earliest" else _LATEST, deadline, stable=stable)

    def committed(
        self, group: str, partitions: Iterable[tuple[str, int]], timeout: float
    ) -> dict[tuple[str, int], int | Untold]:
        """What the group has committed of each partition; left out where that is nothing.

        Raises BrokersUnreachableError.
        """
        wanted = list(dict.fromkeys(partitions))
        deadline = self._clock() + timeout
        self._first_look(deadline)
        if not self._has_admin_api:
            return dict.fromkeys(wanted, Untold("this broker does not tell what groups have committed"))
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*each) for each in wanted])
        [future] = self._client.list_consumer_group_offsets(
            [asked], request_timeout=self._left(deadline)
        ).values()
        try:
            answer = future.result(self._left(deadline))
        except KafkaException as error:
            return dict.fromkeys(wanted, Untold(_text(error)))
        except TimeoutError:
            return dict.fromkeys(wanted, Untold("no broker answered in time"))
        return {
            (each.topic, each.partition): each.offset if each.error is None else Untold(str(each.error.str()))
            for each in answer.topic_partitions
            if each.offset >= 0 or each.error is not None
        }

    # -- asking

    def _left(self, deadline: float) -> float:
        return max(0.001, deadline - self._clock())

    def _first_look(self, deadline: float) -> None:
        """Once: is a broker there, which cluster is it, and has it the admin API?"""
        if self._has_admin_api is None:
            metadata = self._metadata(deadline)
            self._cluster_id = metadata.cluster_id or UNKNOWN_ID
            self._has_admin_api = not self._cluster_id.startswith(MOCK_CLUSTER)

    def _metadata(self, deadline: float) -> Any:
        # All topics: to ask for one by its name makes brokers with auto.create.topics.enable create it.
        self._refusals.clear()
        try:
            return self._client.list_topics(timeout=self._left(deadline))
        except KafkaException as error:
            self._client.poll(0)  # serves error_cb, which knows more than 'no answer'
            why = next((each for each in self._refusals if each.code() in _TELLING), None)
            raise BrokersUnreachableError(
                f"No Kafka broker answers at {self.commands.brokers}: "
                f"{_text(error) if why is None else _SINCE.sub('', why.str())}. Check the setting "
                "brokers (and the security settings), and that the brokers run."
            ) from error

    def _from_metadata(self, names: Sequence[str], deadline: float) -> dict[str, TopicFacts | Untold | None]:
        try:
            listed = self._metadata(deadline).topics
        except BrokersUnreachableError as error:
            return dict.fromkeys(names, Untold(str(error)))
        described: dict[str, TopicFacts | Untold | None] = {}
        for name in names:
            topic = listed.get(name)
            if topic is None or (topic.error is not None and topic.error.code() == UNKNOWN_TOPIC):
                described[name] = None
            elif topic.error is not None:
                described[name] = Untold(str(topic.error.str()))
            else:
                replicas = tuple(tuple(topic.partitions[p].replicas) for p in sorted(topic.partitions))
                described[name] = _facts(name, UNKNOWN_ID, replicas)
        return described

    def _described(self, names: Sequence[str], deadline: float) -> dict[str, TopicFacts | Untold | None]:
        collection = TopicCollection(list(names))
        futures = self._client.describe_topics(collection, request_timeout=self._left(deadline))
        described: dict[str, TopicFacts | Untold | None] = {}
        for name in names:
            try:
                topic = futures[name].result(self._left(deadline))
            except KafkaException as error:
                described[name] = None if _code(error) == UNKNOWN_TOPIC else Untold(_text(error))
            except TimeoutError:
                described[name] = Untold("no broker answered in time")
            else:
                replicas = tuple(tuple(node.id for node in p.replicas) for p in topic.partitions)
                described[name] = _facts(name, shown_id(topic.topic_id), replicas)
        return described

    def _configs(self, names: Sequence[str], deadline: float) -> dict[str, dict[str, str]]:
        """Configurations of the topics for which they can be had; the others' stay unknown."""
        found: dict[str, dict[str, str]] = {}
        wanted = list(names)
        while wanted:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
            futures = self._client.describe_configs(resources, request_timeout=self._left(deadline))
            wanted = []
            for resource, future in futures.items():
                try:
                    entries = future.result(self._left(deadline))
                except KafkaException as error:
                    if _code(error) == UNKNOWN_TOPIC:  # another broker just said that it exists
                        wanted.append(resource.name)
                except TimeoutError:
                    continue
                else:
                    found[resource.name] = {name: entry.value for name, entry in entries.items()}
            if self._clock() >= deadline:
                break
            if wanted:
                self._sleep(LISTED_PAUSE_S)
        return found

    def _offsets(
        self,
        partitions: Sequence[tuple[str, int]],
        spec: OffsetSpec,
        deadline: float,
        *,
        stable: bool = True,
    ) -> dict[tuple[str, int], int | Untold]:
        if not partitions:
            return {}
        futures = self._client.list_offsets(
            {TopicPartition(topic, partition): spec for topic, partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._left(deadline),
        )
        found: dict[tuple[str, int], int | Untold] = {}
        for asked, future in futures.items():
            try:
                found[asked.topic, asked.partition] = future.result(self._left(deadline)).offset
            except KafkaException as error:
                found[asked.topic, asked.partition] = Untold(_text(error))
            except TimeoutError:
                found[asked.topic, asked.partition] = Untold("no broker answered in time")
        return found

    # -- creating

    def _create(self, specs: Sequence[NewlyMade], outcome: Outcome, deadline: float) -> dict[str, str]:
        """Create them; returns why not for each that can't be."""
        if not self._has_admin_api:
            return self._create_by_asking(specs, outcome, deadline)
        futures = self._client.create_topics(
            [
                NewTopic(
                    spec.name,
                    num_partitions=spec.partitions,
                    replication_factor=spec.replication_factor,
                    config=dict(spec.config),
                )
                for spec in specs
            ],
            request_timeout=self._left(deadline),
            operation_timeout=self._left(deadline),
        )
        refused = {}
        for name, future in futures.items():
            try:
                future.result(self._left(deadline))
            except KafkaException as error:
                if _code(error) != ALREADY_EXISTS:  # another member was faster: it is checked like any other
                    refused[name] = _text(error)
            except TimeoutError:
                refused[name] = "no broker answered in time"
            else:
                outcome.created.append(name)
        return refused

    def _create_by_asking(
        self, specs: Sequence[NewlyMade], outcome: Outcome, deadline: float
    ) -> dict[str, str]:
        """Asked for a topic by its name, a broker without the admin API may create it by itself."""
        refused = {}
        for spec in specs:
            try:
                self._client.list_topics(spec.name, timeout=self._left(deadline))
            except KafkaException as error:
                refused[spec.name] = _text(error)
            else:
                outcome.created.append(spec.name)
        return refused

    def _await_listed(self, names: Sequence[str], deadline: float) -> dict[str, TopicFacts | Untold | None]:
        """A topic that was just created is not known to every broker at once."""
        while True:
            described = self.describe(names, self._left(deadline))
            if None not in described.values() or self._clock() >= deadline:
                return described
            self._sleep(LISTED_PAUSE_S)

    def _missing(self, spec: TopicSpec, refused: str | None) -> Violation:
        why = f"could not be created ({refused})" if refused else "was created but is not listed yet"
        return Violation(
            spec.name,
            f"The {spec.purpose.value} topic {spec.name} does not exist and {why}.",
            self.commands.create(spec),
            missing=True,
        )


def _facts(name: str, topic_id: str, replicas: tuple[tuple[int, ...], ...]) -> TopicFacts:
    return TopicFacts(
        name=name,
        topic_id=topic_id,
        partitions=len(replicas),
        replication_factor=min(map(len, replicas)) if replicas else None,
        replicas=replicas,
    )


def _with_config(facts: TopicFacts, values: Mapping[str, str]) -> TopicFacts:
    def number(name: str) -> int | None:
        return int(values[name]) if name in values else None

    return TopicFacts(
        name=facts.name,
        topic_id=facts.topic_id,
        partitions=facts.partitions,
        replication_factor=facts.replication_factor,
        cleanup_policy=values.get("cleanup.policy"),
        retention_ms=number("retention.ms"),
        max_message_bytes=number("max.message.bytes"),
        min_insync_replicas=number("min.insync.replicas"),
        replicas=facts.replicas,
    )


def _code(error: KafkaException) -> int:
    return int(error.args[0].code())


def _text(error: KafkaException) -> str:
    return str(error.args[0].str())
