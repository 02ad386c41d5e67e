"""docs/architecture.md has every module on its map and nothing else, and imports go one way."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "streamloop"
MAP = (
    (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("\n## Where to find what\n")[2]
)
WHOLE = ("demo/", "doctor/", "ops/console/", "testing/")
"""Folders that stand on the map for all that is in them."""


def test_the_map_names_every_module() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", MAP))
    assert set(WHOLE) <= set(re.findall(r"`([\w/]+/)`", MAP))
    modules = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")]
    missing = [
        module
        for module in modules
        if module not in named and not module.startswith(WHOLE) and not module.endswith("__init__.py")
    ]
    # How commands look is one folder; the map names those that are more than a command.
    assert [module for module in missing if not module.startswith("cli/")] == []


def test_everything_on_the_map_is_there() -> None:
    places = set(re.findall(r"`([\w/]+/[\w/]*(?:\.py)?|\w+\.py)`", MAP))
    assert len(places) > 100
    assert [
        place for place in sorted(places) if not (PACKAGE / place).exists() and not (ROOT / place).exists()
    ] == []


FORBIDDEN = {
    "engine": ("",),
    "kafka": ("cli", "ops", "dlq", "control", "runners", "lifecycle"),
    "settings": ("cli", "ops", "dlq", "control", "runners", "lifecycle"),
    "runners": ("cli", "ops", "dlq", "control", "lifecycle"),
    "telemetry": ("cli", "ops", "dlq", "control", "lifecycle"),
    "dlq": ("cli", "ops", "lifecycle", "app"),
    "control": ("cli", "ops", "dlq", "lifecycle"),
    "plan": ("cli", "ops", "dlq", "control", "lifecycle"),
    "doctor": ("cli", "lifecycle"),
    "ops": ("cli", "lifecycle"),
}
"""What a part must import nothing of, neither in functions nor for types; '': of no other part at all."""


@pytest.mark.parametrize("part", FORBIDDEN)
def test_imports_go_one_way(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (PACKAGE / part).rglob("*.py")
        for name in _imported(path)
        for other in FORBIDDEN[part]
        if not name.startswith(f"streamloop.{part}")
        and f"{name}.".startswith(f"streamloop.{other}".rstrip(".") + ".")
    ]
    assert wrong == []


def test_nothing_but_the_command_line_knows_the_command_line() -> None:
    knowing = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith("streamloop.cli") for name in _imported(path))
    }
    assert knowing == {"cli"}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] == "streamloop")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "streamloop":
            yield from (f"{node.module}.{each.name}" for each in node.names)
