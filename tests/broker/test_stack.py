"""`make stack`: real Kafka, Jaeger and Prometheus with a shop and two members, and what one sees of them.

Every expression of the rules and the dashboards is run on that Prometheus.
"""

import re
import socket
import urllib.request
from collections.abc import Iterator

import pytest

from stack.run import Stack, guide
from tests.realkafka import Members, wait_until
from tests.realkafka.node import HOST
from tests.stack.names import METRICS, OTHERS, documents, named, recordings
from tests.stack.test_dashboards import BOARDS, expressions

pytestmark = [pytest.mark.tools("jaeger", "prometheus"), pytest.mark.timeout(300)]

START_SECONDS = 90.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """All of it, with a faster shop and a Prometheus that looks every second."""
    with Stack(rate=60, scrape_seconds=1) as started:
        yield started


def answered(expression: str) -> str:
    """The expression with Grafana's variables filled in as for 'All'."""
    for variable, value in (("$__rate_interval", "30s"), ("$__range", "5m")):
        expression = expression.replace(variable, value)
    return re.sub(r"\$(group|topic)", ".*", expression)


def test_prometheus_scrapes_both_members_and_jaeger_hears_the_shop(stack: Stack) -> None:
    def both_up() -> bool:
        return [each["health"] for each in stack.prometheus.targets()] == ["up", "up"]

    wait_until(both_up, START_SECONDS, lambda: f"both members: {stack.prometheus.targets()}")
    wait_until(lambda: "shop" in stack.jaeger.services(), 30, "the shop's spans")
    assert stack.ended() is None


def test_what_the_shop_sends_is_handled_by_two_members(stack: Stack) -> None:
    prometheus = stack.prometheus
    wait_until(lambda: (prometheus.value("sum(loop_processed_total)") or 0) > 200, START_SECONDS, "orders")
    wait_until(
        lambda: prometheus.value('sum(loop_assigned_partitions{topic="orders"})') == 6, 30, "six partitions"
    )
    assert prometheus.value("count(loop_build_info)") == 2


def test_a_doomed_order_becomes_a_dead_letter_and_an_alert(stack: Stack) -> None:
    assert stack.producer is not None
    found = stack.producer.wait_for_line(r"will be a dead letter: orders \d+ \d+ trace ([0-9a-f]{32})")
    spans = wait_until(lambda: stack.jaeger.spans(found.group(1)), 30, "the trace of a doomed order")
    assert "send orders" in {span["name"] for span in spans}
    prometheus = stack.prometheus
    wait_until(lambda: (prometheus.value("sum(loop_dead_letter_total)") or 0) > 0, START_SECONDS, "it")

    def fires() -> bool:
        firing = [each["labels"]["alertname"] for each in prometheus.alerts() if each["state"] == "firing"]
        return "StreamloopNewDeadLetters" in firing

    wait_until(fires, 30, lambda: f"the alert: {prometheus.alerts()}")


def test_every_expression_runs_on_prometheus_and_names_only_what_members_export(stack: Stack) -> None:
    exported = wait_until(
        lambda: METRICS & (there := stack.prometheus.metric_names()) and there, START_SECONDS, "metrics"
    )
    families = set(stack.prometheus.metadata())
    everything = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in documents()]
    everything += [(name, answered(each)) for name in BOARDS for each in expressions(name)]
    assert len(everything) > 40
    for name, expression in everything:
        stack.prometheus.query(expression)  # ValueError when it is refused
        for metric in named(expression) - recordings() - OTHERS:
            family = re.sub("_(bucket|sum|count)$", "", metric)
            assert metric in exported or family in families, f"{name}: nobody exports {metric}"


def test_every_panel_has_something_to_show(stack: Stack) -> None:
    now_and_then = ("> 0", "loop_held_seconds")  # only while a partition is held, or behind a gap
    for name in BOARDS:
        for expression in map(answered, expressions(name)):
            if not any(each in expression for each in now_and_then):
                wait_until(
                    lambda asked=expression: stack.prometheus.query(asked),  # type: ignore[misc]
                    START_SECONDS,
                    f"{name}: {expression}",
                )


def test_recorded_series_come_into_being(stack: Stack) -> None:
    for name in recordings():
        wait_until(lambda name=name: stack.prometheus.query(name), START_SECONDS, name)  # type: ignore[misc]


def test_the_guide_names_every_address(stack: Stack) -> None:
    text = guide(stack)
    for address in (*stack.addresses, *stack.controls, stack.kafka.bootstrap, stack.jaeger.url):
        assert address in text


def test_the_guide_says_how_to_see_the_console_and_it_is_there(stack: Stack) -> None:
    page = f"http://{stack.controls[0]}/console/"
    assert page in guide(stack)
    assert stack.tokens["read"] in guide(stack)
    with urllib.request.urlopen(page, timeout=10) as answer:
        assert answer.status == 200
    asked = urllib.request.Request(
        f"{page}api/runs", headers={"Authorization": f"Bearer {stack.tokens['read']}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200


def test_ctrl_c_ends_everything(members: Members) -> None:
    running = members.start_module("stack.run", "--members", "1")
    kafka = running.wait_for_line(rf"^  Kafka +{HOST}:(\d+)", timeout=START_SECONDS)
    running.wait_for_line("will be a dead letter", timeout=START_SECONDS)
    running.interrupt()
    assert running.wait(60) == 0
    assert not [line for line in running.lines if "did not end" in line]
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, int(kafka.group(1)))) != 0
