"""Starts ``streamloop run`` and ``streamloop check`` on the loops of this folder. Called by the tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from tests.realkafka.client import Record
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.realkafka import KafkaCluster, Member, Members

READY = r"member \S+ of group"
"""A member that runs prints this."""


def streamloop(
    members: Members, *arguments: str, name: str | None = None, env: Mapping[str, str] | None = None
) -> Member:
    """Run the command line with these arguments."""
    return members.start_module("streamloop.cli.main", *arguments, name=name, env=env)


def start_service(
    members: Members,
    cluster: KafkaCluster,
    group: str,
    topic: str,
    *options: str,
    module: str = "service",
    name: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Member:
    """Start a member that reads ``topic`` where its code says orders."""
    return streamloop(
        members,
        *("run", f"tests.broker.loops.{module}:loop", "--brokers", cluster.bootstrap, "--group", group),
        *("--topic", f"orders={topic}", *options),
        name=name,
        env=env,
    )


def orders(*values: Mapping[str, Any], partition: int = 0) -> list[Record]:
    """Records of one partition whose values say what is to be done."""
    return [Record(json.dumps(value).encode(), partition=partition) for value in values]


def printed(member: Member, what: str) -> list[str]:
    """The lines of a member that begin with this word, without it."""
    return [line.removeprefix(what).strip() for line in member.lines if line.startswith(what + " ")]


def logged(member: Member, kind: str) -> list[dict[str, Any]]:
    """The log records of this kind that a member wrote as JSON."""
    found = []
    for line in member.lines:
        if line.startswith("{"):
            record = json.loads(line)
            if record.get("kind") == kind:
                found.append(record)
    return found


def last_words(member: Member) -> str:
    """Why a member has ended: the message of its last line, a JSON object as its log lines are."""
    last = json.loads(member.lines[-1])
    assert last["kind"] == "ended"
    message: str = last["message"]
    return message


def committed_after_restart(cluster: KafkaCluster, group: str, topic: str) -> dict[int, int]:
    """What a group has committed, asked of a broker whose coordinator takes its time to come back."""
    found: list[dict[int, int]] = []

    def look() -> bool:
        try:
            found.append(cluster.committed_offsets(group, topic))
        except KafkaException:
            return False
        return True

    wait_until(look, 60, "the group's coordinator")
    return found[-1]
