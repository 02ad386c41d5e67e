"""The table of all settings in docs/settings.md, made from the model, so that it says what the code does.

Writes that page and nothing else. Called as ``python -m streamloop.settings.reference docs/settings.md``; a
test fails while the page is older than the model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from streamloop.settings.describe import DURATIONS, SIZES, describe_field, settings_in_order, show
from streamloop.settings.generated import write_between
from streamloop.settings.load import NAMES
from streamloop.settings.model import Settings

_BEGIN: Final = "<!-- made from the model by: python -m streamloop.settings.reference docs/settings.md -->"


def reference() -> str:
    """The table of all settings, in Markdown."""
    lines = ["| setting | default | what it is |", "|---|---|---|"]
    for name in settings_in_order():
        field = Settings.model_fields[name]
        if field.default_factory is not None:
            default = {"member": "host name and process id"}.get(name, "empty")
        else:
            default = show(name, field.default)
            default = f"`{default}`" if default else "empty"
        kind = " (duration)" if name in DURATIONS else " (size)" if name in SIZES else ""
        own = " †" if name in NAMES.consumer else ""
        lines.append(f"| `{name}`{own} | {default} | {describe_field(name)}{kind} |")
    return "\n".join(lines)


def write_reference(page: Path) -> bool:
    """Put the table into ``page`` between its two marks. Whether that changed it."""
    return write_between(page, _BEGIN, reference())


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
