"""What only time shows: gaps that grow, partitions and lanes that take more than their share, long back-offs.

Part of the engine (it shares :class:`~streamloop.engine.engine.Engine`'s state and is called by it alone).
Looks at most every 0.1 s, and only at what has been above its share for the dwell without turning over: a
busy partition that flows is never held, since a hold throws its prefetch away.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from streamloop.engine.events import Reason
from streamloop.engine.retry import Step, next_step_early
from streamloop.engine.states import State

if TYPE_CHECKING:
    from streamloop.engine.consumer import Intake
    from streamloop.engine.engine import Engine
    from streamloop.engine.partition import Partition
    from streamloop.engine.record import Record

LOOK_EVERY: Final = 0.1
"""Seconds."""

LEAST_SHARE: Final = 64
"""Messages that a partition may hold however many are assigned."""


class Watch:
    """Holds partitions that take more than their share, and makes room when too much waits in back-off."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0.0
        self._again = False
        """Something changed since the last look, or waits for the next one."""

    def due(self) -> float | None:
        """When it wants to look though nothing happens (engine clock), or None."""
        return self._next if self._again else None

    def look(self, *, happened: bool) -> None:
        """Check shares, lanes and back-offs, when it is time to; ``happened``: there were events."""
        engine = self._engine
        if engine.now < self._next:
            self._again = self._again or happened
            return
        self._next = engine.now + LOOK_EVERY
        self._again = False
        for intake in engine.intakes:
            if intake.parts:
                share = max(LEAST_SHARE, 2 * intake.capacity.high_messages // len(intake.parts))
                for part in intake.parts.values():
                    self._share(part, share)
            if intake.backoff or any("backoff" in part.pressing for part in intake.parts.values()):
                self._backoff(intake)
            if any(part.pressing or part.mark is not None for part in intake.parts.values()):
                self._again = True

    # ------------------------------------------------------------------------------------------------- gap

    def gap(self, part: Partition) -> None:
        """Hold or release a partition by its commit gap. The holder is named in the notice."""
        engine = self._engine
        gap, limit = part.ledger.gap, engine.config.gap_limit
        if gap > limit:
            holder = part.ledger.holder
            assert holder is not None
            arrived = part.arrived(holder.offset)
            age = f", received {engine.now - arrived:.1f} s ago" if arrived is not None else ""
            engine.hold(
                part,
                Reason.GAP,
                f"{part.name.topic}/{part.name.partition} takes no new messages: offset {holder.offset} "
                f"({holder.state.name}{age}) holds the commit position, {gap} offsets behind the last one "
                f"received (gap_limit={limit})",
            )
        elif gap * 2 <= limit:
            engine.release(part, Reason.GAP)

    # ---------------------------------------------------------------------------------------------- shares

    def _share(self, part: Partition, share: int) -> None:
        engine = self._engine
        lane_limit = engine.config.lane_limit
        self._ease(part, share, lane_limit)
        if part.count <= share and part.count <= lane_limit:
            part.mark = None
            return
        if part.mark is None or part.acked - part.mark[1] >= part.count:
            # It flows: all that it held has turned over since the mark.
            part.mark = (engine.now, part.acked)
            return
        if engine.now - part.mark[0] < engine.config.dwell:
            return
        if part.count > share:
            self._press(
                part,
                "share",
                f"it holds {part.count} messages, above its fair share of {share} of the buffer",
            )
        if part.count > lane_limit:
            lane, waiting = self._longest_lane(part)
            if waiting > lane_limit:
                self._press(part, "lane", f"{waiting} messages of {lane} wait, above lane_limit={lane_limit}")

    def _ease(self, part: Partition, share: int, lane_limit: int) -> None:
        pressing = part.pressing
        if not pressing:
            return
        if "share" in pressing and part.count * 2 <= share:
            self._relieve(part, "share")
        if "lane" in pressing and (
            part.count * 2 <= lane_limit or self._longest_lane(part)[1] * 2 <= lane_limit
        ):
            self._relieve(part, "lane")

    def _longest_lane(self, part: Partition) -> tuple[str, int]:
        lanes = Counter(
            record.lane
            for record in part.ledger.outstanding
            # What an earlier commit knew was never given a lane.
            if record.state is not State.ACKED and record.lane is not None
        )
        if not lanes:
            return "no lane", 0
        lane, waiting = lanes.most_common(1)[0]
        named = "one key" if isinstance(lane, bytes) else "the partition"
        return named, waiting

    def _press(self, part: Partition, why: str, detail: str) -> None:
        if why not in part.pressing:
            part.pressing[why] = detail
            self._engine.hold(part, Reason.WATERMARK, detail)

    def _relieve(self, part: Partition, why: str) -> None:
        if part.pressing.pop(why, None) is not None and not part.pressing:
            self._engine.release(part, Reason.WATERMARK)

    # -------------------------------------------------------------------------------------------- back-off

    def _backoff(self, intake: Intake) -> None:
        """Keep what waits in BACKOFF, with what waits behind it, within its share of the high watermark.

        What waits for an unavailable dependency is left alone: it spends no attempts, and its consumer's
        partitions are held by the breaker.
        """
        engine = self._engine
        limit = int(intake.capacity.high_messages * engine.config.backoff_share)
        waiting: dict[Record, int] = {}
        for record in intake.backoff:
            if record.attempts is not None and not record.attempts.unavailable and not record.part.closing:
                waiting[record] = 1 + record.part.lanes.behind(record)
        total = sum(waiting.values())
        if total <= limit:
            if total * 2 <= limit:
                for part in intake.parts.values():
                    self._relieve(part, "backoff")
            return
        for record, count in waiting.items():
            if total <= limit:
                break
            part = record.part
            decision = next_step_early(part.consumer.spec.plan, part.hop)
            if decision.step is Step.RETRY_TOPIC:
                engine.recovery.early(record, decision)
                total -= count
            else:
                self._press(
                    part,
                    "backoff",
                    f"{total} messages wait in back-off or behind one, above {limit} "
                    f"(backoff_share={engine.config.backoff_share:g} of the high watermark)",
                )
