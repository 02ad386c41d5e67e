"""What is looked at, and what earlier looks found out: settings, a client of the brokers, the time that is
left.

Every question to a broker takes its bound from here. Made by ``examine``, filled by the looks in their order.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from streamloop.kafka.config import admin_config
from streamloop.kafka.topic_admin import TopicAdmin
from streamloop.kafka.topics import Commands

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamloop.assembly import Assembly
    from streamloop.kafka.topics import TopicFacts
    from streamloop.routing import Topics
    from streamloop.settings import ConsumerSettings, Settings

QUESTION: Final = 5.0
"""Seconds that one question may take at most."""
COORDINATOR_MOVES: Final = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: asked again."""
ASK_AGAIN: Final = 0.2


class OutOfTimeError(Exception):
    """The time for the whole examination is over."""


class DoctorCommands(Commands):
    """Commands of Kafka's own tools that the doctor gives beside those for topics."""

    def add_partitions(self, topic: str, partitions: int) -> str:
        """Raise a topic's number of partitions."""
        return self._tool("topics", f"--alter --topic {topic} --partitions {partitions}")

    def allow(self, principal: str, operation: str, resource: str) -> str:
        """Allow a principal an operation; ``resource`` as in ``--topic orders``."""
        return self._tool("acls", f"--add --allow-principal {principal} --operation {operation} {resource}")

    def describe_group(self, group: str, what: str) -> str:
        """Show a group's ``members``, ``offsets`` or ``state``."""
        return self._tool("consumer-groups", f"--describe --group {group} --{what}")

    def describe_topics(self, condition: str) -> str:
        """Show the topics for which a condition holds, such as ``under-replicated-partitions``."""
        return self._tool("topics", f"--describe --{condition}")


@dataclass(slots=True)
class Patient:
    """A deployment under examination. ``ends_at``: monotonic seconds. ``wall``: epoch seconds."""

    settings: Settings
    assembly: Assembly | None
    topics: Topics | None
    ends_at: float
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    client_factory: Callable[[dict[str, Any]], Any] = AdminClient
    client: Any = None
    errors: list[Any] = field(default_factory=list)
    """What librdkafka said of itself, newest last."""
    reached: bool = False
    """Whether an address in the settings is good, as far as can be told without a login."""
    metadata: Any = None
    """The cluster as its brokers describe it, once one has answered."""
    features: dict[str, int] = field(default_factory=dict)
    apis: dict[int, tuple[int, int]] = field(default_factory=dict)
    facts: dict[str, TopicFacts] = field(default_factory=dict)
    """The topics of the loop that are there."""
    absent: list[str] = field(default_factory=list)
    """The loop's own topics that are not there yet and that a run creates."""
    _admin: TopicAdmin | None = None

    @property
    def consumers(self) -> Sequence[ConsumerSettings]:
        """What is in force for each consumer; empty without a loop."""
        return [] if self.assembly is None else [build.settings for build in self.assembly.consumers]

    @property
    def commands(self) -> DoctorCommands:
        """For what an operator is told to do."""
        protocol = self.settings.security_protocol
        return DoctorCommands(",".join(self.settings.brokers), login=protocol not in (None, "plaintext"))

    @property
    def principal(self) -> str:
        """Who we are to the brokers, as far as the settings say."""
        name = self.settings.sasl_username or self.settings.kafka_property("admin", "sasl.username")
        return f"User:{name}" if name else "User:NAME"

    def left(self, most: float = QUESTION) -> float:
        """Seconds for the next question. Raises OutOfTimeError when there are none."""
        left = self.ends_at - self.clock()
        if left <= 0:
            raise OutOfTimeError
        return min(most, left)

    def connect(self) -> Any:
        """The client. Made at the first call; its own lines go nowhere, and its errors are kept."""
        if self.client is None:
            properties = {**admin_config(self.settings), "error_cb": self.errors.append}
            self.client = self.client_factory(properties)
        return self.client

    def admin(self) -> TopicAdmin:
        """The same client, for questions about topics."""
        if self._admin is None:
            client = self.connect()
            self._admin = TopicAdmin({}, self.commands, client_factory=lambda _properties: client)
        return self._admin

    def ask(self, question: Callable[[float], Any]) -> Any:
        """Ask a coordinator, which may be on its way to another broker. Raises KafkaException."""
        while True:
            try:
                return question(self.left())
            except KafkaException as error:
                if error.args[0].code() not in COORDINATOR_MOVES or self.ends_at - self.clock() < ASK_AGAIN:
                    raise
            self.sleep(ASK_AGAIN)

    def places(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """All partitions of these topics, of those that are there."""
        return [
            (name, each)
            for name in names
            if name in self.facts
            for each in range(self.facts[name].partitions)
        ]


def place(topic: str, partition: int, offset: int = -1001) -> TopicPartition:
    """A partition in the client's form."""
    return TopicPartition(topic, partition, offset)
