"""The course of a purge or an import.

Called by ``purge`` and ``importing``. A replay has a course of its own: it goes
on after its last record was written.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from streamloop.dlq.reading import ReadError
from streamloop.dlq.runs import FAILED, FINISHED, STOPPED
from streamloop.dlq.session import Session, TakenOverError
from streamloop.dlq.writer import UnavailableError, UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Callable


class Summary(Protocol):
    """What is told of a run. ``state``: finished, stopped or failed; ``note``: why; ``seconds`` it took."""

    state: str
    note: str
    seconds: float


def go_through(session: Session, summary: Summary, work: Callable[[Session], bool], *, began: float) -> None:
    """Open the session, do ``work`` in it (whether it went through), and end it; ``summary`` says how.

    ``began``: monotonic. Raises what kept it from beginning; what ends it later is in the summary.
    """
    started = False
    try:
        with session:
            started = True
            complete = work(session)
            summary.state = FINISHED if complete else STOPPED
            summary.note = "" if complete else "It was told to stop."
            session.end(summary.state, summary.note)
    except TakenOverError as error:
        summary.state, summary.note = FAILED, str(error)
    except (ReadError, UnavailableError, UnknownOutcomeError) as error:
        if not started:
            raise
        summary.state, summary.note = FAILED, str(error)
    summary.seconds = time.monotonic() - began
