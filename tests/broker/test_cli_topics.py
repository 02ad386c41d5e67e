"""``streamloop topics`` on a real broker: topics of a file, and of a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.loops.processes import streamloop
from tests.realkafka.client import unique_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.realkafka import KafkaCluster, Member, Members

LOOP = "tests.broker.loops.service:loop"


def topics(members: Members, cluster: KafkaCluster, *options: str) -> Member:
    member = streamloop(members, "topics", "--brokers", cluster.bootstrap, *options)
    member.wait(60)
    return member


def test_topics_of_a_file_are_created_once_with_their_configuration(
    kafka: KafkaCluster, members: Members, tmp_path: Path
) -> None:
    name = unique_name("of-a-file")
    path = tmp_path / "topics.yaml"
    text = "topics: [{name: %s, partitions: 3, replicationFactor: 1, config: {retention.ms: 1209600000}}]"
    path.write_text(text % name, encoding="utf-8")
    asked = topics(members, kafka, "--file", str(path), "--dry-run")
    assert (asked.wait(), kafka.topic_exists(name)) == (0, False)
    first = topics(members, kafka, "--file", str(path))
    assert (first.wait(), first.lines) == (
        0,
        [f"created {name} (3 partitions, 1 replicas, retention.ms=1209600000)"],
    )
    assert kafka.partitions(name) == 3
    assert kafka.topic_config(name)["retention.ms"] == "1209600000"
    again = topics(members, kafka, "--file", str(path))
    assert (again.wait(), again.lines) == (0, [f"{name} is there (3 partitions)"])


def test_a_loops_retry_and_dead_letter_topics_are_created_for_members_that_may_not(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    options = ("--group", group, "--topic", f"orders={source}", "--no-create-topics", LOOP)
    member = topics(members, kafka, *options)
    assert member.wait() == 0
    assert member.lines[-1] == f"4 topics of {LOOP} are there"
    for name in ("retry.300ms", "dlq", "replay"):
        assert f"created {source}.{group}.{name}" in member.lines
        assert kafka.partitions(f"{source}.{group}.{name}") == 2


def test_a_source_topic_that_is_missing_is_2(kafka: KafkaCluster, members: Members, group: str) -> None:
    source = unique_name("missing")
    member = topics(members, kafka, "--group", group, "--topic", f"orders={source}", LOOP)
    assert member.wait() == 2
    assert f"The topic {source} does not exist." in "\n".join(member.lines)
