"""Does a broker answer after the login, and has the cluster what the settings ask for? Called by
``examine``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from streamloop.doctor.finding import Finding, error, ok, unknown, warn
from streamloop.doctor.wire import CONSUMER_GROUP_HEARTBEAT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamloop.doctor.patient import Patient

ANSWER: Final = 10.0
"""Seconds for the first answer after a login."""
ANSWER_AFTER_ALL: Final = 2.0
"""The same when no address is good: should the client manage it all the same, it is believed."""
SLICE: Final = 0.5
"""Seconds between two looks at whether it was refused: the client would try again until its time is over."""
AUTHENTICATION: Final = KafkaError._AUTHENTICATION  # noqa: SLF001 - its only name
SSL: Final = KafkaError._SSL  # noqa: SLF001 - its only name
TRANSACTIONS: Final = (22, 24, 26, 28)
"""InitProducerId, AddPartitionsToTxn, EndTxn, TxnOffsetCommit."""


def look_at_login(patient: Patient) -> Iterator[Finding]:
    """The first answer to an authenticated client: what everything else needs."""
    client = patient.connect()
    about = ",".join(patient.settings.brokers)
    most = ANSWER if patient.reached else ANSWER_AFTER_ALL
    until = patient.clock() + patient.left(most)
    while patient.metadata is None:
        try:
            patient.metadata = client.list_topics(timeout=min(SLICE, max(0.1, until - patient.clock())))
        except KafkaException as problem:
            client.poll(0)
            refused = any(each.code() in (AUTHENTICATION, SSL) for each in patient.errors)
            if refused or patient.clock() >= until:
                yield _refused(patient, about, most, problem)
                return
    brokers = patient.metadata.brokers
    controller = "" if patient.metadata.controller_id in brokers else ", and no controller is known"
    yield ok(
        "broker.login",
        about,
        f"The cluster {patient.metadata.cluster_id or 'without an id'} answers: {len(brokers)} "
        f"broker{'' if len(brokers) == 1 else 's'}, {len(patient.metadata.topics)} topics that we may "
        f"see{controller}.",
    )


def _refused(patient: Patient, about: str, waited: float, problem: KafkaException) -> Finding:
    said = {each.code(): str(each.str()) for each in patient.errors}
    user = patient.settings.sasl_username or patient.settings.kafka_property("admin", "sasl.username")
    if AUTHENTICATION in said:
        return error(
            "broker.login",
            about,
            f"The login{f' as {user}' if user else ''} is refused: {_short(said[AUTHENTICATION])}.",
            "No connection is made, whatever the address.",
            "Check sasl_username and sasl_password (sasl_password_file), and that the broker knows that "
            "user with this "
            "mechanism; a password that was rotated has to reach the pod's secret.",
        )
    if SSL in said:
        return error(
            "broker.login",
            about,
            f"TLS fails: {_short(said[SSL])}.",
            "No connection is made.",
            "Check ssl_ca_location, ssl_certificate_location and ssl_key_location.",
        )
    newest = _short(str(patient.errors[-1].str())) if patient.errors else str(problem.args[0].str())
    return error(
        "broker.login",
        about,
        f"No broker has answered within {waited:g} s: {newest}.",
        "Nothing is read and nothing is written. A member that runs waits and says so; nothing is lost.",
        "See what is said of each address; if they are all good, the broker's log says why it does not "
        "answer.",
    )


def look_at_features(patient: Patient) -> Iterator[Finding]:
    """Group protocol, transactions: what the broker offers against what the settings ask for."""
    if not patient.apis:
        yield unknown(
            "broker.features", "", "Which versions the brokers speak is not known: no address answered."
        )
        return
    asked = patient.settings.group_protocol
    about = "group protocol"
    if has_new_protocol(patient):
        yield ok("broker.features", about, f"The broker offers KIP-848 (group_protocol={asked}).")
    elif asked == "consumer":
        yield error(
            "broker.features",
            about,
            "The broker does not offer KIP-848, and group_protocol is consumer.",
            "Every member ends at its first poll.",
            "Set group_protocol to auto or classic, or upgrade the brokers to 4.0 and the feature "
            "group.version to 1.",
        )
    else:
        yield ok(
            "broker.features",
            about,
            f"The broker does not offer KIP-848: with group_protocol={asked} the classic protocol is used.",
        )
    missing = [key for key in TRANSACTIONS if key not in patient.apis]
    if missing:
        yield warn(
            "broker.features",
            "transactions",
            "The broker has no transactions.",
            "Replays of dead letters and pull loops need them; handling does not.",
            "Use Apache Kafka 0.11 or newer, or a service that has them.",
        )
    else:
        level = patient.features.get("metadata.version")
        shown = f" (metadata.version {level})" if level is not None else ""
        yield ok("broker.features", "transactions", f"The broker has transactions{shown}.")


def has_new_protocol(patient: Patient) -> bool:
    """Whether a member can join with KIP-848. Where features are told, the feature has to be on."""
    if CONSUMER_GROUP_HEARTBEAT not in patient.apis:
        return False
    return not patient.features or patient.features.get("group.version", 0) >= 1


def _short(said: str) -> str:
    """librdkafka's sentence without its prefixes of thread and address."""
    return said.strip().rstrip(".")[-300:]
