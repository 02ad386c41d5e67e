"""README.md of the chart, made from values.yaml: what stands after ``# --`` above a key, and its default.

Reads the text it is given and writes nothing. A ``# @section`` line begins a table; the settings have a table
of their own, from the model. Called by helm.generate.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from streamloop.settings.reference import reference

_KEY: Final = re.compile(r"^( *)([A-Za-z_]+):")

TOP: Final = """# Helm chart streamloop

Runs a loop as a Deployment, as a StatefulSet with static membership, or bounded as a Job or CronJob.
[docs/deploy.md](../../docs/deploy.md) tells how to install, upgrade, roll back, scale and drain;
this page lists all values.

```
helm install billing helm/streamloop --set app=app:loop --set image.repository=registry.example.com/billing \\
    --set 'settings.brokers={kafka:9092}' --set settings.group=billing
```

Values for three sizes are in [sizes/](sizes); one file for each feature is in [ci/](ci). This page,
`values.schema.json` and the settings in `values.yaml` are made by `make chart`.

"""


@dataclass(slots=True)
class Entry:
    """One value: its path, its default, and what it is."""

    path: str
    default: Any
    text: str


@dataclass(slots=True)
class Section:
    """A table of values."""

    title: str
    entries: list[Entry] = field(default_factory=list)


def sections(text: str) -> list[Section]:
    """The documented values, in their order. ValueError: a key of values.yaml that no comment describes."""
    values = yaml.safe_load(text)
    found: list[Section] = []
    path: list[tuple[int, str]] = []
    said: list[str] | None = None
    documented: set[tuple[str, ...]] = set()
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# @section"):
            found.append(Section(stripped.removeprefix("# @section").strip()))
        elif stripped.startswith("# --"):
            said = [stripped.removeprefix("# --").strip()]
        elif stripped.startswith("#"):
            if said is not None:
                said.append(stripped.removeprefix("#").strip())
        elif match := _KEY.match(line):
            depth = len(match[1])
            path = [each for each in path if each[0] < depth] + [(depth, match[2])]
            if said is not None:
                keys = tuple(key for _, key in path)
                documented.add(keys)
                found[-1].entries.append(Entry(".".join(keys), _at(values, keys), " ".join(said)))
            said = None
        else:
            said = None
    missing = [
        ".".join(keys)
        for keys in _leaves(values)
        if not any(keys[:n] in documented for n in range(1, len(keys) + 1))
    ]
    if missing:
        raise ValueError(
            f"values.yaml does not say what these are (a line '# -- ..' above each): {', '.join(missing)}"
        )
    return found


def readme(text: str) -> str:
    """The page."""
    parts = [TOP]
    for section in sections(text):
        parts.append(f"## {section.title}\n\n| value | default | what it is |\n|---|---|---|\n")
        for entry in section.entries:
            default = "see below" if entry.path == "settings" else _shown(entry.default)
            parts.append(f"| `{entry.path}` | {default} | {entry.text.replace('|', chr(92) + '|')} |\n")
        parts.append("\n")
    parts.append(
        "## All settings\n\nUnder `settings`, with the defaults of streamloop (the chart's own are above). "
        "† may stand under `settings.consumers.<name>`, too.\n\n"
    )
    parts.append(reference() + "\n")
    return "".join(parts)


def _at(values: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        values = values[key]
    return values


def _leaves(values: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(values, dict) or not values:
        return [above]
    return [leaf for key, value in values.items() for leaf in _leaves(value, (*above, key))]


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "empty"
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"
