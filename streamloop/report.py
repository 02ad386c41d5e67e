"""Reads a run for health, status and metrics. Called from any thread; changes nothing.

What is read here is written by other threads without locks: single values are never torn, and a snapshot of
several may be a few milliseconds apart.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from streamloop.engine.states import State
from streamloop.ops.health import probe
from streamloop.status import (
    ConsumerStatus,
    Health,
    Holder,
    IntakeStatus,
    LoopStatus,
    PartitionStatus,
    RunningHandler,
)
from streamloop.telemetry.lag import Lag, lag_of
from streamloop.telemetry.metrics import collect, flat

if TYPE_CHECKING:
    from streamloop.build import Parts
    from streamloop.engine.consumer import ConsumerState
    from streamloop.engine.partition import Partition
    from streamloop.engine.record import Record
    from streamloop.observed import Observed
    from streamloop.runners.base import Runner, Running

OLDEST: Final = 5
"""Running handlers of a consumer that the status names."""
MOST_NAMED: Final = 5
"""Messages that a reason names."""

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def health_of(run: Observed) -> Health:
    """Whether the run is alive and ready, and why not."""
    probes = probe(run)
    return Health(probes.live, probes.ready, (*probes.why_not_live, *probes.why_not_ready))


def status_of(run: Observed) -> LoopStatus | None:
    """What the run is doing; None before its parts exist."""
    parts = run.parts
    if parts is None:
        return None
    now = parts.core.clock()
    settings = run.settings
    engine = parts.engine
    ends = {name: end for poller in parts.pollers for name, end in poller.ends.known.items()}
    partitions = tuple(
        _partition(
            part, lag_of(part, ends.get(part.name), group=settings.group, now=now, wall=run.wall()), now
        )
        for part in list(engine.parts.values())
    )
    consumers = tuple(
        _consumer(state, runner, build.topics, parts, now)
        for state, runner, build in zip(
            engine.consumers, parts.core.runners, run.assembly.consumers, strict=True
        )
    )
    intakes = tuple(
        IntakeStatus(
            name=poller.label,
            group=settings.group if index == 0 else f"{settings.group}.retry",
            protocol=poller.protocol or "",
            topics=tuple(poller.topics),
            buffered=capacity.messages,
            buffered_bytes=capacity.bytes,
            high_watermark_messages=capacity.high_messages,
            high_watermark_bytes=capacity.high_bytes,
            peak_messages=capacity.peak_messages,
            peak_bytes=capacity.peak_bytes,
            last_turn_age=max(0.0, now - poller.last_turn),
            detail=poller.detail,
        )
        for index, (poller, capacity) in enumerate(zip(parts.pollers, parts.capacities, strict=True))
    )
    return LoopStatus(
        group=settings.group,
        member=settings.member,
        state=run.phase.value,
        uptime=max(0.0, time.monotonic() - run.started_at),
        intakes=intakes,
        consumers=consumers,
        partitions=partitions,
        held_seconds=held_seconds(parts, now),
        publishing=parts.publisher.counters.outstanding,
        open_dead_letters={topic: found.letters for topic, found in run.operations.open_dead_letters.items()},
        blocked_targets=tuple(f"{each.topic}: {each.reason}" for each in parts.publisher.blocked),
        hanging=run.hanging,
        listening=run.operations.urls,
        paused=run.operators.status(),
        control=run.control_status,
    )


def left_behind(parts: Parts) -> str:
    """What a drain that is cut short leaves, in words: running handlers by their messages, and publishes."""
    running = [each for runner in parts.core.runners for each in runner.running()]
    said = []
    if running:
        places = [f"{each.consumer} ({place_of(each.record)})" for each in sorted(running, key=_started)]
        more = f" and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
        count = "1 handler still runs" if len(running) == 1 else f"{len(running)} handlers still run"
        said.append(f"{count}: {', '.join(places[:MOST_NAMED])}{more}")
    routing = sum(part.routing for part in parts.engine.parts.values())
    if routing:
        records = "1 record waits" if routing == 1 else f"{routing} records wait"
        said.append(f"{records} to be confirmed in a retry or dead-letter topic")
    return "; ".join(said)


def place_of(record: Record) -> str:
    """topic/partition/offset of the record that was read."""
    name = record.part.name
    return f"{name.topic}/{name.partition}/{record.offset}"


def held_seconds(parts: Parts, now: float) -> dict[str, float]:
    """Partition-seconds held by reason, present holds included."""
    total = dict(parts.engine.held_seconds)
    for part in list(parts.engine.parts.values()):
        for reason, hold in (*list(part.holds.items()), *list(part.outside.items())):
            total[reason] += max(0.0, now - hold.since)
    return {reason.value: round(seconds, 3) for reason, seconds in total.items()}


def _partition(part: Partition, lag: Lag, now: float) -> PartitionStatus:
    ledger = part.ledger
    record = ledger.holder
    holder: Holder | None = None
    if record is not None and record.state is not State.ACKED:
        arrived = part.arrived(record.offset)
        holder = Holder(
            record.offset,
            record.state.name,
            record.attempt,
            None if arrived is None else round(max(0.0, now - arrived), 3),
        )
    return PartitionStatus(
        topic=part.name.topic,
        partition=part.name.partition,
        consumer=part.consumer.spec.name,
        epoch=part.epoch,
        committable=ledger.committable,
        position=ledger.position,
        gap=ledger.gap,
        buffered=part.count,
        buffered_bytes=part.bytes,
        running=part.running,
        publishing=part.routing,
        held={
            reason.value: hold.detail
            for reason, hold in (*list(part.holds.items()), *list(part.outside.items()))
        },
        holder=holder,
        end=lag.end,
        lag=lag.messages,
        lag_seconds=None if lag.seconds is None else round(lag.seconds, 3),
    )


def counts_of(state: ConsumerState, runner: Runner) -> dict[str, int]:
    """A consumer's counters as a plain dict."""
    counts = state.counts
    return {
        "received": counts.received,
        "acked": counts.acked,
        "succeeded": counts.succeeded,
        "skipped": counts.skipped,
        "routed": counts.routed,
        "dead_lettered": counts.dead_lettered,
        "restored": counts.restored,
        "failed_attempts": counts.failed,
        "retried_in_place": counts.retried,
        "unavailable": counts.unavailable,
        "undecodable": counts.undecodable,
        "redelivered": counts.redelivered,
        "late": counts.late,
        "routed_early": counts.early,
        "timeouts": runner.counts.timeouts,
        "cancel_ignored": runner.counts.cancel_ignored,
    }


def _consumer(
    state: ConsumerState, runner: Runner, topics: tuple[str, ...], parts: Parts, now: float
) -> ConsumerStatus:
    running = list(runner.running())
    waiting = sum(
        1
        for intake in parts.engine.intakes
        for record in list(intake.backoff)
        if record.part.consumer is state
    )
    return ConsumerStatus(
        name=state.spec.name,
        topics=topics,
        ordering=state.spec.ordering.value,
        concurrency=state.spec.concurrency,
        running=len(running),
        waiting=waiting,
        slowest=round(max((now - each.started for each in running), default=0.0), 3),
        counts=counts_of(state, runner),
        failed_by_type=state.counts.failed_by_type,
        oldest=tuple(_running(each, now, parts) for each in sorted(running, key=_started)[:OLDEST]),
    )


def _started(running: Running) -> float:
    return running.started


def _running(running: Running, now: float, parts: Parts) -> RunningHandler:
    name = running.record.part.name
    return RunningHandler(
        name.topic,
        name.partition,
        running.record.offset,
        round(max(0.0, now - running.started), 3),
        parts.core.waits_for([running.record]),
    )


def metrics_of(run: Observed) -> Samples:
    """Counters and gauges by metric name and labels, as they are now; histograms as _count and _sum."""
    return flat(collect(run)) if run.parts is not None else {}
