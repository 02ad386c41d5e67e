"""``streamloop check`` on a real broker: what is right, what is missing, what would lose messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.loops.processes import streamloop
from tests.realkafka.client import unique_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster, Member, Members


def check(members: Members, cluster: KafkaCluster, group: str, topic: str, *options: str) -> Member:
    member = streamloop(
        members,
        *("check", "tests.broker.loops.service:loop", "--brokers", cluster.bootstrap, "--group", group),
        *("--topic", f"orders={topic}", *options),
    )
    member.wait(60)
    return member


def test_ready_to_run_says_so_and_creates_nothing(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic(3)
    member = check(members, kafka, group, source)
    assert member.wait() == 0
    assert member.lines[-1] == "Ready to run."
    assert member.lines[:3] == [
        f"The topic {source}.{group}.{name} does not exist yet: streamloop run creates it (create_topics)."
        for name in ("retry.300ms", "replay", "dlq")
    ]
    assert not kafka.topic_exists(f"{source}.{group}.dlq")
    assert kafka.members(group) == {}


def test_ready_with_every_topic_there_says_nothing_else(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    week = 7 * 86_400_000
    for name, retention in (("retry.300ms", 2 * week), ("replay", 2 * week), ("dlq", -1)):
        config = {"retention.ms": str(retention), "max.message.bytes": "2000000"}
        kafka.create_topic(1, name=f"{source}.{group}.{name}", config=config)
    member = check(members, kafka, group, source)
    assert (member.wait(), member.lines) == (0, ["Ready to run."])


def test_a_missing_source_topic_is_2_with_the_command(
    kafka: KafkaCluster, members: Members, group: str
) -> None:
    source = unique_name("missing")
    member = check(members, kafka, group, source)
    assert member.wait() == 2
    said = "\n".join(member.lines)
    assert f"The topic {source} does not exist. Create it" in said
    assert f"--create --topic {source}" in said
    assert member.lines[-1] == "Not ready to run: see above."


def test_missing_topics_that_may_not_be_created_are_2_with_the_commands(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    member = check(members, kafka, group, source, "--no-create-topics")
    assert member.wait() == 2
    said = "\n".join(member.lines)
    for name in ("retry.300ms", "replay", "dlq"):
        assert f"--create --topic {source}.{group}.{name}" in said


def test_a_retry_topic_that_would_lose_messages_is_2_with_the_commands_that_mend_it(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    retry = f"{source}.{group}.retry.300ms"
    kafka.create_topic(1, name=retry, config={"cleanup.policy": "compact", "retention.ms": "600000"})
    member = check(members, kafka, group, source)
    assert member.wait() == 2
    said = "\n".join(member.lines)
    assert f"The retry topic {retry} has cleanup.policy=compact" in said
    for setting in ("cleanup.policy=delete", "retention.ms=", "max.message.bytes="):
        assert f"--entity-name {retry} --add-config {setting}" in said
    assert "Traceback" not in said

    # What run refuses, too.
    running = streamloop(
        members,
        *("run", "tests.broker.loops.service:loop", "--brokers", kafka.bootstrap, "--group", group),
        *("--topic", f"orders={source}"),
    )
    assert running.wait(60) == 2
    assert any("cleanup.policy=compact" in line for line in running.lines)


def test_without_a_broker_it_gives_up_with_2_after_its_wait(members: Members, group: str) -> None:
    member = streamloop(
        members,
        *("check", "tests.broker.loops.service:loop", "--brokers", "127.0.0.1:9", "--group", group),
        *("--wait", "1s"),
    )
    assert member.wait(60) == 2
    said = "\n".join(member.lines)
    assert "No Kafka broker answers at 127.0.0.1:9" in said
    assert "Check the setting brokers" in said
    assert "(gave up after 1 s)" in said
    assert "Traceback" not in said


def test_a_module_that_can_t_be_imported_and_a_loop_without_brokers_or_group_are_sentences(
    members: Members,
) -> None:
    missing = streamloop(members, "check", "tests.broker.loops.nowhere:loop")
    unset = streamloop(members, "check", "tests.broker.loops.service:loop")
    assert missing.wait(60) == 2
    assert missing.lines[0].startswith("There is no module 'tests.broker.loops.nowhere'")
    assert unset.wait(60) == 2
    said = "\n".join(unset.lines)
    assert "brokers is not set" in said
    assert "group is not set" in said
    assert "Traceback" not in said
