"""The desk on real dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamloop.lifecycle import Run
    from streamloop.ops.console.desk import Desk


def desk_of(run: Run) -> tuple[Desk | None, str]:
    """The desk of this run, or None and why there is none."""
    return None, "soon"
