"""Topics and offsets on a real broker: what is described, created and checked, and that the commands given do
mend."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from streamloop.errors import TopicError
from streamloop.kafka.topic_admin import TopicAdmin
from streamloop.kafka.topics import (
    UNKNOWN_ID,
    Change,
    Commands,
    TopicChange,
    TopicFacts,
    TopicSpec,
    TopicWatch,
    Untold,
    plan_topics,
)
from tests.realkafka import fetch_jars
from tests.realkafka.client import Record, unique_name
from tests.realkafka.jars import java
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.realkafka import KafkaCluster

TIMEOUT = 30.0
DAY_MS = 86_400_000
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "org.apache.kafka.tools.ConfigCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}


def admin_of(cluster: KafkaCluster) -> TopicAdmin:
    return TopicAdmin(
        {"bootstrap.servers": cluster.bootstrap, "log_level": 0}, Commands(cluster.bootstrap.split(",")[0])
    )


def source_facts(admin: TopicAdmin, topic: str) -> TopicFacts:
    facts = admin.describe([topic], TIMEOUT)[topic]
    assert isinstance(facts, TopicFacts)
    return facts


def planned(admin: TopicAdmin, source: str) -> list[TopicSpec]:
    return plan_topics(
        source_facts(admin, source), retry=[(30.0, f"{source}.g.retry.30s")], dead_letter=f"{source}.g.dlq"
    )


@contextmanager
def forbidden(
    cluster: KafkaCluster, kind: ResourceType, name: str, operation: AclOperation
) -> Iterator[None]:
    """Within the block nobody may do that, and all else is allowed. On a cluster of one node."""

    def binding(what: AclOperation, permission: AclPermissionType) -> AclBinding:
        return AclBinding(kind, name, ResourcePatternType.LITERAL, "User:*", "*", what, permission)

    rules = [
        binding(AclOperation.ALL, AclPermissionType.ALLOW),
        binding(operation, AclPermissionType.DENY),
    ]
    for made in cluster.admin.create_acls(rules).values():
        made.result(TIMEOUT)
    try:
        yield
    finally:
        those = AclBindingFilter(
            kind,
            name,
            ResourcePatternType.LITERAL,
            None,  # type: ignore[arg-type]  # any principal
            None,  # type: ignore[arg-type]  # any host
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for deleted in cluster.admin.delete_acls([those]).values():
            deleted.result(TIMEOUT)


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], None]:
    """Runs a command in a shell where Kafka's own tools are on the PATH."""
    for script, main in TOOLS.items():
        path = tmp_path / script
        path.write_text(f'#!/bin/sh\nexec "{java()}" -Xmx256m -cp "{fetch_jars()}/*" {main} "$@"\n')
        path.chmod(0o755)

    def run(command: str) -> None:
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    return run


# ------------------------------------------------------------------------------------------ describe


def test_a_topic_is_described_whole_and_a_missing_one_is_none(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(3, config={"retention.ms": "600000", "max.message.bytes": "5000"})
    admin = admin_of(kafka)
    described = admin.describe([name, "no-such-topic"], TIMEOUT)
    assert described["no-such-topic"] is None
    facts = described[name]
    assert isinstance(facts, TopicFacts)
    assert facts.topic_id not in (UNKNOWN_ID, "")
    assert (facts.partitions, facts.replication_factor, facts.min_insync_replicas) == (3, 1, 1)
    assert (facts.cleanup_policy, facts.retention_ms, facts.max_message_bytes) == ("delete", 600_000, 5_000)
    assert facts.replicas == ((1,), (1,), (1,))
    assert "no-such-topic" not in kafka.topics(), "asking must not create"
    assert admin.cluster_id(TIMEOUT) == kafka.admin.list_topics(timeout=TIMEOUT).cluster_id


def test_a_topic_that_may_not_be_described_is_untold_and_not_missing(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    admin = admin_of(kafka)
    with forbidden(kafka, ResourceType.TOPIC, name, AclOperation.DESCRIBE):
        wait_until(lambda: isinstance(admin.describe([name], TIMEOUT)[name], Untold))
        found = admin.describe([name], TIMEOUT)[name]
    assert isinstance(found, Untold)
    assert "authorization" in found.reason.lower()


def test_configurations_that_may_not_be_read_are_unknown_which_is_a_warning(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    source = topic()
    admin = admin_of(kafka)
    specs = planned(admin, source)
    admin.ensure(specs, create=True, timeout=TIMEOUT).require()
    with forbidden(kafka, ResourceType.TOPIC, specs[1].name, AclOperation.DESCRIBE_CONFIGS):
        wait_until(lambda: bool(admin.ensure(specs, create=True, timeout=TIMEOUT).warnings))
        outcome = admin.ensure(specs, create=True, timeout=TIMEOUT)
    outcome.require()
    assert outcome.facts[specs[1].name].retention_ms is None
    assert specs[1].name in outcome.warnings[0]


def test_H5_a_broker_that_is_down_makes_topics_untold_within_the_time_given(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    admin = admin_of(kafka)
    source_facts(admin, name)
    kafka.nodes[0].kill()
    assert isinstance(admin.describe([name], 0.5)[name], Untold)
    assert isinstance(admin.resolve_offsets([(name, 0)], "latest", 0.5)[name, 0], Untold)


# ------------------------------------------------------------------------------------- create and check


def test_missing_topics_are_created_as_planned_and_found_good_afterwards(
    kafka3: KafkaCluster,
) -> None:
    source = kafka3.create_topic(2, prefix="src", replication_factor=3, config={"max.message.bytes": "50000"})
    admin = admin_of(kafka3)
    specs = planned(admin, source)
    outcome = admin.ensure(specs, create=True, timeout=TIMEOUT)
    outcome.require()
    assert outcome.created == [spec.name for spec in specs]
    assert outcome.warnings == []
    for spec in specs:
        facts = outcome.facts[spec.name]
        assert (facts.partitions, facts.replication_factor, facts.min_insync_replicas) == (2, 3, 2)
        assert (facts.cleanup_policy, facts.max_message_bytes) == ("delete", 50_000 + 64 * 1024)
    assert [outcome.facts[s.name].retention_ms for s in specs] == [14 * DAY_MS, -1]
    again = admin.ensure(specs, create=True, timeout=TIMEOUT)
    assert (again.created, again.violations) == ([], [])


def test_members_that_create_the_same_topics_at_once_all_succeed(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    source = topic()
    admins = [admin_of(kafka) for _ in range(4)]
    specs = planned(admins[0], source)
    together = threading.Barrier(4)
    created: list[list[str]] = []

    def ensure(admin: TopicAdmin) -> None:
        admin.describe([source], TIMEOUT)
        together.wait(TIMEOUT)
        outcome = admin.ensure(specs, create=True, timeout=TIMEOUT)
        outcome.require()
        created.append(outcome.created)

    threads = [threading.Thread(target=ensure, args=(admin,)) for admin in admins]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT * 2)
    assert len(created) == 4
    assert sorted(name for names in created for name in names) == sorted(spec.name for spec in specs)


def test_without_leave_to_create_the_error_gives_commands_that_do(
    kafka: KafkaCluster, topic: Callable[..., str], shell: Callable[[str], None]
) -> None:
    source = topic(2)
    admin = admin_of(kafka)
    specs = planned(admin, source)
    outcome = admin.ensure(specs, create=False, timeout=TIMEOUT)
    with pytest.raises(TopicError, match=r"does not exist and could not be created \(create_topics is off\)"):
        outcome.require()
    shell(outcome.violations[1].command)
    left = admin.ensure(specs, create=False, timeout=TIMEOUT)
    assert [violation.topic for violation in left.violations] == [specs[0].name]
    assert left.facts[specs[1].name].retention_ms == -1


def test_a_member_that_is_not_authorized_to_create_gets_the_same_error(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    source = topic()
    admin = admin_of(kafka)
    spec = planned(admin, source)[0]
    with (
        forbidden(kafka, ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
        forbidden(kafka, ResourceType.TOPIC, spec.name, AclOperation.CREATE),
    ):
        outcome = admin.ensure([spec], create=True, timeout=TIMEOUT)
    (violation,) = outcome.violations
    assert "authorization" in violation.problem.lower()
    assert violation.command.startswith("kafka-topics.sh --bootstrap-server 127.0.0.1:")


def test_each_violation_is_mended_by_its_command(kafka3: KafkaCluster, shell: Callable[[str], None]) -> None:
    source = kafka3.create_topic(2, prefix="src", replication_factor=3)
    admin = admin_of(kafka3)
    spec = planned(admin, source)[0]
    kafka3.create_topic(
        2,
        name=spec.name,
        replication_factor=1,
        config={
            "cleanup.policy": "compact",
            "retention.ms": "60000",
            "max.message.bytes": "1000",
            "min.insync.replicas": "1",
        },
    )
    violations = admin.ensure([spec], create=True, timeout=TIMEOUT).violations
    assert len(violations) == 5
    for violation in violations:
        shell(violation.command)
    wait_until(
        lambda: admin.ensure([spec], create=True, timeout=TIMEOUT).violations == [],
        message="the topic to be mended",
    )


# ------------------------------------------------------------------------------------------ offsets


def test_start_positions_are_numbers_for_each_partition(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(3)
    kafka.produce(name, [Record(b"v", partition=0, timestamp=1000 * n) for n in range(1, 11)])
    kafka.produce(name, [Record(b"v", partition=1, timestamp=3500)])
    kafka.delete_records(name, {0: 4})
    admin = admin_of(kafka)
    partitions = [(name, p) for p in range(3)]

    def resolved(start: str | int) -> list[int | Untold]:
        found = admin.resolve_offsets(partitions, start, TIMEOUT)  # type: ignore[arg-type]
        return [found[p] for p in partitions]

    assert resolved("earliest") == [4, 0, 0]
    assert resolved("latest") == [10, 1, 0]
    assert resolved(6500) == [6, 1, 0], "the end, where nothing is as new"
    assert resolved(10_001) == [10, 1, 0]


def test_a_partition_that_does_not_exist_is_untold_and_the_others_are_resolved(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    kafka.produce(name, [b"a", b"b"])
    found = admin_of(kafka).resolve_offsets([(name, 0), (name, 7), ("no-such-topic", 0)], "latest", TIMEOUT)
    assert found[name, 0] == 2
    assert isinstance(found[name, 7], Untold)
    assert isinstance(found["no-such-topic", 0], Untold)


def test_R18_latest_lies_before_an_open_transaction_whose_records_arrive_later(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    kafka.produce(name, [b"a"])
    producer = Producer(kafka.producer_config(**{"transactional.id": unique_name("open")}))
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce(name, b"held")
    producer.flush(TIMEOUT)
    assert admin_of(kafka).resolve_offsets([(name, 0)], "latest", TIMEOUT) == {(name, 0): 1}
    producer.commit_transaction(TIMEOUT)
    wait_until(lambda: kafka.end_offsets(name) == {0: 3})
    assert admin_of(kafka).resolve_offsets([(name, 0)], "latest", TIMEOUT) == {(name, 0): 3}


# ------------------------------------------------------------------------------------------ the watch


def test_R12_R13_the_watch_sees_partitions_added_and_a_topic_deleted_and_recreated(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(1)
    admin = admin_of(kafka)
    watch = TopicWatch(admin.describe([name], TIMEOUT), gone_after=0)

    def next_change() -> TopicChange:
        found = wait_until(lambda: watch.update(0, admin.describe([name], TIMEOUT, configs=False)))
        (change,) = found
        return change

    first = watch.facts(name)
    assert first is not None
    kafka.add_partitions(name, 3)
    added = next_change()
    assert added.change is Change.PARTITIONS_ADDED
    assert added.after is not None
    assert added.after.partitions == 3
    kafka.delete_topic(name)
    assert next_change().change is Change.GONE
    kafka.create_topic(1, name=name)
    recreated = next_change()
    assert recreated.change is Change.RECREATED
    assert recreated.after is not None
    assert recreated.after.topic_id != first.topic_id
