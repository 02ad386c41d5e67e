"""The control topic itself: its name, how it is created, and what about an existing one would not do.

Only looks and creates, never alters. Blocks, within the time-outs it is given. Called by the member's control
thread, and by ``streamloop pause`` and ``resume``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streamloop.kafka.topics import PlainTopic, TopicFacts, Untold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.settings import Settings

MIB: Final = 1024 * 1024
CONFIG: Final = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted: small ones keep the topic to some MiB, and what a new member reads
    # within its bound.
    "segment.bytes": str(4 * MIB),
    "segment.ms": str(10 * 60 * 1000),
    # The brokers' clock says how old a record is, so that members' clocks may differ.
    "message.timestamp.type": "LogAppendTime",
}
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Found:
    """The topic is there. ``created``: just now. ``warnings``: what about it will not do for long."""

    topic_id: str
    created: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Off:
    """There is none, or it may not be used: why, as the end of a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Away:
    """Whether there is one could not be told: why."""

    reason: str


def name_of(settings: Settings) -> str:
    """The topic's name."""
    return settings.control_topic_name.format(group=settings.group)


def unusable(settings: Settings, taken: Iterable[str] = ()) -> str:
    """Why there can be no control topic with these settings; '' when there can.

    ``taken``: topics of the loop.
    """
    name = name_of(settings)
    if settings.control_topic == "off":
        return f"control_topic ({settings.origin('control_topic')}) is off"
    if not _LEGAL.fullmatch(name) or name in (".", ".."):
        return f"{name!r} can't be the name of a topic: set control_topic_name"
    if name in set(taken):
        return f"{name} is a topic that the loop reads or writes itself: set control_topic_name"
    return ""


def find(
    admin: TopicAdmin,
    name: str,
    *,
    create: bool,
    sources: Iterable[TopicFacts],
    replication_factor: int | None,
    timeout: float,
) -> Found | Off | Away:
    """Look for the topic, and create it when it is missing and ``create`` allows it.

    It gets as many replicas as the safest of the source topics has, as many of them in sync, and at least
    ``replication_factor``. Raises BrokersUnreachableError.
    """
    facts = admin.describe([name], timeout).get(name)
    created = False
    if facts is None:
        if not create:
            return Off(f"the topic {name} does not exist")
        config = dict(CONFIG)
        known = list(sources)
        factor = max([replication_factor or -1, *(each.replication_factor or -1 for each in known)])
        in_sync = max((each.min_insync_replicas or 0 for each in known), default=0)
        if in_sync > 1:
            config["min.insync.replicas"] = str(in_sync)
        refused = admin.create([PlainTopic(name, 1, factor, config)], timeout).get(name)
        if refused is not None:
            return Off(f"the topic {name} does not exist and could not be created ({refused})")
        created = True
        facts = admin.describe([name], timeout).get(name)
    if isinstance(facts, Untold):
        return Off(f"the topic {name}: {facts.reason}") if _denied(facts) else Away(facts.reason)
    if facts is None:
        return Away(f"the topic {name} was created and is not listed yet")
    return Found(facts.topic_id, created, () if created else tuple(_warnings(admin, facts)))


def _denied(untold: Untold) -> bool:
    return "authoriz" in untold.reason.lower()


def _warnings(admin: TopicAdmin, facts: TopicFacts) -> Iterable[str]:
    if facts.cleanup_policy is not None and facts.cleanup_policy != "compact":
        command = admin.commands.alter(facts.name, "cleanup.policy", "compact")
        yield (
            f"The control topic {facts.name} has cleanup.policy={facts.cleanup_policy}: what an operator "
            f"holds would be forgotten when its record is deleted. Mend it with:\n    {command}"
        )
