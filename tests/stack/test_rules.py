"""The alert rules: valid, tested one by one, and about metrics that exist."""

from pathlib import Path

import pytest
import yaml

from tests.stack.names import (
    METRICS,
    OTHERS,
    RECORDED,
    ROOT,
    RULES,
    alerts,
    documents,
    named,
    recordings,
)
from tests.tools import Promtool

TESTS = Path(__file__).parent / "rules.test.yml"


def test_promtool_finds_nothing_wrong_with_the_configuration_and_the_rules_it_names(
    promtool: Promtool,
) -> None:
    said = promtool.check_config(ROOT / "stack" / "prometheus" / "prometheus.yml")
    assert "1 rule files found" in said
    assert f"{len(documents())} rules found" in said


def test_promtool_has_something_to_say_of_a_wrong_rule(promtool: Promtool, tmp_path: Path) -> None:
    wrong = tmp_path / "rules.yml"
    wrong.write_text(RULES.read_text(encoding="utf-8").replace("sum by (group, topic)", "sum by ("))
    with pytest.raises(AssertionError, match="parse error"):
        promtool.check_rules(wrong)


def test_each_rule_fires_when_it_should_and_not_when_it_should_not(promtool: Promtool) -> None:
    assert "SUCCESS" in promtool.test_rules(TESTS)


def test_a_rule_that_fires_at_the_wrong_time_is_noticed(promtool: Promtool, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES.read_text(encoding="utf-8").replace("> 0.05", "> 0.5"))
    text = TESTS.read_text(encoding="utf-8").replace("../../stack/prometheus/rules.yml", "rules.yml")
    (tmp_path / "rules.test.yml").write_text(text)
    with pytest.raises(AssertionError, match="StreamloopFailedAttempts"):
        promtool.test_rules(tmp_path / "rules.test.yml")


@pytest.mark.parametrize("name", alerts())
def test_each_alert_has_a_test_that_it_fires_and_one_that_it_does_not(name: str) -> None:
    cases = [
        bool(case["exp_alerts"])
        for test in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert set(cases) == {True, False}, f"{name} is tested with {cases}"


@pytest.mark.parametrize("name", alerts())
def test_each_alert_says_what_happened_and_what_to_do(name: str) -> None:
    alert = alerts()[name]
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}
    assert {"summary", "description"} <= alert["annotations"].keys()


def test_rules_name_only_metrics_that_exist() -> None:
    unknown = {
        name: rule.get("alert") or rule.get("record")
        for rule in documents()
        for name in named(rule["expr"]) - METRICS - OTHERS - recordings()
    }
    assert not unknown


def test_recordings_are_named_by_level_metric_and_operation() -> None:
    assert {name for name in recordings() if not RECORDED.fullmatch(name)} == set()


@pytest.mark.parametrize(
    ("expression", "metrics"),
    [
        ('sum by (group, topic) (rate(loop_x_total{outcome=~"a|b"}[5m])) > 0.05', {"loop_x_total"}),
        ("histogram_quantile(0.99, sum by (le) (rate(loop_d_bucket[5m])))", {"loop_d_bucket"}),
        ("a:b:sum > 10 unless on (group) group by (group) (x)", {"a:b:sum", "x"}),
        ("deriv(x[15m]) * 900 > 1e3 * y offset 5m", {"x", "y"}),
    ],
)
def test_the_names_in_an_expression_are_found(expression: str, metrics: set[str]) -> None:
    assert named(expression) == metrics
