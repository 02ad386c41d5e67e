"""What two looks at running members say of the work, and what they can't say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from streamloop.cli import main as cli
from streamloop.cli.measure import Look, MeasureError, between, look_at, measure, metrics_url, quantile
from streamloop.errors import ConfigurationError
from streamloop.telemetry.durations import DURATION_BOUNDS
from tests.realkafka.waiting import wait_until
from tests.running_loop import RunningLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

INFINITE = float("inf")


def member(
    at: float,
    *,
    times: Sequence[float] = (),
    acked: int = 0,
    backlog: int = 0,
    assigned: int = 24,
    partitions: int = 24,
    cpu: float = 0.0,
    inflight: tuple[int, int] = (0, 0),
    turns: int = 1,
    consumers: Sequence[str] = ("charge",),
) -> Look:
    """A look at a member whose handlers took ``times`` (seconds) since its start."""
    lines = [
        'loop_build_info{group="billing"} 1',
        f'loop_iterations_total{{group="billing"}} {turns}',
        f'process_cpu_seconds_total{{group="billing"}} {cpu}',
        f'loop_topic_partitions{{group="billing",topic="orders"}} {partitions}',
        f'loop_inflight{{group="billing",consumer="source"}} {inflight[0]}',
        f'loop_inflight_bytes{{group="billing",consumer="source"}} {inflight[1]}',
    ]
    for group, topic in (("billing", "orders"), ("billing.retry", "orders.billing.retry.30s")):
        lines.append(
            'messaging_client_consumed_messages_total{messaging_consumer_group_name="'
            f'{group}",messaging_destination_name="{topic}"}} 1'
        )
    for name in consumers:
        labels = f'group="billing",consumer="{name}"'
        bounds = [*DURATION_BOUNDS, INFINITE]
        lines += [
            f'loop_processing_duration_seconds_bucket{{{labels},le="{bound}"}} '
            f"{sum(each <= bound for each in times)}"
            for bound in bounds
        ]
        lines += [
            f"loop_processing_duration_seconds_count{{{labels}}} {len(times)}",
            f"loop_processing_duration_seconds_sum{{{labels}}} {sum(times)}",
            f"loop_concurrency{{{labels}}} 100",
            f'loop_processed_total{{{labels},topic="orders",outcome="acked"}} {acked}',
            # What comes from a retry topic is no new message.
            f'loop_processed_total{{{labels},topic="orders.billing.retry.30s",outcome="acked"}} {acked * 5}',
            f'loop_backlog{{{labels},topic="orders",state="broker"}} {backlog}',
            f'loop_assigned_partitions{{{labels},topic="orders"}} {assigned}',
        ]
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((dict(sample.labels), float(sample.value)))
    return Look("http://member:9464/metrics", at, samples)


USUAL = [0.02] * 980 + [0.2] * 20


def test_mean_p99_rate_partitions_size_and_cpu_are_differences_between_the_looks() -> None:
    before = member(100.0, times=[9.0] * 50, acked=50, backlog=1_000, cpu=7.0, inflight=(10, 20_000))
    after = member(
        110.0, times=[9.0] * 50 + USUAL, acked=1_050, backlog=1_500, cpu=7.4, inflight=(10, 40_000), turns=9
    )
    found = between([before], [after], None)
    assert found.values["handler_mean"] == pytest.approx((0.02 * 980 + 0.2 * 20) / 1_000)
    # Half of those above 0.1 s: the middle of the bucket from 0.1 to 0.25.
    assert found.values["handler_p99"] == pytest.approx(0.175)
    assert found.values["rate"] == pytest.approx(150)  # 1,000 handled in 10 s, and 500 more wait
    assert found.values["partitions"] == 24
    assert found.values["message_bytes"] == 3_000
    assert found.values["cpu_per_message"] == pytest.approx(0.4 / 1_000)


def test_members_that_have_some_of_the_partitions_stand_for_all() -> None:
    before, after = member(0.0, assigned=8), member(10.0, times=USUAL, acked=1_000, assigned=8)
    found = between([before], [after], None)
    assert found.values["rate"] == pytest.approx(300)
    assert any("8 of 24 partitions" in note for note in found.notes)


def test_several_members_are_added_up() -> None:
    befores = [member(0.0, assigned=12), member(0.5, assigned=12)]
    afters = [member(each, times=USUAL, acked=1_000, assigned=12) for each in (10.0, 10.5)]
    assert between(befores, afters, None).values["rate"] == pytest.approx(200)


def test_what_is_not_known_is_left_out_and_said() -> None:
    slow = between([member(0.0)], [member(10.0, times=[20.0] * 5, acked=5)], None)
    assert "handler_p99" not in slow.values
    assert "message_bytes" not in slow.values
    said = " ".join(slow.notes)
    assert "longer than 10 s, where the histogram ends: give --handler-p99" in said
    assert "5 attempts are few for a p99" in said
    assert "the size of a message is not known" in said


@pytest.mark.parametrize(
    ("before", "after", "consumer", "said"),
    [
        (member(0.0), member(1.0), None, "No handler of charge ended while it was measured"),
        (member(0.0, turns=50), member(1.0, times=USUAL, turns=2), None, "was started again"),
        (member(0.0), member(1.0, times=USUAL, consumers=("a", "b")), None, "choose one with --consumer"),
        (member(0.0), member(1.0, times=USUAL), "other", "has the consumer 'other'; there are: charge"),
    ],
)
def test_what_can_t_be_measured_is_a_sentence(
    before: Look, after: Look, consumer: str | None, said: str
) -> None:
    with pytest.raises(MeasureError, match=said):
        between([before], [after], consumer)


def test_a_quantile_is_linear_within_its_bucket_and_unknown_beyond_the_last() -> None:
    assert quantile(0.5, {1.0: 10, 2.0: 20, INFINITE: 20}) == 1.0
    assert quantile(0.75, {1.0: 10, 2.0: 20, INFINITE: 20}) == 1.5
    assert quantile(0.99, {1.0: 10, INFINITE: 20}) is None
    assert quantile(0.99, {1.0: 0, INFINITE: 0}) is None
    assert quantile(0.99, {}) is None


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("pod-0", "http://pod-0:9464/metrics"),
        ("10.0.0.1:80", "http://10.0.0.1:80/metrics"),
        ("https://pod-0/x/metrics", "https://pod-0/x/metrics"),
        ("[::1]:9464", "http://[::1]:9464/metrics"),
    ],
)
def test_an_address_is_a_host_a_host_and_port_or_a_url(written: str, url: str) -> None:
    assert metrics_url(written) == url


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        metrics_url("http://user:secret@pod-0/metrics")


def test_a_running_member_is_measured_and_planned_for() -> None:
    async def charge(_value: bytes) -> None: ...

    with RunningLoop(charge) as running:
        running.send(*[b"order"] * 2_000)
        url = metrics_url(running.run.operations.urls["ops_address"])

        def handled(least: int) -> Any:
            look = look_at(url, 5.0)
            return look if look.total("loop_processed_total") >= least else None

        wait_until(lambda: handled(2_000) is not None, 30, "the messages to be handled")

        def meanwhile(_seconds: float) -> None:
            running.send(*[b"order"] * 500)
            wait_until(lambda: handled(2_500) is not None, 30, "more messages to be handled")

        found = measure([url], 1.0, sleep=meanwhile)
        assert found.values["partitions"] == 2
        assert 0 < found.values["handler_mean"] <= found.values["handler_p99"]
        assert found.values["rate"] > 0
        assert found.values["cpu_per_message"] > 0


def test_what_was_given_comes_before_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamloop.cli import plan as command

    found = between([member(0.0)], [member(10.0, times=USUAL, acked=1_000)], None)
    monkeypatch.setattr(command, "measure", lambda *_args, **_kw: found)
    result = CliRunner().invoke(cli.main, ["plan", "--measure", "pod-0", "--rate", "700/s"])
    assert result.exit_code == 0, result.output
    assert "--rate                    700/s\n" in result.stdout
    assert "--partitions              24  (measured)" in result.stdout
    assert "Measured\n  Handler time: 1,000 attempts of charge" in result.stdout


def test_an_answer_that_is_no_metrics_text_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamloop.cli import measure as module

    for status, body, said in (
        (404, b"{}", "answered HTTP 404"),
        (200, b"<html>\xff", "is no metrics text"),
        (200, b"up 1\n", "is no member of streamloop"),
    ):
        monkeypatch.setattr(module, "fetch", lambda *_a, answer=(status, body), **_k: answer)
        with pytest.raises(MeasureError, match=said):
            look_at("http://pod-0:9464/metrics", 1.0)
