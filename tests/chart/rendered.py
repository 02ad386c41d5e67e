"""What the chart renders, for tests to look into.

Called by the tests of this folder. `evaluate` runs a template function alone, through a value to which the
chart applies `tpl`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from streamloop.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamloop.settings import Loaded
    from tests.tools.helm import Helm

Object = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "streamloop"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
SIZES = sorted((CHART / "sizes").glob("*.yaml"))
WORKLOADS = ("Deployment", "StatefulSet", "Job", "CronJob")

BASE: dict[str, Any] = {"settings": {"brokers": ["kafka:9092"], "group": "billing"}}


def with_base(values: Mapping[str, Any]) -> dict[str, Any]:
    """These values, with brokers and a group where they have none."""
    return {**values, "settings": {**BASE["settings"], **values.get("settings", {})}}


def one(objects: Sequence[Object], kind: str) -> Object:
    """The only object of a kind, hooks left out."""
    [found] = [each for each in objects if each["kind"] == kind and not is_hook(each)]
    return found


def kinds(objects: Sequence[Object]) -> list[str]:
    """The kinds that there are, hooks left out, sorted."""
    return sorted(each["kind"] for each in objects if not is_hook(each))


def is_hook(made: Object) -> bool:
    return "helm.sh/hook" in made["metadata"].get("annotations", {})


def pod_templates(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """(name, pod template) of every object that makes pods, hooks included."""
    for made in objects:
        name = f"{made['kind']}/{made['metadata']['name']}"
        if made["kind"] == "CronJob":
            yield name, made["spec"]["jobTemplate"]["spec"]["template"]
        elif made["kind"] in WORKLOADS:
            yield name, made["spec"]["template"]


def member(objects: Sequence[Object]) -> Object:
    """The pod template of the members."""
    hooks = {f"{each['kind']}/{each['metadata']['name']}" for each in objects if is_hook(each)}
    [found] = [template for name, template in pod_templates(objects) if name not in hooks]
    return found


def container(objects: Sequence[Object]) -> Object:
    """The members' container."""
    found: Object = member(objects)["spec"]["containers"][0]
    return found


def config_text(objects: Sequence[Object]) -> str:
    """streamloop.yaml as the members read it."""
    [found] = [
        each["data"]["streamloop.yaml"]
        for each in objects
        if each["kind"] == "ConfigMap" and not is_hook(each) and "streamloop.yaml" in each["data"]
    ]
    return str(found)


def loaded(objects: Sequence[Object], folder: Path) -> Loaded:
    """The settings that a member has, its environment from field references included."""
    path = folder / "streamloop.yaml"
    text = config_text(objects)
    # Files of Secrets are not there: what they hold is no matter here.
    for line in [each for each in text.splitlines() if each.split(":")[0].endswith("_file")]:
        text = text.replace(f"{line}\n", "")
    path.write_text(text, encoding="utf-8")
    return Settings.load(env={}, yaml_path=path)


def evaluate(
    helm: Helm, expressions: Mapping[str, str], values: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """What template expressions give, each as a text."""
    data = "\n".join(f"  {name}: {{{{ {text} | toString | quote }}}}" for name, text in expressions.items())
    probe = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: probe}}\ndata:\n{data}\n"
    objects = helm.template(CHART, values={**with_base(values or {}), "extraObjects": [probe]})
    [found] = [each["data"] for each in objects if each["metadata"]["name"] == "probe"]
    return dict(found)


def values_of(path: Path) -> dict[str, Any]:
    """The values that a file has."""
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found
