"""Clocks, as far as time stamps of records show them.

Kafka's protocol tells no time. A record that the broker stamped (LogAppendTime) was written at its time, so
that one from our future says that our clock is behind; without one nothing is known. Nothing is written to
find out. Called by ``examine``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from streamloop.doctor.finding import Finding, ok, unknown, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamloop.doctor.patient import Patient

TOLERANCE: Final = 5.0
"""Seconds by which clocks may differ."""
MOST_PARTITIONS: Final = 200


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
