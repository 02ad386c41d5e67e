"""``streamloop run`` on a real broker: its bounds, other topics, and what it makes of a user's mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.broker.loops.processes import READY, last_words, logged, orders, printed, start_service, streamloop
from tests.realkafka.client import Record, unique_name
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster, Members


def test_max_messages_ends_after_as_many_and_commits_exactly_these(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders(*[{}] * 20))
    member = start_service(members, kafka, group, source, "--max-messages", "7")
    assert member.wait(60) == 0
    assert len(printed(member, "end")) == 7
    assert last_words(member) == "bound reached: max_messages"
    assert kafka.committed_offsets(group, source) == {0: 7}
    assert kafka.members(group) == {}


def test_until_end_handles_what_was_there_retries_routed_and_ends(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic(3)
    kafka.produce(source, orders({}, {"do": "fail"}, {"do": "reject"}, partition=1))
    kafka.produce(source, orders({}, partition=2))
    kafka.produce_transaction(source, orders({}, partition=2))  # ends in a marker; partition 0 is empty
    member = start_service(members, kafka, group, source, "--until-end")
    assert member.wait(60) == 0
    assert last_words(member) == "bound reached: until_end"
    assert kafka.lag(group, source) == 0
    again = start_service(members, kafka, group, source, "--until-end")
    assert again.wait(60) == 0
    assert printed(again, "begin") == [] or all(" attempt=2" in line for line in printed(again, "begin"))


def test_max_runtime_ends_a_loop_that_has_nothing_to_do_and_one_that_has_no_broker(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    member = start_service(members, kafka, group, topic(), "--max-runtime", "3s")
    lonely = streamloop(
        members,
        *("run", "tests.broker.loops.service:loop", "--group", group, "--brokers", "127.0.0.1:9"),
        *("--max-runtime", "1s"),
    )
    assert member.wait(60) == 0
    assert last_words(member) == "bound reached: max_runtime"
    assert lonely.wait(60) == 1
    assert last_words(lonely).startswith("max_runtime is over, and the loop could not start. No Kafka broker")


def test_another_topic_is_read_under_its_own_name_with_retry_and_dead_letter_topics_of_its_own(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({"do": "reject"}))
    member = start_service(members, kafka, group, source, "--until-end")
    assert member.wait(60) == 0
    assert printed(member, "begin") == [f"{source}/0/0 attempt=1 {{'do': 'reject'}}"]
    assert len(kafka.read_all(f"{source}.{group}.dlq")) == 1
    assert not kafka.topic_exists(f"orders.{group}.dlq")


def test_a_source_topic_that_is_missing_is_waited_for(
    kafka: KafkaCluster, members: Members, group: str
) -> None:
    source = unique_name("late")
    member = start_service(members, kafka, group, source)
    member.wait_for_line(f"The topic {source} does not exist")
    member.wait_for_line(READY)
    [said] = logged(member, "topic_missing")[:1]
    assert said["level"] == "WARNING"
    assert f"--create --topic {source}" in said["message"]

    kafka.create_topic(2, name=source)
    kafka.produce(source, orders({}) + orders({"do": "reject"}, partition=1))
    wait_until(lambda: len(printed(member, "begin")) == 2, 90, "the topic to be read")
    wait_until(lambda: kafka.lag(group, source) == 0, 60, "the commit")
    assert len(kafka.read_all(f"{source}.{group}.dlq")) == 1
    member.terminate()
    assert member.wait(60) == 0


def test_a_source_topic_that_is_missing_ends_with_2_when_topics_are_required(
    kafka: KafkaCluster, members: Members, group: str
) -> None:
    source = unique_name("missing")
    member = start_service(members, kafka, group, source, "--require-topics")
    assert member.wait(60) == 2
    said = "\n".join(member.lines)
    assert f"The topic {source} does not exist. Create it" in said
    assert f"kafka-topics.sh --bootstrap-server {kafka.bootstrap} --create --topic {source}" in said
    assert "Traceback" not in said


def test_R9_commit_metadata_of_another_program_is_ignored_with_a_warning(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders(*[{}] * 5))
    kafka.commit(group, source, {0: (2, '{"owner": "another program"}')})
    member = start_service(members, kafka, group, source, "--until-end")
    assert member.wait(60) == 0
    [said] = logged(member, "metadata_ignored")
    assert said["level"] == "WARNING"
    assert f"{source}/0" in said["message"]
    assert [line.split()[0][-1] for line in printed(member, "begin")] == ["2", "3", "4"]
    assert kafka.committed_offsets(group, source) == {0: 5}


def test_D7_an_undecodable_message_names_the_message_and_the_reason_and_the_loop_goes_on(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, [Record(b"no json", None, (), 0), *orders({})])
    member = start_service(members, kafka, group, source, "--until-end")
    assert member.wait(60) == 0
    [routed] = logged(member, "routed")
    assert (routed["offset"], routed["target"]) == (0, f"{source}.{group}.dlq")
    assert "DecodeError" in routed["message"]
    assert "no json" not in routed["message"]
    assert len(printed(member, "end")) == 1
    assert not any("Traceback" in line for line in member.lines)


def test_the_output_is_one_json_object_a_line_to_the_last(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, orders({"do": "fail"}, {}))
    member = start_service(members, kafka, group, source, "--max-runtime", "4s")
    assert member.wait(60) == 0
    own = [line for line in member.lines if line.split()[0] not in ("startup", "begin", "end", "shutdown")]
    records = [json.loads(line) for line in own]
    assert {"time", "level", "logger", "message"} <= set(records[0])
    assert [r["target"] for r in records if r.get("kind") == "routed"] == [
        f"{source}.{group}.retry.300ms",
        f"{source}.{group}.dlq",
    ]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_until_end_without_a_partition_ends_when_the_group_is_at_the_end(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, protocol: str
) -> None:
    source = topic(1)
    kafka.produce(source, orders(*[{}] * 5))
    first = start_service(members, kafka, group, source, "--group-protocol", protocol, name="first")
    first.wait_for_line("end .*/0/4 ", timeout=60)
    second = start_service(
        members, kafka, group, source, "--group-protocol", protocol, "--until-end", name="second"
    )
    assert second.wait(90) == 0
    said = last_words(second)
    assert said.startswith("bound reached: until_end (")
    assert f"no partition was assigned to this member for 5 s, and group {group} has committed" in said
    assert first.running
