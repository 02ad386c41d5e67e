"""Clocks, as far as time stamps of records show them; and how old what waits is.

Kafka's protocol tells no time. A record that the broker stamped (LogAppendTime) was written at its time, so
that one from our future says that our clock is behind; without one nothing is known. Nothing is written to
find out. Called by ``examine`` and by the look at the groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from streamloop.doctor.finding import Finding, ok, unknown, warn
from streamloop.kafka.config import consumer_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamloop.doctor.patient import Patient

TOLERANCE: Final = 5.0
"""Seconds by which clocks may differ."""
MOST_PARTITIONS: Final = 200
NEARLY: Final = 0.8
"""Share of the retention at which a message that waits is about to be deleted."""
READ: Final = 3.0
"""Seconds for reading the oldest messages that wait."""


def look_at_clock(patient: Patient) -> Iterator[Finding]:
    """Newest time stamps against our clock."""
    if patient.metadata is None or not patient.facts:
        return
    newest = _newest(patient)
    stamped = _stamped_by_brokers(patient)
    now = patient.wall()
    ahead = {topic: at - now for topic, at in newest.items() if at - now > TOLERANCE}
    for topic, seconds in sorted(ahead.items()):
        broker = topic in stamped
        yield warn(
            "clock",
            topic,
            f"The newest message of {topic} is {seconds:.0f} s in our future"
            + (" by the broker's clock (LogAppendTime)." if broker else " by its producer's clock."),
            "Our clock is behind: lag in seconds, ages and retries that are due are off by as much."
            if broker
            else "A producer's clock is ahead, or ours behind: lag in seconds and retention are off.",
            "Let all machines keep their time by NTP.",
        )
    known = sorted(topic for topic in newest if topic in stamped and topic not in ahead)
    if known:
        yield ok(
            "clock", "", f"Our clock is not behind the brokers' ({', '.join(known[:3])} is stamped by them)."
        )
    elif not ahead:
        yield unknown(
            "clock",
            "",
            "The brokers' clock is not known: no topic of the loop has messages that a broker stamped.",
            "Waits of the retry topics are counted on each member's own clock and do not depend on it.",
        )


def _newest(patient: Patient) -> dict[str, float]:
    """Topic to the greatest time stamp in it, epoch seconds."""
    places = patient.places(list(patient.facts))[:MOST_PARTITIONS]
    spec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(*each): spec for each in places}
    newest: dict[str, float] = {}
    for part, future in patient.connect().list_offsets(asked, request_timeout=patient.left()).items():
        try:
            stamp = future.result(patient.left()).timestamp
        except KafkaException:
            continue
        if stamp is not None and stamp > 0:
            newest[part.topic] = max(newest.get(part.topic, 0.0), stamp / 1000)
    return newest


def _stamped_by_brokers(patient: Patient) -> set[str]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in patient.facts]
    found = set()
    for resource, future in (
        patient.connect().describe_configs(resources, request_timeout=patient.left()).items()
    ):
        try:
            entry = future.result(patient.left()).get("message.timestamp.type")
        except KafkaException:
            continue
        if entry is not None and entry.value == "LogAppendTime":
            found.add(resource.name)
    return found


def oldest_waiting(
    patient: Patient, open_from: dict[tuple[str, int], int]
) -> Iterator[tuple[tuple[str, int], float, float]]:
    """Of these positions those whose record is about to be deleted: the partition, its age and how long
    records are kept, both in seconds."""
    kept = {
        part: retention / 1000
        for part in open_from
        if (retention := patient.facts[part[0]].retention_ms) is not None and retention > 0
    }
    if not kept:
        return
    now = patient.wall()
    for part, stamp in _stamps(
        patient, {part: open_from[part] for part in list(kept)[:MOST_PARTITIONS]}
    ).items():
        age = now - stamp
        if age > NEARLY * kept[part]:
            yield part, age, kept[part]


def _stamps(patient: Patient, positions: dict[tuple[str, int], int]) -> dict[tuple[str, int], float]:
    """The time stamp of the first record at or behind each position, epoch seconds; read without joining."""
    # As the members read, without what would make it one of them.
    properties: dict[str, Any] = {**consumer_config(patient.settings, "classic"), "log_level": 0}
    properties.pop("group.instance.id", None)
    properties |= {"queued.min.messages": 1, "fetch.message.max.bytes": 65_536, "error_cb": _ignore}
    consumer = Consumer(properties)
    found: dict[tuple[str, int], float] = {}
    until = patient.clock() + patient.left(READ)
    try:
        consumer.assign([TopicPartition(*part, offset) for part, offset in positions.items()])
        waiting = set(positions)
        while waiting and patient.clock() < until:
            for message in consumer.consume(min(500, len(waiting)), 0.2):
                topic, partition = message.topic(), message.partition()
                if topic is None or partition is None or (topic, partition) not in waiting:
                    continue
                waiting.discard((topic, partition))
                consumer.pause([TopicPartition(topic, partition)])
                kind, stamp = message.timestamp()
                if message.error() is None and kind:
                    found[topic, partition] = stamp / 1000
    finally:
        consumer.close()
    return found


def _ignore(_error: object) -> None:
    """What the client says of itself is told by the looks at login and topics."""
