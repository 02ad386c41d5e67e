"""May we do what we have to: read, write, commit, create? Asks the brokers for the operations that we are
allowed.

Nothing is tried out: a right that the brokers do not tell stays unknown. Called by ``examine`` after the
topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # it has no __all__

from streamloop.doctor.finding import Finding, error, ok, unknown, warn
from streamloop.kafka.config import retry_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamloop.doctor.patient import Patient

DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_READ, _WRITE = "Read", "Write"
_OPERATIONS: Final = {
    _READ: AclOperation.READ,
    _WRITE: AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Create": AclOperation.CREATE,
}
_WITHOUT: Final = {
    _READ: "Its messages can't be read: its partitions are never handled.",
    _WRITE: "Nothing can be written to it: what has to go there is held (publish_blocked).",
    "DescribeConfigs": "Whether the topic would lose messages can't be checked at the start.",
}


def look_at_access(patient: Patient) -> Iterator[Finding]:
    """Rights on topics, groups and the cluster."""
    if patient.metadata is None:
        return
    yield from _topics(patient)
    yield from _groups(patient)
    yield from _cluster(patient)


def _topics(patient: Patient) -> Iterator[Finding]:
    needed = needed_on_topics(patient)
    names = [name for name in needed if name not in patient.absent]
    if not names:
        return
    collection = TopicCollection(names)
    futures = patient.connect().describe_topics(
        collection, include_authorized_operations=True, request_timeout=patient.left()
    )
    for name in names:
        resource = f"--topic {name}"
        try:
            description = futures[name].result(patient.left())
        except KafkaException as problem:
            if problem.args[0].code() in DENIED:
                yield _denied(patient, f"topic {name}", "Describe", resource, "For us it does not exist.")
            elif problem.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # said by the look at the topics
                yield unknown(
                    "access.topic", name, f"Our rights on {name} could not be told: {_said(problem)}."
                )
            continue
        yield from _compared(
            patient,
            "access.topic",
            f"topic {name}",
            description.authorized_operations,
            needed[name],
            resource,
        )


def needed_on_topics(patient: Patient) -> dict[str, tuple[str, ...]]:
    """The operations that the loop needs on each of its topics."""
    needed: dict[str, tuple[str, ...]] = {}
    topics = patient.topics
    if topics is None:
        return needed
    for name, source in topics.sources.items():
        needed[name] = (_READ, "DescribeConfigs")
        for retry in source.retry:
            needed[retry.name] = (_READ, _WRITE, "DescribeConfigs")
        if source.replay is not None:
            needed[source.replay] = (_READ, "DescribeConfigs")
        if source.dead is not None:
            needed[source.dead] = (_WRITE, "DescribeConfigs")
    return needed


def _groups(patient: Patient) -> Iterator[Finding]:
    groups = [patient.settings.group]
    if patient.topics is not None and patient.topics.own_names:
        groups.append(retry_group(patient.settings))
    for group in groups:
        if not group:
            continue
        resource = f"--group {group}"

        def describe(left: float, group: str = group) -> Any:
            asked = patient.connect().describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=left
            )
            return asked[group].result(left)

        try:
            description = patient.ask(describe)
        except KafkaException as problem:
            if problem.args[0].code() in DENIED:
                means = "A member can't join it: nothing is handled."
                yield _denied(patient, f"group {group}", _READ, resource, means)
            elif problem.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                yield unknown(
                    "access.group",
                    group,
                    f"Our rights on the group {group} can't be told before it exists.",
                    do="Look again when a member has joined it.",
                )
            else:
                yield unknown(
                    "access.group", group, f"Our rights on {group} could not be told: {_said(problem)}."
                )
            continue
        yield from _compared(
            patient, "access.group", f"group {group}", description.authorized_operations, (_READ,), resource
        )


def _cluster(patient: Patient) -> Iterator[Finding]:
    if not patient.absent or not patient.settings.create_topics:
        return
    asked = patient.connect().describe_cluster(
        include_authorized_operations=True, request_timeout=patient.left()
    )
    try:
        allowed = asked.result(patient.left()).authorized_operations
    except KafkaException as problem:
        yield unknown("access.cluster", "", f"Our rights on the cluster could not be told: {_said(problem)}.")
        return
    if allowed is not None and AclOperation.CREATE in allowed:
        yield ok(
            "access.cluster", "", f"We may create the {len(patient.absent)} topics that are not there yet."
        )
        return
    yield warn(
        "access.cluster",
        "",
        f"Topics are to be created ({', '.join(patient.absent[:5])}), and we may not create any topic.",
        "Unless a rule allows just these names, streamloop run refuses to start with the commands that "
        "create them.",
        "Create them beforehand, or allow Create on the cluster or on their prefix.",
        *(
            patient.commands.allow(patient.principal, "Create", f"--topic {name}")
            for name in patient.absent[:5]
        ),
    )


def _compared(
    patient: Patient, check: str, about: str, allowed: Any, needed: tuple[str, ...], resource: str
) -> Iterator[Finding]:
    if allowed is None:
        yield unknown(check, about, f"The broker does not tell our rights on the {about}.")
        return
    missing = [operation for operation in needed if _OPERATIONS[operation] not in allowed]
    if not missing:
        yield ok(check, about, f"We may do what is needed on the {about}: {', '.join(needed)}.")
    for operation in missing:
        if operation == "DescribeConfigs":
            yield warn(
                check,
                about,
                f"We may not read the configuration of the {about}.",
                _WITHOUT[operation],
                "Allow it.",
                patient.commands.allow(patient.principal, operation, resource),
            )
            continue
        means = (
            _WITHOUT[operation]
            if about.startswith("topic")
            else "A member can't join it: nothing is handled."
        )
        yield _denied(patient, about, operation, resource, means)


def _denied(patient: Patient, about: str, operation: str, resource: str, means: str) -> Finding:
    return error(
        f"access.{about.split(maxsplit=1)[0]}",
        about,
        f"{patient.principal if patient.principal != 'User:NAME' else 'We'} may not {operation} the {about}.",
        means,
        "Allow it, or take away the rule that denies it.",
        patient.commands.allow(patient.principal, operation, resource),
    )


def _said(problem: KafkaException) -> str:
    return str(problem.args[0].str()).rstrip(". ") or str(problem.args[0].name())
