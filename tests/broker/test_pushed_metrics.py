"""What a member pushes to Prometheus' OTLP receiver, beside what the same Prometheus scrapes of it: the same
series under the same names with the same numbers. And exemplars, from two members to the exemplar API.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from streamloop.telemetry.table import TABLE, Kind
from tests.broker.loops.processes import READY, orders, start_service
from tests.realkafka import wait_until
from tests.realkafka.node import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster, Members
    from tests.tools import Jaeger, Prometheus

pytestmark = pytest.mark.timeout(240)

WAIT: Final = 60.0

GROWS: Final = frozenset(
    {
        "loop_iterations_total",
        "loop_iteration_duration_seconds_bucket",
        "loop_iteration_duration_seconds_count",
        "loop_iteration_duration_seconds_sum",
        "process_cpu_seconds_total",
    }
)
"""Turns of the engine go on while nothing happens, and take CPU time: what is pushed is between two scrapes
of it."""
AS_OF_NOW: Final = frozenset({"loop_heartbeat_age_seconds", "loop_dead_letters_oldest_seconds"})
"""Ages at the moment they were taken: they have to be there in both."""
ABSENT_WHEN_IDLE: Final = frozenset({"loop_held_seconds"})
"""Only while a partition is held."""

TOLD_APART: Final = frozenset({"__name__", "job", "instance", "service_name", "service_instance_id"})
"""What names the member, in the scrape (job, instance) and in the push (the resource's attributes)."""

ANOTHER_SPELLING: Final = "le"
"""Prometheus writes the bound of a bucket as 1.0 when it scrapes it and as 1 when it is pushed to it: the
same number, and the same for histogram_quantile(). A selector that names a bound has to allow both."""

SCRAPED: Final = 'job="streamloop"'
"""The job's name in prometheus.yml; of what is pushed it is the group."""

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def names_by_the_table() -> set[str]:
    """The series of docs/metrics.md: of a histogram three."""
    found = set()
    for metric in TABLE:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        found |= {metric.name + suffix for suffix in suffixes}
    return found


def series_of(server: Prometheus, selector: str) -> Series:
    """All of a job's series of ours by name and labels; a label without a value is no label."""
    found: Series = {}
    for sample in server.query(f'{{__name__=~"(loop|messaging|process)_.+",{selector}}}'):
        given = dict(sample["metric"])
        if ANOTHER_SPELLING in given:
            given[ANOTHER_SPELLING] = repr(float(given[ANOTHER_SPELLING]))
        labels = tuple(sorted(each for each in given.items() if each[0] not in TOLD_APART))
        name = given["__name__"]
        assert (name, labels) not in found, f"{name}{labels} is there twice"
        found[name, labels] = float(sample["value"][1])
    return found


def still(series: Series) -> Series:
    """What does not move while nothing happens."""
    moving = GROWS | AS_OF_NOW | ABSENT_WHEN_IDLE
    return {key: value for key, value in series.items() if key[0] not in moving}


def grown(series: Series) -> Series:
    return {key: value for key, value in series.items() if key[0] in GROWS}


def differences(left: Series, right: Series) -> list[str]:
    """What is in one only, or has another number; sums of floats went through texts, so to 12 digits."""
    nothing = math.nan
    return [
        f"{name}{dict(labels)}: scraped {left.get((name, labels))}, pushed {right.get((name, labels))}"
        for name, labels in sorted(left.keys() | right.keys())
        if not math.isclose(
            left.get((name, labels), nothing), right.get((name, labels), nothing), rel_tol=1e-12
        )
    ]


def test_what_is_pushed_to_prometheus_is_number_by_number_what_it_scrapes(
    kafka: KafkaCluster,
    members: Members,
    topic: Callable[..., str],
    group: str,
    prometheus: Callable[..., Prometheus],
) -> None:
    source = topic(2)
    [port] = free_ports(1)
    server = prometheus(f"{HOST}:{port}")
    started = start_service(
        *(members, kafka, group, source),
        *("--ops-address", f"{HOST}:{port}", "--member", "member-1"),
        env={
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": server.otlp,
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
            "OTEL_TRACES_EXPORTER": "none",
        },
    )
    started.wait_for_line(READY, timeout=WAIT)
    # All kinds: handled at once and slowly (several buckets), retried and dead, rejected, undecodable.
    kafka.produce(source, orders(*[{}] * 40, {"sleep": 0.02}, {"sleep": 0.06}, {"sleep": 0.3}))
    kafka.produce(source, orders(*[{"do": "fail"}] * 3, *[{"do": "reject"}] * 2, partition=1))
    kafka.produce(source, [b"no JSON"])

    def ended() -> bool:
        handled = server.value(f'sum(loop_processed_total{{job="streamloop",topic="{source}"}})')
        left = server.value('sum(loop_backlog{job="streamloop"})')
        lag = server.value('sum(loop_lag_messages{job="streamloop"})')
        # Counted at the start, when there was none, and every 30 s.
        still_open = server.value('sum(loop_dead_letters_open{job="streamloop"})')
        return (handled, left, lag, still_open) == (49, 0, 0, 6)

    wait_until(ended, WAIT, lambda: f"the messages: {series_of(server, SCRAPED)}")
    scraped: Series = {}
    pushed: Series = {}

    def the_same() -> bool:
        scraped.clear()
        pushed.clear()
        scraped.update(series_of(server, SCRAPED))
        pushed.update(series_of(server, f'job="{group}"'))
        return bool(pushed) and not differences(still(scraped), still(pushed))

    wait_until(the_same, WAIT, lambda: "\n".join(differences(still(scraped), still(pushed))[:40]))

    # It is not the agreement of nothing: every metric of the table, and numbers that were asked for.
    there = {name for name, _ in scraped}
    assert there == names_by_the_table() - ABSENT_WHEN_IDLE
    assert {name for name, _ in pushed} == there
    assert len(scraped) > 250
    assert sum(value for (name, _), value in pushed.items() if name == "loop_dead_letter_total") == 6
    slow = [value for (name, _), value in pushed.items() if name == "loop_processing_duration_seconds_count"]
    assert sum(slow) == 43 + 3 * 2 + 2

    # What moves: between the scrape before the push and one after it.
    before = grown(scraped)
    at = server.value(f'max(timestamp(loop_iterations_total{{job="{group}"}}))')
    assert at is not None

    def newer() -> Series:
        moment = server.value(f'max(timestamp(loop_iterations_total{{job="{group}"}}))')
        return grown(series_of(server, f'job="{group}"')) if moment is not None and moment > at + 2 else {}

    between = wait_until(newer, WAIT, "a later push")
    assert between.keys() == before.keys()
    assert not [key for key, value in between.items() if value < before[key]]
    assert any(value > before[key] for key, value in between.items())

    def overtaken() -> bool:
        after = grown(series_of(server, SCRAPED))
        return all(after[key] >= value for key, value in between.items())

    wait_until(overtaken, WAIT, "a scrape that has what was pushed")
    for selector in (SCRAPED, f'job="{group}"'):
        age = server.value(f"max(loop_heartbeat_age_seconds{{{selector}}})")
        assert age is not None
        assert 0 <= age < WAIT


def test_exemplars_of_two_members_lead_from_prometheus_to_their_traces_in_jaeger(
    kafka: KafkaCluster,
    members: Members,
    topic: Callable[..., str],
    group: str,
    prometheus: Callable[..., Prometheus],
    jaeger: Jaeger,
) -> None:
    source = topic(2)
    ports = free_ports(2)
    began = time.time()
    server = prometheus(*(f"{HOST}:{port}" for port in ports))
    for number, port in enumerate(ports, 1):
        start_service(
            *(members, kafka, group, source),
            *("--ops-address", f"{HOST}:{port}", "--member", f"member-{number}"),
            name=f"member-{number}",
            env={"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_http, "OTEL_METRICS_EXPORTER": "none"},
        )
    wait_until(lambda: len(kafka.members(group)) == 2, WAIT, "both members")
    wait_until(
        lambda: server.value(f'count(loop_assigned_partitions{{topic="{source}"}} == 1)') == 2,
        WAIT,
        "a partition for each",
    )
    for partition in range(2):
        kafka.produce(
            source, orders({}, {"sleep": 0.06}, {"sleep": 0.3}, {"do": "fail"}, partition=partition)
        )

    def exemplars() -> list[dict[str, Any]]:
        return server.exemplars("loop_processing_duration_seconds_bucket", began - 60, time.time() + 60)

    def of_both() -> bool:
        seen = {(each["seriesLabels"]["instance"], each["seriesLabels"]["le"]) for each in exemplars()}
        slow = {instance for instance, bound in seen if bound == "0.5"}
        return slow == {f"{HOST}:{port}" for port in ports}

    wait_until(of_both, WAIT, lambda: f"exemplars of both: {exemplars()}")
    found = exemplars()
    assert {each["seriesLabels"]["__name__"] for each in found} == {"loop_processing_duration_seconds_bucket"}
    checked = 0
    for series in found:
        bound = float(series["seriesLabels"]["le"])
        for exemplar in series["exemplars"]:
            assert float(exemplar["value"]) <= bound
            trace_id, span_id = exemplar["labels"]["trace_id"], exemplar["labels"]["span_id"]
            [span] = wait_until(
                lambda trace_id=trace_id, span_id=span_id: [  # type: ignore[misc]
                    each for each in jaeger.spans(trace_id) if each["spanId"] == span_id
                ],
                30,
                f"the span {span_id} of the exemplar {exemplar} in Jaeger",
            )
            assert span["name"].startswith(f"process {source}")
            took = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9
            assert float(exemplar["value"]) == pytest.approx(took, abs=1e-6)
            checked += 1
    assert checked >= 4
