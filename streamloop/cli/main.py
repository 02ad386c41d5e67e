"""The commands. Each reads its options, calls the app, and turns the end into an exit code.

Exit codes: 0 drained, 1 fatal error, 2 bad configuration, 3 drain timed out, 70 watchdog. A user's mistake is
a sentence on stderr, never a traceback. Called by the console script ``streamloop``.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import platform
from typing import TYPE_CHECKING, Any, Final

import click

from streamloop.cli.dlq import dlq
from streamloop.cli.dlq_replay import COMMANDS as DLQ_COMMANDS
from streamloop.cli.doctor import doctor
from streamloop.cli.group import group
from streamloop.cli.logs import last_line, set_up_logging
from streamloop.cli.options import mistakes, overrides, seconds, with_connection, with_settings
from streamloop.cli.pause import pause, resume
from streamloop.cli.plan import plan
from streamloop.cli.target import load_loop
from streamloop.cli.top import top
from streamloop.cli.topics import topics
from streamloop.cli.trace import trace
from streamloop.errors import StreamLoopError
from streamloop.leaving import leave
from streamloop.settings import ConsumerSettings, Row, Settings, describe, json_schema
from streamloop.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CHECK_WAIT: Final = "10s"
"""How long ``streamloop check`` waits for a broker."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="streamloop")
def main() -> None:
    """Run Kafka consumers that lose nothing, stall on nothing and hide nothing."""


@main.command(short_help="Run a loop as a member of its consumer group.")
@click.argument("target", metavar="MODULE:LOOP")
@click.option("--max-messages", type=click.IntRange(min=1), metavar="N", help="End after this many messages.")
@click.option("--max-runtime", callback=seconds, metavar="DURATION", help="End after this time.")
@click.option("--until-end", is_flag=True, help="End when everything that was there at the start is handled.")
@with_settings
def run(
    target: str,
    max_messages: int | None,
    max_runtime: float | None,
    until_end: bool,
    config: Path | None,
    **options: Any,
) -> None:
    """Run the loop that MODULE:LOOP names as a member of its consumer group.

    The working directory is on the path. SIGTERM and SIGINT drain; a second one stops at once.
    """
    with mistakes():
        loop = load_loop(target)
        loop.configure(overrides(options), config=config)
        formatter = set_up_logging(loop.load_settings().settings)
    try:
        result = loop.run(
            max_messages=max_messages, max_runtime=max_runtime, until_end=until_end, ends_process=True
        )
        code, reason = result.exit_code, result.reason
    except StreamLoopError as error:
        code, reason = error.exit_code, str(error)
    except Exception:
        logging.getLogger("streamloop").exception("The loop ended because of an error that nothing expected.")
        code, reason = 1, "unexpected error"
    except KeyboardInterrupt:
        code, reason = 1, "interrupted before the loop could drain"
    click.echo(last_line(reason, code, formatter), err=True)
    leave(code)


@main.command(short_help="Check imports, settings and topics; handle nothing.")
@click.argument("target", metavar="MODULE:LOOP")
@click.option(
    "--wait",
    callback=seconds,
    default=CHECK_WAIT,
    show_default=True,
    metavar="DURATION",
    help="Give up after this time without a broker.",
)
@with_connection
def check(target: str, wait: float, config: Path | None, **options: Any) -> None:
    """Check imports, settings and topics without handling anything. Exit code 2 when something is wrong."""
    with mistakes():
        loop = load_loop(target)
        loop.configure(overrides(options), config=config)
        report = loop.check(timeout=wait)
    for problem in report.problems:
        click.echo(str(problem), err=True)
    if not report.ok:
        click.echo("Not ready to run: see above.", err=True)
        leave(2)
    click.echo("Ready to run.")
    leave(0)


@main.command(short_help="Print the settings in force and where each comes from.")
@click.argument("target", metavar="[MODULE:LOOP]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of the settings file instead.")
@with_settings
def config(
    target: str | None,
    as_json: bool,
    schema: bool,
    config: Path | None,
    **options: Any,
) -> None:
    """Print the settings in force and where each comes from; with MODULE:LOOP those in its code, too."""
    if schema:
        click.echo(json.dumps(json_schema(), indent=2))
        return
    from streamloop.kafka.config import check_properties

    with mistakes():
        consumers: Sequence[ConsumerSettings] = ()
        if target is None:
            loaded = Settings.load(yaml_path=config, command_line=overrides(options))
        else:
            loop = load_loop(target)
            loop.configure(overrides(options), config=config)
            loaded = loop.load_settings()
            consumers = loop.consumer_settings()
        check_properties(loaded.settings)
        rows = describe(loaded, consumers)
    if as_json:
        shown = {row.name: {"value": row.value, "origin": row.origin} for row in rows}
        click.echo(json.dumps(shown, indent=2))
        return
    click.echo(f"settings file: {loaded.config or 'none'}")
    for line in _table(rows):
        click.echo(line)


@main.command(short_help="Print the versions of streamloop and what it stands on.")
def version() -> None:
    """Print the versions of streamloop and what it stands on."""
    import confluent_kafka

    for name, number in (
        ("streamloop", _installed("streamloop")),
        ("python", platform.python_version()),
        ("confluent-kafka", _installed("confluent-kafka")),
        ("librdkafka", confluent_kafka.libversion()[0]),
    ):
        click.echo(f"{name} {number}")


for _command in DLQ_COMMANDS:
    dlq.add_command(_command)
main.add_command(group)
main.add_command(pause)
main.add_command(resume)
main.add_command(dlq)
main.add_command(doctor)
main.add_command(plan)
main.add_command(top)
main.add_command(topics)
main.add_command(trace)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    names = max(len(row.name) for row in rows)
    values = min(40, max(len(row.text) for row in rows))
    for row in rows:
        yield f"{row.name:<{names}}  {row.text:<{values}}  {row.origin}".rstrip()


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return __version__ if package == "streamloop" else "unknown"


if __name__ == "__main__":
    main(prog_name="streamloop")
