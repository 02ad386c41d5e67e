"""What `streamloop plan --format helm` prints are values of the chart, and they can work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from streamloop.cli.main import main
from streamloop.settings import Severity, check_sums
from streamloop.settings.units import size
from tests.chart.rendered import CHART, container, loaded, with_base

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tools.helm import Helm

WORK = {
    "a little": ("--handler-mean", "5ms", "--handler-p99", "50ms", "--rate", "10/s", "--partitions", "3"),
    "much": ("--handler-mean", "20ms", "--handler-p99", "200ms", "--rate", "20000/s", "--partitions", "96"),
    "slow": ("--handler-mean", "20s", "--handler-p99", "3m", "--rate", "2/s", "--partitions", "12"),
    "large": (
        *("--handler-mean", "50ms", "--handler-p99", "1s", "--rate", "500/s", "--partitions", "24"),
        *("--message-size", "200KiB", "--largest-message", "8MiB"),
    ),
}


@pytest.mark.parametrize("work", WORK)
def test_a_plan_is_taken_by_the_chart_and_adds_up(helm: Helm, tmp_path: Path, work: str) -> None:
    planned = CliRunner().invoke(main, ["plan", *WORK[work], "--format", "helm"])
    assert planned.exit_code == 0, planned.output
    values = yaml.safe_load(planned.stdout)
    objects = helm.template(CHART, values=with_base(values))
    settings = loaded(objects, tmp_path).settings
    limit = size(container(objects)["resources"]["limits"]["memory"])
    wrong = check_sums(settings, [settings.for_consumer("any")], lambda: limit)
    assert [str(each) for each in wrong if each.severity is Severity.ERROR] == []
    assert settings.concurrency == values["settings"].get("concurrency", settings.concurrency)
