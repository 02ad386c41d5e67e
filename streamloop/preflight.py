"""What is looked at before a loop starts: settings that contradict each other, properties, topics, broker.

Used by the start of a run and by ``streamloop check``. Blocks, each call with its own time-out; never called
on the event loop's thread.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamloop.errors import ConfigurationError, StreamLoopError, TopicError
from streamloop.kafka import config
from streamloop.kafka.topic_admin import BrokersUnreachableError, TopicAdmin
from streamloop.kafka.topics import (
    Commands,
    TopicFacts,
    TopicSpec,
    Untold,
    Violation,
    describe_missing_source,
    plan_topics,
)
from streamloop.routing import RetryTopic, SourceTopic, TargetFacts, Topics
from streamloop.settings import Severity, check_sums

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamloop.assembly import Assembly
    from streamloop.settings import Settings

log = logging.getLogger("streamloop")


@dataclass(slots=True)
class CheckReport:
    """What ``check`` found. ``problems`` are sentences; ``ok``: nothing keeps the loop from running."""

    ok: bool = True
    problems: list[str] = field(default_factory=list)

    def error(self, sentence: str) -> None:
        """Something that keeps the loop from running."""
        self.ok = False
        self.problems.append(sentence)


def topics_of(assembly: Assembly) -> Topics:
    """The topics of a loop, by name. Raises ConfigurationError when two roles share one."""
    topics = Topics()
    for index, build in enumerate(assembly.consumers):
        settings = build.settings
        for topic in build.topics:
            names = settings.retry_topic_names(topic)
            retry = tuple(map(RetryTopic, names, settings.retry_topics))
            dead = settings.dead_letter_topic(topic) if settings.dead_letter else None
            replay = settings.replay_topic(topic) if settings.dead_letter else None
            topics.add(SourceTopic(topic, index, retry, dead, replay))
    return topics


def check_settings(assembly: Assembly) -> list[str]:
    """Warnings about the settings. Raises ConfigurationError with everything that is wrong with them."""
    settings = assembly.settings
    config.check_properties(settings)
    problems = check_sums(settings, [build.settings for build in assembly.consumers])
    errors = [problem.sentence for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise ConfigurationError("\n".join(errors))
    return [problem.sentence for problem in problems]


def make_admin(settings: Settings) -> TopicAdmin:
    """The client that looks at topics."""
    login = settings.security_protocol is not None and settings.security_protocol != "plaintext"
    return TopicAdmin(config.admin_config(settings), Commands(",".join(settings.brokers), login=login))


class TopicCheck:
    """Finds out what is there, creates what may be created, and says what is wrong."""

    def __init__(self, assembly: Assembly, topics: Topics, admin: TopicAdmin) -> None:
        self._assembly = assembly
        self._topics = topics
        self.admin = admin
        self.missing: list[str] = []
        """Source topics that do not exist."""
        self.known: dict[str, TopicFacts] = {}
        """What was found of the topics that are there."""
        self.warnings: list[str] = []
        self.created: list[str] = []
        """Topics that it has created."""
        self.violations: list[Violation] = []
        """What was wrong with topics of ours at the last look."""

    def look(self, timeout: float, *, create: bool, sources: Iterable[str] | None = None) -> None:
        """Check the topics of the loop, or of these source topics.

        Raises BrokersUnreachableError, and TopicError with the commands that mend what is wrong.
        """
        wanted = list(self._topics.sources if sources is None else sources)
        described = self.admin.describe(wanted, timeout)
        self.missing = [name for name in wanted if described.get(name) is None]
        specs: list[TopicSpec] = []
        for name in wanted:
            facts = described.get(name)
            if isinstance(facts, Untold):
                self.warnings.append(f"Whether the topic {name} exists could not be told: {facts.reason}")
            elif facts is not None:
                self.known[name] = facts
                specs += self.specs_of(facts)
        outcome = self.admin.ensure(specs, create=create, timeout=timeout)
        self.warnings += outcome.warnings
        self.created += outcome.created
        for made in outcome.created:
            log.info("created the topic %s", made, extra={"kind": "topic_created", "topic": made})
        self.violations = outcome.violations
        outcome.require()
        self.known |= outcome.facts
        for facts in outcome.facts.values():
            self._topics.facts[facts.name] = TargetFacts(facts.partitions, facts.max_message_bytes)

    def specs_of(self, facts: TopicFacts) -> list[TopicSpec]:
        """The topics that this source topic needs."""
        source = self._topics.sources[facts.name]
        settings = self._assembly.settings
        return plan_topics(
            facts,
            retry=[(retry.delay, retry.name) for retry in source.retry],
            dead_letter=source.dead,
            replay=source.replay,
            retention=settings.retry_topic_retention,
            replication_factor=settings.replication_factor,
        )

    def sentence_about_missing(self) -> str:
        """What to do about the source topics that do not exist."""
        return "\n".join(describe_missing_source(name, self.admin.commands) for name in self.missing)


def check_loop(assembly: Assembly, timeout: float) -> CheckReport:
    """Settings, broker and topics, without handling or creating anything."""
    report = CheckReport()
    try:
        report.problems += check_settings(assembly)
        topics = topics_of(assembly)
    except ConfigurationError as error:
        report.error(str(error))
        return report
    check = TopicCheck(assembly, topics, make_admin(assembly.settings))
    try:
        check.look(timeout, create=False)
    except BrokersUnreachableError as error:
        report.error(f"{error} (gave up after {timeout:g} s)")
        return report
    except TopicError:
        for violation in check.violations:
            if violation.missing and assembly.settings.create_topics:
                report.problems.append(
                    f"The topic {violation.topic} does not exist yet: streamloop run creates it "
                    "(create_topics)."
                )
            else:
                report.error(str(violation))
    except StreamLoopError as error:
        report.error(str(error))
    if check.missing:
        report.error(check.sentence_about_missing())
    report.problems += check.warnings
    return report
