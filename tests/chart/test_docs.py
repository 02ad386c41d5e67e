"""What docs/deploy.md and the README tell people to write is what the chart takes; its figures are true."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from streamloop import shutdown
from streamloop.settings import Settings
from streamloop.settings.units import duration
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


def test_the_steps_of_the_end_add_up_in_the_guide() -> None:
    """The table is made from the bounds of the program; a new one has to have a row."""
    cells = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", DEPLOY, re.MULTILINE)
    seconds = {what: duration(text) for what, text in cells if re.fullmatch(r"(\d+(ms|s|m|h))+", text)}
    grace, ready = seconds.pop("**`terminationGracePeriodSeconds`**"), seconds.pop("**`minReadySeconds`**")
    assert sum(seconds.values()) == grace
    drain, leave, *_, margin = seconds.values()
    assert drain + leave + margin == ready
    longest = shutdown.longest(Settings.load({}, env={}).settings)
    assert (grace, ready) == (longest.grace, longest.away)
