"""``streamloop doctor`` on a real broker: what is wrong is told apart, with what to do, and nothing is
changed."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from streamloop import StreamLoop
from streamloop.doctor.examine import examine
from streamloop.doctor.finding import Finding, Level, Report
from streamloop.doctor.patient import Patient
from streamloop.preflight import topics_of
from streamloop.settings import Settings
from tests.broker.loops.processes import streamloop
from tests.realkafka.client import Record, unique_name
from tests.realkafka.secured import PASSWORD, USER, SecuredKafka
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.realkafka import KafkaCluster, Members

ALICE: dict[str, Any] = {
    "security_protocol": "sasl_plaintext",
    "sasl_mechanism": "PLAIN",
    "sasl_username": USER,
    "sasl_password": PASSWORD,
}
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    with SecuredKafka() as cluster:
        yield cluster


def look(
    brokers: str, topic: str = "orders", group: str = "billing", wait: float = 60.0, **settings: Any
) -> Report:
    loop: StreamLoop[Any] = StreamLoop(group, brokers=brokers, ops_address="127.0.0.1:0", **settings)

    @loop.consumer(topic, retry_topics=["30s"])
    async def charge(_value: bytes) -> None: ...

    assembly = loop.assemble()
    patient = Patient(
        assembly.settings,
        assembly,
        topics_of(assembly),
        time.monotonic() + wait,
        environ={"OTEL_SDK_DISABLED": "true"},
    )
    return examine(patient)


def errors(report: Report) -> list[Finding]:
    return [each for each in report.findings if each.level is Level.ERROR]


def only_error(report: Report) -> Finding:
    [found] = errors(report)
    return found


@pytest.fixture
def topics(kafka: KafkaCluster, group: str) -> Callable[..., str]:
    """A source topic with its retry and dead-letter topics; returns its name."""

    def make(
        partitions: int = 2, *, on: Any = None, retry: dict[str, str] | None = None, **source: str
    ) -> str:
        cluster = on or kafka
        config = {name.replace("_", "."): value for name, value in source.items()}
        name = str(cluster.create_topic(partitions, prefix="orders", config=config))
        room = {"max.message.bytes": "2000000", "retention.ms": str(14 * 24 * HOUR_MS)}
        cluster.create_topic(partitions, name=f"{name}.{group}.retry.30s", config={**room, **(retry or {})})
        cluster.create_topic(partitions, name=f"{name}.{group}.dlq", config={**room, "retention.ms": "-1"})
        return name

    return make


def test_a_deployment_that_is_good_has_no_error_and_nothing_was_changed(
    kafka: KafkaCluster, topics: Callable[..., str], group: str
) -> None:
    source = topics(message_timestamp_type="LogAppendTime")
    kafka.produce(source, [Record(b"x", partition=each) for each in (0, 0, 1)])
    kafka.commit(group, source, {0: (1, ""), 1: (1, "")})
    before = kafka.topics(), kafka.committed(group, source)
    report = look(kafka.bootstrap, source, group)
    assert errors(report) == []
    assert report.exit_code() == 0
    [behind] = report.of("group.offsets")[:1]
    assert behind.found.startswith(f"The group {group} is 1 message behind, the oldest written ")
    assert [each.level for each in report.of("clock")] == [Level.OK]
    assert {each.check for each in report.findings if each.level is Level.WARN} == {"group.members"}
    assert (kafka.topics(), kafka.committed(group, source)) == before
    assert kafka.members(group) == {}
    [login] = report.of("broker.login")
    assert "1 broker," in login.found
    assert any("KIP-848" in each.found for each in report.of("broker.features"))


def test_topics_that_a_run_creates_are_no_error_and_that_it_may_is_looked_at(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    report = look(kafka.bootstrap, topic(2), group)
    assert errors(report) == []
    assert [each.found for each in report.of("access.cluster")] == [
        "We may create the 3 topics that are not there yet."
    ]
    fixed, *others = errors(look(kafka.bootstrap, topic(2), group, create_topics=False))
    assert len(others) == 2
    assert "does not exist (create_topics is off)" in fixed.found
    assert "--create --topic" in fixed.commands[0]


class TestAddressAndLogin:
    def test_a_wrong_password_is_a_refused_login_and_no_broken_address(self, secured: SecuredKafka) -> None:
        report = look(secured.login, **{**ALICE, "sasl_password": "wrong-secret"})
        assert [each.level for each in report.of("broker.address")] == [Level.OK]
        found = only_error(report)
        assert found.check == "broker.login"
        assert found.found.startswith(f"The login as {USER} is refused:")
        assert "sasl_password" in found.do
        assert "wrong-secret" not in json.dumps(report.to_json())
        # What can't be looked at without a login is not known; it is not wrong.
        assert {each.level for each in report.of("topic")} == {Level.UNKNOWN}

    def test_the_right_password_is_let_in(self, secured: SecuredKafka) -> None:
        report = look(secured.login, **ALICE)
        assert [each.level for each in report.of("broker.login")] == [Level.OK]
        assert "over SASL PLAIN" in report.of("broker.address")[0].found

    def test_no_login_where_one_is_wanted(self, secured: SecuredKafka) -> None:
        [found, _login] = errors(look(secured.login, wait=15))
        assert "wants a login, and security_protocol is plaintext" in found.found
        assert "sasl_plaintext" in found.do

    def test_a_login_where_none_is_asked_for(self, secured: SecuredKafka) -> None:
        [found, _login] = errors(look(secured.bootstrap, wait=15, **ALICE))
        assert "asks for no login, and security_protocol is sasl_plaintext" in found.found
        assert "set security_protocol to plaintext" in found.do

    def test_a_mechanism_that_the_listener_does_not_take(self, secured: SecuredKafka) -> None:
        [found, *_] = errors(look(secured.login, **{**ALICE, "sasl_mechanism": "SCRAM-SHA-512"}))
        assert "does not take SCRAM-SHA-512 (sasl_mechanism); it takes PLAIN." in found.found

    def test_plaintext_to_a_listener_with_tls(self, secured: SecuredKafka) -> None:
        [found, _login] = errors(look(secured.tls, wait=15))
        assert "speaks TLS, and security_protocol is plaintext" in found.found
        assert "Set security_protocol to ssl" in found.do

    def test_tls_to_a_listener_without(self, secured: SecuredKafka) -> None:
        [found, _login] = errors(look(secured.bootstrap, wait=15, security_protocol="ssl"))
        assert "speaks plaintext, and security_protocol is ssl" in found.found

    def test_a_certificate_of_an_unknown_authority_and_one_that_is_believed_and_ends_soon(
        self, secured: SecuredKafka
    ) -> None:
        [found, login] = errors(look(secured.tls, wait=20, security_protocol="ssl"))
        assert "is not believed: self-signed certificate" in found.found.replace("self signed", "self-signed")
        assert "ssl_ca_location" in found.do
        assert login.found.startswith("TLS fails:")
        report = look(secured.tls, security_protocol="ssl", ssl_ca_location=str(secured.authority))
        assert [each.level for each in report.of("broker.login")] == [Level.OK]
        assert "over TLS" in report.of("broker.address")[0].found
        [ends] = report.of("broker.certificate")
        assert ends.level is Level.WARN

    def test_a_broker_that_advertises_where_nobody_listens(self, secured: SecuredKafka) -> None:
        report = look(secured.astray, wait=20)
        assert [each.level for each in report.of("broker.address")] == [Level.OK]
        [found] = report.of("broker.advertised")
        assert found.level is Level.ERROR
        assert "is to be found at 127.0.0.1:9 (advertised.listeners), which can't be reached" in found.found

    def test_addresses_are_told_apart_and_one_that_works_is_enough(self, kafka: KafkaCluster) -> None:
        report = look(f"127.0.0.1:9,nowhere.invalid:9092,{kafka.bootstrap}")
        refused, nameless, good = report.of("broker.address")
        assert "takes no connection: connection refused" in refused.found
        assert "Nothing listens there." in refused.means
        assert "does not resolve" in nameless.found
        assert good.level is Level.OK
        assert [each.level for each in report.of("broker.login")] == [Level.OK]

    def test_a_broker_that_hangs_takes_no_longer_than_the_wait(self, fresh_kafka: KafkaCluster) -> None:
        [node] = fresh_kafka.nodes
        node.suspend()
        began = time.monotonic()
        report = look(fresh_kafka.bootstrap, wait=8)
        assert time.monotonic() - began < 30  # 8, and what a slow machine takes
        assert "takes the connection and does not answer" in errors(report)[0].found
        assert {each.level for each in report.of("group")} == {Level.UNKNOWN}


class TestTopics:
    def test_a_missing_source_topic_has_the_command_that_creates_it(
        self, kafka: KafkaCluster, group: str
    ) -> None:
        name = unique_name("missing")
        found = only_error(look(kafka.bootstrap, name, group))
        assert (found.check, found.about) == ("topic.source", name)
        assert found.commands == (
            f"kafka-topics.sh --bootstrap-server {kafka.bootstrap} --create --topic {name}",
        )

    def test_a_compacted_retry_topic_with_a_short_retention_and_few_partitions(
        self, kafka: KafkaCluster, topic: Callable[..., str], group: str
    ) -> None:
        source = topic(3)
        retry = f"{source}.{group}.retry.30s"
        kafka.create_topic(
            1,
            name=retry,
            config={"cleanup.policy": "compact", "retention.ms": "600000", "max.message.bytes": "2000000"},
        )
        report = look(kafka.bootstrap, source, group)
        compacted, short = errors(report)
        assert f"{retry} has cleanup.policy=compact" in compacted.found
        assert "cleanup.policy=delete" in compacted.commands[0]
        assert "keeps messages for 10m" in short.found
        [partitions] = report.of("topic.partitions")
        assert f"--alter --topic {retry} --partitions 3" in partitions.commands[0]
        # And these commands are what mends it.
        kafka.set_topic_config(
            retry, cleanup_policy="delete", retention_ms=short.commands[0].rpartition("=")[2]
        )
        kafka.add_partitions(retry, 3)
        mended = look(kafka.bootstrap, source, group)
        assert (errors(mended), mended.of("topic.partitions")) == ([], [])

    def test_replicas_that_are_away_are_said_and_where_nothing_can_be_written_is_an_error(
        self, kafka3: KafkaCluster, topics: Callable[..., str], group: str
    ) -> None:
        source = topics(on=kafka3)
        strict = f"{source}.{group}.dlq"
        kafka3.set_topic_config(strict, min_insync_replicas="3")
        assert errors(look(kafka3.bootstrap, source, group)) == []
        gone = kafka3.nodes[-1]
        gone.kill()
        wait_until(
            lambda: all(
                len(part.isrs) == 2
                for name in (source, strict)
                for part in kafka3.admin.list_topics(timeout=10).topics[name].partitions.values()
            ),
            60,
            "the replicas of the node to be out of sync",
        )
        report = look(kafka3.bootstrap, source, group)
        assert {(each.about, each.level) for each in report.of("topic.available")} == {
            (source, Level.WARN),
            (f"{source}.{group}.retry.30s", Level.WARN),
            (strict, Level.ERROR),
        }
        assert {each.about: each.level for each in report.of("broker.address")}[gone.address] is Level.ERROR
        assert [each.level for each in report.of("broker.login")] == [Level.OK]

    def test_a_control_topic_that_forgets_is_an_error(
        self, kafka: KafkaCluster, topics: Callable[..., str], group: str
    ) -> None:
        source = topics()
        kafka.create_topic(1, name=f"{group}.control")
        kafka.create_topic(1, name=f"{group}.replays", config={"cleanup.policy": "compact"})
        kafka.create_topic(1, name=f"{source}.{group}.replay", config={"cleanup.policy": "compact"})
        report = look(kafka.bootstrap, source, group)
        assert {(each.about, each.level) for each in report.of("topic.own")} == {
            (f"{group}.control", Level.ERROR),
            (f"{group}.replays", Level.OK),
            (f"{source}.{group}.replay", Level.ERROR),
        }

    def test_a_source_that_keeps_messages_for_an_hour_and_takes_more_than_the_buffer(
        self, kafka: KafkaCluster, topics: Callable[..., str], group: str
    ) -> None:
        source = topics(retention_ms=str(HOUR_MS), max_message_bytes="1900000")
        report = look(kafka.bootstrap, source, group, high_watermark_bytes="1MiB")
        assert [each.level for each in report.of("topic.retention")] == [Level.WARN]
        [size] = report.of("topic.size")
        assert "more than high_watermark_bytes" in size.found


class TestRights:
    def test_what_alice_may_not_do_is_named_with_the_rule_that_allows_it(
        self, secured: SecuredKafka, topics: Callable[..., str], group: str
    ) -> None:
        source = topics(on=secured)
        dead = f"{source}.{group}.dlq"
        consumer = Consumer({"bootstrap.servers": secured.bootstrap, "group.id": group, "log_level": 0})
        consumer.subscribe([source])
        wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment(), 30, "a member")
        denied = [
            (ResourceType.TOPIC, source, AclOperation.READ),
            (ResourceType.TOPIC, dead, AclOperation.WRITE),
            (ResourceType.TOPIC, f"{source}.{group}.retry.30s", AclOperation.DESCRIBE_CONFIGS),
            (ResourceType.GROUP, group, AclOperation.READ),
        ]
        bindings = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, who, "*", operation, permission)
            for kind, name, operation in denied
            for who, operation, permission in (
                ("User:*", AclOperation.ALL, AclPermissionType.ALLOW),
                (f"User:{USER}", operation, AclPermissionType.DENY),
            )
        ]
        for made in secured.admin.create_acls(bindings).values():
            made.result(30)
        try:
            report = look(secured.login, source, group, **ALICE)
        finally:
            consumer.close()
        found = {(each.about, each.commands[0].rpartition("--add ")[2]) for each in errors(report)}
        allow = f"--allow-principal User:{USER} --operation"
        assert found == {
            (f"topic {source}", f"{allow} Read --topic {source}"),
            (f"topic {dead}", f"{allow} Write --topic {dead}"),
            (f"group {group}", f"{allow} Read --group {group}"),
        }
        told = [each for each in report.of("access.topic") if each.level is Level.WARN]
        assert [each.commands[0].split()[-3] for each in told] == ["DescribeConfigs"]

    def test_a_topic_that_alice_may_not_even_see(
        self, secured: SecuredKafka, topics: Callable[..., str], group: str
    ) -> None:
        source = topics(on=secured)
        binding = AclBinding(
            ResourceType.TOPIC,
            source,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.ALL,
            AclPermissionType.DENY,
        )
        secured.admin.create_acls([binding])[binding].result(30)
        report = look(secured.login, source, group, **ALICE)
        [found] = [each for each in errors(report) if each.about == f"topic {source}"]
        assert "may not Describe" in found.found


class TestGroup:
    def test_members_of_another_strategy_keep_ours_out_unless_ours_speak_the_new_protocol(
        self, kafka: KafkaCluster, topics: Callable[..., str], group: str
    ) -> None:
        source = topics()
        consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": group,
                "partition.assignment.strategy": "range",
                "log_level": 0,
            }
        )
        consumer.subscribe([source])
        try:
            wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment(), 30, "a member")
            classic = look(kafka.bootstrap, source, group, group_protocol="classic")
            auto = look(kafka.bootstrap, source, group)
        finally:
            consumer.close()
        found = only_error(classic)
        assert found.check == "group.protocol"
        assert "by range, ours by cooperative-sticky" in found.found
        assert "INCONSISTENT_GROUP_PROTOCOL" in found.means
        assert errors(auto) == []

    def test_a_member_that_reads_other_topics_and_partitions_of_nobody(
        self, kafka: KafkaCluster, topics: Callable[..., str], topic: Callable[..., str], group: str
    ) -> None:
        source, other = topics(), topic()
        consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "log_level": 0,
            }
        )
        consumer.subscribe([other])
        try:
            wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment(), 30, "a member")
            report = look(kafka.bootstrap, source, group)
        finally:
            consumer.close()
        said = [each.found for each in report.of("group.members") if each.about == group]
        assert f"Members of the group {group} read {other}, which this loop does not." in said
        assert any(each.startswith(f"2 partitions are assigned to no member of {group}") for each in said)

    def test_committed_offsets_that_are_not_in_the_log(
        self, kafka: KafkaCluster, topics: Callable[..., str], group: str
    ) -> None:
        source = topics()
        kafka.produce(source, [Record(b"x", partition=each) for each in (0, 1) for _ in range(10)])
        kafka.commit(group, source, {0: (2, ""), 1: (50, "")})
        kafka.delete_records(source, {0: 5})
        gone, beyond = errors(look(kafka.bootstrap, source, group, out_of_range="stop"))
        assert f"{source}/0 begins at 5, and {group} has committed 2: 3 offsets are gone" in gone.found
        assert "out_of_range says: stop" in gone.means
        assert f"{source}/1 ends at 10, and {group} has committed 50, which is beyond." in beyond.found

    def test_without_a_loop_the_group_is_looked_at_by_what_it_has_committed(
        self, kafka: KafkaCluster, topics: Callable[..., str], group: str
    ) -> None:
        source = topics()
        kafka.produce(source, [Record(b"x", partition=0)] * 10)
        kafka.commit(group, source, {0: (4, "")})
        settings = Settings(brokers=(kafka.bootstrap,), group=group)
        report = examine(Patient(settings, None, None, time.monotonic() + 60, environ={}))
        assert errors(report) == []
        [behind] = report.of("group.offsets")
        assert behind.found.startswith(f"The group {group} is 6 messages behind, the oldest written ")
        assert behind.found.endswith("; 1 of 2 partitions have no committed offset.")
        assert [each.level for each in report.of("topic")] == [Level.UNKNOWN]

    def test_a_message_that_will_be_deleted_before_it_is_handled(
        self, kafka: KafkaCluster, topics: Callable[..., str], group: str
    ) -> None:
        source = topics(retention_ms=str(HOUR_MS))
        old = round(time.time() * 1000) - 54 * 60_000
        kafka.produce(source, [Record(b"x", partition=0, timestamp=old), Record(b"x", partition=1)])
        kafka.commit(group, source, {0: (0, ""), 1: (0, "")})
        found = only_error(look(kafka.bootstrap, source, group))
        assert found.check == "group.retention"
        assert found.about == f"{group} {source}/0"
        assert "was written 54 minutes ago, and the topic keeps messages for 60 minutes." in found.found

    def test_a_producer_whose_clock_is_ahead(
        self, kafka: KafkaCluster, topics: Callable[..., str], group: str
    ) -> None:
        source = topics()
        kafka.produce(source, [Record(b"x", timestamp=round(time.time() * 1000) + 60_000)])
        [found] = look(kafka.bootstrap, source, group).of("clock")
        assert found.level is Level.WARN
        assert "in our future by its producer's clock" in found.found


def test_the_command_prints_what_is_wrong_and_its_exit_code_tells(
    members: Members, kafka: KafkaCluster, topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    source = topic(2)
    given = [
        *("tests.broker.loops.service:loop", "--brokers", kafka.bootstrap, "--group", group),
        *("--topic", f"orders={source}", "--ops-address", "127.0.0.1:1"),
    ]
    good = streamloop(members, "doctor", *given)
    assert good.wait(60) == 0
    assert "0 error" in good.lines[-1]
    strict = streamloop(members, "doctor", *given, "--strict")
    assert strict.wait(60) == 1  # nobody is in the group
    bad = streamloop(members, "doctor", *given, "--no-create-topics", "--json")
    assert bad.wait(60) == 1
    found = json.loads("\n".join(bad.lines))
    assert found["counts"]["error"] == 3  # retry, dead-letter and replay topic
    assert {each["level"] for each in found["findings"]} >= {"ok", "warn", "error"}
    missing = streamloop(members, "doctor", "tests.broker.loops.nowhere:loop")
    assert missing.wait(60) == 2
