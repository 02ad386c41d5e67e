"""Decides when a member writes its status to the control topic, and makes the record.

Every 5 s while something changes, every 15 s when nothing does, and soon after an operator's record was
applied, since somebody waits for that. Sends nothing by itself, and costs no more than a share of the time.
Called by the link, on its thread.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError

from streamloop.control.records import LONGEST_STATUS, MemberRecord
from streamloop.control.trim import bounded, fingerprint
from streamloop.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.control.state import Snapshot
    from streamloop.settings import Settings
    from streamloop.status import LoopStatus

CHANGED_EVERY: Final = 5.0
"""Seconds between two statuses while something changes: a person looks no more often."""
HEARTBEAT: Final = 15.0
"""Seconds between two statuses when nothing changes: three until a silent member counts as gone."""
AT_ONCE: Final = 1.0
"""Least seconds between two statuses, when an operator waits for the answer."""
SHARE: Final = 100
"""A status that took t to make is not made again before 100 t, nor is it later than a heartbeat."""
LEAST_STATUS: Final = 8 * 1024
"""Bytes to which a topic with a small max.message.bytes can bring it."""


class Reporter:
    """The statuses of one run.

    ``status``: what it does. ``applied``: what operators hold in the group, as far as it has applied it.
    """

    def __init__(
        self,
        settings: Settings,
        instance: str,
        *,
        status: Callable[[], LoopStatus | None],
        applied: Callable[[], Snapshot],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.started_at = wall()
        self._settings = settings
        self._instance = instance
        self._status = status
        self._applied = applied
        self._clock = clock
        self._wall = wall
        self._longest = LONGEST_STATUS
        self._next = 0.0
        self._last = clock() - HEARTBEAT
        self._last_applied = -1
        self._fingerprint: object = None
        self._sending = False
        self.again()

    def again(self) -> None:
        """It is to be written soon: the topic is another one, or somebody took this member for gone."""
        self._fingerprint = None
        self._next = 0.0

    def begin(self) -> None:
        """There is a new client: what the former one had is not under way any more."""
        self._sending = False
        self.again()

    def due(self, now: float, topic_id: str) -> bytes | None:
        """What is to be written now, or None. ``sent`` has to be told what became of it."""
        since = now - self._last
        told = self._newest_applied(topic_id) != self._last_applied and since >= AT_ONCE
        if self._sending or not (told or (now >= self._next and since >= AT_ONCE)):
            return None
        begin = self._clock()
        try:
            status = self._status()
        except RuntimeError:  # something grew while it was read: soon again
            return None
        if status is None:
            return None
        record = self._record(status, topic_id)
        mark = fingerprint(record)
        value = None
        if mark != self._fingerprint or since >= HEARTBEAT:
            _, value = bounded(record, self._longest)
            self._sending, self._fingerprint = True, mark
            self._last, self._last_applied = now, record.applied
        self._next = now + min(HEARTBEAT, max(CHANGED_EVERY, SHARE * (self._clock() - begin)))
        return value

    def sent(self, error: Any) -> None:
        """What became of it. An error: it is made again, smaller when it was too large."""
        self._sending = False
        if error is not None:
            self._fingerprint = None
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._longest = max(LEAST_STATUS, self._longest // 2)

    def last_words(self, topic_id: str, ended: str) -> bytes | None:
        """The status of a member that an error has ended."""
        status = self._status()
        return None if status is None else bounded(self._record(status, topic_id, ended), self._longest)[1]

    def _newest_applied(self, topic_id: str) -> int:
        """The newest operator's record of this topic that was applied: a former topic's means nothing."""
        snapshot = self._applied()
        return snapshot.applied if snapshot.topic_id == topic_id else -1

    def _record(self, status: LoopStatus, topic_id: str, ended: str = "") -> MemberRecord:
        return MemberRecord(
            member=self._settings.member.encode("utf-8", "replace").decode(),
            instance=self._instance,
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=round(self.started_at, 3),
            at=round(self._wall(), 3),
            status=status,
            applied=self._newest_applied(topic_id),
            topic_id=topic_id,
            ended=ended,
        )
