"""Are the topics there, and would any of them lose a message? The rules are those of every start.

Called by ``examine`` after the login. Leaves the facts for the looks at group, rights and clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from streamloop.doctor.finding import Finding, error, ok, unknown, warn
from streamloop.kafka.topic_admin import BrokersUnreachableError
from streamloop.kafka.topics import FOREVER_MS, TopicFacts, Untold, describe_missing_source, unknown_facts
from streamloop.preflight import TopicCheck
from streamloop.settings.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamloop.doctor.patient import Patient
    from streamloop.kafka.topics import TopicSpec

RECEIVE_MAX_BYTES: Final = 100_000_000
"""librdkafka's default of receive.message.max.bytes."""
SHORT_RETENTION: Final = 86_400.0
"""Seconds. A source topic that keeps less does not outlast a bad night."""


def look_at_topics(patient: Patient) -> Iterator[Finding]:
    """Source topics, and the topics that messages are routed to."""
    if patient.metadata is None or patient.assembly is None or patient.topics is None:
        return
    admin = patient.admin()
    check = TopicCheck(patient.assembly, patient.topics, admin)
    try:
        described = admin.describe(list(patient.topics.sources), patient.left())
    except BrokersUnreachableError as problem:
        yield unknown("topic.source", "", str(problem))
        return
    specs: list[TopicSpec] = []
    for name, facts in described.items():
        if isinstance(facts, TopicFacts):
            patient.facts[name] = facts
            specs += check.specs_of(facts)
            yield from _source(patient, facts)
        elif isinstance(facts, Untold):
            yield unknown(
                "topic.source", name, f"Whether the topic {name} exists could not be told: {facts.reason}."
            )
        else:
            sentence, _, _ = describe_missing_source(name, patient.commands).partition(" Create")
            yield error(
                "topic.source",
                name,
                sentence,
                "A member waits for it and handles nothing of it (with require_topics it ends).",
                "Create it, or correct its name.",
                patient.commands.create_source(name),
            )
    yield from _targets(patient, specs)
    yield from look_at_own(patient)


def _source(patient: Patient, facts: TopicFacts) -> Iterator[Finding]:
    name = facts.name
    yield ok("topic.source", name, f"The topic {name} is there, with {facts.partitions} partitions.")
    yield from _replicas(patient, facts)
    kept, size = facts.retention_ms, facts.max_message_bytes
    if kept is not None and kept != FOREVER_MS and kept < SHORT_RETENTION * 1000:
        yield warn(
            "topic.retention",
            name,
            f"The topic {name} keeps messages for {show_duration(kept / 1000)} (retention.ms={kept}).",
            "What is not handled by then is deleted: a longer outage loses messages before anyone has read "
            "them.",
            "Keep them for as long as an outage may last.",
            patient.commands.alter(name, "retention.ms", 7 * 86_400_000),
        )
    if size is None:
        return
    receive = int(
        patient.settings.kafka_property("consumer", "receive.message.max.bytes") or RECEIVE_MAX_BYTES
    )
    if size > receive:
        yield error(
            "topic.size",
            name,
            f"The topic {name} takes messages of {size} bytes (max.message.bytes), and our Consumers at "
            f"most {receive}.",
            "A message that is larger is never read, and its partition stands still.",
            f"Set kafka.common.receive.message.max.bytes to {size + 1024 * 1024}, or lower the topic's "
            f"limit.",
        )
    elif size > patient.settings.high_watermark_bytes:
        yield warn(
            "topic.size",
            name,
            f"The topic {name} takes messages of {size} bytes (max.message.bytes), more than "
            f"high_watermark_bytes "
            f"({patient.settings.high_watermark_bytes}).",
            "One such message fills the buffer, and nothing else is handled beside it.",
            "Raise high_watermark_bytes (and the memory limit), or lower the topic's limit.",
        )


def _targets(patient: Patient, specs: list[TopicSpec]) -> Iterator[Finding]:
    if not specs:
        return
    outcome = patient.admin().ensure(specs, create=False, timeout=patient.left())
    by_name = {spec.name: spec for spec in specs}
    patient.facts |= outcome.facts
    for violation in outcome.violations:
        spec = by_name[violation.topic]
        if violation.missing and patient.settings.create_topics:
            patient.absent.append(violation.topic)
            yield ok(
                "topic.target",
                violation.topic,
                f"The {spec.purpose.value} topic {violation.topic} does not exist yet: streamloop run "
                f"creates it "
                "(create_topics).",
            )
        else:
            yield error(
                "topic.target",
                violation.topic,
                f"The {spec.purpose.value} topic {violation.topic} does not exist (create_topics is off)."
                if violation.missing
                else violation.problem,
                "streamloop run refuses to start: messages could be lost.",
                "Create it as planned." if violation.missing else "Change the topic.",
                violation.command,
            )
    wrong = {violation.topic for violation in outcome.violations}
    for name, facts in outcome.facts.items():
        yield from _target(patient, by_name[name], facts, good=name not in wrong)
    for untold in [name for name in by_name if name not in outcome.facts and name not in wrong]:
        purpose = by_name[untold].purpose.value
        yield unknown(
            "topic.target", untold, f"Whether the {purpose} topic {untold} exists could not be told."
        )


def _target(patient: Patient, spec: TopicSpec, facts: TopicFacts, *, good: bool) -> Iterator[Finding]:
    name, what = spec.name, f"The {spec.purpose.value} topic {spec.name}"
    # What is said of a topic that keeps its records for ever is what could not be told.
    untold = unknown_facts(
        spec, replace(facts, retention_ms=FOREVER_MS if facts.retention_ms is not None else None)
    )
    for sentence in untold:
        yield unknown("topic.target", name, sentence, do="Allow DescribeConfigs on the topic.")
    for sentence in unknown_facts(spec, facts):
        if sentence not in untold:
            yield warn(
                "topic.retention",
                name,
                sentence,
                "A dead letter is a message that was not handled: it is gone before somebody mends its "
                "cause.",
                "Keep them until they are replayed or purged.",
                patient.commands.alter(name, "retention.ms", FOREVER_MS),
            )
    if facts.partitions < spec.partitions:
        yield warn(
            "topic.partitions",
            name,
            f"{what} has {facts.partitions} partitions, {spec.source} has {spec.partitions}.",
            "Messages of several source partitions share one: nothing is lost, and they wait for each other.",
            "Give it as many as the source.",
            patient.commands.add_partitions(name, spec.partitions),
        )
    if good and not untold:
        yield ok("topic.target", name, f"{what} is as it has to be, with {facts.partitions} partitions.")
    yield from _availability(patient, facts)


def _replicas(patient: Patient, facts: TopicFacts) -> Iterator[Finding]:
    name, factor, least = facts.name, facts.replication_factor, facts.min_insync_replicas
    brokers = len(patient.metadata.brokers)
    if factor == 1 and brokers > 1:
        yield warn(
            "topic.replicas",
            name,
            f"The topic {name} has one replica of each partition, on a cluster of {brokers} brokers.",
            "While its broker is away a partition is neither read nor written; if its disk is lost, so are "
            "the messages.",
            "Raise its replication factor, and that of its retry and dead-letter topics.",
        )
    elif factor is not None and least is not None and factor > 1 and least >= factor:
        yield warn(
            "topic.replicas",
            name,
            f"The topic {name} has {factor} replicas, and min.insync.replicas={least}.",
            "While one broker is away (at each of its restarts) nothing can be written.",
            "Let min.insync.replicas be one less than the replicas.",
            patient.commands.alter(name, "min.insync.replicas", factor - 1),
        )
    yield from _availability(patient, facts)


def _availability(patient: Patient, facts: TopicFacts) -> Iterator[Finding]:
    topic: Any = patient.metadata.topics.get(facts.name)
    if topic is None:
        return
    parts = topic.partitions.values()
    offline = sorted(part.id for part in parts if part.leader < 0)
    short = sorted(part.id for part in parts if part.leader >= 0 and len(part.isrs) < len(part.replicas))
    least = facts.min_insync_replicas or 1
    stuck = sorted(part.id for part in parts if part.leader >= 0 and len(part.isrs) < least)
    if offline:
        yield error(
            "topic.available",
            facts.name,
            f"Partitions of {facts.name} have no leader: {_listed(offline)}.",
            "They are neither read nor written until a broker that has them is back.",
            "Bring those brokers back.",
            patient.commands.describe_topics("unavailable-partitions"),
        )
    if stuck:
        yield error(
            "topic.available",
            facts.name,
            f"Partitions of {facts.name} have fewer replicas in sync than min.insync.replicas={least}: "
            f"{_listed(stuck)}.",
            "Writes to them are refused: what has to go there holds its source partition (publish_blocked).",
            "Bring the brokers that lag behind back.",
            patient.commands.describe_topics("under-min-isr-partitions"),
        )
    elif short:
        yield warn(
            "topic.available",
            facts.name,
            f"Partitions of {facts.name} have replicas that are not in sync: {_listed(short)}.",
            "One more broker that goes may stop them.",
            "Find the broker that is away or slow.",
            patient.commands.describe_topics("under-replicated-partitions"),
        )


COMPACTED: Final = {
    "{group}.control": "what the members tell each other",
    "{group}.replays": "what was replayed, purged or is done",
    "{group}.cursors": "how far the pull loops have come",
}
"""Topics that keep the newest record of each key for ever."""


def look_at_own(patient: Patient) -> Iterator[Finding]:
    """The group's own topics, of those that are there: control, ledger of replays, cursors, replay topics."""
    there = patient.metadata.topics
    kept = {name.format(group=patient.settings.group): what for name, what in COMPACTED.items()}
    sources = patient.topics.sources if patient.topics is not None else {}
    replays = [f"{source}.{patient.settings.group}.replay" for source in sources]
    wanted = [name for name in (*kept, *replays) if name in there]
    for name, facts in patient.admin().describe(wanted, patient.left()).items():
        if not isinstance(facts, TopicFacts):
            continue
        policy = facts.cleanup_policy
        if policy is None:
            yield unknown("topic.own", name, f"The broker does not tell the cleanup.policy of {name}.")
        elif name in kept and policy != "compact":
            yield error(
                "topic.own",
                name,
                f"The topic {name} has cleanup.policy={policy}: it holds {kept[name]}.",
                "With deletion by age old records of it vanish, and with them what they say.",
                "It must be compact.",
                patient.commands.alter(name, "cleanup.policy", "compact"),
            )
        elif name not in kept and "compact" in policy:
            yield error(
                "topic.own",
                name,
                f"The replay topic {name} has cleanup.policy={policy}.",
                "Of several replayed messages with one key only the newest stays: the others are lost.",
                "It must be delete.",
                patient.commands.alter(name, "cleanup.policy", "delete"),
            )
        else:
            yield ok("topic.own", name, f"The topic {name} is there, with cleanup.policy={policy}.")
        yield from _availability(patient, facts)


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return shown + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")
