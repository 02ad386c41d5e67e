"""Source topics that somebody wants to exist: read from a file, and created if missing.

A run never creates a source topic: a misspelled name would become a topic that nobody writes to. This is for
those who list them on purpose. It never alters or deletes a topic. Called by ``streamloop topics``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import yaml

from streamloop.errors import ConfigurationError, TopicError
from streamloop.kafka.topics import BROKERS_CHOICE, PlainTopic, TopicFacts, Untold
from streamloop.settings.units import count

if TYPE_CHECKING:
    from pathlib import Path

    from streamloop.kafka.topic_admin import TopicAdmin

_SHAPE: Final = (
    "topics: [{name: orders, partitions: 12, replicationFactor: 3, config: {retention.ms: 604800000}}]"
)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def read_topics(path: Path) -> list[PlainTopic]:
    """The topics that a YAML file lists under ``topics``. ConfigurationError says all that is wrong."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The file {path} can't be read: {error.strerror}. Give another.") from None
    except (UnicodeDecodeError, yaml.YAMLError):
        raise ConfigurationError(f"The file {path} is not valid YAML. It looks like this: {_SHAPE}") from None
    entries = data.get("topics") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise ConfigurationError(f"The file {path} has no list 'topics'. It looks like this: {_SHAPE}")
    problems: list[str] = []
    topics = [_topic(entry, f"{path}, topic {number}", problems) for number, entry in enumerate(entries, 1)]
    names = [topic.name for topic in topics]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems += [f"{path} lists {name} more than once. Keep one." for name in twice]
    if problems:
        raise ConfigurationError("\n".join(problems))
    return topics


def _topic(entry: object, where: str, problems: list[str]) -> PlainTopic:
    if not isinstance(entry, Mapping):
        problems.append(f"{where} is not a mapping. It looks like this: {_SHAPE}")
        return PlainTopic("")
    unknown = set(entry) - {"name", "partitions", "replicationFactor", "config"}
    if unknown:
        problems.append(
            f"{where} has {', '.join(sorted(map(str, unknown)))}, which is not known here: {_SHAPE}"
        )
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        problems.append(
            f"{where}: its name is {name!r}; give at most 249 letters, digits, dots, underscores and hyphens."
        )
    numbers = {}
    for key in ("partitions", "replicationFactor"):
        numbers[key] = BROKERS_CHOICE
        if entry.get(key) is not None:
            try:
                numbers[key] = count(entry[key])
                if numbers[key] < 1:
                    raise ValueError("give 1 or more, or leave it out for the broker's default")
            except ValueError as error:
                problems.append(f"{where}: {key} is {entry[key]!r}: {error}.")
    config = entry.get("config") or {}
    if not isinstance(config, Mapping):
        problems.append(f"{where}: config is not a mapping, such as {{retention.ms: 604800000}}.")
        config = {}
    return PlainTopic(
        str(name),
        numbers["partitions"],
        numbers["replicationFactor"],
        {str(key): _text(value) for key, value in config.items()},
    )


def _text(value: Any) -> str:
    """As the broker reads it: true and not True, 1000000 and not 1e+06."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def create_missing(admin: TopicAdmin, wanted: list[PlainTopic], timeout: float, *, create: bool) -> list[str]:
    """What was found and done, a sentence a topic.

    Without ``create`` nothing is done. Raises BrokersUnreachableError, and TopicError with every topic that
    could not be created.
    """
    found = admin.describe([topic.name for topic in wanted], timeout, configs=False)
    missing = [topic for topic in wanted if found[topic.name] is None]
    refused = admin.create(missing, timeout) if create and missing else {}
    lines, problems = [], []
    for topic in wanted:
        facts = found[topic.name]
        if isinstance(facts, Untold):
            problems.append(f"Whether the topic {topic.name} exists could not be told: {facts.reason}.")
        elif isinstance(facts, TopicFacts):
            lines.append(_there(topic, facts))
        elif topic.name in refused:
            problems.append(
                f"The topic {topic.name} could not be created: {refused[topic.name]}. Create it by hand, or "
                "give this user the right to."
            )
        else:
            lines.append(f"{'created' if create else 'would create'} {topic.name}{_shape(topic)}")
    if problems:
        raise TopicError("\n".join([*lines, *problems]))
    return lines


def _there(topic: PlainTopic, facts: TopicFacts) -> str:
    if topic.partitions in (BROKERS_CHOICE, facts.partitions):
        return f"{topic.name} is there ({facts.partitions} partitions)"
    return (
        f"{topic.name} is there with {facts.partitions} partitions, not {topic.partitions}: it is left as it "
        "is, since another number sends keys to other partitions"
    )


def _shape(topic: PlainTopic) -> str:
    parts = [f"{topic.partitions} partitions"] if topic.partitions > 0 else []
    if topic.replication_factor > 0:
        parts.append(f"{topic.replication_factor} replicas")
    parts += [f"{name}={value}" for name, value in topic.config.items()]
    return f" ({', '.join(parts)})" if parts else ""
