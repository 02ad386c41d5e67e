"""Which topics hold a group's dead letters: found by their names, or as they are named.

Asks the brokers for their list of topics only (asking for one topic by its name would make some brokers
create it). Called by whatever reads dead letters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streamloop.dlq.reading import ReadError
from streamloop.errors import ConfigurationError
from streamloop.kafka.config import admin_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from streamloop.settings import Settings

TIMEOUT: Final = 10.0
_MARK: Final = "\0"


@dataclass(frozen=True, slots=True)
class DeadTopic:
    """A dead-letter topic. ``source``: the topic whose messages it holds, as far as its name says so."""

    name: str
    source: str | None = None


def dead_letter_topics(
    settings: Settings,
    *,
    named: Sequence[str] = (),
    sources: Sequence[tuple[str, str]] = (),
    client_factory: Callable[[dict[str, Any]], Any] = AdminClient,
    timeout: float = TIMEOUT,
) -> list[DeadTopic]:
    """The dead-letter topics that exist, by name.

    ``named``: exactly these, of whatever program. ``sources``: (source topic, dead-letter topic) of a loop's
    consumers. Without either, those whose names ``dead_letter_topic_name`` (of the loop and of each consumer
    that has one of its own) makes for the group. Raises ConfigurationError without brokers or a group,
    ReadError when a topic that was named does not exist or no broker answers within ``timeout`` seconds.
    """
    if not named and not sources and not settings.group:
        raise ConfigurationError(
            "Whose dead letters? Give --group (or STREAMLOOP_GROUP), the loop as MODULE:LOOP, or the topics "
            "with --topic."
        )
    there = _listed(settings, client_factory, timeout)
    if named:
        for name in named:
            if name not in there:
                raise ReadError(
                    f"The topic {name} does not exist on {', '.join(settings.brokers)}: check its name and "
                    "--brokers."
                )
        return [DeadTopic(name) for name in dict.fromkeys(named)]
    found: dict[str, str | None] = {}
    if sources:
        for source, dead in sources:
            if dead in there:
                found.setdefault(dead, source)
    else:
        for template in _templates(settings):
            found |= dict(matching(template, settings.group, there))
    return [DeadTopic(name, found[name]) for name in sorted(found)]


def matching(template: str, group: str, there: Iterable[str]) -> list[tuple[str, str | None]]:
    """(topic, source topic) of each topic whose name ``template`` makes for ``group``.

    A name can be read in two ways: orders.eu.billing.dlq is of orders.eu and billing, or of orders and
    eu.billing. The source topic that exists decides; where none does, it is taken as this group's.
    """
    topics = set(there)
    made = template.replace("{group}", group)
    if "{topic}" not in made:
        return [(made, None)] if made in topics else []
    # The name of the topic may stand there more than once: it is the same each time.
    head, *rest = [re.escape(part) for part in made.replace("{topic}", _MARK).split(_MARK)]
    pattern = re.compile(head + "(?P<topic>.+)" + "(?P=topic)".join(rest))
    found: list[tuple[str, str | None]] = []
    for name in topics:
        match = pattern.fullmatch(name)
        if match is None or match["topic"] == name:
            continue
        source = match["topic"]
        if source in topics or not _of_another_group(template, source, group, name, topics):
            found.append((name, source))
    return sorted(found)


def _of_another_group(template: str, source: str, group: str, name: str, topics: set[str]) -> bool:
    """Whether a shorter source topic exists that makes this name with a longer group."""
    parts = source.split(".")
    for end in range(1, len(parts)):
        shorter, longer = ".".join(parts[:end]), f"{'.'.join(parts[end:])}.{group}"
        if shorter in topics and template.format(topic=shorter, group=longer) == name:
            return True
    return False


def _templates(settings: Settings) -> list[str]:
    usual = settings.for_consumer("dlq").dead_letter_topic_name
    own = [settings.for_consumer(name).dead_letter_topic_name for name in settings.consumers]
    return list(dict.fromkeys([usual, *own]))


def _listed(settings: Settings, client_factory: Callable[[dict[str, Any]], Any], timeout: float) -> set[str]:
    try:
        return set(client_factory(admin_config(settings)).list_topics(timeout=timeout).topics)
    except KafkaException as error:
        raise ReadError(
            f"{', '.join(settings.brokers)} can't be asked for topics: "
            f"{str(error.args[0].str()).rstrip('.')}. Check --brokers and the security settings."
        ) from None
