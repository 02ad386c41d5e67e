"""What docs/deploy.md and the README tell people to write is what the chart takes; its figures are true."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from streamloop import shutdown
from streamloop.settings import Settings
from tests.chart.rendered import CHART, ROOT, one, values_of, with_base

if TYPE_CHECKING:
    from tests.tools.helm import Helm

DEPLOY = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
VALUES = [
    block
    for block in re.findall(r"^```yaml\n(.*?)^```", DEPLOY, re.DOTALL | re.MULTILINE)
    if "dependencies:" not in block
]
KNOWN = values_of(CHART / "values.yaml")


@pytest.mark.parametrize("block", VALUES, ids=lambda block: block.splitlines()[0])
def test_values_of_the_guide_are_values_of_the_chart(helm: Helm, block: str) -> None:
    given: dict[str, Any] = yaml.safe_load(block)
    assert given.keys() <= KNOWN.keys()
    helm.template(CHART, values=with_base(given))


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`(?:helm/streamloop/)?((?:ci|sizes)/[\w-]+\.yaml)`", DEPLOY)))
)
def test_files_that_the_guide_names_are_there(name: str) -> None:
    assert (CHART / name).is_file()


@pytest.mark.parametrize("page", ["README.md", "helm/streamloop/README.md"])
def test_the_command_that_installs_is_one(helm: Helm, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    [command] = re.findall(r"^helm install .*$", text, re.MULTILINE)
    words = shlex.split(command)[2:]
    assert words[:2] == ["billing", "helm/streamloop"]
    objects = helm.template(CHART, *[each for each in words[2:] if each != "--wait"])
    assert one(objects, "Deployment")["metadata"]["name"] == "billing-streamloop"


def test_the_table_of_the_end_has_the_bounds_of_the_program() -> None:
    settings = Settings.load({}, env={}).settings
    cells = re.findall(r"^\| [^|]+ \| (\d+) s \| (`settings\.(\w+)`|fixed) \|$", DEPLOY, re.MULTILINE)
    named = {name: float(seconds) for seconds, _, name in cells if name}
    assert named == {name: getattr(settings, name) for name in named}
    assert len(named) == 3
    fixed = [float(seconds) for seconds, where, _ in cells if where == "fixed"]
    assert fixed == [shutdown.LEAVE, shutdown.END, shutdown.MARGIN]
    longest = shutdown.longest(settings)
    assert sum(named.values()) + sum(fixed) == longest.grace
    assert f"{longest.grace:g} s of `terminationGracePeriodSeconds`" in DEPLOY
    assert f"`minReadySeconds`: {longest.away:g} s" in DEPLOY
    assert f"{longest.grace:g} s with the defaults" in (ROOT / "docs/operations.md").read_text(
        encoding="utf-8"
    )
