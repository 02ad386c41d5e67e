"""Reads a run for health, status and metrics. Called from any thread; changes nothing.

What is read here is written by other threads without locks: single values are never torn, and a snapshot of
several may be a few milliseconds apart.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from streamloop.engine.events import Reason
from streamloop.engine.states import State
from streamloop.runners.base import DURATION_BOUNDS
from streamloop.status import (
    ConsumerStatus,
    Health,
    Holder,
    IntakeStatus,
    LoopStatus,
    PartitionStatus,
)
from streamloop.version import __version__

if TYPE_CHECKING:
    from streamloop.build import Parts
    from streamloop.engine.consumer import ConsumerState
    from streamloop.engine.partition import Partition
    from streamloop.lifecycle import Run
    from streamloop.runners.base import Runner

POLL_TURN_LIMIT: Final = 60.0
"""Seconds without a turn of a poller's thread after which it counts as stuck."""

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def health_of(run: Run) -> Health:
    """Whether the run is alive and ready, and why not."""
    reasons: list[str] = []
    live = True
    parts = run.parts
    now = time.monotonic() if parts is None else parts.core.clock()
    watchdog = run.watchdog
    if parts is not None and watchdog is not None:
        if watchdog.blocked_by:
            live = False
            reasons.append(f"the event loop is blocked by {watchdog.blocked_by}")
        for poller in parts.pollers:
            if poller.failure is not None:
                live = False
                reasons.append(f"Consumer {poller.label} has failed: {poller.failure}")
            elif poller.is_alive() and now - poller.last_turn > POLL_TURN_LIMIT:
                live = False
                reasons.append(f"Consumer {poller.label} has not polled for {now - poller.last_turn:.0f} s")
        for runner in parts.core.runners:
            if runner.counts.abandoned:
                live = False
                reasons.append(f"handler {runner.handler.name} did not come back after its time-out")
        if parts.core.outcome.failure is not None:
            live = False
            reasons.append(f"the engine has failed: {parts.core.outcome.failure!r}")
        if parts.publisher.failure is not None:
            live = False
            reasons.append(f"the publisher has failed: {parts.publisher.failure}")
    phase = run.phase.value
    ready = run.ready and phase == "running" and live
    if not ready and phase != "running":
        reasons.append(phase)
    return Health(live, ready, tuple(reasons))


def status_of(run: Run) -> LoopStatus | None:
    """What the run is doing; None before its parts exist."""
    parts = run.parts
    if parts is None:
        return None
    now = parts.core.clock()
    settings = run.settings
    engine = parts.engine
    partitions = tuple(_partition(part, now) for part in list(engine.parts.values()))
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
        blocked_targets=tuple(f"{each.topic}: {each.reason}" for each in parts.publisher.blocked),
        hanging=run.hanging,
    )


def held_seconds(parts: Parts, now: float) -> dict[str, float]:
    """Partition-seconds held by reason, present holds included."""
    total = dict(parts.engine.held_seconds)
    for part in list(parts.engine.parts.values()):
        for reason, hold in (*list(part.holds.items()), *list(part.outside.items())):
            total[reason] += max(0.0, now - hold.since)
    return {reason.value: round(seconds, 3) for reason, seconds in total.items()}


def _partition(part: Partition, now: float) -> PartitionStatus:
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
        failed_by_type=dict(state.counts.failed_by_type),
    )


# --------------------------------------------------------------------------------------------- metrics


def metrics_of(run: Run) -> Samples:
    """Counters and gauges by metric name and labels, as they are now."""
    parts = run.parts
    if parts is None:
        return {}
    now = parts.core.clock()
    samples: Samples = {}
    group = ("group", run.settings.group)

    def put(name: str, value: float, *labels: tuple[str, str]) -> None:
        samples.setdefault(name, {})[(group, *labels)] = value

    for state, runner, build in zip(
        parts.engine.consumers, parts.core.runners, run.assembly.consumers, strict=True
    ):
        consumer = ("consumer", build.settings.name)
        counts = state.counts
        for outcome, value in (
            ("acked", counts.succeeded),
            ("skipped", counts.skipped),
            ("retried", counts.routed),
            ("dead_lettered", counts.dead_lettered),
        ):
            put("loop_processed_total", value, consumer, ("outcome", outcome))
        for error, value in dict(counts.failed_by_type).items():
            put("loop_failed_total", value, consumer, ("type", error))
        put("loop_retried_total", counts.retried + counts.routed, consumer)
        put("loop_dead_letter_total", counts.dead_lettered, consumer)
        put("loop_redelivered_total", counts.redelivered, consumer)
        put("loop_cancel_ignored_total", runner.counts.cancel_ignored, consumer)
        put("loop_inflight", sum(1 for _ in runner.running()), consumer)
        put("loop_breaker_state", 1 if state.broken else 0, consumer)
        reached = 0
        for bound, number in zip((*DURATION_BOUNDS, math.inf), list(runner.durations.buckets), strict=True):
            reached += number
            le = "+Inf" if bound == math.inf else f"{bound:g}"
            put("loop_processing_duration_seconds_bucket", reached, consumer, ("le", le))
        put("loop_processing_duration_seconds_count", reached, consumer)
        put("loop_processing_duration_seconds_sum", runner.durations.total, consumer)
    waiting = sum(len(intake.backoff) for intake in parts.engine.intakes)
    buffered = sum(capacity.messages for capacity in parts.capacities)
    put("loop_backlog", max(0, buffered - waiting), ("state", "buffered"))
    put("loop_backlog", waiting, ("state", "waiting_retry"))
    put("loop_inflight_bytes", sum(capacity.bytes for capacity in parts.capacities))
    put("loop_iterations_total", parts.core.turns)
    put("loop_assigned_partitions", len(parts.engine.parts))
    held = dict.fromkeys(Reason, 0)
    for name, part in list(parts.engine.parts.items()):
        for reason in {*list(part.holds), *list(part.outside)}:
            held[reason] += 1
        put("loop_commit_gap", part.ledger.gap, ("topic", name.topic), ("partition", str(name.partition)))
    for reason, number in held.items():
        put("loop_held_partitions", number, ("reason", reason.value))
    for reason_name, seconds in held_seconds(parts, now).items():
        put("loop_held_partition_seconds_total", seconds, ("reason", reason_name))
    for poller in parts.pollers:
        for event, value in poller.stats.rebalances.items():
            put("loop_rebalances_total", value, ("consumer", poller.label), ("event", event))
        for error, value in poller.stats.errors.copy().items():
            put("loop_errors_total", value, ("consumer", poller.label), ("type", error))
        for result, value in poller.stats.commits.items():
            put("loop_commits_total", value, ("consumer", poller.label), ("result", result))
    publisher = parts.publisher.counters
    put("loop_publish_failures_total", sum(publisher.failures.values()))
    put("loop_drain_timeouts_total", int(run.cut_short))
    put("loop_build_info", 1, ("version", __version__))
    return samples
