"""Writes what is made from the code into a page of docs/, between two marks. Called by both references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

END: Final = "<!-- end of the table -->"


def write_between(page: Path, begin: str, made: str) -> bool:
    """Put ``made`` into ``page`` between the mark ``begin`` and ``END``. Whether that changed it.

    Raises ValueError when the page does not have the marks.
    """
    text = page.read_text(encoding="utf-8")
    before, first, rest = text.partition(begin)
    _, last, after = rest.partition(END)
    if not first or not last:
        raise ValueError(f"{page} does not have the marks {begin!r} and {END!r}")
    new = f"{before}{begin}\n{made}\n{END}{after}"
    page.write_text(new, encoding="utf-8")
    return new != text
