"""The check of the sums: settings that are each right and together wrong, found before anything starts.

Looks at the settings, at the consumers' own values and at the memory that the control group allows; reads
nothing else and changes nothing. Called by ``streamloop run`` and ``streamloop check`` before the first
connection.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamloop.settings.model import MIB, ConsumerSettings, HandlerSettings, Settings
from streamloop.settings.units import host_and_port, show_duration, show_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_POLL_INTERVAL_MS: Final = 300_000
FETCH_MAX_BYTES: Final = 50 * MIB
"""librdkafka's default of fetch.max.bytes."""
CLOSE_MARGIN: Final = 5.0
"""Seconds. After the drain: the last commits, leaving the group, flushing logs and spans."""
RETRY_RETENTION_MARGIN: Final = 7 * 86_400.0
INTERPRETER_BYTES: Final = 80 * MIB
"""What Python and the libraries take before the first message."""
_UNLIMITED: Final = 2**60
_ORDINAL: Final = re.compile(r"-\d+$")
"""So ends the name of a StatefulSet's pod. A Deployment's ends with five letters and digits."""


class Severity(enum.Enum):
    """ERROR: refuse to start (exit code 2). WARNING: log it and go on."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not add up.

    ``setting`` is the one to change first; ``sentence`` says what to do.
    """

    severity: Severity
    setting: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.sentence}"


def memory_limit_of_control_group(root: Path = Path("/")) -> int | None:
    """Bytes that the control group (v2 or v1) of this process may use; None when there is no limit.

    The limit of each group above counts, too. ``root`` is there for tests.
    """
    limits: list[int] = []
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        groups = []
    mounted = root / "sys/fs/cgroup"
    for line in [*groups, "0::/", "0:memory:/"]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            base, name = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = Path(path.lstrip("/"))
        for group in (own, *own.parents):
            try:
                text = (base / group / name).read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError):
                continue
            if text.isdigit() and int(text) < _UNLIMITED:
                limits.append(int(text))
    return min(limits, default=None)


def memory_needed(settings: Settings, *, second_consumer: bool) -> int:
    """The most bytes that messages can take, with what Python itself takes.

    ``second_consumer``: whether retry or replay topics are read.
    """
    fetch = _number(settings, "fetch.max.bytes", FETCH_MAX_BYTES)
    needed = INTERPRETER_BYTES + settings.producer_queue_bytes
    needed += settings.high_watermark_bytes + settings.prefetch_bytes + fetch
    if second_consumer:
        needed += settings.retry_high_watermark_bytes + settings.prefetch_bytes + fetch
    return needed


def check_sums(
    settings: Settings,
    consumers: Iterable[ConsumerSettings],
    memory_limit: Callable[[], int | None] = memory_limit_of_control_group,
) -> list[Problem]:
    """What does not add up, errors first. ``consumers``: all that the loop declares."""
    declared = list(consumers)
    problems = [
        *_times(settings),
        *_memory(settings, declared, memory_limit),
        *_buffers(settings, declared),
        *_console(settings),
    ]
    for consumer in declared:
        problems += _consumer(settings, consumer)
    instance = settings.kafka_property("consumer", "group.instance.id")
    if instance and not (instance == settings.member and _ORDINAL.search(settings.member)):
        problems.append(
            Problem(
                Severity.WARNING,
                "kafka.consumer.group.instance.id",
                f"group.instance.id is {instance!r} "
                f"({settings.origin(('kafka', 'consumer', 'group.instance.id'))}): "
                "static membership needs one fixed id for each member, as a StatefulSet gives it. In a "
                "Deployment two "
                "pods can hold one id during a rollout, and one of them is fenced for good. Leave it out "
                "there.",
            )
        )
    return sorted(problems, key=lambda problem: problem.severity is Severity.WARNING)


def _console(settings: Settings) -> list[Problem]:
    if not settings.console:
        return []
    where = f"console is on ({settings.origin('console')})"
    if settings.control_address is None:
        sentence = (
            f"{where}, and control_address is not set: the console is served there. Set control_address, "
            "such as 127.0.0.1:9465, or turn the console off."
        )
        return [Problem(Severity.ERROR, "control_address", sentence)]
    problems = []
    if settings.control_read_token is None:
        sentence = (
            f"{where}, and no control_read_token is set: it shows members and lag, and no dead letters. Set "
            "control_read_token_file to see them."
        )
        problems.append(Problem(Severity.WARNING, "control_read_token", sentence))
    host = host_and_port(settings.control_address)[0]
    tokens = settings.control_read_token is not None or settings.control_act_token is not None
    if tokens and not settings.control_tls and not _only_here(host):
        sentence = (
            f"{where} at {settings.control_address}, which others can reach, without TLS: tokens and cookies "
            "travel in clear text. Listen on 127.0.0.1, or put a proxy that speaks TLS before it and set "
            "control_tls."
        )
        problems.append(Problem(Severity.WARNING, "control_tls", sentence))
    return problems


def _only_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _times(settings: Settings) -> list[Problem]:
    problems = []
    interval = _number(settings, "max.poll.interval.ms", MAX_POLL_INTERVAL_MS) / 1000
    if settings.revoke_wait > interval / 3:
        problems.append(
            Problem(
                Severity.ERROR,
                "revoke_wait",
                f"revoke_wait is {show_duration(settings.revoke_wait)} ({settings.origin('revoke_wait')}), "
                f"more than a third "
                f"of max.poll.interval.ms ({show_duration(interval)}): the member could be put out of the "
                f"group while it "
                f"waits. Set it to at most {show_duration(interval / 3)}, or raise "
                f"kafka.consumer.max.poll.interval.ms.",
            )
        )
    if settings.dwell > interval / 10:
        problems.append(
            Problem(
                Severity.ERROR,
                "dwell",
                f"dwell is {show_duration(settings.dwell)} ({settings.origin('dwell')}), more than a tenth "
                f"of "
                f"max.poll.interval.ms ({show_duration(interval)}): nothing polls meanwhile. Set it to at "
                f"most "
                f"{show_duration(interval / 10)}.",
            )
        )
    if (grace := settings.termination_grace) is not None and settings.drain_timeout + CLOSE_MARGIN > grace:
        killed = settings.drain_timeout >= grace
        problems.append(
            Problem(
                Severity.ERROR if killed else Severity.WARNING,
                "drain_timeout",
                f"drain_timeout is {show_duration(settings.drain_timeout)} "
                f"({settings.origin('drain_timeout')}) but SIGKILL "
                f"comes {show_duration(grace)} after SIGTERM (termination_grace, "
                f"{settings.origin('termination_grace')}): "
                + (
                    "the drain would be cut off. "
                    if killed
                    else "too little is left to leave the group cleanly. "
                )
                + f"Set drain_timeout to at most {show_duration(max(0.0, grace - CLOSE_MARGIN))}, or the "
                f"grace period to at "
                f"least {show_duration(settings.drain_timeout + CLOSE_MARGIN)}.",
            )
        )
    return problems


def _memory(
    settings: Settings, consumers: list[ConsumerSettings], memory_limit: Callable[[], int | None]
) -> list[Problem]:
    limit = settings.memory_limit if settings.memory_limit is not None else memory_limit()
    if limit is None:
        return []
    retries = any(consumer.retry_topics or consumer.dead_letter for consumer in consumers)
    needed = memory_needed(settings, second_consumer=retries)
    if needed <= limit:
        return []
    origin = settings.origin("memory_limit") if settings.memory_limit is not None else "of the control group"
    watermarks = settings.high_watermark_bytes + (settings.retry_high_watermark_bytes if retries else 0)
    names = "high_watermark_bytes and retry_high_watermark_bytes" if retries else "high_watermark_bytes"
    return [
        Problem(
            Severity.ERROR if watermarks >= limit else Severity.WARNING,
            "high_watermark_bytes",
            f"Messages can take up to {_mib(needed)} (watermarks {_mib(watermarks)}, prefetch, one fetch for "
            f"each Consumer, "
            f"the producer's queue, and {_mib(INTERPRETER_BYTES)} for Python), but the memory limit is "
            f"{_mib(limit)} "
            f"({origin}). Lower {names}, prefetch_bytes or kafka.consumer.fetch.max.bytes, or raise the "
            f"limit.",
        )
    ]


def _buffers(settings: Settings, consumers: list[ConsumerSettings]) -> list[Problem]:
    workers = sum(consumer.concurrency for consumer in consumers)
    if workers <= settings.high_watermark_messages:
        return []
    return [
        Problem(
            Severity.WARNING,
            "high_watermark_messages",
            f"high_watermark_messages is {settings.high_watermark_messages} "
            f"({settings.origin('high_watermark_messages')}) but "
            f"the consumers' concurrency is {workers} together: some of it can never be used. Raise the "
            f"watermark or lower "
            "concurrency.",
        )
    ]


def _consumer(settings: Settings, consumer: ConsumerSettings) -> list[Problem]:
    problems = []

    def add(severity: Severity, setting: str, sentence: str) -> None:
        problems.append(Problem(severity, setting, f"consumer {consumer.name!r}: {sentence}"))

    defaults = (
        HandlerSettings.model_fields["timeout"].default,
        Settings.model_fields["drain_timeout"].default,
    )
    if consumer.timeout > settings.drain_timeout and (consumer.timeout, settings.drain_timeout) != defaults:
        add(
            Severity.WARNING,
            "timeout",
            f"timeout is {show_duration(consumer.timeout)} ({consumer.origin('timeout')}) but a shutdown "
            f"waits only "
            f"{show_duration(settings.drain_timeout)} (drain_timeout, {settings.origin('drain_timeout')}): a "
            f"handler that "
            "needs longer is cut off and its message is handled again. Raise drain_timeout or lower timeout.",
        )
    if consumer.retry_topics:
        longest = max(consumer.retry_topics)
        if settings.retry_topic_retention < longest + RETRY_RETENTION_MARGIN:
            add(
                Severity.ERROR,
                "retry_topic_retention",
                f"retry_topic_retention is {show_duration(settings.retry_topic_retention)} "
                f"({settings.origin('retry_topic_retention')}) but the longest retry delay is "
                f"{show_duration(longest)} "
                f"({consumer.origin('retry_topics')}): a message could expire while it waits. Set it to at "
                f"least "
                f"{show_duration(longest + RETRY_RETENTION_MARGIN)} (the delay and 7 days).",
            )
        if consumer.max_age is not None and consumer.max_age < max(consumer.retry_topics):
            add(
                Severity.WARNING,
                "max_age",
                f"max_age is {show_duration(consumer.max_age)} ({consumer.origin('max_age')}), shorter than "
                f"the retry delay "
                f"{show_duration(longest)}: what waits there gets one more attempt at most. Raise max_age or "
                f"drop that delay.",
            )
    if consumer.max_attempts is not None and consumer.max_attempts < consumer.in_place_attempts:
        add(
            Severity.WARNING,
            "max_attempts",
            f"max_attempts is {consumer.max_attempts} ({consumer.origin('max_attempts')}), less than "
            f"in_place_attempts "
            f"({consumer.in_place_attempts}, {consumer.origin('in_place_attempts')}): the rest of the plan "
            f"is never reached. "
            "Raise max_attempts or lower in_place_attempts.",
        )
    if not consumer.dead_letter and consumer.dead_letter_max_per_minute is not None:
        add(
            Severity.WARNING,
            "dead_letter_max_per_minute",
            f"dead_letter_max_per_minute ({consumer.origin('dead_letter_max_per_minute')}) has no effect, "
            f"because dead_letter "
            f"is false ({consumer.origin('dead_letter')}). Leave one of them out.",
        )
    if (
        consumer.retry_topics
        and "{group}" not in consumer.retry_topic_name
        and consumer.group not in consumer.retry_topic_name
    ):
        add(
            Severity.WARNING,
            "retry_topic_name",
            f"retry_topic_name is {consumer.retry_topic_name!r} ({consumer.origin('retry_topic_name')}), "
            f"without {{group}}: "
            "another group that reads the same topic would take these retries for its own. Put {group} into "
            "it.",
        )
    return problems


def _number(settings: Settings, name: str, default: int) -> int:
    value = settings.kafka_property("consumer", name)
    try:
        return default if value is None else int(value)
    except (TypeError, ValueError):
        return default  # the check of librdkafka's properties names it


def _mib(size: int) -> str:
    return f"{show_size(size)}" if size % MIB == 0 else f"{size / MIB:.1f}MiB"
