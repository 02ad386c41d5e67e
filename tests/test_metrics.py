"""The metrics: what is collected when, and that table, docs, text formats and collection say the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from streamloop import Message, Reject, StreamLoop
from streamloop.engine.consumer import MAX_ERROR_TYPES
from streamloop.engine.events import Reason
from streamloop.telemetry import table
from streamloop.telemetry.durations import DURATION_BOUNDS, Durations
from streamloop.telemetry.exposition import OPENMETRICS, TEXT, render, wants_openmetrics
from streamloop.telemetry.metrics import Histogram, Scrape, collect, histogram_of
from streamloop.telemetry.reference import reference
from streamloop.telemetry.table import TABLE, Kind
from streamloop.testing import Harness
from tests.realkafka.waiting import wait_until
from tests.running_loop import RunningLoop

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.tools import Promtool

ROOT = Path(__file__).parent.parent
OPENMETRICS_ASKED = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


parse_openmetrics: Any = openmetrics_parser.text_string_to_metric_families


class Declined(Exception):
    pass


def series(loop: StreamLoop[Any], name: str, **labels: str) -> dict[str, float]:
    """Of these series, the values by the label that was not given (by 'topic' when several were not)."""
    found: dict[str, float] = {}
    for each, value in loop.metrics().get(name, {}).items():
        given = dict(each)
        if labels.items() <= given.items():
            rest = {key: label for key, label in given.items() if key not in labels and key != "group"}
            found["/".join(rest.values())] = value
    return found


def billing(handler: Any, **options: Any) -> StreamLoop[None]:
    loop: StreamLoop[None] = StreamLoop("billing")
    loop.consumer("orders", name="charge", permanent=[Declined], **options)(handler)
    return loop


async def nothing(_value: bytes) -> None: ...


async def decline(_value: bytes) -> None:
    raise Declined


async def fail(_value: bytes) -> None:
    raise ConnectionError


# --------------------------------------------------------------------------------------------- the table


def test_the_page_of_metrics_says_what_the_table_says() -> None:
    assert reference() in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_names_are_unique_and_what_prometheus_makes_of_the_otlp_names() -> None:
    assert len({metric.name for metric in TABLE}) == len({metric.otlp for metric in TABLE}) == len(TABLE)
    for metric in TABLE:
        tokens = metric.otlp.replace(".", "_").split("_")
        unit = {"s": "seconds", "By": "bytes"}.get(metric.unit, "")
        if unit and unit not in tokens:
            tokens.append(unit)
        if metric.kind is Kind.COUNTER:
            tokens = [token for token in tokens if token != "total"] + ["total"]
        assert "_".join(tokens) == metric.name


def test_labels_are_bounded_words_and_partition_stands_where_it_is_the_matter() -> None:
    allowed = {"group", "consumer", "topic", "partition", "outcome", "type", "state", "reason", "event"}
    allowed |= {"result", "signal", "version", "python", "librdkafka", "streamloop.consumer", "error.type"}
    for metric in TABLE:
        assert {label for label in metric.labels if not label.startswith("messaging.")} <= allowed
        if "partition" in metric.labels:
            assert metric in (table.LAG_MESSAGES, table.LAG_SECONDS, table.COMMIT_GAP, table.HELD_SECONDS)


def test_every_metric_of_the_table_is_on_the_page_of_metrics_of_a_loop_that_runs() -> None:
    async def handler(value: bytes) -> None:
        if value == b"bad":
            raise Declined

    options = {"permanent": [Declined], "in_place_attempts": 1}
    with RunningLoop(handler, options=options, retry_topics=("1s",)) as running:
        running.send(b"good", b"bad")
        running.loop.pause("orders", 1)

        def shown() -> set[str]:
            text = running.ops("/metrics", headers={"Accept": OPENMETRICS_ASKED}).body.decode()
            return {family.name for family in parse_openmetrics(text) if family.samples}

        expected = {metric.name.removesuffix("_total") for metric in TABLE}
        wait_until(lambda: expected <= shown(), 20, lambda: f"{expected - shown()}")
        assert shown() == expected
        wait_until(
            lambda: running.metric("loop_dead_letter_total", topic="orders") == 1, 20, "the dead letter"
        )
        wait_until(lambda: running.metric("loop_backlog") == 0, 20, "no backlog")


# ------------------------------------------------------------------------------------------ the collection


def test_every_counter_is_there_at_0_from_its_declaration() -> None:
    loop = billing(nothing, retry_topics=("30s",))
    with Harness(loop):
        retry = "orders.billing.retry.30s"
        for topic in ("orders", retry):
            outcomes = series(loop, "loop_processed_total", consumer="charge", topic=topic)
            assert outcomes == {"acked": 0, "skipped": 0, "retried": 0, "dead_lettered": 0}
            types = series(loop, "loop_failed_total", consumer="charge", topic=topic)
            assert set(types.values()) == {0}
            assert {f"{__name__}.Declined", "streamloop.errors.DecodeError", "other"} <= types.keys()
            for name in ("loop_retried_total", "loop_dead_letter_total", "loop_redelivered_total"):
                assert series(loop, name, topic=topic) == {"charge": 0}
        assert series(loop, "loop_held_partitions", consumer="charge").keys() == {r.value for r in Reason}
        assert series(loop, "loop_export_failures_total") == {"metrics": 0, "traces": 0}
        assert {"_ALL_BROKERS_DOWN", "event_loop_blocked"} <= series(loop, "loop_errors_total").keys()
        sent = loop.metrics()["messaging_client_sent_messages_total"]
        topics = {dict(labels)["messaging_destination_name"] for labels in sent}
        assert topics == {retry, "orders.billing.dlq"}


def test_outcomes_failures_and_retries_are_counted_by_the_topic_they_were_read_from() -> None:
    loop = billing(fail, retry_topics=("30s",), in_place_attempts=2)
    with Harness(loop) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        kafka.advance(40)
        kafka.run()
        retry = "orders.billing.retry.30s"
        assert series(loop, "loop_processed_total", topic="orders", outcome="retried") == {"charge": 1}
        assert series(loop, "loop_processed_total", topic=retry, outcome="dead_lettered") == {"charge": 1}
        assert series(loop, "loop_failed_total", type="builtins.ConnectionError") == {
            "charge/orders": 2,
            f"charge/{retry}": 1,
        }
        assert series(loop, "loop_retried_total") == {
            "charge/orders": 2,
            f"charge/{retry}": 0,
            "charge/orders.billing.replay": 0,
        }
        durations = series(loop, "messaging_process_duration_seconds_count", error_type="_OTHER")
        assert list(durations.values()) == [3]


@pytest.mark.parametrize("dead_letter", [False, True])
def test_durations_name_the_topic_of_a_consumer_that_reads_one_only(dead_letter: bool) -> None:
    loop = billing(
        nothing, retry_topics=(), dead_letter=dead_letter
    )  # with dead letters: a replay topic, too
    with Harness(loop) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        shown = loop.metrics()["messaging_process_duration_seconds_count"]
        destinations = {dict(labels).get("messaging_destination_name") for labels in shown}
        assert destinations == ({None} if dead_letter else {"orders"})
        assert sum(shown.values()) == 1


def test_beyond_50_error_classes_the_others_are_other() -> None:
    async def raise_a_class_of_its_own(value: bytes) -> None:
        raise type(f"Error{value.decode()}", (Exception,), {})

    loop = billing(raise_a_class_of_its_own, retry_topics=(), in_place_attempts=1)
    with Harness(loop) as kafka:
        for number in range(MAX_ERROR_TYPES + 10):
            kafka.send("orders", str(number).encode())
        kafka.run()
        types = series(loop, "loop_failed_total", topic="orders", consumer="charge")
        assert len(types) == MAX_ERROR_TYPES + 1
        assert sum(types.values()) == MAX_ERROR_TYPES + 10
        assert types["other"] > 10


def test_series_of_a_partition_go_when_it_is_revoked_and_counters_stay() -> None:
    loop = billing(nothing)
    with Harness(loop, partitions=2) as kafka:
        kafka.send("orders", b"1", partition=1)
        kafka.run()
        names = ("loop_lag_messages", "loop_lag_seconds", "loop_commit_gap")
        for name in names:
            assert series(loop, name, topic="orders") == {"charge/0": 0, "charge/1": 0}
        assert series(loop, "loop_assigned_partitions", topic="orders") == {"charge": 2}
        kafka.revoke("orders", 1)
        for name in names:
            assert series(loop, name, topic="orders") == {"charge/0": 0}
        assert series(loop, "loop_assigned_partitions", topic="orders") == {"charge": 1}
        assert series(loop, "loop_processed_total", topic="orders", outcome="acked") == {"charge": 1}


def test_backlog_states_are_disjoint_and_together_all_that_is_left_to_do() -> None:
    async def some(value: bytes) -> None:
        if value == b"fails":
            raise ConnectionError

    loop = billing(some, in_place_attempts=2, backoff_base=1_000, backoff_cap=1_000, retry_topics=("1h",))
    with Harness(loop, partitions=1) as kafka:
        kafka.send("orders", b"fails", key=b"k")
        kafka.advance(1)
        kafka.send("orders", b"behind it", key=b"k")
        kafka.advance(1)
        loop.pause("orders")
        kafka.advance(0.2)
        for number in range(3):
            kafka.send("orders", str(number).encode())
        kafka.advance(0.2)
        states = series(loop, "loop_backlog", consumer="charge", topic="orders")
        assert states == {"buffered": 1, "waiting_retry": 1, "broker": 3}
        assert series(loop, "loop_lag_messages", topic="orders") == {"charge/0": 5}
        assert series(loop, "loop_inflight", consumer="source") == {"": 2}


def test_what_waits_in_a_retry_topic_is_backlog_that_waits_and_no_lag_in_seconds_until_it_is_due() -> None:
    loop = billing(fail, in_place_attempts=1, retry_topics=("1h",))
    with Harness(loop, partitions=1) as kafka:
        kafka.send("orders", b"1")
        kafka.advance(10)
        retry = "orders.billing.retry.1h"
        assert series(loop, "loop_backlog", topic=retry, state="waiting_retry") == {"charge": 1}
        assert series(loop, "loop_backlog", topic=retry, state="broker") == {}
        assert series(loop, "loop_lag_messages", topic=retry) == {"charge/0": 1}
        assert series(loop, "loop_lag_seconds", topic=retry) == {"charge/0": 0}
        held = series(loop, "loop_held_seconds", topic=retry, reason="retry_not_due")
        assert list(held) == ["charge/0"]
        assert held["charge/0"] > 5
        assert series(loop, "loop_held_partitions", reason="retry_not_due") == {"charge": 1}


def test_lag_in_seconds_is_the_age_of_the_oldest_message_that_is_not_acknowledged() -> None:
    async def wait(_value: bytes, message: Message) -> None:
        if message.offset == 0:
            await asyncio.sleep(20)

    loop = billing(wait, timeout=60)
    with Harness(loop, partitions=1) as kafka:
        kafka.send("orders", b"1")
        kafka.advance(5)
        kafka.send("orders", b"2")
        kafka.advance(5)
        assert series(loop, "loop_lag_seconds")["charge/orders/0"] == pytest.approx(10, abs=0.2)
        assert series(loop, "loop_commit_gap")["charge/orders/0"] == 2
        assert series(loop, "loop_running_handlers") == {"charge": 1}
        kafka.advance(15)
        assert series(loop, "loop_lag_seconds")["charge/orders/0"] == 0


def test_what_no_class_lists_is_reported_by_name_and_a_skip_is_no_failure() -> None:
    async def reject(_value: bytes) -> None:
        raise Reject("no such customer")

    loop = billing(reject)
    with Harness(loop) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        assert series(loop, "loop_failed_total", type="streamloop.outcomes.Reject", topic="orders") == {
            "charge": 1
        }


# --------------------------------------------------------------------------------------------- formats


def scrape_of(loop: StreamLoop[Any]) -> Scrape:
    assert loop._run is not None
    return collect(loop._run)


def samples(families: Iterable[Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_both_formats_parse_and_have_the_same_numbers() -> None:
    loop = billing(decline)
    with Harness(loop) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        scrape = scrape_of(loop)
    text, kind = render(scrape, "")
    openmetrics, asked = render(scrape, OPENMETRICS_ASKED)
    assert (kind, asked) == (TEXT, OPENMETRICS)
    found = samples(parse_text(text.decode()))
    assert found == samples(parse_openmetrics(openmetrics.decode()))
    labels = (("consumer", "charge"), ("group", "billing"), ("topic", "orders"))
    assert found["loop_dead_letter_total", labels] == 1
    assert b"# TYPE loop_processed_total counter" in text
    assert openmetrics.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=0.0.1,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.5", False),
        ("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.6,*/*;q=0.1", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
    ],
)
def test_openmetrics_is_given_to_who_prefers_it(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


def test_exemplars_are_in_openmetrics_and_not_in_the_text_format() -> None:
    durations = Durations()
    durations.observe(0.3)
    ids = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    durations.exemplar(durations.bucket_of(0.3), *ids, 0.3, 1e9)
    scrape = Scrape(2e9, 1e9)
    scrape.put(table.PROCESSING, histogram_of(durations), "billing", "charge")
    openmetrics, _ = render(scrape, OPENMETRICS_ASKED)
    [family] = parse_openmetrics(openmetrics.decode())
    exemplars = {s.labels["le"]: s.exemplar for s in family.samples if s.exemplar is not None}
    assert list(exemplars) == ["0.5"]
    exemplar = exemplars["0.5"]
    assert exemplar.labels == {"trace_id": ids[0], "span_id": ids[1]}
    assert exemplar.value == 0.3
    assert b"trace_id" not in render(scrape, "")[0]


def test_labels_with_quotes_newlines_and_backslashes_stay_one_label() -> None:
    scrape = Scrape(2e9, 1e9)
    hostile = 'a"b\\c\nd'
    scrape.put(table.ERRORS, 1, "billing", hostile)
    [family] = parse_text(render(scrape, "")[0].decode())
    assert [sample.labels["type"] for sample in family.samples] == [hostile]


def test_a_histogram_counts_what_is_on_a_bound_below_it() -> None:
    durations = Durations()
    for seconds in (0.0, 0.005, 0.0051, 10.0, 10.1):
        durations.observe(seconds)
    histogram = histogram_of(durations, Durations())
    assert isinstance(histogram, Histogram)
    assert histogram.buckets[:2] == (2, 1)
    assert histogram.buckets[-2:] == (1, 1)
    assert histogram.count == 5
    assert len(histogram.buckets) == len(DURATION_BOUNDS) + 1


def test_promtool_finds_nothing_wrong_with_the_text_format(promtool: Promtool) -> None:
    loop = billing(decline)
    with Harness(loop) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        text, _ = render(scrape_of(loop), "")
    assert promtool.check_metrics(text.decode()) == ""
