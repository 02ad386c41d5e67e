"""The pages: links and pictures lead somewhere, commands and options exist, README stays short."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from streamloop.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "helm").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _links(text: str) -> list[str]:
    prose = FENCE.sub("", text)
    return [a or b for a, b in re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', prose)]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for link in _links(page.read_text("utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{_name(page)}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{_name(page)}: {link}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(_links((ROOT / "README.md").read_text("utf-8")))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


def test_every_picture_is_shown_on_a_page() -> None:
    shown = {(page.parent / link).resolve() for page in PAGES for link in _links(page.read_text("utf-8"))}
    assert set((ROOT / "docs" / "pictures").iterdir()) <= shown


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 260


def _commands(text: str) -> list[list[str]]:
    """What pages tell to type: lines that begin with ``streamloop`` in fences, joined at a backslash."""
    found = []
    for fence in FENCE.findall(text):
        for line in fence.replace("\\\n", " ").split("\n"):
            if re.match(r"(\$ )?streamloop [a-z]", line):
                words = shlex.split(line.removeprefix("$ ").split(" | ")[0].split(" > ")[0], comments=True)
                found.append(words[1:])
    return found


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_and_options_exist(page: Path) -> None:
    for words in _commands(page.read_text("utf-8")):
        command: click.Command = main
        rest = list(words)
        while isinstance(command, click.Group):
            assert rest[0] in command.commands, f"{_name(page)}: streamloop {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        options |= {"-h", "--help"}
        for word in rest:
            if word.startswith("--"):
                assert word.partition("=")[0] in options, f"{_name(page)}: {' '.join(words)}"


def test_the_pages_do_tell_commands() -> None:
    told = [words for page in PAGES for words in _commands(page.read_text("utf-8"))]
    assert len(told) > 20
