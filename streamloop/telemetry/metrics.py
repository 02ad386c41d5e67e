"""Collects every metric of the table from the counters of a run, as they are now.

Nothing is counted here: the parts count in plain integers, and this reads them. Called about once a second by
the event loop's tick (so that a scrape never touches the engine), and by ``loop.metrics()`` on any thread.
Every counter is there at 0 from the declaration of what it counts; series of a partition are there while it
is assigned.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import confluent_kafka

from streamloop.engine.events import Reason
from streamloop.engine.states import State
from streamloop.telemetry import table
from streamloop.telemetry.durations import Durations, Exemplar
from streamloop.telemetry.lag import lag_of
from streamloop.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streamloop.build import Parts
    from streamloop.engine.consumer import ConsumerState
    from streamloop.engine.events import TopicPartition
    from streamloop.engine.partition import Partition
    from streamloop.kafka.ends import End
    from streamloop.observed import Observed
    from streamloop.runners.base import Runner
    from streamloop.telemetry.table import Metric

OUTCOMES = ("acked", "skipped", "retried", "dead_lettered")
REBALANCE_EVENTS = ("assigned", "revoked", "lost")
COMMIT_RESULTS = ("ok", "error", "refused", "rebalance", "stale")
SIGNALS = ("metrics", "traces")
OWN_ERRORS = ("event_loop_blocked", "stall", "out_of_range", "metadata_ignored", "retry_plan")
CLIENT_ERRORS = ("_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE", "_AUTHENTICATION")
"""Names of librdkafka that are counted from the beginning, since alerts look at them."""
MOST_TYPES = 50
"""Error types shown by name; the others are 'other'."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram's values: counts by bucket (the last has the rest), the sum, exemplars by bucket."""

    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    total: float
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.buckets)


Value = float | Histogram
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """All metrics at one time. ``at`` and ``since`` (when counting began) in epoch seconds.

    ``values``: by metric and by the values of its labels, in the table's order.
    """

    at: float
    since: float
    values: dict[Metric, dict[Labels, Value]] = field(default_factory=dict)

    def put(self, metric: Metric, value: Value, *labels: str) -> None:
        """Set the value of one series."""
        self.values.setdefault(metric, {})[labels] = value

    def with_value(self, metric: Metric, value: Value, *labels: str) -> Scrape:
        """The same but for one series."""
        return Scrape(self.at, self.since, {**self.values, metric: {labels: value}})


def histogram_of(*durations: Durations) -> Histogram:
    """The sum of histograms with the same bounds."""
    first = durations[0]
    exemplars: dict[int, Exemplar] = {}
    for each in durations:
        exemplars.update(each.exemplars)
    return Histogram(
        first.bounds,
        tuple(map(sum, zip(*(tuple(each.buckets) for each in durations), strict=True))),
        sum(each.total for each in durations),
        exemplars,
    )


def collect(run: Observed) -> Scrape:
    """All metrics of a run as they are now. Before its parts exist: only what is known then."""
    scrape = Scrape(run.wall(), run.began_at)
    group = run.settings.group
    for signal in SIGNALS:
        scrape.put(table.EXPORT_FAILURES, run.export_failures[signal], group, signal)
    counts = run.traces.counts()
    scrape.put(table.KEPT_SPANS, counts.kept, group, "kept")
    scrape.put(table.KEPT_SPANS, counts.left_out, group, "left_out")
    scrape.put(table.DROPPED_SPANS, counts.dropped, group)
    versions = (__version__, platform.python_version(), confluent_kafka.libversion()[0])
    scrape.put(table.PROCESS_CPU, round(time.process_time(), 3), group)
    scrape.put(table.BUILD_INFO, 1, group, *versions)
    for topic, open_ in run.operations.open_dead_letters.items():
        scrape.put(table.DEAD_LETTERS_OPEN, open_.letters, group, topic)
        age = 0.0 if open_.oldest is None else max(0.0, scrape.at - open_.oldest)
        scrape.put(table.DEAD_LETTERS_OLDEST, round(age, 3), group, topic)
    if run.parts is not None:
        _Collection(run, run.parts, scrape).all()
    return scrape


class _Collection:
    """One collection."""

    def __init__(self, run: Observed, parts: Parts, scrape: Scrape) -> None:
        self.run = run
        self.parts = parts
        self.scrape = scrape
        self.put = scrape.put
        self.group = run.settings.group
        self.now = parts.core.clock()
        self.ends: dict[TopicPartition, End] = {}
        for poller in parts.pollers:
            self.ends.update(poller.ends.known)
        self.partitions = list(parts.engine.parts.values())

    def all(self) -> None:
        """Everything."""
        for state, runner in zip(self.parts.engine.consumers, self.parts.core.runners, strict=True):
            self._consumer(state, runner)
        self._backlog()
        self._held()
        self._assigned()
        self._clients()
        self._engine()
        self._publishes()
        self._errors()

    # --------------------------------------------------------------------------------------- consumers

    def _consumer(self, state: ConsumerState, runner: Runner) -> None:
        put, group, name = self.put, self.group, state.spec.name
        for topic, counts in list(state.by_topic.items()):
            labels = (group, name, topic)
            values = (counts.succeeded, counts.skipped, counts.routed, counts.dead_lettered)
            for outcome, value in zip(OUTCOMES, values, strict=True):
                put(table.PROCESSED, value, *labels, outcome)
            for error_class, failed in list(counts.failed_by_type.items()):
                put(table.FAILED, failed, *labels, error_class)
            put(table.RETRIED, counts.retried + counts.routed, *labels)
            put(table.DEAD_LETTER, counts.dead_lettered, *labels)
            put(table.REDELIVERED, counts.redelivered, *labels)
            own_group = group if topic in self.run.sources else f"{group}.retry"
            put(table.CONSUMED, counts.received, "kafka", "poll", own_group, topic)
        put(table.CANCEL_IGNORED, runner.counts.cancel_ignored, group, name)
        put(table.RUNNING, sum(1 for _ in runner.running()), group, name)
        put(table.CONCURRENCY, state.spec.concurrency, group, name)
        put(table.BREAKER, _breaker(state), group, name)
        put(table.PROCESSING, histogram_of(runner.durations, runner.failed_durations), group, name)
        # One histogram for all topics of a handler: to tell them apart would cost each message a look-up.
        topics = list(state.by_topic)
        operation = ("kafka", "process", group, topics[0] if len(topics) == 1 else "", name)
        put(table.PROCESS_DURATION, histogram_of(runner.durations), *operation, "")
        put(table.PROCESS_DURATION, histogram_of(runner.failed_durations), *operation, "_OTHER")

    def _backlog(self) -> None:
        """Disjoint: what is here and waits in back-off, what is here otherwise, what is not here yet."""
        put, group = self.put, self.group
        backoff: Counter[Partition] = Counter()
        for intake in self.parts.engine.intakes:
            backoff.update(record.part for record in list(intake.backoff))
        buffered: Counter[Labels] = Counter()
        waiting: Counter[Labels] = Counter()
        beyond: dict[Labels, int | None] = {}
        for state in self.parts.engine.consumers:
            for topic in list(state.by_topic):
                beyond[(group, state.spec.name, topic)] = 0
        wall = self.run.wall()
        for part in self.partitions:
            topic, partition = part.name
            labels: Labels = (group, part.consumer.spec.name, topic)
            end = self.ends.get(part.name)
            lag = lag_of(part, end, group=group, now=self.now, wall=wall)
            if lag.messages is not None:
                put(table.LAG_MESSAGES, lag.messages, *labels, str(partition))
            if lag.seconds is not None:
                put(table.LAG_SECONDS, round(lag.seconds, 3), *labels, str(partition))
            put(table.COMMIT_GAP, part.ledger.gap, *labels, str(partition))
            waiting[labels] += backoff[part]
            buffered[labels] += max(0, part.count - backoff[part])
            known = beyond.get(labels, 0)
            beyond[labels] = None if known is None or lag.waiting is None else known + lag.waiting
        for labels, outside in beyond.items():
            retries = labels[2] not in self.run.sources
            put(table.BACKLOG, buffered[labels], *labels, "buffered")
            if retries:
                if outside is not None:
                    put(table.BACKLOG, waiting[labels] + outside, *labels, "waiting_retry")
                continue
            put(table.BACKLOG, waiting[labels], *labels, "waiting_retry")
            if outside is not None:
                put(table.BACKLOG, outside, *labels, "broker")

    def _held(self) -> None:
        put, group, now = self.put, self.group, self.now
        held: Counter[tuple[str, str]] = Counter()
        total = dict(self.parts.engine.held_seconds)
        for part in self.partitions:
            consumer = part.consumer.spec.name
            longest: dict[Reason, float] = {}
            for reason, hold in (*list(part.holds.items()), *list(part.outside.items())):
                seconds = max(0.0, now - hold.since)
                total[reason] += seconds
                longest[reason] = max(seconds, longest.get(reason, 0.0))
            topic, partition = part.name
            for reason, seconds in longest.items():
                held[consumer, reason.value] += 1
                where = (group, consumer, topic, str(partition), reason.value)
                put(table.HELD_SECONDS, round(seconds, 3), *where)
        for state in self.parts.engine.consumers:
            for reason in Reason:
                name = state.spec.name
                put(table.HELD, held[name, reason.value], group, name, reason.value)
        for reason, seconds in total.items():
            put(table.HELD_TOTAL, round(seconds, 3), group, reason.value)

    def _assigned(self) -> None:
        assigned = Counter((part.consumer.spec.name, part.name.topic) for part in self.partitions)
        for state in self.parts.engine.consumers:
            for topic in list(state.by_topic):
                name = state.spec.name
                self.put(table.ASSIGNED, assigned[name, topic], self.group, name, topic)
                partitions = self.run.partitions_of(topic)
                if partitions is not None:
                    self.put(table.TOPIC_PARTITIONS, partitions, self.group, topic)

    # ------------------------------------------------------------------------------------ Kafka clients

    def _clients(self) -> None:
        put, group = self.put, self.group
        for index, (poller, capacity) in enumerate(
            zip(self.parts.pollers, self.parts.capacities, strict=True)
        ):
            consumer = poller.label
            stats = poller.stats
            put(table.INFLIGHT, capacity.messages, group, consumer)
            put(table.INFLIGHT_BYTES, capacity.bytes, group, consumer)
            put(table.HIGH_MESSAGES, capacity.high_messages, group, consumer)
            put(table.HIGH_BYTES, capacity.high_bytes, group, consumer)
            for event in _both(REBALANCE_EVENTS, stats.rebalances):
                put(table.REBALANCES, stats.rebalances[event], group, consumer, event)
            for result in _both(COMMIT_RESULTS, stats.commits):
                put(table.COMMITS, stats.commits[result], group, consumer, result)
            if stats.last_commit is not None:
                put(table.LAST_COMMIT, round(stats.last_commit, 3), group, consumer)
            own_group = f"{group}.retry" if index else group
            polls = histogram_of(stats.polls)
            put(table.OPERATION_DURATION, polls, "kafka", "poll", own_group, "", "")
            for code, durations in list(stats.commit_durations.items()):
                put(
                    table.OPERATION_DURATION,
                    histogram_of(durations),
                    *("kafka", "commit", own_group, "", error_name(code)),
                )

    def _publishes(self) -> None:
        counters = self.parts.publisher.counters
        put, group = self.put, self.group
        put(table.PUBLISH_FAILURES, sum(list(counters.failures.values())), group)
        put(table.OUTSTANDING, counters.outstanding, group)
        sends = dict(list(counters.sends.items()))
        for topic in self.run.targets:
            sends.setdefault((topic, 0), Durations())
        for (topic, code), durations in sends.items():
            operation = ("kafka", "send", topic, error_name(code))
            put(table.SENT, durations.count, *operation)
            put(
                table.OPERATION_DURATION,
                histogram_of(durations),
                *("kafka", "send", "", topic, error_name(code)),
            )

    # ------------------------------------------------------------------------------------- the machinery

    def _engine(self) -> None:
        put, group, core = self.put, self.group, self.parts.core
        put(table.ITERATIONS, core.turns, group)
        put(table.ITERATION, histogram_of(core.steps), group)
        put(table.HEARTBEAT, round(max(0.0, self.now - core.heartbeat.stamp), 3), group)
        put(table.DRAIN_TIMEOUTS, self.run.drain_timeouts, group)

    def _errors(self) -> None:
        core, watchdog = self.parts.core, self.run.watchdog
        counts: Counter[str] = Counter(dict.fromkeys((*OWN_ERRORS, *CLIENT_ERRORS, "other"), 0))
        counts["event_loop_blocked"] = watchdog.blocks if watchdog is not None else 0
        for kind in ("metadata_ignored", "retry_plan"):
            counts[kind] = core.notices.get(kind, 0)
        for poller in self.parts.pollers:
            counts["stall"] += poller.stats.stalls
            counts["out_of_range"] += sum(list(poller.stats.out_of_range.values()))
            for name, value in list(poller.stats.errors.items()):
                counts[name if name in counts or len(counts) <= MOST_TYPES else "other"] += value
        for kind, value in counts.items():
            self.put(table.ERRORS, value, self.group, kind)


def _both(declared: Iterable[str], counted: Mapping[str, int]) -> Sequence[str]:
    return list(dict.fromkeys((*declared, *list(counted))))


def _breaker(state: ConsumerState) -> int:
    if not state.broken:
        return 0
    probe = state.probe
    return 2 if probe is not None and probe.state is State.PROCESSING else 1


@cache
def error_name(code: int) -> str:
    """The Kafka clients' name of an error code; empty for none."""
    return confluent_kafka.KafkaError(code).name() if code else ""


def flat(scrape: Scrape) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By name and labels, as plain numbers: of a histogram its ``_count`` and ``_sum``."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for metric, series in scrape.values.items():
        names = metric.label_names
        for labels, value in series.items():
            pairs = tuple((name, label) for name, label in zip(names, labels, strict=True) if label)
            if isinstance(value, Histogram):
                samples.setdefault(f"{metric.name}_count", {})[pairs] = value.count
                samples.setdefault(f"{metric.name}_sum", {})[pairs] = value.total
            else:
                samples.setdefault(metric.name, {})[pairs] = value
    return samples
