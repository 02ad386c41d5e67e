"""Every metric: name, kind, labels, unit, what it says, and what to do when it moves. One table.

The collection may give values for these and no others, both text formats and OTLP are made from it, and so is
docs/metrics.md. OTLP names and units are chosen so that Prometheus' OTLP receiver makes the very names of the
scrape of them: one dashboard serves both.

Labels are bounded: a topic, a consumer, a group, listed words; a partition only where that is what the metric
is about; never a key, an offset or a message. ``consumer`` is the handler's name, or in metrics of a Kafka
client ``source`` or ``retry``: the Consumer of the source topics, or that of the retry topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from streamloop.telemetry.durations import DURATION_BOUNDS, STEP_BOUNDS


class Kind(Enum):
    """What a metric is. Counters only grow; a histogram counts durations by bucket."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. ``name`` as Prometheus shows it, suffixes included; ``otlp`` and ``unit`` (UCUM) over OTLP.

    ``labels``: attribute keys; in Prometheus' names of labels a dot is an underscore. ``bounds``: upper bounds
    of a histogram's buckets, in seconds.
    """

    name: str
    otlp: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    when_it_moves: str
    bounds: tuple[float, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels as Prometheus names them."""
        return tuple(label.replace(".", "_") for label in self.labels)


TABLE: list[Metric] = []


def _add(
    name: str,
    otlp: str,
    kind: Kind,
    unit: str,
    labels: str,
    help: str,  # noqa: A002 - the word of the format
    when_it_moves: str,
    bounds: tuple[float, ...] = (),
) -> Metric:
    metric = Metric(name, otlp, kind, unit, tuple(labels.split()), help, when_it_moves, bounds)
    TABLE.append(metric)
    return metric


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# ------------------------------------------------------------------------------------------ messages

PROCESSED: Final = _add(
    "loop_processed_total", "loop.processed", _C, "{message}", "group consumer topic outcome",
    "Messages that reached an outcome: acked, skipped, retried (a retry topic has it), dead_lettered.",
    "Flat while there is lag: nothing is handled; look at loop_held_partitions, then at /live.",
)  # fmt: skip
FAILED: Final = _add(
    "loop_failed_total", "loop.failed", _C, "{attempt}", "group consumer topic type",
    "Failed attempts, by error class; beyond 50 classes 'other'. Listed classes exist from the start.",
    "The type says what fails. A sudden rise after a deploy: roll back; of one dependency's class: mend it.",
)  # fmt: skip
RETRIED: Final = _add(
    "loop_retried_total", "loop.retried", _C, "{message}", "group consumer topic",
    "Retries: attempts scheduled in place, and messages that a retry topic has.",
    "Rises with loop_failed_total of transient errors. Without successes after it, they end as dead letters.",
)  # fmt: skip
DEAD_LETTER: Final = _add(
    "loop_dead_letter_total", "loop.dead_letter", _C, "{message}", "group consumer topic",
    "Messages that the dead-letter topic has (the broker confirmed it).",
    "Every one is a message that was not handled: find its error in the log or its headers, mend the cause, replay.",
)  # fmt: skip
DEAD_LETTERS_OPEN: Final = _add(
    "loop_dead_letters_open", "loop.dead_letters.open", _G, "{message}", "group topic",
    "Dead letters that wait for a decision: not replayed, purged or imported. By the member that has partition 0 of the "
    "source topic; absent while unknown. topic is the source topic, or the dead-letter topic where several share it.",
    "Above 0: streamloop dlq ls groups them by error. Mend the cause, replay them, or purge what nobody needs.",
)  # fmt: skip
DEAD_LETTERS_OLDEST: Final = _add(
    "loop_dead_letters_oldest_seconds", "loop.dead_letters.oldest", _G, "s", "group topic",
    "Age of the oldest of them; 0 when there is none.",
    "Old ones are forgotten ones: decide, before retention (if the topic has one) does.",
)  # fmt: skip
REDELIVERED: Final = _add(
    "loop_redelivered_total", "loop.redelivered", _C, "{message}", "group consumer topic",
    "Messages that this member received again: after a rebalance, a lost partition, or a retry that was not due.",
    "A few belong to a rebalance. Steady growth without one: partitions are lost again and again; see loop_rebalances_total.",
)  # fmt: skip
CANCEL_IGNORED: Final = _add(
    "loop_cancel_ignored_total", "loop.cancel_ignored", _C, "{message}", "group consumer",
    "Handlers that went on after they had been asked to stop (time-out, revoke, shutdown).",
    "The handler swallows CancelledError, or a thread does not look at message.cancelled: mend it, or raise timeout.",
)  # fmt: skip
PROCESSING: Final = _add(
    "loop_processing_duration_seconds", "loop.processing.duration", _H, "s", "group consumer",
    "How long handlers took, failed attempts included.",
    "Slower handlers need more concurrency or more members; near the time-out, attempts begin to fail.",
    DURATION_BOUNDS,
)  # fmt: skip
RUNNING: Final = _add(
    "loop_running_handlers", "loop.running_handlers", _G, "{handler}", "group consumer",
    "Handlers that run now.",
    "At loop_concurrency with lag: handlers are the limit; raise concurrency, or speed them up.",
)  # fmt: skip
CONCURRENCY: Final = _add(
    "loop_concurrency", "loop.concurrency", _G, "{handler}", "group consumer",
    "Handlers that may run at once (setting concurrency).",
    "It is a setting.",
)  # fmt: skip
BREAKER: Final = _add(
    "loop_breaker_state", "loop.breaker.state", _G, "", "group consumer",
    "0: closed. 1: open, a dependency is unavailable and the consumer's partitions are held. 2: one message probes it.",
    "Above 0: mend the dependency that the warning names. Nothing is lost, and no attempt is spent meanwhile.",
)  # fmt: skip

# --------------------------------------------------------------------------------- backlog and pressure

BACKLOG: Final = _add(
    "loop_backlog", "loop.backlog", _G, "{message}", "group consumer topic state",
    "Messages still to be handled, each in one state: buffered (in this process), waiting_retry (in back-off or in a "
    "retry topic), broker (not fetched yet).",
    "broker grows: more comes than is handled; add members or concurrency. waiting_retry grows: something fails.",
)  # fmt: skip
INFLIGHT: Final = _add(
    "loop_inflight", "loop.inflight", _G, "{message}", "group consumer",
    "Messages of a Kafka Consumer that are in the process and not acknowledged.",
    "At loop_high_watermark_messages it takes no more: that is backpressure, not an error.",
)  # fmt: skip
INFLIGHT_BYTES: Final = _add(
    "loop_inflight_bytes", "loop.inflight.bytes", _G, "By", "group consumer",
    "The same in bytes.",
    "At loop_high_watermark_bytes it takes no more.",
)  # fmt: skip
HIGH_MESSAGES: Final = _add(
    "loop_high_watermark_messages", "loop.high_watermark.messages", _G, "{message}", "group consumer",
    "Messages in the process at which a Kafka Consumer takes no more (setting high_watermark_messages).",
    "It is a setting.",
)  # fmt: skip
HIGH_BYTES: Final = _add(
    "loop_high_watermark_bytes", "loop.high_watermark.bytes", _G, "By", "group consumer",
    "The same in bytes (setting high_watermark_bytes).",
    "It is a setting.",
)  # fmt: skip
LAG_MESSAGES: Final = _add(
    "loop_lag_messages", "loop.lag.messages", _G, "{message}", "group consumer topic partition",
    "Offsets from the commit position to the partition's end, as Kafka's tools show it. Absent while the end is unknown.",
    "Growing in all partitions: add members or concurrency. In one: see loop_held_seconds and loop_commit_gap of it.",
)  # fmt: skip
LAG_SECONDS: Final = _add(
    "loop_lag_seconds", "loop.lag", _G, "s", "group consumer topic partition",
    "Age of the oldest message that is not acknowledged; of a retry topic the time since it was due. Absent when unknown.",
    "The delay that users see. Growing while messages are handled: one message is stuck; /status names it.",
)  # fmt: skip
COMMIT_GAP: Final = _add(
    "loop_commit_gap", "loop.commit_gap", _G, "{offset}", "group consumer topic partition",
    "Offsets from the commit position to the highest received.",
    "Large: one message holds the position while later ones are done; at gap_limit the partition takes no more.",
)  # fmt: skip
HELD: Final = _add(
    "loop_held_partitions", "loop.held_partitions", _G, "{partition}", "group consumer reason",
    "Partitions that take no new messages, by reason; a partition may have several.",
    "docs/operations.md says what each reason means and what ends it.",
)  # fmt: skip
HELD_SECONDS: Final = _add(
    "loop_held_seconds", "loop.held", _G, "s", "group consumer topic partition reason",
    "How long a partition has been held for a reason; only while it is held.",
    "Over 5 minutes (retry_not_due aside) somebody has to act: see the reason's row in docs/operations.md.",
)  # fmt: skip
HELD_TOTAL: Final = _add(
    "loop_held_partition_seconds_total", "loop.held_partition.seconds", _C, "s", "group reason",
    "Partition-seconds held, by reason, present holds included.",
    "Its rate is the mean number of partitions held: what holds the loop back over time.",
)  # fmt: skip

# ------------------------------------------------------------------------------------------ the group

ASSIGNED: Final = _add(
    "loop_assigned_partitions", "loop.assigned_partitions", _G, "{partition}", "group consumer topic",
    "Partitions that this member has.",
    "The sum over members below loop_topic_partitions for minutes: partitions that nobody reads.",
)  # fmt: skip
TOPIC_PARTITIONS: Final = _add(
    "loop_topic_partitions", "loop.topic.partitions", _G, "{partition}", "group topic",
    "Partitions of a topic that the loop reads, as the brokers say. Absent while unknown or while it does not exist.",
    "Absent for a declared topic: it is missing; create it.",
)  # fmt: skip
REBALANCES: Final = _add(
    "loop_rebalances_total", "loop.rebalances", _C, "{event}", "group consumer event",
    "Rebalance callbacks of a Kafka Consumer: assigned, revoked, lost.",
    "lost: the group went on without this member (a stall); its messages come again. Many: members come and go.",
)  # fmt: skip
COMMITS: Final = _add(
    "loop_commits_total", "loop.commits", _C, "{partition}", "group consumer result",
    "Commits by partition: ok, error (tried again), refused (held), rebalance (kept), stale (its epoch has ended).",
    "refused: the group lacks a right, see the reason in the log. error growing: brokers fail.",
)  # fmt: skip
LAST_COMMIT: Final = _add(
    "loop_last_commit_timestamp_seconds", "loop.last_commit.timestamp", _G, "s", "group consumer",
    "When the broker last confirmed a commit (Unix time). Absent before the first.",
    "Old while messages are handled: commits do not get through, and a crash would repeat much.",
)  # fmt: skip

# ---------------------------------------------------------------------------------------- the machinery

ITERATIONS: Final = _add(
    "loop_iterations_total", "loop.iterations", _C, "{turn}", "group",
    "Turns of the engine.",
    "Flat: the event loop is blocked or has ended; see /live.",
)  # fmt: skip
ITERATION: Final = _add(
    "loop_iteration_duration_seconds", "loop.iteration.duration", _H, "s", "group",
    "How long a turn of the engine took.",
    "Above 50 ms: very large batches, or too little CPU.",
    STEP_BOUNDS,
)  # fmt: skip
HEARTBEAT: Final = _add(
    "loop_heartbeat_age_seconds", "loop.heartbeat.age", _G, "s", "group",
    "Time since the event loop last turned, at the time of the scrape; while it is high, all else here is as old.",
    "Above 2 s: a handler blocks the event loop; the log has its name and stack.",
)  # fmt: skip
ERRORS: Final = _add(
    "loop_errors_total", "loop.errors", _C, "{error}", "group type",
    "Errors that are not a handler's: of the Kafka clients by librdkafka's name, and event_loop_blocked, stall, "
    "out_of_range, metadata_ignored, retry_plan.",
    "_ALL_BROKERS_DOWN, _TRANSPORT: brokers or network. event_loop_blocked: a handler. stall: the process stood still.",
)  # fmt: skip
PUBLISH_FAILURES: Final = _add(
    "loop_publish_failures_total", "loop.publish_failures", _C, "{send}", "group",
    "Sends to retry topics, dead-letter topics and of handlers that failed; each is tried again.",
    "With loop_held_partitions{reason=publish_blocked}: a target takes nothing; the log names it.",
)  # fmt: skip
OUTSTANDING: Final = _add(
    "loop_publishes_outstanding", "loop.publishes_outstanding", _G, "{record}", "group",
    "Records that wait for the broker's confirmation.",
    "Growing: a target is slow or takes nothing.",
)  # fmt: skip
DRAIN_TIMEOUTS: Final = _add(
    "loop_drain_timeouts_total", "loop.drain_timeouts", _C, "{drain}", "group",
    "Shutdowns whose drain time was over while handlers ran.",
    "Raise drain_timeout (and the grace period), or make handlers shorter.",
)  # fmt: skip
EXPORT_FAILURES: Final = _add(
    "loop_export_failures_total", "loop.export_failures", _C, "{export}", "group signal",
    "Exports to the collector that failed, by signal: metrics, traces. Handling is not affected.",
    "The collector can't be reached, or refuses: see the log, and OTEL_EXPORTER_OTLP_ENDPOINT.",
)  # fmt: skip
KEPT_SPANS: Final = _add(
    "loop_failed_spans_total", "loop.failed_spans", _C, "{span}", "group result",
    "Failed attempts of traces that are not sampled: kept (recorded all the same), left_out (too many alike).",
    "left_out grows in a storm of one error: the kept ones show it. All of them are in the log and in the headers.",
)  # fmt: skip
DROPPED_SPANS: Final = _add(
    "loop_dropped_spans_total", "loop.dropped_spans", _C, "{span}", "group",
    "Spans that found the export queue full (OTEL_BSP_MAX_QUEUE_SIZE). Handling is not affected.",
    "The collector is away or slow (see loop_export_failures_total), or too much is sampled: lower trace_sample_ratio.",
)  # fmt: skip
PROCESS_CPU: Final = _add(
    "process_cpu_seconds_total", "process.cpu", _C, "s", "group",
    "CPU time of the process, all its threads.",
    "Its rate near 1: Python has one core and it is full; more members, not more concurrency. streamloop plan uses it.",
)  # fmt: skip
BUILD_INFO: Final = _add(
    "loop_build_info", "loop.build_info", _G, "", "group version python librdkafka",
    "Always 1; its labels are the versions that run.",
    "More than one version at a time: a rollout is under way, or stuck.",
)  # fmt: skip

# ------------------------------------------- the messaging conventions of OpenTelemetry (in Development)

_CONVENTION = "messaging.system messaging.operation.name messaging.consumer.group.name"

PROCESS_DURATION: Final = _add(
    "messaging_process_duration_seconds", "messaging.process.duration", _H, "s",
    f"{_CONVENTION} messaging.destination.name streamloop.consumer error.type",
    "Duration of processing: each attempt of a handler. error.type is _OTHER for failed ones (loop_failed_total has "
    "the classes). The destination is there where the consumer reads one topic only (neither retry nor replay topics).",
    "As loop_processing_duration_seconds.",
    DURATION_BOUNDS,
)  # fmt: skip
OPERATION_DURATION: Final = _add(
    "messaging_client_operation_duration_seconds", "messaging.client.operation.duration", _H, "s",
    f"{_CONVENTION} messaging.destination.name error.type",
    "Duration of the client's operations: poll (calls that got messages), commit (until the answer), send (until the "
    "delivery report).",
    "Slow sends or commits: brokers or network.",
    DURATION_BOUNDS,
)  # fmt: skip
CONSUMED: Final = _add(
    "messaging_client_consumed_messages_total", "messaging.client.consumed.messages", _C, "{message}",
    f"{_CONVENTION} messaging.destination.name",
    "Messages that were received, repeated ones included.",
    "Flat with lag: nothing is fetched; see loop_held_partitions and loop_errors_total.",
)  # fmt: skip
SENT: Final = _add(
    "messaging_client_sent_messages_total", "messaging.client.sent.messages", _C, "{message}",
    "messaging.system messaging.operation.name messaging.destination.name error.type",
    "Sends that have a report, by topic and error. A record that is tried again counts each time.",
    "With an error.type: the target refuses or can't be reached.",
)  # fmt: skip
