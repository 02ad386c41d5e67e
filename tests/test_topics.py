"""Which topics a source needs, what is wrong with one, what changed: rules without a broker, and the mock's
limits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from streamloop.errors import TopicError
from streamloop.kafka.topic_admin import BrokersUnreachableError, TopicAdmin
from streamloop.kafka.topics import (
    UNKNOWN_ID,
    Change,
    Commands,
    Purpose,
    TopicFacts,
    TopicSpec,
    TopicWatch,
    Untold,
    check_topic,
    describe_missing_source,
    plan_topics,
    shown_id,
    unknown_facts,
)
from tests.mock_cluster import MockCluster

DAY_MS = 86_400_000
COMMANDS = Commands("kafka:9092")
SOURCE = TopicFacts(
    name="orders",
    topic_id="id-1",
    partitions=2,
    replication_factor=3,
    cleanup_policy="delete",
    retention_ms=7 * DAY_MS,
    max_message_bytes=1_000_000,
    min_insync_replicas=2,
    replicas=((1, 2, 3), (2, 3, 4)),
)
RETRY = [(30.0, "orders.billing.retry.30s"), (300.0, "orders.billing.retry.5m")]
DLQ = "orders.billing.dlq"


def retry_spec() -> TopicSpec:
    return plan_topics(SOURCE, retry=RETRY[:1], dead_letter=None)[0]


def dead_letter_spec() -> TopicSpec:
    return plan_topics(SOURCE, retry=[], dead_letter=DLQ)[0]


def as_planned(spec: TopicSpec) -> TopicFacts:
    return TopicFacts(
        name=spec.name,
        topic_id="id-2",
        partitions=spec.partitions,
        replication_factor=spec.replication_factor,
        cleanup_policy="delete",
        retention_ms=spec.retention_ms,
        max_message_bytes=spec.max_message_bytes,
        min_insync_replicas=spec.min_insync_replicas,
        replicas=spec.replicas,
    )


# ------------------------------------------------------------------------------------------ the plan


def test_a_plan_has_the_sources_partitions_and_safety_and_room_for_headers() -> None:
    specs = plan_topics(SOURCE, retry=RETRY, dead_letter=DLQ)
    assert [(s.name, s.purpose) for s in specs] == [
        ("orders.billing.retry.30s", Purpose.RETRY),
        ("orders.billing.retry.5m", Purpose.RETRY),
        (DLQ, Purpose.DEAD_LETTER),
    ]
    for spec in specs:
        assert (spec.partitions, spec.replication_factor, spec.min_insync_replicas) == (2, 3, 2)
        assert spec.config["cleanup.policy"] == "delete"
        assert spec.config["max.message.bytes"] == str(1_000_000 + 64 * 1024)
        assert spec.config["min.insync.replicas"] == "2"
    assert [s.config["retention.ms"] for s in specs] == [str(14 * DAY_MS), str(14 * DAY_MS), "-1"]


def test_a_long_delay_makes_the_retention_longer_than_its_default() -> None:
    (spec,) = plan_topics(SOURCE, retry=[(10 * 86_400.0, "slow")], dead_letter=None)
    assert spec.config["retention.ms"] == str(17 * DAY_MS)


def test_a_retention_set_shorter_than_the_delay_and_a_week_is_raised_to_that() -> None:
    (spec,) = plan_topics(SOURCE, retry=[(3600.0, "r")], dead_letter=None, retention=60.0)
    assert spec.config["retention.ms"] == str(7 * DAY_MS + 3_600_000)


@pytest.mark.parametrize(("wanted", "planned"), [(None, 3), (5, 5), (1, 3)])
def test_the_replication_factor_is_never_less_than_the_sources(wanted: int | None, planned: int) -> None:
    (spec,) = plan_topics(SOURCE, retry=[], dead_letter=DLQ, replication_factor=wanted)
    assert spec.replication_factor == planned


def test_what_is_unknown_about_the_source_is_left_to_the_broker() -> None:
    source = TopicFacts("orders", UNKNOWN_ID, partitions=4)
    (spec,) = plan_topics(source, retry=[], dead_letter=DLQ)
    assert spec.replication_factor == -1
    assert spec.config == {"cleanup.policy": "delete", "retention.ms": "-1"}
    assert "--replication-factor" not in COMMANDS.create(spec)


# ------------------------------------------------------------------------------------------ the check


def test_a_topic_as_planned_has_no_violation_and_no_warning() -> None:
    for spec in plan_topics(SOURCE, retry=RETRY, dead_letter=DLQ):
        assert check_topic(spec, as_planned(spec), COMMANDS) == []
        assert unknown_facts(spec, as_planned(spec)) == []


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_D6_a_compacted_topic_is_a_violation(policy: str) -> None:
    spec = dead_letter_spec()
    (violation,) = check_topic(spec, replace(as_planned(spec), cleanup_policy=policy), COMMANDS)
    assert policy in violation.problem
    assert violation.command == (
        "kafka-configs.sh --bootstrap-server kafka:9092 --alter --entity-type topics "
        "--entity-name orders.billing.dlq --add-config cleanup.policy=delete"
    )


@pytest.mark.parametrize(
    ("retention_ms", "is_short"),
    [(30_000 + 7 * DAY_MS, False), (30_000 + 7 * DAY_MS - 1, True), (600_000, True), (-1, False)],
)
def test_D6_a_retry_topic_keeps_messages_for_its_delay_and_a_week(retention_ms: int, is_short: bool) -> None:
    spec = retry_spec()
    found = check_topic(spec, replace(as_planned(spec), retention_ms=retention_ms), COMMANDS)
    assert [v.command for v in found] == (
        [
            "kafka-configs.sh --bootstrap-server kafka:9092 --alter --entity-type topics "
            f"--entity-name orders.billing.retry.30s --add-config retention.ms={14 * DAY_MS}"
        ]
        if is_short
        else []
    )


def test_the_retention_of_a_dead_letter_topic_is_only_warned_about() -> None:
    spec = dead_letter_spec()
    facts = replace(as_planned(spec), retention_ms=7 * DAY_MS)
    assert check_topic(spec, facts, COMMANDS) == []
    (warning,) = unknown_facts(spec, facts)
    assert "after 7d" in warning


@pytest.mark.parametrize(("size", "count"), [(1_065_536, 0), (1_065_535, 1)])
def test_D5_a_target_takes_the_sources_largest_message_and_64_kib_of_headers(size: int, count: int) -> None:
    spec = retry_spec()
    found = check_topic(spec, replace(as_planned(spec), max_message_bytes=size), COMMANDS)
    assert [v.command.split()[-1] for v in found] == ["max.message.bytes=1065536"] * count


def test_fewer_replicas_in_sync_than_the_source_is_a_violation() -> None:
    spec = retry_spec()
    (violation,) = check_topic(spec, replace(as_planned(spec), min_insync_replicas=1), COMMANDS)
    assert violation.command.endswith("--add-config min.insync.replicas=2")


def test_fewer_replicas_than_the_source_is_a_violation_with_a_reassignment_for_each_partition() -> None:
    spec = retry_spec()
    facts = replace(as_planned(spec), replication_factor=1, partitions=3, replicas=((1,), (2,), (3,)))
    (violation,) = check_topic(spec, facts, COMMANDS)
    assert violation.command == (
        """echo '{"version":1,"partitions":["""
        """{"topic":"orders.billing.retry.30s","partition":0,"replicas":[1,2,3]},"""
        """{"topic":"orders.billing.retry.30s","partition":1,"replicas":[2,3,4]},"""
        """{"topic":"orders.billing.retry.30s","partition":2,"replicas":[1,2,3]}]}' > reassign.json && """
        "kafka-reassign-partitions.sh --bootstrap-server kafka:9092 "
        "--reassignment-json-file reassign.json --execute"
    )


def test_every_violation_of_a_topic_is_named_at_once() -> None:
    spec = retry_spec()
    facts = replace(as_planned(spec), cleanup_policy="compact", retention_ms=1, max_message_bytes=1)
    assert len(check_topic(spec, facts, COMMANDS)) == 3


def test_what_the_broker_does_not_tell_is_a_warning_and_no_violation() -> None:
    spec = retry_spec()
    facts = TopicFacts(spec.name, UNKNOWN_ID, partitions=4)
    assert check_topic(spec, facts, COMMANDS) == []
    (warning,) = unknown_facts(spec, facts)
    for setting in (
        "cleanup.policy",
        "retention.ms",
        "max.message.bytes",
        "min.insync.replicas",
        "replication",
    ):
        assert setting in warning


def test_the_command_that_creates_a_topic_says_all_of_its_plan() -> None:
    assert Commands("a:1,b:2", login=True).create(dead_letter_spec()) == (
        "kafka-topics.sh --bootstrap-server a:1,b:2 --command-config client.properties "
        "--create --topic orders.billing.dlq --partitions 2 --replication-factor 3 "
        "--config cleanup.policy=delete --config retention.ms=-1 --config max.message.bytes=1065536 "
        "--config min.insync.replicas=2"
    )


def test_a_missing_source_topic_is_named_with_the_command_that_creates_it() -> None:
    text = describe_missing_source("orders", COMMANDS)
    assert "topic orders does not exist" in text
    assert "kafka-topics.sh --bootstrap-server kafka:9092 --create --topic orders" in text


# ------------------------------------------------------------------------------------------ the watch


def facts(topic_id: str, partitions: int = 1, name: str = "orders") -> TopicFacts:
    return TopicFacts(name, topic_id, partitions)


def changes(watch: TopicWatch, now: float, found: TopicFacts | Untold | None) -> list[Change]:
    return [c.change for c in watch.update(now, {"orders": found})]


def test_R13_a_new_id_under_the_same_name_is_a_recreated_topic() -> None:
    watch = TopicWatch({"orders": facts("a", 4)})
    assert changes(watch, 0, facts("a", 4)) == []
    (change,) = watch.update(1, {"orders": facts("b", 1)})
    assert (change.topic, change.change) == ("orders", Change.RECREATED)
    assert (change.before, change.after) == (facts("a", 4), facts("b", 1))
    assert watch.facts("orders") == facts("b", 1)
    assert changes(watch, 2, facts("b", 1)) == []


def test_R13_a_broker_that_lags_behind_does_not_bring_the_old_topic_back() -> None:
    watch = TopicWatch({"orders": facts("a", 4)})
    assert changes(watch, 1, facts("b")) == [Change.RECREATED]
    assert changes(watch, 2, facts("a", 4)) == []
    assert watch.facts("orders") == facts("b")
    assert changes(watch, 3, facts("b")) == []
    assert changes(watch, 4, facts("c")) == [Change.RECREATED]


def test_R13_a_topic_that_was_gone_and_comes_back_with_another_id_is_recreated() -> None:
    watch = TopicWatch({"orders": facts("a")}, gone_after=10)
    assert changes(watch, 0, None) == []
    assert changes(watch, 10, None) == [Change.GONE]
    assert watch.facts("orders") is None
    assert changes(watch, 99, None) == [], "gone is told once"
    assert changes(watch, 100, facts("b")) == [Change.RECREATED]


def test_R13_recreated_between_two_looks_is_seen_though_it_was_never_missing_long_enough() -> None:
    watch = TopicWatch({"orders": facts("a")}, gone_after=10)
    assert changes(watch, 0, None) == []
    assert changes(watch, 5, facts("b")) == [Change.RECREATED]


def test_a_topic_missing_for_a_moment_or_with_brokers_that_can_not_tell_is_not_gone() -> None:
    watch = TopicWatch({"orders": facts("a")}, gone_after=10)
    assert changes(watch, 0, None) == []
    assert changes(watch, 8, facts("a")) == []
    assert changes(watch, 9, None) == []
    assert changes(watch, 18, Untold("no broker")) == []
    assert changes(watch, 18.5, None) == []
    assert changes(watch, 19, None) == [Change.GONE]
    assert changes(watch, 20, facts("a")) == [Change.APPEARED]


def test_a_topic_missing_at_the_start_appears() -> None:
    watch = TopicWatch({"orders": None, "other": Untold("denied")})
    assert watch.names == ["orders", "other"]
    assert changes(watch, 0, None) == []
    (change,) = watch.update(1, {"orders": facts("a"), "other": Untold("denied")})
    assert (change.change, change.before, change.after) == (Change.APPEARED, None, facts("a"))


def test_R12_more_partitions_are_told_once() -> None:
    watch = TopicWatch({"orders": facts("a", 2)})
    (change,) = watch.update(1, {"orders": facts("a", 5)})
    assert (change.change, change.before, change.after) == (
        Change.PARTITIONS_ADDED,
        facts("a", 2),
        facts("a", 5),
    )
    assert changes(watch, 2, facts("a", 5)) == []
    assert changes(watch, 3, facts("a", 2)) == [], "a broker that lags behind"
    assert changes(watch, 4, facts("a", 5)) == []


def test_an_id_that_can_not_be_had_is_no_other_id_and_a_known_one_is_taken_up() -> None:
    watch = TopicWatch({"orders": facts(UNKNOWN_ID)})
    assert changes(watch, 1, facts("a")) == []
    assert changes(watch, 2, facts(UNKNOWN_ID)) == []
    assert changes(watch, 3, facts("b")) == [Change.RECREATED]


# -------------------------------------------------------- a broker without the admin API, and no broker


def test_the_mock_broker_gives_partitions_and_leaves_the_rest_unknown() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", 3)
        admin = TopicAdmin({"bootstrap.servers": cluster.bootstrap}, Commands(cluster.bootstrap))
        described = admin.describe(["orders", "nope"], 20)
        assert described["nope"] is None
        orders = described["orders"]
        assert isinstance(orders, TopicFacts)
        assert (orders.topic_id, orders.partitions, orders.cleanup_policy) == (UNKNOWN_ID, 3, None)
        assert admin.cluster_id(20).startswith("mockCluster")


def test_the_mock_broker_makes_missing_topics_when_they_may_be_created_and_else_it_is_a_violation() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", 3)
        admin = TopicAdmin({"bootstrap.servers": cluster.bootstrap}, Commands(cluster.bootstrap))
        source = admin.describe(["orders"], 20)["orders"]
        assert isinstance(source, TopicFacts)
        specs = plan_topics(source, retry=RETRY[:1], dead_letter=DLQ)
        with pytest.raises(TopicError, match=r"kafka-topics\.sh .* --create --topic orders\.billing\.dlq"):
            admin.ensure(specs, create=False, timeout=20).require()
        outcome = admin.ensure(specs, create=True, timeout=20)
        outcome.require()
        assert outcome.created == ["orders.billing.retry.30s", DLQ]
        assert len(outcome.warnings) == 2
        assert set(outcome.facts) == {"orders.billing.retry.30s", DLQ}


def test_offsets_of_the_mock_broker_are_numbers_but_time_stamps_can_not_be_looked_up() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", 2)
        admin = TopicAdmin({"bootstrap.servers": cluster.bootstrap}, Commands(cluster.bootstrap))
        partitions = [("orders", 0), ("orders", 1)]
        assert admin.resolve_offsets(partitions, "earliest", 20) == dict.fromkeys(partitions, 0)
        assert admin.resolve_offsets(partitions, "latest", 20) == dict.fromkeys(partitions, 0)
        for found in admin.resolve_offsets(partitions, 1_700_000_000_000, 20).values():
            assert isinstance(found, Untold)


def test_H5_without_a_broker_the_answer_is_bounded_and_names_the_setting() -> None:
    admin = TopicAdmin({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, Commands("127.0.0.1:1"))
    with pytest.raises(BrokersUnreachableError, match=r"127\.0\.0\.1:1.*setting brokers"):
        admin.describe(["orders"], 0.3)
    with pytest.raises(BrokersUnreachableError):
        admin.cluster_id(0.3)


def test_H5_a_broker_that_goes_away_later_makes_topics_untold_not_missing() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders")
        admin = TopicAdmin({"bootstrap.servers": cluster.bootstrap, "log_level": 0}, Commands("b"))
        assert isinstance(admin.describe(["orders"], 20)["orders"], TopicFacts)
        cluster.take_down()
        assert isinstance(admin.describe(["orders"], 0.3)["orders"], Untold)


# ------------------------------------------------------------------------- brokers that do not agree yet


class Told:
    """A future that has its answer."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def result(self, timeout: float) -> Any:
        assert timeout > 0
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class LaggingClient:
    """Brokers of which one knows a topic at once, and another after some questions for its configuration."""

    def __init__(self, questions: int) -> None:
        self.questions = questions

    def list_topics(self, *, timeout: float) -> Any:
        return SimpleNamespace(cluster_id="c", topics={})

    def describe_topics(self, topics: Any, *, request_timeout: float) -> dict[str, Told]:
        partition = SimpleNamespace(replicas=[SimpleNamespace(id=1)])
        return {"orders": Told(SimpleNamespace(topic_id="id-1", partitions=[partition]))}

    def describe_configs(self, resources: list[Any], *, request_timeout: float) -> dict[Any, Told]:
        self.questions -= 1
        if self.questions >= 0:
            return {resources[0]: Told(KafkaException(KafkaError(3)))}
        return {resources[0]: Told({"retention.ms": SimpleNamespace(value="5")})}


def lagging(questions: int) -> TopicAdmin:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return TopicAdmin(
        {}, COMMANDS, client_factory=lambda _: LaggingClient(questions), clock=lambda: now[0], sleep=sleep
    )


def test_a_configuration_that_one_broker_does_not_know_yet_is_asked_for_again() -> None:
    found = lagging(3).describe(["orders"], 10)["orders"]
    assert isinstance(found, TopicFacts)
    assert found.retention_ms == 5


def test_a_configuration_that_no_broker_knows_in_time_stays_unknown() -> None:
    found = lagging(10_000).describe(["orders"], 10)["orders"]
    assert isinstance(found, TopicFacts)
    assert (found.topic_id, found.retention_ms) == ("id-1", None)


def test_a_topic_id_is_spelled_as_kafka_spells_it_whatever_the_client_does() -> None:
    zero, topic_id = Uuid(0, 0), Uuid(-12345678901234567, 653161174132878513)
    assert str(topic_id) == "/9Qjq6KUtHkJEH6glURssQ"
    assert shown_id(topic_id) == shown_id(shown_id(topic_id)) == "_9Qjq6KUtHkJEH6glURssQ"
    assert {shown_id(None), shown_id(zero)} == {UNKNOWN_ID}
