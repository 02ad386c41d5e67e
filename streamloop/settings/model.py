"""The settings: names, types, units, defaults and what each is for. This is the one place that defines them.

The JSON schema, the command line's options, the reference in docs/settings.md and the environment variables
are all made from this model. It is immutable, reads nothing by itself (``streamloop.settings.load`` does),
and its repr and its errors never hold a secret. Called by everything that needs a setting.
"""

from __future__ import annotations

import os
import re
import socket
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    WithJsonSchema,
    field_validator,
)

from streamloop.engine.retry import MAX_DELAY, Failure, RetryPlan
from streamloop.errors import ConfigurationError
from streamloop.settings import units
from streamloop.settings.layers import (
    DEFAULT,
    SECTIONS,
    Assignment,
    Layer,
    Origin,
    SettingPath,
    consumer_key,
    dotted,
)

if TYPE_CHECKING:
    from streamloop.settings.load import Loaded

MASK: Final = "**********"
MIB: Final = 1024 * 1024

# Generous on purpose ('pas' also catches a misspelled password): masking too much harms nobody.
_SECRET: Final = re.compile(
    r"pas|secret|token(?!\.endpoint)|key\.pem|credential|private|oauthbearer\.(config|extensions)"
)
_NOT_SECRET: Final = re.compile(r"(\.location|\.file|_file|\.client\.id|\.url)$")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_secret(path: SettingPath) -> bool:
    """Whether the value of a setting must never be shown. Works for names that do not exist, too."""
    name = path[-1].lower()
    return bool(_SECRET.search(name)) and not _NOT_SECRET.search(name)


def none_word(value: object) -> object:
    """None for the texts that stand for no value."""
    return None if isinstance(value, str) and value.strip().lower() in ("none", "null") else value


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _ordering(value: object) -> object:
    return "none" if value is None else _word(value)


def _switch(value: object) -> object:
    if isinstance(value, bool):  # YAML reads on and off as these
        return "on" if value else "off"
    return _word(value)


def _level(value: object) -> object:
    return value.strip().upper() if isinstance(value, str) else value


def _any_text(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str | SecretStr):
        raise ValueError("give a text; in YAML put it in quotes")  # noqa: TRY004 - only ValueError is reported
    return value


def _text(value: object) -> object:
    """A text that may reach librdkafka: its Python client ends the process over one that is no UTF-8."""
    found = _any_text(value)
    try:
        (found.get_secret_value() if isinstance(found, SecretStr) else str(found)).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds bytes that are no UTF-8") from None
    return found


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("give a number")  # noqa: TRY004 - only ValueError is reported
    return value


def _property(value: object) -> object:
    if isinstance(value, str | SecretStr):
        return _text(value)
    if isinstance(value, int | float):
        return value
    raise ValueError("give a text, a number, true or false")


def _properties(value: Mapping[str, str | int | float | bool]) -> Mapping[str, Any]:
    return MappingProxyType(
        {
            name: SecretStr(str(each)) if is_secret((name,)) and not isinstance(each, SecretStr) else each
            for name, each in value.items()
        }
    )


def _broker_list(value: object) -> tuple[str, ...]:
    return units.brokers(value)


Duration = Annotated[
    float,
    BeforeValidator(units.duration),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": units.DURATION_PATTERN}]}
    ),
]
"""Seconds, or a text with a unit."""
Size = Annotated[
    int,
    BeforeValidator(units.size),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": units.SIZE_PATTERN}]}
    ),
]
"""Bytes, or a text with a unit."""
Count = Annotated[int, BeforeValidator(units.count)]
Limit = Annotated[int, Field(ge=1), BeforeValidator(units.count)]
"""A count of 1 or more.

The constraint stands first, so that it reaches the JSON schema inside an optional.
"""
Fraction = Annotated[float, BeforeValidator(_number)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
Text = Annotated[str, BeforeValidator(_text)]
Secret = Annotated[SecretStr, BeforeValidator(_text)]
Token = Annotated[SecretStr, Field(min_length=16), BeforeValidator(_any_text)]
"""A secret that nobody can guess."""
Names = Annotated[
    tuple[str, ...],
    BeforeValidator(units.names),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
Durations = Annotated[
    tuple[Duration, ...],
    BeforeValidator(units.listed),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {
                        "anyOf": [{"type": "number"}, {"type": "string", "pattern": units.DURATION_PATTERN}]
                    },
                },
                {"type": "string"},
            ]
        }
    ),
]
Properties = Annotated[
    Mapping[str, Annotated[Any, BeforeValidator(_property)]],
    AfterValidator(_properties),
    PlainSerializer(dict),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
]
Start = Annotated[
    units.StartWord | int,
    BeforeValidator(units.start),
    WithJsonSchema({"type": ["string", "integer"], "format": "earliest, latest, stop, RFC 3339 or epoch ms"}),
]
NoneWord = BeforeValidator(none_word)
Word = BeforeValidator(_word)

_CONFIG: Final = ConfigDict(
    frozen=True,
    extra="forbid",
    hide_input_in_errors=True,
    validate_default=False,
    use_attribute_docstrings=True,
)


def _check_template(template: str, known: tuple[str, ...], needed: tuple[str, ...]) -> str:
    try:
        fields = [
            (name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(template)
        ]
    except ValueError:
        raise ValueError("its braces do not match: give a text such as {topic}.{group}.dlq") from None
    names = [name for name, _, _ in fields if name is not None]
    if any(name not in known or spec or conversion for name, spec, conversion in fields if name is not None):
        raise ValueError(f"it may hold only {', '.join('{' + each + '}' for each in known)}")
    for name in needed:
        if name not in names:
            raise ValueError(f"it must hold {{{name}}}, or two different topics would have one name")
    return template


class HandlerSettings(BaseModel):
    """What one @consumer may have of its own. On the loop these are the defaults of all its consumers."""

    model_config = _CONFIG

    concurrency: Count = Field(100, ge=1, le=100_000)
    """Messages of this consumer that are handled at the same time."""
    timeout: Duration = Field(30.0, gt=0)
    """How long a handler may take before it is asked to stop; counts as a failed attempt."""
    kill_after: Duration = Field(30.0, gt=0)
    """A handler that is not back this long after its time-out ends the process (exit code 70)."""
    ordering: Annotated[Literal["key", "partition", "none"], BeforeValidator(_ordering)] = "key"
    """Which messages wait for each other: those of one key, of one partition, or none."""
    batch_size: Count = Field(100, ge=1, le=100_000)
    """Most messages that a batch handler is given at once."""
    batch_linger: Duration = Field(0.1, le=60)
    """How long a batch that is not full waits for more messages."""
    in_place_attempts: Count = Field(3, ge=1, le=1_000_000)
    """Attempts in place, the first included, before a message goes to a retry topic. 1: no retry in place."""
    backoff_base: Duration = Field(0.2, le=MAX_DELAY)
    """Longest wait before the second attempt in place (the wait is random between 0 and this)."""
    backoff_factor: Fraction = Field(2.0, ge=1, le=1_000)
    """By how much that wait grows with each further attempt."""
    backoff_cap: Duration = Field(5.0, le=MAX_DELAY)
    """That wait never grows beyond this."""
    unavailable_cap: Duration = Field(30.0, gt=0, le=MAX_DELAY)
    """Longest wait between attempts while a dependency is unavailable. These spend no attempt."""
    retry_topics: Durations = (30.0, 300.0, 1800.0)
    """Delays of the retry topics, in the order they are used; each is a topic of its own. Empty: none."""
    dead_letter: bool = True
    """Whether a message that can't be handled goes to the dead-letter topic. If not, the loop stops at it."""
    max_attempts: Annotated[Limit | None, NoneWord] = None
    """Attempts in all, over all deliveries; then dead letter. none: as many as the plan has."""
    max_age: Annotated[Annotated[Duration, Field(gt=0)] | None, NoneWord] = None
    """Time since the first failure after which the next failure means dead letter. none: no limit."""
    dead_letter_max_per_minute: Annotated[Limit | None, NoneWord] = None
    """Dead letters in a minute above which the partition is held instead of flooding the topic.

    none: no limit.
    """
    strict_order: bool = False
    """Do every retry in place, so that no later message of a lane overtakes; excludes retry topics."""
    start: Start = "earliest"
    """Where a partition without a committed offset begins: earliest, latest, stop, an RFC 3339 time or epoch
    ms.
    """
    out_of_range: Annotated[Literal["earliest", "latest", "stop"], Word] = "earliest"
    """What happens when the committed offset is no longer in the log."""
    retry_topic_name: Text = "{topic}.{group}.retry.{delay}"
    """Name of a retry topic."""
    dead_letter_topic_name: Text = "{topic}.{group}.dlq"
    """Name of the dead-letter topic."""
    replay_topic_name: Text = "{topic}.{group}.replay"
    """Name of the topic that ``streamloop dlq replay`` writes to and only this group reads."""

    @field_validator("retry_topics")
    @classmethod
    def _delays_differ(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0.001 <= delay <= 365 * 86_400 for delay in value):
            raise ValueError("each delay must be from 1ms to 365d")
        if len({units.show_duration(delay) for delay in value}) != len(value):
            raise ValueError("one delay is there twice: each names a topic of its own, so make them differ")
        return value

    @field_validator("retry_topic_name")
    @classmethod
    def _retry_template(cls, value: str) -> str:
        return _check_template(value, ("topic", "group", "delay"), ("delay",))

    @field_validator("dead_letter_topic_name", "replay_topic_name")
    @classmethod
    def _dead_letter_template(cls, value: str) -> str:
        return _check_template(value, ("topic", "group"), ())


class ConsumerOverrides(HandlerSettings):
    """The values that one consumer has of its own: those in ``model_fields_set``; the others mean nothing."""


class ConsumerSettings(HandlerSettings):
    """What is in force for one @consumer. Made by ``Settings.for_consumer``."""

    name: str
    """The consumer's name: its handler's, unless it was given one."""
    group: str
    """The consumer group, for the names of topics."""

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    def origin(self, setting: str) -> Origin:
        """Where the value of ``setting`` came from."""
        return self._origins.get(setting, DEFAULT)

    def retry_plan(self, delay: Callable[[int, Failure], float] | None = None) -> RetryPlan:
        """The plan in the engine's form. ``delay`` is the consumer's own delay function, if it has one."""
        return RetryPlan(
            in_place_attempts=self.in_place_attempts,
            backoff_base=self.backoff_base,
            backoff_factor=self.backoff_factor,
            backoff_cap=self.backoff_cap,
            retry_delays=self.retry_topics,
            dead_letter=self.dead_letter,
            max_attempts=self.max_attempts,
            max_age=self.max_age,
            strict_order=self.strict_order,
            delay=delay,
            unavailable_cap=self.unavailable_cap,
        )

    def retry_topic_names(self, topic: str) -> tuple[str, ...]:
        """The retry topics of source ``topic``, in the order of the delays.

        ConfigurationError: not a legal name.
        """
        return tuple(
            self._topic("retry_topic_name", self.retry_topic_name, topic, units.show_duration(delay))
            for delay in self.retry_topics
        )

    def dead_letter_topic(self, topic: str) -> str:
        """The dead-letter topic of source ``topic``. ConfigurationError when that is not a legal name."""
        return self._topic("dead_letter_topic_name", self.dead_letter_topic_name, topic, "")

    def replay_topic(self, topic: str) -> str:
        """The replay topic of source ``topic``. ConfigurationError when that is not a legal name."""
        return self._topic("replay_topic_name", self.replay_topic_name, topic, "")

    def _topic(self, setting: str, template: str, topic: str, delay: str) -> str:
        name = template.format(topic=topic, group=self.group, delay=delay)
        if not _TOPIC.fullmatch(name) or name in (".", ".."):
            raise ConfigurationError(
                f"{setting} ({self.origin(setting)}) makes the topic name {name!r}, which Kafka does not "
                "allow: a name has at most 249 letters, digits, dots, underscores and hyphens. "
                f"Change {setting} or the group's name."
            )
        return name


class KafkaSettings(BaseModel):
    """librdkafka properties, passed through by section; those that would break a promise are refused."""

    model_config = _CONFIG

    common: Properties = Field(default_factory=lambda: MappingProxyType({}))
    """For every client."""
    consumer: Properties = Field(default_factory=lambda: MappingProxyType({}))
    """For the Consumers."""
    producer: Properties = Field(default_factory=lambda: MappingProxyType({}))
    """For the Producers."""
    admin: Properties = Field(default_factory=lambda: MappingProxyType({}))
    """For the client that looks at topics and creates them."""


class Settings(HandlerSettings):
    """All settings of one StreamLoop. ``Settings.load`` reads them from everywhere and says what is wrong."""

    brokers: Annotated[
        tuple[str, ...],
        BeforeValidator(_broker_list),
        WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
    ] = ()
    """Addresses of some brokers, host:port."""
    group: Text = Field("", max_length=200)
    """The consumer group."""
    member: Text = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", min_length=1, max_length=200
    )
    """Name of this member in logs, metrics and replays."""
    client_id: Annotated[Text | None, NoneWord] = None
    """client.id of our connections, as the brokers' tools show it. none: the member's name."""
    topics: Annotated[
        Mapping[str, str],
        BeforeValidator(units.pairs),
        AfterValidator(MappingProxyType),
        PlainSerializer(dict),
        WithJsonSchema(
            {"anyOf": [{"type": "object", "additionalProperties": {"type": "string"}}, {"type": "string"}]}
        ),
    ] = Field(default_factory=lambda: MappingProxyType({}))
    """Topics to read instead of the declared ones, as declared=actual."""
    group_protocol: Annotated[Literal["auto", "consumer", "classic"], Word] = "auto"
    """Rebalance protocol.

    auto: consumer (KIP-848) where the broker has it, classic cooperative-sticky otherwise; there a
    max.poll.interval.ms below the session time-out of 45 s shortens that one, with a warning.
    """

    high_watermark_messages: Count = Field(2_000, ge=1)
    """Messages of the source topics in the process (not yet acknowledged) at which it takes no more."""
    high_watermark_bytes: Size = Field(64 * MIB, ge=1)
    """The same in bytes."""
    retry_high_watermark_messages: Count = Field(2_000, ge=1)
    """Messages of the retry topics in the process at which it takes no more of those."""
    retry_high_watermark_bytes: Size = Field(64 * MIB, ge=1)
    """The same in bytes."""
    low_watermark: Fraction = Field(0.5, gt=0, lt=1)
    """Share of the high watermarks below which it takes messages again."""
    dwell: Duration = Field(0.5, ge=0.01)
    """How long it stays full before it pauses partitions in librdkafka (which drops what was prefetched)."""
    backoff_share: Fraction = Field(0.25, gt=0, le=1)
    """Largest share of the high watermark that may wait in back-off, with what waits behind it."""
    lane_limit: Count = Field(1_000, ge=1)
    """Messages of one key (or partition) that may wait in the process."""
    gap_limit: Count = Field(20_000, ge=1)
    """Offsets from the committable one to the highest received at which a partition takes no more."""
    commit_interval: Duration = Field(1.0, ge=0.01)
    """How often offsets are committed."""
    drain_timeout: Duration = 25.0
    """How long a shutdown waits for running handlers."""
    startup_timeout: Duration = Field(30.0, gt=0)
    """How long all on_startup functions together may take."""
    shutdown_timeout: Duration = 10.0
    """How long all on_shutdown functions together may take."""
    revoke_wait: Duration = 5.0
    """How long a revoked partition waits for its running handlers.

    At most a third of max.poll.interval.ms.
    """
    prefetch_bytes: Size = Field(16 * MIB, ge=1024)
    """Memory for prefetched messages of each Consumer (queued.max.messages.kbytes)."""
    producer_queue_bytes: Size = Field(32 * MIB, ge=1024)
    """Memory for records that wait to be sent (queue.buffering.max.kbytes)."""
    memory_limit: Annotated[Annotated[Size, Field(ge=MIB)] | None, NoneWord] = None
    """Memory that the process may use, for the check of the sums. none: the control group's limit."""
    termination_grace: Annotated[Annotated[Duration, Field(gt=0)] | None, NoneWord] = None
    """Time from SIGTERM to SIGKILL (terminationGracePeriodSeconds), for the check of the sums.

    none: not checked.
    """

    create_topics: bool = True
    """Create missing retry and dead-letter topics. Source topics are never created."""
    require_topics: bool = False
    """End with exit code 2 when a source topic is missing, instead of waiting for it."""
    retry_topic_retention: Duration = Field(14 * 86_400.0, gt=0)
    """retention.ms of retry topics that are created."""
    replication_factor: Annotated[Limit | None, NoneWord] = None
    """Replication factor of topics that are created. none: the source topic's."""

    security_protocol: Annotated[
        Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] | None, NoneWord, Word
    ] = None
    """How to talk to the brokers. none: plaintext."""
    sasl_mechanism: Annotated[Text | None, NoneWord] = None
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI."""
    sasl_username: Annotated[Text | None, NoneWord] = None
    """User name for PLAIN and SCRAM."""
    sasl_password: Secret | None = None
    """Password for PLAIN and SCRAM. Better from a file than on the command line, where others can see it."""
    sasl_password_file: Annotated[Text | None, NoneWord] = None
    """A file that holds the password."""
    ssl_ca_location: Annotated[Text | None, NoneWord] = None
    """File or folder of CA certificates."""
    ssl_certificate_location: Annotated[Text | None, NoneWord] = None
    """File of the client's certificate (PEM)."""
    ssl_key_location: Annotated[Text | None, NoneWord] = None
    """File of the client's private key (PEM)."""
    ssl_key_password: Secret | None = None
    """Password of the private key."""
    ssl_key_password_file: Annotated[Text | None, NoneWord] = None
    """A file that holds the password of the private key."""

    ops_address: Annotated[Annotated[Text, AfterValidator(units.address)] | None, NoneWord] = None
    """host:port on which /startup, /ready, /live and /metrics are served; port 0: any free one.

    none: nowhere. In a container 0.0.0.0:9464. IPv6 addresses stand in brackets.
    """
    control_address: Annotated[Annotated[Text, AfterValidator(units.address)] | None, NoneWord] = None
    """host:port on which /status is served and /pause and /resume are taken, such as 127.0.0.1:9465.

    none: nowhere.
    """
    control_hosts: Names = ()
    """Host names by which the control address may be called, besides localhost and IP addresses."""
    control_read_token: Token | None = None
    """Token for seeing what may quote payloads (error texts in /status). none: nobody sees it."""
    control_read_token_file: Annotated[Text | None, NoneWord] = None
    """A file that holds that token."""
    control_act_token: Token | None = None
    """Token for acting (/pause, /resume). none: nobody may."""
    control_act_token_file: Annotated[Text | None, NoneWord] = None
    """A file that holds that token."""
    control_tls: bool = False
    """Whether browsers reach the control address through a proxy that speaks TLS. Marks cookies as Secure."""
    console: bool = False
    """Whether the console, a web page for operators, is served on the control address, at /console/."""
    jaeger_url: Annotated[Annotated[Text, AfterValidator(units.web_address)] | None, NoneWord] = None
    """Jaeger's query API as this member reaches it, for traces on the console, such as http://jaeger:16686.

    none: no traces are drawn.
    """
    jaeger_link: Annotated[Annotated[Text, AfterValidator(units.web_address)] | None, NoneWord] = None
    """Jaeger's own page as a browser reaches it: trace ids become links to it. none: no links."""
    control_topic: Annotated[Literal["auto", "off"], BeforeValidator(_switch)] = "auto"
    """The topic in which the group's members tell each other how they are and what operators hold.

    auto: used where it exists or may be created. off: each member is on its own.
    """
    control_topic_name: Text = "{group}.control"
    """Name of the control topic."""
    count_dead_letters: bool = True
    """Whether a member counts the open dead letters, where metrics are shown (loop_dead_letters_open).

    It reads each dead-letter topic once, at no more than 8 MiB/s.
    """
    metrics_exporter: Annotated[Literal["auto", "otlp", "none"], Word] = "auto"
    """Whether metrics are pushed over OTLP. auto: when OTEL_METRICS_EXPORTER or an OTLP endpoint is set."""

    tracing: Annotated[
        Literal["auto", "on", "off"],
        BeforeValidator(_switch),
        WithJsonSchema({"enum": ["auto", "on", "off", True, False]}),
    ] = "auto"
    """Whether messages are traced. auto: when the program has set a TracerProvider, or OTEL_TRACES_EXPORTER
    or an OTLP endpoint is set. on: also without, to OpenTelemetry's default endpoint.
    """
    trace_sample_ratio: Annotated[Share | None, NoneWord] = None
    """Share of the traces that begin here that are sampled; others as their parent says. none: as
    OTEL_TRACES_SAMPLER says (all by default). Not for a TracerProvider of the program's own.
    """
    trace_keep_failed: bool = True
    """Whether failed attempts of traces that are not sampled are recorded, at most 10/s of each kind."""
    trace_clients: bool = False
    """Whether polls and commits are traced, too."""
    replay_trace: Annotated[Literal["continue", "link"], Word] = "continue"
    """Whether what happens to a replayed dead letter goes on in the message's trace, or begins one of its
    own that is linked to it.
    """
    trace_flush_timeout: Duration = Field(3.0, le=60)
    """How long a shutdown waits for the last spans to be exported, after the Consumers have left."""

    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_level)] = "INFO"
    """Least severe log records that are written."""
    log_format: Annotated[Literal["auto", "json", "text"], Word] = "auto"
    """One JSON object a line, or text. auto: text on a terminal, JSON otherwise."""
    log_keys: bool = False
    """Whether log lines about a message show its key."""

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    """librdkafka properties, by section: common, consumer, producer, admin."""
    consumers: Annotated[
        Mapping[str, ConsumerOverrides], AfterValidator(MappingProxyType), PlainSerializer(dict)
    ] = Field(default_factory=lambda: MappingProxyType({}))
    """Settings of single consumers, by the consumer's name."""

    _assigned: Mapping[SettingPath, Assignment] | None = PrivateAttr(default=None)

    @field_validator("control_topic_name")
    @classmethod
    def _control_template(cls, value: str) -> str:
        return _check_template(value, ("group",), ("group",))

    @staticmethod
    def load(
        keywords: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        yaml_path: Path | str | None = None,
        *,
        command_line: Mapping[str, object] | None = None,
    ) -> Loaded:
        """Read all settings. See ``streamloop.settings.load.load``."""
        from streamloop.settings.load import load

        return load(keywords, env, yaml_path, command_line=command_line)

    def origin(self, path: SettingPath | str) -> Origin:
        """Where the value of a setting came from; ``path`` as ``("kafka", "common", "debug")`` or dotted."""
        wanted = path if isinstance(path, str) else dotted(path)
        for known, assignment in self.assignments().items():
            if dotted(known) == wanted:
                return assignment.origin
        return DEFAULT

    def assignments(self) -> Mapping[SettingPath, Assignment]:
        """The values that something other than the defaults gave, with their origins."""
        if self._assigned is not None:
            return self._assigned
        # Built directly, without load(): everything that was given is a keyword.
        values: dict[SettingPath, Any] = {
            (name,): getattr(self, name) for name in self.model_fields_set - {"kafka", "consumers"}
        }
        for section in SECTIONS:
            for name, value in getattr(self.kafka, section).items():
                values[("kafka", section, name)] = value
        for consumer, own in self.consumers.items():
            for name in own.model_fields_set:
                values[("consumers", consumer_key(consumer), name)] = getattr(own, name)
        return {
            path: Assignment(path, value, Origin(Layer.KEYWORD, f"keyword {dotted(path)}"))
            for path, value in values.items()
        }

    def for_consumer(self, name: str, declared: Mapping[str, object] | None = None) -> ConsumerSettings:
        """What is in force for the consumer ``name``, with ``declared`` the keywords of its
        @loop.consumer(..).

        The command line comes first. Otherwise a value for this consumer comes before one for the whole loop:
        a declared keyword, then ``consumers.<name>.<setting>`` from keywords, environment, YAML; then the
        loop's own value, then the default. Raises ConfigurationError, a sentence a mistake.
        """
        from streamloop.settings.load import settle_consumer

        return settle_consumer(self, name, declared or {})

    def kafka_property(self, section: Literal["consumer", "producer", "admin"], name: str) -> Any:
        """The librdkafka property that was passed through for this section, or None."""
        own: Mapping[str, Any] = getattr(self.kafka, section)
        return own.get(name, self.kafka.common.get(name))
