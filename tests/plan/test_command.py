"""``streamloop plan``: what it prints can be used as it is, and what is wrong is a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from streamloop.cli import main as cli
from streamloop.plan.calculate import calculate
from streamloop.plan.inputs import Inputs
from streamloop.settings import Settings, check_sums
from streamloop.settings.units import size

GIVEN = [
    "--handler-mean",
    "20ms",
    "--handler-p99",
    "200ms",
    "--rate",
    "5000/s",
    "--partitions",
    "24",
    "--cpu-per-message",
    "400us",
]
PLANNED = calculate(Inputs(0.02, 0.2, 5_000, 24, cpu_per_message=400e-6, retry_budget=5_400))


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["plan", *arguments], prog_name="streamloop")


def printed(form: str, *more: str) -> str:
    result = plan(*GIVEN, "--retry-budget", "90m", "--format", form, *more)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_the_text_has_each_figure_with_its_formula_and_the_numbers_in_it() -> None:
    text = printed("text")
    for figure in PLANNED.figures:
        assert f"  {figure.name:<26}{figure.shown}\n      {figure.formula}\n      = {figure.filled}" in text
    assert "--kind                    async  (assumed)" in text
    assert "--rate                    5,000/s\n" in text


@pytest.mark.parametrize("consumer", [None, "charge-cards"])
def test_the_printed_settings_are_a_settings_file_with_the_planned_values(
    tmp_path: Path, consumer: str | None
) -> None:
    file = tmp_path / "streamloop.yaml"
    more = ("--consumer", consumer) if consumer else ()
    file.write_text(f"group: billing\n{printed('settings', *more)}", encoding="utf-8")
    loaded = Settings.load({}, {}, file)
    settled = loaded.settings.for_consumer("charge-cards")
    for name, value in PLANNED.settings.items():
        found = getattr(settled, name) if hasattr(settled, name) else getattr(loaded.settings, name)
        assert found == value, name
    if consumer:
        assert loaded.settings.concurrency == Settings().concurrency
    assert check_sums(loaded.settings, [settled], lambda: PLANNED.resources.memory) == []


@pytest.mark.parametrize("consumer", [None, "charge"])
def test_the_printed_helm_values_hold_settings_and_what_the_pod_asks_for(
    tmp_path: Path, consumer: str | None
) -> None:
    more = ("--consumer", consumer) if consumer else ()
    values = yaml.safe_load(printed("helm", *more))
    assert values["replicas"] == PLANNED.replicas
    asked, most = values["resources"]["requests"], values["resources"]["limits"]
    assert asked["cpu"] == "500m"
    assert size(most["memory"]) == size(asked["memory"]) == PLANNED.resources.memory
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"group": "billing", **values["settings"]}), encoding="utf-8")
    settings = Settings.load({}, {}, file).settings.for_consumer("charge")
    assert settings.concurrency == PLANNED.settings["concurrency"]
    assert settings.max_age == 5_400
    # The chart works the grace period out by itself.
    assert "termination_grace" not in values["settings"]


def test_the_helm_values_are_names_that_the_chart_has() -> None:
    chart = Path(__file__).parents[2] / "helm" / "streamloop" / "values.yaml"
    known = yaml.safe_load(chart.read_text(encoding="utf-8"))
    values = yaml.safe_load(printed("helm"))
    assert values.keys() <= known.keys()
    assert values["resources"].keys() <= {"requests", "limits"}


def test_the_json_has_numbers_where_they_came_from_and_both_files() -> None:
    found = json.loads(printed("json"))
    assert found["inputs"]["rate"] == {"value": 5000.0, "source": "given"}
    assert found["inputs"]["min_replicas"] == {"value": 2, "source": "assumed"}
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert figures["concurrency"]["value"] == found["settings"]["concurrency"] == 334
    assert found["helm"]["replicas"] == 4


def test_what_is_impossible_is_exit_code_1_and_a_sentence() -> None:
    result = plan(*GIVEN, "--downstream-limit", "40")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "keep 100 handlers busy, but what they call takes 40 at once" in result.stderr


def test_what_is_called_may_be_limited_at_once_and_a_second_together() -> None:
    result = plan(*GIVEN, "--downstream-limit", "500", "--downstream-limit", "6000/s", "--format", "json")
    found = json.loads(result.stdout)
    assert (found["inputs"]["downstream_calls"]["value"], found["inputs"]["downstream_rate"]["value"]) == (
        500,
        6000,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "5/s"], "Not known: --handler-mean, --handler-p99, --partitions."),
        (["--rate", "fast"], "give a rate such as 5000/s"),
        (["--handler-mean", "x"], "give seconds, or a number with a unit"),
        ([*GIVEN, "--handler-p99", "1ms"], "Were the two exchanged?"),
        (["--measure", "ftp://here"], "give its ops_address, such as 127.0.0.1:9464"),
        (["--measure", "127.0.0.1:1", "--over", "0"], "can't be measured: connection refused"),
    ],
)
def test_a_mistake_is_a_sentence(arguments: list[str], said: str) -> None:
    result = plan(*arguments)
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_rates_may_be_by_the_minute_and_the_hour() -> None:
    from streamloop.cli.plan import rate

    rates: list[Any] = [rate("90/m"), rate("3600/h"), rate("2.5"), rate(" 7 / s ")]
    assert rates == [1.5, 1.0, 2.5, 7.0]
