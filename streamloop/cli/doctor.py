"""``streamloop doctor``: looks at a deployment from where it is called, and says what each thing means.

Changes nothing. Exit codes: 0 no error, 1 an error (with --strict a warning, too), 2 the settings or the
loop can't be read, so that nothing was looked at. Called by the command line.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, cast

import click
import orjson
from rich.console import Console
from rich.text import Text

from streamloop.cli.options import mistakes, overrides, seconds, with_connection
from streamloop.cli.show import folded
from streamloop.cli.target import load_loop
from streamloop.doctor.finding import Finding, Level
from streamloop.kafka.config import check_properties
from streamloop.leaving import leave
from streamloop.preflight import topics_of
from streamloop.settings import Settings
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamloop import StreamLoop
    from streamloop.doctor.patient import Patient

WAIT: Final = "30s"
STYLES: Final = {Level.OK: "green", Level.WARN: "yellow", Level.ERROR: "bold red", Level.UNKNOWN: "cyan"}
_AREAS: Final = 20


@click.command(short_help="Say what is wrong with a deployment, and what to do.")
@click.argument("target", metavar="[MODULE:LOOP]", required=False)
@click.option(
    "--wait",
    callback=seconds,
    default=WAIT,
    show_default=True,
    metavar="DURATION",
    help="Time for all of it; what is not looked at by then is said.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="A warning is exit code 1, too.")
@click.option("--all", "show_all", is_flag=True, help="Show what is as it has to be, too.")
@with_connection
def doctor(
    target: str | None,
    wait: float,
    as_json: bool,
    strict: bool,
    show_all: bool,
    config: Path | None,
    **options: Any,
) -> None:
    """Look at brokers, topics, rights, group, clock and limits from here, and say what to do.

    Run it where the members run (kubectl exec), with their settings. Without MODULE:LOOP topics are not
    looked at. It changes nothing. Exit code 0: no error; 1: an error; 2: settings or loop can't be read.
    """
    from streamloop.doctor.examine import examine

    with mistakes():
        patient = _patient(target, config, options, wait)
    report = examine(patient, told=_nothing if as_json else _printer(show_all=show_all))
    if as_json:
        click.echo(orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2))
    else:
        counts = ", ".join(f"{report.count(level)} {level.value}" for level in Level)
        hidden = "" if show_all or not report.count(Level.OK) else " (--all shows what is ok)"
        click.echo(f"{counts}{hidden}, in {report.seconds:.1f} s")
    leave(report.exit_code(strict=strict))


def _patient(target: str | None, config: Path | None, options: dict[str, Any], wait: float) -> Patient:
    from streamloop.doctor.patient import Patient

    assembly = topics = None
    if target is None:
        loaded = Settings.load(yaml_path=config, command_line=overrides(options))
        loaded.require("brokers")
        settings = loaded.settings
    else:
        loop = cast("StreamLoop[Any]", load_loop(target))
        loop.configure(overrides(options), config=config)
        assembly = loop.assemble()
        settings, topics = assembly.settings, topics_of(assembly)
    check_properties(settings)
    return Patient(settings, assembly, topics, ends_at=time.monotonic() + wait)


def _nothing(_finding: Finding) -> None: ...


def _printer(*, show_all: bool) -> Callable[[Finding], None]:
    console = Console(highlight=False, soft_wrap=True)

    def fold(line: str) -> str:
        # In a pipe a finding's sentence stays one line, for grep.
        return folded(line, console.width, hanging=8) if console.is_terminal else line

    def tell(finding: Finding) -> None:
        if finding.level is Level.OK and not show_all:
            return
        # What brokers say of themselves is another program's text.
        first = fold(f"{finding.level.value:<8}{finding.check:<{_AREAS}}{printable(finding.found)}")
        line = Text(first)
        line.stylize(STYLES[finding.level], 0, 8)
        console.print(line)
        for text in (finding.means, finding.do):
            if text:
                console.print(Text(fold(f"        {printable(text)}")))
        for command in finding.commands:
            console.print(Text(f"            {printable(command)}"))

    return tell
