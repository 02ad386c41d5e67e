"""A replay's own part of a message's trace: the send that took it back.

Only for messages whose trace is sampled, and only where spans are exported at all (as for ``run``). What goes
wrong here never stops a replay. Called by ``replay``.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from streamloop.kafka.publishing import Report, ReportKind
from streamloop.message import Outgoing
from streamloop.telemetry.carrier import read_origin
from streamloop.telemetry.exporting import open_traces

if TYPE_CHECKING:
    from streamloop.dlq.writer import Placed, Publish
    from streamloop.settings import Settings


class ReplayTraces:
    """The spans of one replay. ``begin`` and then either ``placed`` or ``gave_up``, by the number."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._traces = open_traces(settings, {"traces": 0})
        self._numbers = count(1)

    def begin(self, publish: Publish) -> tuple[int, Publish]:
        """A record is to be sent: its number, and the record with the send in its trace."""
        tracing = self._traces.tracing
        if tracing is None:
            return 0, publish
        origin = read_origin(publish.headers)
        if origin.parent is None or not origin.parent.trace_flags.sampled:
            return 0, publish
        number = next(self._numbers)
        outgoing = Outgoing(
            publish.topic, publish.key, publish.value, publish.headers, publish.partition, origin.context
        )
        return number, publish._replace(headers=tracing.publishing(number, outgoing))

    def placed(self, number: int, at: Placed) -> None:
        """It is committed."""
        if number and self._traces.tracing is not None:
            self._traces.tracing.reported(
                Report(number, ReportKind.DELIVERED, at.topic, at.partition, at.offset, 0, "")
            )

    def gave_up(self, number: int) -> None:
        """It was not sent."""
        if number and self._traces.tracing is not None:
            self._traces.tracing.gave_up(number)

    def close(self) -> None:
        """End what is open, and export; bounded by trace_flush_timeout."""
        if self._traces.tracing is not None:
            self._traces.tracing.close()
        self._traces.close(self._settings.trace_flush_timeout)
