"""Scraping, rules, dashboards and traces as the chart renders them: the stack's own, no copies that drift."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import yaml

from tests.chart.rendered import CHART, ROOT, config_text, container, one, with_base

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tools.helm import Helm
    from tests.tools.promtool import Promtool

VALUES = CHART / "ci/observed-values.yaml"


def test_the_rules_are_those_of_the_stack_without_what_the_values_leave_out(
    helm: Helm, promtool: Promtool, tmp_path: Path
) -> None:
    rule = one(helm.template(CHART, "-f", VALUES), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    wanted = yaml.safe_load((ROOT / "stack/prometheus/rules.yml").read_text(encoding="utf-8"))
    for group in wanted["groups"]:
        group["rules"] = [each for each in group["rules"] if each.get("alert") != "StreamloopOpenDeadLetters"]
        for each in group["rules"]:
            if "alert" in each:
                each["labels"]["team"] = "billing"
    assert rule["spec"] == wanted
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    promtool.check_rules(path)


def test_the_dashboards_are_those_of_the_stack(helm: Helm) -> None:
    boards = {
        name: text
        for made in helm.template(CHART, "-f", VALUES)
        if made["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
        for name, text in made["data"].items()
    }
    folder = ROOT / "stack/grafana/dashboards"
    assert {name: json.loads(text) for name, text in boards.items()} == {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")
    }
    # A ConfigMap holds at most 1 MiB.
    assert all(len(text) < 1_000_000 for text in boards.values())


def test_the_scraped_series_have_the_job_that_rules_and_dashboards_know(helm: Helm) -> None:
    monitor = one(helm.template(CHART, "-f", VALUES), "PodMonitor")["spec"]
    [endpoint] = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("ops", "/metrics")
    assert {"targetLabel": "job", "replacement": "streamloop"} in endpoint["relabelings"]
    assert 'up{job="streamloop"}' in (CHART / "files/rules.yml").read_text(encoding="utf-8")


def test_metrics_that_are_scraped_are_not_pushed_as_well(helm: Helm) -> None:
    def exporter(values: dict[str, object]) -> object:
        return yaml.safe_load(config_text(helm.template(CHART, values=with_base(values)))).get(
            "metrics_exporter"
        )

    both = {"podMonitor": {"enabled": True}, "otel": {"endpoint": "http://collector:4317"}}
    assert exporter(both) == "none"
    assert exporter({"otel": {"endpoint": "http://collector:4317"}}) is None
    assert exporter({**both, "settings": {"metrics_exporter": "otlp"}}) == "otlp"


def test_traces_say_which_pod_they_come_from(helm: Helm) -> None:
    own = container(helm.template(CHART, "-f", VALUES))
    variables = {each["name"]: each.get("value") for each in own["env"]}
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert variables["OTEL_RESOURCE_ATTRIBUTES"] == (
        "k8s.pod.name=$(K8S_POD_NAME),k8s.namespace.name=$(K8S_NAMESPACE_NAME),"
        "k8s.node.name=$(K8S_NODE_NAME),deployment.environment.name=production"
    )
    # $(NAME) is replaced only by variables that stand before it.
    names = [each["name"] for each in own["env"]]
    assert names.index("OTEL_RESOURCE_ATTRIBUTES") > names.index("K8S_NODE_NAME")
