"""Looks at the loop's topics every few seconds while a run goes on, and says what a change of one means.

A topic that appears is checked like one that was there at the start; a recreated one ends its epochs; of one
that has gone the partitions are held. Started by the run, on a thread of its own; ``apply_change`` is called
on the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from streamloop.engine import events as ev
from streamloop.engine.events import Reason
from streamloop.errors import StreamLoopError, TopicError
from streamloop.kafka.poller import ResetTopic
from streamloop.kafka.topics import Change, TopicFacts, TopicWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.build import Parts
    from streamloop.kafka.topics import TopicChange
    from streamloop.preflight import TopicCheck
    from streamloop.routing import Topics
    from streamloop.settings import Settings

log = logging.getLogger("streamloop")

BROKER_ANSWER: Final = 10.0
"""Seconds that one check of topics may take."""
WATCH_TOPICS: Final = 5.0
"""Seconds between two looks at the topics while running."""


class TopicWatching:
    """The looks of one run, until ``stop`` is set.

    ``check``: what the start found out. ``changed`` is told each change, on this thread. ``end``: a sentence
    and an exit code, when what appeared can't be worked with.
    """

    def __init__(
        self,
        check: TopicCheck,
        topics: Topics,
        settings: Settings,
        *,
        stop: threading.Event,
        changed: Callable[[TopicChange], None],
        end: Callable[[str, int], None],
    ) -> None:
        names = (*topics.sources, *topics.own_names, *topics.dead_names)
        self._watch = TopicWatch(dict.fromkeys(names) | check.known)
        self._check = check
        self._sources = topics.sources
        self._create = settings.create_topics
        self._stop = stop
        self._changed = changed
        self._end = end

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="streamloop-topics", daemon=True).start()

    def partitions_of(self, topic: str) -> int | None:
        """How many partitions a topic has, as far as that is known. On any thread."""
        facts = self._watch.facts(topic) if topic in self._watch.names else None
        return facts.partitions if facts is not None else None

    def _run(self) -> None:
        names = self._watch.names
        first = True
        while not self._stop.wait(0.0 if first else WATCH_TOPICS):
            first = False
            try:
                described = self._check.admin.describe(names, WATCH_TOPICS, configs=False)
                for change in self._watch.update(time.monotonic(), described):
                    if change.change is Change.APPEARED and change.topic in self._sources:
                        self._appeared(change.topic)
                    self._changed(change)
            except StreamLoopError:
                continue
            except Exception:
                # Without this thread a recreated topic would not be seen: it goes on, and says what it met.
                log.exception("looking at the topics failed; it is tried again", extra={"kind": "topics"})

    def _appeared(self, topic: str) -> None:
        try:
            self._check.look(BROKER_ANSWER, create=self._create, sources=[topic])
        except TopicError as error:
            self._end(f"topic {topic} has appeared and {error}", error.exit_code)
        except StreamLoopError as error:
            log.warning("topic %s has appeared, and its topics could not be checked: %s", topic, error)


def apply_change(parts: Parts, change: TopicChange) -> None:
    """On the event loop: what a change means for what runs."""
    kind, topic = change.change, change.topic
    if change.after is not None:
        parts.core.target_changed(topic, change.after.partitions)
    if kind is Change.RECREATED:
        assert isinstance(change.after, TopicFacts)
        for poller in parts.pollers:
            poller.command([ResetTopic(topic, change.after.topic_id)])
    elif kind in (Change.GONE, Change.APPEARED):
        gone = kind is Change.GONE
        detail = f"topic {topic} does not exist any more; it is waited for" if gone else ""
        parts.core.deliver(
            [
                ev.HoldChanged(name, part.epoch, Reason.TOPIC_GONE, gone, detail)
                for name, part in parts.engine.parts.items()
                if name.topic == topic
            ]
        )
    if kind is Change.GONE:
        log.warning(
            "topic %s does not exist any more: what is to be read from it or written to it waits until "
            "it is there again",
            topic,
            extra={"kind": "topic_change", "topic": topic},
        )
    else:
        log.info("topic %s: %s", topic, kind.value, extra={"kind": "topic_change", "topic": topic})
