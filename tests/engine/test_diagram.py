"""The diagram in docs/architecture.md is the table's."""

from __future__ import annotations

from pathlib import Path

from streamloop.engine.states import mermaid

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN = "<!-- states: begin -->\n"
END = "<!-- states: end -->\n"


def test_the_diagram_in_the_docs_is_made_from_the_table() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    shown = text.split(BEGIN)[1].split(END)[0]
    assert shown == f"```mermaid\n{mermaid()}```\n", "put the output of states.mermaid() between the markers"
