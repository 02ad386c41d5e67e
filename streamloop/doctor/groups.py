"""How the group is: members, protocol, what is assigned to whom.

Describes and reads; joins nothing and commits nothing. Called by ``examine`` after the topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
)

from streamloop.doctor.cluster import has_new_protocol
from streamloop.doctor.finding import Finding, error, ok, unknown, warn
from streamloop.doctor.offsets import look_at_offsets
from streamloop.kafka.config import retry_group
from streamloop.kafka.topics import TopicFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamloop.doctor.patient import Patient

SETTLE: Final = 5.0
"""Seconds that a rebalance gets before it is said to go on."""
LOOK_AGAIN: Final = 0.5
OURS: Final = "cooperative-sticky"
MOVING: Final = frozenset(
    {
        ConsumerGroupState.PREPARING_REBALANCING,
        ConsumerGroupState.COMPLETING_REBALANCING,
        # The client has no name for the states in which a KIP-848 group moves partitions.
        ConsumerGroupState.UNKNOWN,
    }
)


def look_at_groups(patient: Patient) -> Iterator[Finding]:
    """The group of the source topics, and that of the retry and replay topics."""
    group = patient.settings.group
    if patient.metadata is None or not group:
        return
    topics = patient.topics
    if topics is None:
        yield from _group(patient, group, _committed_topics(patient, group))
        return
    yield from _group(patient, group, list(topics.sources))
    if topics.own_names:
        yield from _group(patient, retry_group(patient.settings), list(topics.own_names))


def _group(patient: Patient, group: str, topics: Sequence[str] | None) -> Iterator[Finding]:
    try:
        found = _settled(patient, group)
    except KafkaException as problem:
        code = problem.args[0].code()
        if code == KafkaError.GROUP_ID_NOT_FOUND:
            yield from _nobody(group, "does not exist")
        elif code != KafkaError.GROUP_AUTHORIZATION_FAILED:  # said by the look at the rights
            yield unknown(
                "group.state", group, f"The group {group} can't be described: {problem.args[0].str()}."
            )
    else:
        if found.state in MOVING:
            yield warn(
                "group.state",
                group,
                f"A rebalance of the group {group} has gone on for longer than {SETTLE:g} s.",
                "Partitions that move are not handled meanwhile. A member joins, leaves or hangs again and "
                "again.",
                "Look for restarts and for 'lost' in the members' logs (loop_rebalances_total).",
                patient.commands.describe_group(group, "members"),
            )
        if not found.members:
            yield from _nobody(group, "has no member")
        else:
            yield from _members(patient, group, found, topics)
    if topics is not None:
        yield from look_at_offsets(patient, group, topics)


def _committed_topics(patient: Patient, group: str) -> list[str] | None:
    """Without a loop: the topics of which the group has committed something. None: that can't be had."""

    def committed(left: float) -> Any:
        asked = ConsumerGroupTopicPartitions(group)
        return (
            patient.connect().list_consumer_group_offsets([asked], request_timeout=left)[group].result(left)
        )

    try:
        names = sorted({each.topic for each in patient.ask(committed).topic_partitions})
    except KafkaException:
        return None
    described = patient.admin().describe(names, patient.left())
    patient.facts |= {name: facts for name, facts in described.items() if isinstance(facts, TopicFacts)}
    return names or None


def _nobody(group: str, how: str) -> Iterator[Finding]:
    yield warn(
        "group.members",
        group,
        f"The group {group} {how}.",
        "Nobody handles its messages now. Right before the first start that is as it should be.",
        "Start members; if they run, their brokers and group settings are other ones than these.",
    )


def _settled(patient: Patient, group: str) -> Any:
    """The group's description, of a moment when no rebalance is under way if there is one soon."""
    until = patient.clock() + min(SETTLE, patient.left())

    def describe(left: float) -> Any:
        return patient.connect().describe_consumer_groups([group], request_timeout=left)[group].result(left)

    while True:
        found = patient.ask(describe)
        if found.state not in MOVING or patient.clock() >= until:
            return found
        patient.sleep(LOOK_AGAIN)


def _members(patient: Patient, group: str, found: Any, topics: Sequence[str] | None) -> Iterator[Finding]:
    classic = found.type == ConsumerGroupType.CLASSIC
    assignor = found.partition_assignor
    new = patient.settings.group_protocol != "classic" and has_new_protocol(patient)
    if classic and assignor and OURS not in assignor and not new:
        yield error(
            "group.protocol",
            group,
            f"The members of the group {group} share its partitions by {assignor}, ours by {OURS}.",
            "A member of ours gets INCONSISTENT_GROUP_PROTOCOL and no partition, for as long as one of "
            "those is there.",
            "Stop the members of the other strategy first, use a group of its own, or set group_protocol to "
            "auto on "
            "brokers with KIP-848, whose members may join.",
            patient.commands.describe_group(group, "members"),
        )
    else:
        kind = "classic" if classic else "KIP-848"
        yield ok(
            "group.protocol",
            group,
            f"The group {group} uses the {kind} protocol ({assignor or 'no strategy'}).",
        )
    count = len(found.members)
    assigned = {
        (part.topic, part.partition)
        for member in found.members
        for part in member.assignment.topic_partitions
    }
    yield ok("group.members", group, f"The group {group} has {count} member{'' if count == 1 else 's'}.")
    if topics is None:
        return
    foreign = sorted({topic for topic, _ in assigned} - set(topics))
    if foreign:
        yield warn(
            "group.members",
            group,
            f"Members of the group {group} read {', '.join(foreign[:5])}, which this loop does not.",
            "Another program uses the same group, or another version of this one: each rebalance stops both.",
            "Give each program a group of its own.",
            patient.commands.describe_group(group, "members"),
        )
    places = patient.places(topics)
    nobodys = [part for part in places if part not in assigned]
    if nobodys and found.state == ConsumerGroupState.STABLE:
        shown = ", ".join(f"{topic}/{partition}" for topic, partition in nobodys[:5])
        yield warn(
            "group.members",
            group,
            f"{len(nobodys)} partitions are assigned to no member of {group}: {shown}.",
            "Nobody handles them: the members do not subscribe to that topic, or have not seen its new "
            "partitions yet.",
            "Compare the members' topics with this loop's; new partitions are seen within minutes.",
        )
    idle = sum(1 for member in found.members if not member.assignment.topic_partitions)
    if places and count > len(places) and idle:
        yield warn(
            "group.members",
            group,
            f"{idle} of {count} members have no partition: there are {len(places)}.",
            "They wait for another one to leave, and cost memory meanwhile.",
            "Run fewer members, or add partitions.",
        )
