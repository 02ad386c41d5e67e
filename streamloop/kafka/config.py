"""The librdkafka properties of our clients: what we set, what may be passed through, what is refused and why.

Makes plain dicts and never connects: the check of the properties builds clients without brokers and closes
them. A secret leaves the settings only here, into the dict that a client is built from; no message holds one.
Called by whatever builds a Consumer, a Producer or an AdminClient, and by ``streamloop check`` and
``streamloop config``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from streamloop.errors import ConfigurationError
from streamloop.settings.layers import nearest
from streamloop.settings.model import MASK, Settings, is_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Protocol = Literal["consumer", "classic"]
"""The group protocols: KIP-848, and the older one."""
Section = Literal["consumer", "producer", "admin"]

SHORTEST_DELIVERY_TIMEOUT_MS: Final = 5_000


class Fixed(NamedTuple):
    """A property that must keep this value; the same value passed through is accepted."""

    value: str | bool  # confluent-kafka wants some of them as bool
    reason: str


ALIASES: Final[Mapping[str, str]] = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "max.in.flight.requests.per.connection": "max.in.flight",
    "request.required.acks": "acks",
    "message.timeout.ms": "delivery.timeout.ms",
    "message.send.max.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "auto.commit.enable": "enable.auto.commit",
}
"""librdkafka's second names, to the one that is used here."""

OWN_SETTINGS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "brokers",
    "group.id": "group",
    "client.id": "client_id",
    "group.protocol": "group_protocol",
    "queued.max.messages.kbytes": "prefetch_bytes",
    "queue.buffering.max.kbytes": "producer_queue_bytes",
}
"""Properties that are settings of ours, with a unit of ours: refused, so that there is one place to look."""

SECURITY: Final[Mapping[str, str]] = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password",
    "ssl.ca.location": "ssl_ca_location",
    "ssl.certificate.location": "ssl_certificate_location",
    "ssl.key.location": "ssl_key_location",
    "ssl.key.password": "ssl_key_password",
}
"""Properties that have a setting of the same meaning: either may be used, not both."""

FIXED: Final[Mapping[Section, Mapping[str, Fixed]]] = {
    "consumer": {
        "enable.auto.commit": Fixed(False, "an offset is committed only after its message is acknowledged"),
        "enable.auto.offset.store": Fixed(
            False, "an offset is committed only after its message is acknowledged"
        ),
        "auto.offset.reset": Fixed(
            "error",
            "librdkafka would jump with only a log line and can skip messages; use start and out_of_range",
        ),
        "isolation.level": Fixed(
            "read_committed", "records of aborted transactions would be handled, replays among them twice"
        ),
        "enable.partition.eof": Fixed(
            True, "without it the lag of a partition that ends in markers never gets to 0"
        ),
        "partition.assignment.strategy": Fixed(
            "cooperative-sticky",
            "with another strategy a rebalance takes every partition away, not only those that move",
        ),
        "group.protocol.type": Fixed("consumer", "the members of a consumer group have this type"),
    },
    "producer": {
        "acks": Fixed(
            "all", "a message is acknowledged only when all in-sync replicas have its retry or dead letter"
        ),
        "enable.idempotence": Fixed(True, "without it a retried send can duplicate and reorder records"),
        "partitioner": Fixed(
            "murmur2_random", "keys would go to other partitions than those that Java clients choose"
        ),
        "delivery.report.only.error": Fixed(False, "a message is acknowledged by the report of its delivery"),
        "queuing.strategy": Fixed("fifo", "another order breaks the order of a key"),
    },
    "admin": {},
}

REFUSED: Final[Mapping[str, str]] = {
    "auto.commit.interval.ms": "streamloop commits by itself; use commit_interval",
    "offset.store.method": "offsets are kept in the consumer group",
    "offset.store.path": "offsets are kept in the consumer group",
    "transactional.id": (
        "the publisher is idempotent, not transactional, and a shared id would fence the other members"
    ),
    "message.max.bytes": (
        "it follows the limit of the topic that is written to, so that the broker decides what fits"
    ),
    "default_topic_conf": "pass the properties themselves",
    "rebalance_cb": "streamloop owns the callbacks",
    "on_commit": "streamloop owns the callbacks",
    "offset_commit_cb": "streamloop owns the callbacks",
    "on_delivery": "streamloop owns the callbacks",
    "delivery_callback": "streamloop owns the callbacks",
    "dr_cb": "streamloop owns the callbacks",
    "dr_msg_cb": "streamloop owns the callbacks",
    "consume_cb": "streamloop owns the callbacks",
    "error_cb": "streamloop owns the callbacks",
    "stats_cb": "streamloop owns the callbacks",
    "throttle_cb": "streamloop owns the callbacks",
    "log_cb": "streamloop owns the callbacks",
    "logger": "streamloop owns the callbacks",
    "oauth_cb": "give StreamLoop the function that gets the token",
    "oauthbearer_token_refresh_cb": "give StreamLoop the function that gets the token",
    "partitioner_cb": "keys would go to other partitions than those that Java clients choose",
}

CLASSIC_ONLY: Final = frozenset(
    {"partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "group.protocol.type"}
)
"""Refused by librdkafka beside group.protocol=consumer, where the broker decides them."""
CLASSIC_SESSION_MS: Final = 45_000
"""librdkafka's default of session.timeout.ms."""
SHORTEST_SESSION_MS: Final = 6_000
"""What brokers accept: the default of group.min.session.timeout.ms."""

_SUGGESTIONS: Final = """
api.version.request.timeout.ms batch.num.messages batch.size broker.address.family broker.address.ttl
check.crcs client.dns.lookup client.rack compression.level compression.type connections.max.idle.ms debug
delivery.timeout.ms enable.gapless.guarantee enable.metrics.push enable.ssl.certificate.verification
fetch.error.backoff.ms fetch.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms
group.instance.id group.remote.assignor heartbeat.interval.ms linger.ms log.connection.close log_level
max.in.flight max.partition.fetch.bytes max.poll.interval.ms metadata.max.age.ms metadata.recovery.strategy
plugin.library.paths queue.buffering.max.messages queued.min.messages receive.message.max.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.principal
sasl.kerberos.service.name sasl.mechanism sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.method sasl.oauthbearer.scope
sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol session.timeout.ms
socket.connection.setup.timeout.ms socket.keepalive.enable socket.nagle.disable socket.receive.buffer.bytes
socket.send.buffer.bytes socket.timeout.ms ssl.ca.location ssl.ca.pem ssl.certificate.location
ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.endpoint.identification.algorithm
ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password
statistics.interval.ms sticky.partitioning.linger.ms topic.metadata.refresh.interval.ms
""".split()  # noqa: SIM905 - seventy names, one a line, would be the longest part of this file
"""For 'did you mean': librdkafka itself decides what exists."""


def consumer_config(settings: Settings, protocol: Protocol) -> dict[str, Any]:
    """Properties of the Consumer of the source topics.

    ConfigurationError: a property that was passed is refused.
    """
    return _consumer(settings, protocol, settings.group, "")


def retry_consumer_config(settings: Settings, protocol: Protocol) -> dict[str, Any]:
    """Properties of the Consumer of the retry topics: in a group of its own, ``<group>.retry``."""
    return _consumer(settings, protocol, retry_group(settings), "-retry")


def retry_group(settings: Settings) -> str:
    """The group that reads the retry topics, so that their rebalances do not touch the main one."""
    return f"{settings.group}.retry"


def producer_config(settings: Settings, *, message_max_bytes: int | None = None) -> dict[str, Any]:
    """Properties of the publisher's Producer.

    ``message_max_bytes``: the largest target's limit and some more.
    """
    return _producer(settings, "-producer", message_max_bytes, {})


def solo_producer_config(settings: Settings, *, message_max_bytes: int | None = None) -> dict[str, Any]:
    """Properties of the Producer that sends each record alone, so that an error is about that record only."""
    return _producer(settings, "-solo", message_max_bytes, {"batch.num.messages": 1, "linger.ms": 0})


def control_consumer_config(settings: Settings) -> dict[str, Any]:
    """Properties of the Consumer that follows the control topic: one partition, assigned, never a group."""
    config = _consumer(settings, "classic", settings.group, "-control")
    for name in ("group.instance.id", "partition.assignment.strategy"):
        config.pop(name, None)
    return {
        **config,
        "isolation.level": "read_uncommitted",  # we write no transactions there, and wait for no one else's
        "queued.max.messages.kbytes": 1024,
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 500,
    }


def control_producer_config(settings: Settings) -> dict[str, Any]:
    """Properties of the Producer that writes to the control topic: seldom, small, and in order."""
    own = {
        # Not idempotent, so that it can have no fatal error; one request at a time keeps the order.
        "enable.idempotence": False,
        "max.in.flight": 1,
        "linger.ms": 0,
        "delivery.timeout.ms": 10_000,
        "queue.buffering.max.kbytes": 4 * 1024,
    }
    return _producer(settings, "-control", None, own)


def admin_config(settings: Settings) -> dict[str, Any]:
    """Properties of the AdminClient."""
    _refuse(settings, "admin")
    # What it can't do is raised and told in a sentence; its own lines would come bare, amid the logs.
    return {**_connection(settings, "-admin"), "log_level": 0, **_passed(settings, "admin")}


def check_properties(settings: Settings) -> None:
    """Raise ConfigurationError, a sentence each, for properties that are refused, unknown or wrong.

    librdkafka itself is asked, by building clients that have no broker to connect to. Files of certificates
    and keys are read.
    """
    problems: list[str] = []
    for section in _SECTIONS:
        problems += _problems(settings, section)
    if not problems:
        if not settings.brokers:  # not needed for this: nothing connects
            settings = settings.model_copy(update={"brokers": ("none",)})
        protocols: tuple[Protocol, ...] = ("consumer", "classic")
        if settings.group_protocol != "auto":
            protocols = (settings.group_protocol,)
        for protocol in protocols:
            problems += _tried(settings, "consumer", consumer_config(settings, protocol))
        problems += _tried(settings, "producer", producer_config(settings))
        problems += _tried(settings, "admin", admin_config(settings))
    if problems:
        raise ConfigurationError("\n".join(dict.fromkeys(problems)))


DEPRECATED: Final = "queuing.strategy"
"""Refused with another value, and not set by us: librdkafka warns of it, and its default is right."""

_SECTIONS: Final[tuple[Section, ...]] = ("consumer", "producer", "admin")


def _consumer(settings: Settings, protocol: Protocol, group: str, suffix: str) -> dict[str, Any]:
    _refuse(settings, "consumer")
    config = {
        **_connection(settings, suffix),
        # 1000 ms by default: a consumer that is a little slower than the fetch would stand still that long.
        "fetch.queue.backoff.ms": 5,
        **_passed(settings, "consumer"),
        **{name: fixed.value for name, fixed in FIXED["consumer"].items()},
        "queued.max.messages.kbytes": max(1, settings.prefetch_bytes // 1024),
        "group.id": group,
        "group.protocol": protocol,
    }
    if protocol == "consumer":
        config = {name: value for name, value in config.items() if name not in CLASSIC_ONLY}
    elif (shorter := shortened_session_ms(settings)) is not None:
        config["session.timeout.ms"] = shorter
    return config


def shortened_session_ms(settings: Settings) -> int | None:
    """The session.timeout.ms of group_protocol=auto, where that becomes classic and the default is too long.

    librdkafka refuses one above max.poll.interval.ms, which the protocol `consumer` does not: a start that
    never needs the classic one must not fail of it. None: the default or the user's stands.
    """
    interval = settings.kafka_property("consumer", "max.poll.interval.ms")
    given = settings.kafka_property("consumer", "session.timeout.ms")
    if settings.group_protocol != "auto" or interval is None or given is not None:
        return None
    shorter = int(_number_or(interval, CLASSIC_SESSION_MS))
    return shorter if SHORTEST_SESSION_MS <= shorter < CLASSIC_SESSION_MS else None


def _producer(
    settings: Settings, suffix: str, message_max_bytes: int | None, own: Mapping[str, Any]
) -> dict[str, Any]:
    _refuse(settings, "producer")
    config = {
        **_connection(settings, suffix),
        "delivery.timeout.ms": 30_000,
        "linger.ms": 5,
        "compression.type": "lz4",
        **_passed(settings, "producer"),
        **{name: fixed.value for name, fixed in FIXED["producer"].items() if name != DEPRECATED},
        "queue.buffering.max.kbytes": max(1, settings.producer_queue_bytes // 1024),
        **own,
    }
    if message_max_bytes is not None:
        config["message.max.bytes"] = message_max_bytes
    return config


def _connection(settings: Settings, suffix: str) -> dict[str, Any]:
    if not settings.brokers:
        raise ConfigurationError(
            "brokers is not set: give the address of a broker as --brokers host:9092, as STREAMLOOP_BROKERS, "
            "or as "
            "'brokers:' in streamloop.yaml."
        )
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(settings.brokers),
        "client.id": (settings.client_id or settings.member) + suffix,
    }
    for name, setting in SECURITY.items():
        value = getattr(settings, setting)
        if value is not None:
            config[name] = value.get_secret_value() if isinstance(value, SecretStr) else value
    return config


def _passed(settings: Settings, section: Section) -> dict[str, Any]:
    """What was passed through for this section, under first names, ready for librdkafka."""
    merged: dict[str, Any] = {}
    for properties in (settings.kafka.common, getattr(settings.kafka, section)):
        for name, value in properties.items():
            merged[ALIASES.get(name, name)] = _plain(value)
    return merged


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value).lower() if isinstance(value, bool) else value


def _refuse(settings: Settings, section: Section) -> None:
    problems = _problems(settings, section)
    if problems:
        raise ConfigurationError("\n".join(problems))


def _problems(settings: Settings, section: Section) -> list[str]:
    """A sentence for each property of this section (and of common) that would break a promise."""
    problems = []
    for written_in in ("common", section):
        properties: Mapping[str, Any] = getattr(settings.kafka, written_in)
        for written, value in properties.items():
            name = ALIASES.get(written, written)
            reason = _reason(settings, section, name, _plain(value))
            if reason:
                origin = settings.origin(("kafka", written_in, written))
                problems.append(f"kafka.{written_in}.{written} ({origin}) is refused: {reason}.")
    return problems


def _reason(settings: Settings, section: Section, name: str, value: Any) -> str:
    """Why ``name`` can't have ``value``; empty when it can."""
    if name in OWN_SETTINGS:
        return f"use the setting {OWN_SETTINGS[name]} instead"
    if name in REFUSED:
        return REFUSED[name]
    if name in SECURITY and getattr(settings, SECURITY[name]) is not None:
        return (
            f"the setting {SECURITY[name]} ({settings.origin(SECURITY[name])}) says the same; keep one of "
            f"them"
        )
    fixed = FIXED[section].get(name)
    if fixed is not None and not _same(name, value, fixed.value):
        return f"it must be {str(fixed.value).lower()}, because {fixed.reason}; leave it out"
    if section == "consumer" and name in CLASSIC_ONLY and settings.group_protocol == "consumer" and not fixed:
        return (
            f"with group_protocol=consumer ({settings.origin('group_protocol')}) the broker decides it "
            f"(group.consumer.{name}, or the group's own configuration); set it there, or use "
            f"group_protocol=classic"
        )
    if (
        section == "producer"
        and name == "delivery.timeout.ms"
        and _number(value) < SHORTEST_DELIVERY_TIMEOUT_MS
    ):
        return (
            f"it must be at least {SHORTEST_DELIVERY_TIMEOUT_MS} (and 0 means for ever): a shorter time "
            f"gives records up "
            "that the broker is still writing, and they would be sent twice"
        )
    if section == "producer" and name == "max.in.flight" and _number(value) > 5:
        return "an idempotent producer keeps the order with at most 5 requests in flight; set it to 5 or less"
    return ""


def _same(name: str, value: object, wanted: str | bool) -> bool:
    text = str(value).strip().lower()
    if name == "acks" and text in ("-1", "all"):
        return True
    if isinstance(wanted, bool):
        return text in (("true", "t", "1") if wanted else ("false", "f", "0"))
    return text == wanted


def _number(value: object) -> float:
    return _number_or(value, SHORTEST_DELIVERY_TIMEOUT_MS if value else 0)


def _number_or(value: object, otherwise: float) -> float:
    """``otherwise`` for what is no number: librdkafka says what is wrong with it."""
    try:
        return float(str(value))
    except ValueError:
        return otherwise


def _tried(settings: Settings, section: Section, config: Mapping[str, Any]) -> list[str]:
    """Build a client of these properties that has nobody to connect to, and close it."""
    tried = {name: value for name, value in config.items() if name != "bootstrap.servers"}
    # Neither fetch a token nor log in to anything; certificates are still read with ssl.
    protocol = str(tried.get("security.protocol", "plaintext")).lower()
    tried["security.protocol"] = "ssl" if protocol.endswith("ssl") else "plaintext"
    tried["log_level"] = 0  # what matters comes back as an error
    tried.pop("debug", None)
    if section == "consumer" and not tried["group.id"]:
        tried["group.id"] = "check"
    build: Callable[[dict[str, Any]], Any] = {
        "consumer": Consumer,
        "producer": Producer,
        "admin": AdminClient,
    }[section]
    try:
        client = build(tried)
    except KafkaException as error:
        return [_refusal(settings, section, error.args[0].str(), config)]
    except (TypeError, ValueError) as error:
        return [_refusal(settings, section, str(error), config)]
    if section == "consumer":
        client.close()
    return []


def _refusal(settings: Settings, section: Section, said: str, config: Mapping[str, Any]) -> str:
    for name, value in config.items():
        if is_secret((name,)) and value:
            said = said.replace(str(value), MASK)
    said = said.removeprefix(f"Failed to create {section}: ").strip().rstrip(".")
    named = (
        re.search(r"""property:? ["']([\w.]+)""", said)
        or re.search(r"`([\w.]+)`", said)
        or re.match(r"([a-z]+\.[\w.]+) ", said)
    )
    name = named[1] if named else ""
    place = _place(settings, section, name)
    if said.startswith("No such configuration property"):
        found = nearest(name, _SUGGESTIONS)
        advice = f"did you mean {found}?" if found else "see librdkafka's CONFIGURATION.md."
        return f"{place or name} is not a librdkafka property: {advice}"
    if place:
        return f"{place} is not valid: {said}."
    return (
        f"librdkafka refuses the properties of the {section}: {said}. Change what is below kafka.{section}."
    )


def _place(settings: Settings, section: str, name: str) -> str:
    """Where a property was written: its setting and origin, or '' when we set it ourselves."""
    for written_in in (section, "common"):
        properties: Mapping[str, Any] = getattr(settings.kafka, written_in)
        for written in properties:
            if ALIASES.get(written, written) == ALIASES.get(name, name):
                return f"kafka.{written_in}.{written} ({settings.origin(('kafka', written_in, written))})"
    own = SECURITY.get(ALIASES.get(name, name))
    if own is not None and getattr(settings, own) is not None:
        return f"{own} ({settings.origin(own)})"
    return ""
