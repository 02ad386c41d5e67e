"""What the console asks of dead letters and their replay. An answer is made of what JSON can hold.

All of it blocks, and raises StreamLoopError with a sentence that names what to do. Called from the threads of
jobs, never from the event loop. ``letters.py`` has the real one; tests have one without Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from streamloop.ops.console.jobs import Progress


class Desk(Protocol):
    """Dead letters of one group. ``where``: the filter, ``plan``: how to replay, as the page sends them."""

    def groups(self, where: Mapping[str, Any], progress: Progress, stop: threading.Event) -> dict[str, Any]:
        """Dead letters by the fingerprint of their error."""
        ...

    def letters(
        self, where: Mapping[str, Any], limit: int, progress: Progress, stop: threading.Event
    ) -> dict[str, Any]:
        """Single dead letters, ``limit`` at most, in short."""
        ...

    def letter(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """One of them, whole."""
        ...

    def preview(
        self,
        where: Mapping[str, Any],
        plan: Mapping[str, Any],
        progress: Progress,
        stop: threading.Event,
    ) -> dict[str, Any]:
        """What a replay would do. Changes nothing."""
        ...

    def replay(
        self,
        where: Mapping[str, Any],
        plan: Mapping[str, Any],
        *,
        by: str,
        progress: Progress,
        stop: threading.Event,
    ) -> dict[str, Any]:
        """Replay them. Its progress and its summary are in its run record, too."""
        ...

    def runs(self) -> list[dict[str, Any]]:
        """What was replayed, when, by whom; the newest first."""
        ...

    def run(self, run: str, progress: Progress, stop: threading.Event) -> dict[str, Any]:
        """One of them, with what has become of its messages."""
        ...
