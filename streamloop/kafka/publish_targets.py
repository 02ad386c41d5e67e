"""Looks whether a topic exists that a handler publishes to for the first time.

The publisher itself hears of a missing topic only when its client gives up waiting for it, half a minute
later: until then a handler would wait without a word. Nothing is created, and nothing waits for the answer.
Called on the event loop's thread; asks and warns on one of its own.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from streamloop.errors import StreamLoopError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.kafka.topic_admin import TopicAdmin

log = logging.getLogger("streamloop")

TIMEOUT: Final = 10.0
"""Seconds that one question may take."""
MADE_WITHIN: Final = 1.0
"""Seconds in which brokers that make topics by themselves (auto.create.topics.enable) have made it."""


class PublishTargets:
    """``missing`` is told of each topic that does not exist, on another thread. ``stop``: the run ends."""

    def __init__(
        self,
        admin: TopicAdmin,
        missing: Callable[[str], None],
        stop: threading.Event,
        made_within: float = MADE_WITHIN,
    ) -> None:
        self._admin = admin
        self._missing = missing
        self._stop = stop
        self._made_within = made_within

    def look(self, topic: str, consumer: str) -> None:
        """A handler of this consumer publishes to the topic for the first time. Returns at once."""
        threading.Thread(
            target=self._look, args=(topic, consumer), name="streamloop-publish-target", daemon=True
        ).start()

    def _look(self, topic: str, consumer: str) -> None:
        try:
            if self._exists(topic) or self._stop.wait(self._made_within) or self._exists(topic):
                return
        except StreamLoopError:
            return  # nothing could be told; the publish itself will say what is wrong
        except Exception:
            log.exception("looking for topic %s failed", topic, extra={"kind": "publish", "topic": topic})
            return
        log.warning(
            "the handler %s publishes to topic %s, which does not exist: each of its publishes waits until "
            "it does, or until the handler's time-out. Create it: %s",
            consumer,
            topic,
            self._admin.commands.create_source(topic),
            extra={"kind": "publish", "topic": topic, "consumer": consumer},
        )
        self._missing(topic)

    def _exists(self, topic: str) -> bool:
        """False only for what the brokers know not to be there."""
        return self._admin.describe([topic], TIMEOUT, configs=False).get(topic) is not None
