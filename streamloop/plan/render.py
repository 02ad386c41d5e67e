"""A plan as text, as a settings file, as values of the Helm chart, or as JSON. Writes texts, and nothing
else.

The settings are written as people write them (64MiB, 30s) and say in a comment where each comes from.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import orjson
import yaml

from streamloop.plan.inputs import NAMES, HandlerKind, Source, option
from streamloop.plan.show import show_bytes, show_time
from streamloop.settings.describe import DURATIONS, SIZES
from streamloop.settings.layers import consumer_key
from streamloop.settings.model import HandlerSettings
from streamloop.settings.units import show_duration, show_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamloop.plan.figures import Plan
    from streamloop.plan.inputs import Inputs

FORMATS: Final = ("text", "settings", "helm", "json")
_TIMES: Final = frozenset({"handler_mean", "handler_p99", "retry_budget", "cpu_per_message"})
_SIZES: Final = frozenset({"message_bytes", "largest_message_bytes", "handler_bytes", "memory_limit"})
_WIDTH: Final = 26


def as_text(plan: Plan) -> str:
    """For people: the inputs, each figure with its formula filled in, and what can't be promised."""
    lines = ["From"]
    lines += [f"  {name:<{_WIDTH}}{value}" for name, value in _inputs(plan.inputs)]
    lines += ["", "Follows"]
    for figure in plan.figures:
        lines += [
            f"  {figure.name:<{_WIDTH}}{figure.shown}",
            f"      {figure.formula}",
            f"      = {figure.filled}",
        ]
        if figure.note:
            lines.append(f"      {figure.note}")
    if plan.warnings:
        lines += ["", "Mind", *(f"  - {warning}" for warning in plan.warnings)]
    lines += ["", "Print it as --format settings (a settings file) or --format helm (values of the chart)."]
    return "\n".join(lines)


def as_settings(plan: Plan, consumer: str | None = None) -> str:
    """A settings file. ``consumer``: whose settings they are; None: those of all consumers."""
    head = [
        "# Made by streamloop plan. What the code gives to @loop.consumer(..) comes before what is here.",
        *(f"# {warning}" for warning in plan.warnings),
    ]
    return "\n".join([*head, *_yaml(plan, consumer)]) + "\n"


def as_helm(plan: Plan, consumer: str | None = None) -> str:
    """Values of the chart helm/streamloop, which works out terminationGracePeriodSeconds from them."""
    memory = _quantity(plan.resources.memory)
    lines = [
        "# Made by streamloop plan. What the code gives to @loop.consumer(..) comes before what is here.",
        *(f"# {warning}" for warning in plan.warnings),
        f"# {_reason(plan, 'replicas')}",
        f"replicas: {plan.replicas}",
        "resources:",
        "  requests:",
        f"    # {_reason(plan, 'CPU')}",
        f"    cpu: {_cpu(plan.resources.cpu_request)}",
        f"    # {_reason(plan, 'memory')}",
        f"    memory: {memory}",
        "  limits:",
        f"    cpu: {_cpu(plan.resources.cpu_limit)}",
        f"    memory: {memory}",
        "settings:",
        *(f"  {line}" for line in _yaml(plan, consumer, leave_out=("termination_grace",))),
    ]
    return "\n".join(lines) + "\n"


def as_json(plan: Plan, consumer: str | None = None) -> str:
    """Everything, for programs: figures in seconds, bytes and counts; settings and values as they are
    written."""
    figures = [
        {
            "name": each.name,
            "value": each.value if math.isfinite(each.value) else None,
            "shown": each.shown,
            "formula": each.formula,
            "filled": each.filled,
            "note": each.note,
            "setting": each.setting or None,
        }
        for each in plan.figures
    ]
    inputs = {
        name: {"value": _plain(getattr(plan.inputs, name)), "source": plan.inputs.source(name).value}
        for name in NAMES
    }
    found = {
        "inputs": inputs,
        "figures": figures,
        "warnings": list(plan.warnings),
        "settings": yaml.safe_load(as_settings(plan, consumer)),
        "helm": yaml.safe_load(as_helm(plan, consumer)),
    }
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()


def _inputs(inputs: Inputs) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        value = getattr(inputs, name)
        if name == "cpu_per_message" and value is None:
            value, source = inputs.cpu, Source.ASSUMED
        else:
            source = inputs.source(name)
        if value is None:
            continue
        origin = "" if source is Source.GIVEN else f"  ({source.value})"
        yield option(name), f"{_input(name, value)}{origin}"


def _input(name: str, value: Any) -> str:
    if isinstance(value, HandlerKind):
        return value.value
    if name in _TIMES:
        return show_time(value)
    if name in _SIZES:
        return show_bytes(value)
    return f"{value:,.6g}/s" if name in ("rate", "downstream_rate") else str(value)


def _yaml(plan: Plan, consumer: str | None, *, leave_out: tuple[str, ...] = ()) -> list[str]:
    own = [name for name in plan.settings if consumer and name in HandlerSettings.model_fields]
    shared = [name for name in plan.settings if name not in own and name not in leave_out]
    lines = [line for name in shared for line in _setting(plan, name)]
    if own:
        lines += ["consumers:", f"  {consumer_key(consumer or '')}:"]
        lines += [f"    {line}" for name in own for line in _setting(plan, name)]
    return lines


def _setting(plan: Plan, name: str) -> Iterator[str]:
    figure = next((each for each in plan.figures if each.setting == name), None)
    if figure is not None:
        yield f"# {figure.formula}: {figure.filled}"
    listed = yaml.safe_dump([written_as(name, plan.settings[name])], default_flow_style=True, width=10_000)
    yield f"{name}: {listed.strip()[1:-1]}"


def written_as(name: str, value: Any) -> Any:
    """A setting's value as it is written in YAML: exact, with a unit where it has one."""
    if isinstance(value, tuple):
        return [written_as(name, each) for each in value]
    if name in DURATIONS:
        # What is no whole number of milliseconds has no text that is exact.
        return show_duration(value) if round(value * 1000) == value * 1000 else value
    return show_size(value) if name in SIZES else value


def _reason(plan: Plan, name: str) -> str:
    figure = plan.figure(name)
    return f"{figure.formula}: {figure.filled}"


def _quantity(size: int) -> str:
    """Bytes as Kubernetes writes them: 512Mi."""
    return show_size(size).removesuffix("B")


def _cpu(cores: float) -> str:
    return f"{round(cores * 1000)}m"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, HandlerKind) else value
