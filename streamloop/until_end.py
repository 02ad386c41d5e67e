"""When a member without a partition is at the end: with ``until_end``, and others have all there is to read.

The engine knows the end of what is assigned to it. A member that gets nothing would never hear of one: so the
group's commits are compared with the ends of its topics, on a thread of its own. It only asks, and says so
once; what it can't be told ends nothing. Started by the run.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from streamloop.errors import StreamLoopError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamloop.kafka.topic_admin import TopicAdmin

log = logging.getLogger("streamloop")

NOTHING_FOR: Final = 5.0
"""Seconds without a partition after which the group is asked."""
LOOK_EVERY: Final = 1.0
TIMEOUT: Final = 5.0
"""Seconds that one question may take."""

Places = dict[tuple[str, int], int]


class GroupEnd:
    """Looks whether the group has read its topics to their ends while nothing is assigned here.

    ``partitions``: how many each source topic has now (None: unknown, or it does not exist). ``assigned``:
    whether this member has a partition of them. ``at_end`` is called once, with the reason.
    """

    def __init__(
        self,
        group: str,
        admin: TopicAdmin,
        *,
        partitions: Callable[[], Mapping[str, int | None]],
        assigned: Callable[[], bool],
        at_end: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._admin = admin
        self._partitions = partitions
        self._assigned = assigned
        self._at_end = at_end
        self._clock = clock
        self._since: float | None = None
        self._ends: Places | None = None
        """The ends as they were when the group was first asked: what comes later is not waited for."""

    def start(self, stop: threading.Event) -> None:
        """Look now and then, until ``stop`` is set."""
        threading.Thread(target=self._run, args=(stop,), name="streamloop-until-end", daemon=True).start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_EVERY):
            try:
                if self.look():
                    return
            except StreamLoopError:
                continue  # brokers that do not answer are told of by others
            except Exception:
                log.exception("asking for the end of the group failed; it is tried again")

    def look(self) -> bool:
        """One look. True: the end was seen and said."""
        now = self._clock()
        if self._assigned():
            self._since = self._ends = None
            return False
        if self._since is None:
            self._since = now
        if now - self._since < NOTHING_FOR:
            return False
        counts = self._partitions()
        wanted = [(topic, number) for topic, count in counts.items() for number in range(count or 0)]
        if not wanted or None in counts.values():
            return False
        if self._ends is None or self._ends.keys() != set(wanted):
            self._ends = self._numbers(self._admin.resolve_offsets(wanted, "latest", TIMEOUT), wanted)
        if self._ends is None:
            return False
        committed = self._admin.committed(self._group, wanted, TIMEOUT)
        behind = [place for place, end in self._ends.items() if not _at(committed.get(place), end)]
        if behind and not self._are_empty(behind):
            return False
        # Not if one came while the brokers were asked.
        if self._assigned():
            return False
        self._at_end(
            f"bound reached: until_end (no partition was assigned to this member for {NOTHING_FOR:g} s, and "
            f"group {self._group} has committed up to the ends of {', '.join(sorted(counts))})"
        )
        return True

    def _are_empty(self, places: list[tuple[str, int]]) -> bool:
        """Nothing was ever committed where there is nothing to read."""
        assert self._ends is not None
        starts = self._numbers(self._admin.resolve_offsets(places, "earliest", TIMEOUT), places)
        return starts is not None and all(starts[place] >= self._ends[place] for place in places)

    def _numbers(
        self, told: Mapping[tuple[str, int], object], wanted: Iterable[tuple[str, int]]
    ) -> Places | None:
        """All of them, or None."""
        found: Places = {}
        for place in wanted:
            offset = told.get(place)
            if not isinstance(offset, int) or offset < 0:
                return None
            found[place] = offset
        return found


def _at(committed: object, end: int) -> bool:
    return isinstance(committed, int) and committed >= end
