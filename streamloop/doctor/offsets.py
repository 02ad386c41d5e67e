"""What the group has committed, against what its topics have: lag, positions that are gone, messages about
to go.

Reads; commits nothing and joins nothing. Called by the look at the groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException

from streamloop.doctor.finding import Finding, error, ok, unknown
from streamloop.doctor.patient import place
from streamloop.kafka.config import consumer_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamloop.doctor.patient import Patient

MOST_PARTITIONS: Final = 200
NEARLY: Final = 0.8
"""Share of the retention at which a message that waits is about to be deleted."""
READ: Final = 3.0
"""Seconds for reading the oldest messages that wait."""
READ_BYTES: Final = 65_536


def look_at_offsets(patient: Patient, group: str, topics: Sequence[str]) -> Iterator[Finding]:
    """Committed offsets of a group in the partitions of these topics."""
    places = patient.places(topics)
    if not places:
        return

    def committed(left: float) -> Any:
        asked = ConsumerGroupTopicPartitions(group, [place(*each) for each in places])
        return (
            patient.connect().list_consumer_group_offsets([asked], request_timeout=left)[group].result(left)
        )

    try:
        answers = patient.ask(committed).topic_partitions
    except KafkaException as problem:
        code = problem.args[0].code()
        if code not in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.GROUP_ID_NOT_FOUND):
            yield unknown(
                "group.offsets", group, f"What {group} has committed can't be had: {problem.args[0].str()}."
            )
        return
    offsets = {(each.topic, each.partition): each.offset for each in answers if each.error is None}
    starts = patient.admin().resolve_offsets(places, "earliest", patient.left())
    ends = patient.admin().resolve_offsets(places, "latest", patient.left())
    open_from: dict[tuple[str, int], int] = {}
    lag = fresh = told = 0
    for part in places:
        start, end, offset = starts.get(part), ends.get(part), offsets.get(part, -1)
        if not isinstance(start, int) or not isinstance(end, int):
            continue
        told += 1
        if offset < 0:
            fresh += 1
            continue
        if offset < start or offset > end:
            yield _out_of_range(patient, group, part, offset, start, end)
            continue
        lag += end - offset
        if offset < end:
            open_from[part] = offset
    if told < len(places):
        yield unknown(
            "group.offsets", group, f"Where {len(places) - told} partitions begin and end could not be told."
        )
    if fresh == told and told:
        yield ok(
            "group.offsets", group, f"The group {group} has committed nothing yet: {_start(patient, group)}."
        )
    elif told:
        stamps = _stamps(patient, open_from)
        more = f", the oldest written {_ago(patient.wall() - min(stamps.values()))} ago" if stamps else ""
        if fresh:
            more += f"; {fresh} of {told} partitions have no committed offset"
        yield ok(
            "group.offsets",
            group,
            f"The group {group} is {lag:,} message{'' if lag == 1 else 's'} behind{more}.",
        )
        yield from _expiring(patient, group, stamps)


def _start(patient: Patient, group: str) -> str:
    if group != patient.settings.group:
        return "it starts at the beginning of its topics"
    chosen = sorted({str(consumer.start) for consumer in patient.consumers})
    return f"it starts at {' or '.join(chosen)} (start)"


def _out_of_range(
    patient: Patient, group: str, part: tuple[str, int], offset: int, start: int, end: int
) -> Finding:
    topic, partition = part
    about = f"{group} {topic}/{partition}"
    policy = _policy(patient, topic)
    if offset < start:
        return error(
            "group.offsets",
            about,
            f"{topic}/{partition} begins at {start}, and {group} has committed {offset}: {start - offset} "
            f"offsets are gone "
            "(retention, or deleted records).",
            f"Messages were deleted before they were handled. A member goes on as out_of_range says: "
            f"{policy}.",
            "Keep the topic's messages for longer than the longest outage, and look at what is lost "
            "elsewhere (an "
            "archive, the producer).",
        )
    return error(
        "group.offsets",
        about,
        f"{topic}/{partition} ends at {end}, and {group} has committed {offset}, which is beyond.",
        "The topic was made again or truncated, or this is another cluster. A member goes on as "
        "out_of_range says: "
        f"{policy}.",
        "Check that brokers and topic are the right ones; then reset the group's offsets while no member "
        "runs.",
        patient.commands.describe_group(group, "offsets"),
    )


def _policy(patient: Patient, topic: str) -> str:
    topics = patient.topics
    if topics is None or topic not in topics.sources:
        return "earliest"
    return patient.consumers[topics.sources[topic].consumer].out_of_range


def _expiring(patient: Patient, group: str, stamps: Mapping[tuple[str, int], float]) -> Iterator[Finding]:
    now = patient.wall()
    for (topic, partition), stamp in stamps.items():
        retention = patient.facts[topic].retention_ms
        if retention is None or retention <= 0:
            continue
        age, kept = now - stamp, retention / 1000
        if age <= NEARLY * kept:
            continue
        left = kept - age
        yield error(
            "group.retention",
            f"{group} {topic}/{partition}",
            f"The oldest message of {topic}/{partition} that {group} has not committed was written "
            f"{_ago(age)} ago, "
            f"and the topic keeps messages for {_ago(kept)}.",
            "It will be deleted before it was handled"
            + (f", in {_ago(left)}." if left > 0 else " any moment."),
            "Keep messages for longer until the group has caught up, and find what holds it (streamloop "
            "top).",
            patient.commands.alter(topic, "retention.ms", 2 * retention),
        )


def _ago(seconds: float) -> str:
    for least, unit, name in ((172_800, 86_400, "days"), (7_200, 3_600, "hours"), (120, 60, "minutes")):
        if seconds >= least:
            return f"{seconds / unit:.3g} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _stamps(patient: Patient, positions: dict[tuple[str, int], int]) -> dict[tuple[str, int], float]:
    """The time stamp of the first record at or behind each position, epoch seconds; read without joining."""
    if not positions:
        return {}
    # As the members read, without what would make it one of them.
    properties: dict[str, Any] = {**consumer_config(patient.settings, "classic"), "log_level": 0}
    properties.pop("group.instance.id", None)
    properties |= {"queued.min.messages": 1, "max.partition.fetch.bytes": READ_BYTES, "error_cb": _ignore}
    chosen = list(positions)[:MOST_PARTITIONS]
    consumer = Consumer(properties)
    found: dict[tuple[str, int], float] = {}
    until = patient.clock() + patient.left(READ)
    try:
        consumer.assign([place(*part, positions[part]) for part in chosen])
        waiting = set(chosen)
        while waiting and patient.clock() < until:
            for message in consumer.consume(min(500, len(waiting)), 0.2):
                topic, partition = message.topic(), message.partition()
                if topic is None or partition is None or (topic, partition) not in waiting:
                    continue
                waiting.discard((topic, partition))
                consumer.pause([place(topic, partition)])
                kind, stamp = message.timestamp()
                if message.error() is None and kind:
                    found[topic, partition] = stamp / 1000
    finally:
        consumer.close()
    return found


def _ignore(_error: object) -> None:
    """What the client says of itself is told by the looks at login and topics."""
