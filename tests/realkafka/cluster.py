"""A Kafka cluster of one or three nodes on 127.0.0.1, with its data in a temporary folder.

What calls it: the fixtures `kafka`, `kafka3` and `fresh_kafka`, and the benchmarks. One node has replication
factor 1; three have replication factor 3 and min.insync.replicas 2. Its settings are those of a test: groups
balance at once, short sessions are allowed, retention, compaction and abandoned transactions are looked after
every second. It never creates a topic by itself.
"""

import base64
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException

from tests.realkafka.children import folder_removed, remove_folder_at_exit
from tests.realkafka.client import KafkaClient
from tests.realkafka.jars import fetch_jars, java
from tests.realkafka.node import HOST, TEST_JVM, KafkaNode, free_ports
from tests.realkafka.waiting import wait_until

START_SECONDS = 90.0
START_TRIES = 3
# A broker that was killed keeps its registration, and a member of a `consumer` group its partitions, this
# long.
BROKER_SESSION_MS = 4_000
CONSUMER_SESSION_MS = 6_000


def _properties(nodes: Sequence[KafkaNode]) -> dict[str, str]:
    """The settings that all nodes of a cluster have in common."""
    replicas, in_sync = (3, 2) if len(nodes) >= 3 else (1, 1)
    properties = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{n.node_id}@{HOST}:{n.controller_port}" for n in nodes),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": str(BROKER_SESSION_MS),
        # Topics.
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "num.partitions": "1",
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        # Groups: no wait for more members, sessions as short as a test wants them.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(CONSUMER_SESSION_MS),
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "500",
        # What a broker does now and then, a test can't wait for.
        "log.initial.task.delay.ms": "500",
        "log.retention.check.interval.ms": "1000",
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
        "log.segment.delete.delay.ms": "500",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }
    if len(nodes) == 1:
        # A test may forbid a topic to everyone; without such a rule all is allowed. Not with several nodes:
        # until they have read the rules they would refuse each other, all being the same anonymous user.
        properties["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        properties["allow.everyone.if.no.acl.found"] = "true"
    return properties


class KafkaCluster(KafkaClient):
    """Nodes of our own, and a client of them. Use it as a context manager, or call start() and stop().

    nodes: 1 (default) or 3. properties: broker settings that replace the usual ones. jvm: Java's options.
    KafkaUnavailableError says what to install where Kafka can't run.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        jvm: Sequence[str] = TEST_JVM,
    ) -> None:
        super().__init__()
        self._count = nodes
        self._overrides = dict(properties or {})
        self._jvm = tuple(jvm)
        self._folder: Path | None = None
        self.nodes: list[KafkaNode] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """host:port of each node, for bootstrap.servers."""
        if not self.nodes:
            raise RuntimeError("the cluster was not started")
        return ",".join(node.address for node in self.nodes)

    def start(self) -> None:
        """Fetch the jars if need be, format, start, and wait until every node answers."""
        classpath = f"{fetch_jars()}/*"
        command = [java(), *self._jvm, "-cp", classpath]
        for tries_left in reversed(range(START_TRIES)):
            self._lay_out(command)
            try:
                self._format()
                for node in self.nodes:
                    node.start()
                self.wait_ready()
                return
            except BaseException as error:
                said = "\n".join(node.last_words() for node in self.nodes)
                self.stop()
                # Another process took a port between the look and the start: that alone is worth another try.
                if not (
                    tries_left and isinstance(error, _EndedEarlyError) and "Address already in use" in said
                ):
                    raise

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until every node answers and the cluster lists them all. A node that ended raises at once."""

        def ready() -> bool:
            for node in self.nodes:
                if not node.running:
                    raise _EndedEarlyError(
                        f"Kafka node {node.node_id} ended while starting:\n{node.last_words()}"
                    )
                if not node.listening():  # the cluster lists a killed node until its session ends
                    return False
            try:
                listed = self.admin.list_topics(timeout=1.0).brokers
            except KafkaException:
                return False
            return len(listed) == len(self.nodes)

        wait_until(
            ready, timeout, lambda: "Kafka to answer:\n" + "\n".join(n.last_words(5) for n in self.nodes)
        )

    def heal(self) -> None:
        """Bring back every node that a test left suspended or down, with its data."""
        hurt = False
        for node in self.nodes:
            if node.suspended:
                node.resume()
                hurt = True
            if not node.running:
                node.start()
                hurt = True
        if hurt:
            self.wait_ready()

    def restart(self, node: KafkaNode) -> None:
        """Start a node that is down, on its ports and its data, and wait until the whole cluster answers."""
        node.start()
        self.wait_ready()

    def stop(self) -> None:
        """End every node and remove the data. The data goes, so nothing is gained by a clean stop."""
        self.close()
        for node in self.nodes:
            node.kill()
        self.nodes = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            folder_removed(self._folder)
            self._folder = None

    def _lay_out(self, command: Sequence[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="streamloop-kafka-"))
        remove_folder_at_exit(self._folder)
        ports = free_ports(2 * self._count)
        self.nodes = [
            KafkaNode(
                index + 1, ports[2 * index], ports[2 * index + 1], self._folder / f"node-{index + 1}", command
            )
            for index in range(self._count)
        ]
        common = {**_properties(self.nodes), **self._overrides}
        for node in self.nodes:
            node.write_properties(common)

    def _format(self) -> None:
        # The first byte is fixed: an id that begins with '-' would be read as an option.
        cluster_id = base64.urlsafe_b64encode(b"s" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        formats = [(node, node.format(cluster_id)) for node in self.nodes]
        deadline = time.monotonic() + START_SECONDS
        for node, child in formats:
            try:
                child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            finally:
                code = child.end(0)
            if code != 0:
                raise RuntimeError(f"formatting Kafka node {node.node_id} failed:\n{node.last_words()}")


class _EndedEarlyError(RuntimeError):
    """A node's process ended before the cluster was ready."""
