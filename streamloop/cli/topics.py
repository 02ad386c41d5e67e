"""``streamloop topics``: create what is missing before anybody runs.

For deployments in which members may not create topics, or in which the source topics belong to the release.
Called by the command line and by the Helm chart's hook.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamloop.cli.options import mistakes, overrides, seconds, with_connection
from streamloop.cli.target import load_loop
from streamloop.errors import TopicError
from streamloop.kafka.source_topics import create_missing, read_topics
from streamloop.preflight import TopicCheck, check_settings, make_admin, topics_of
from streamloop.settings import Settings

if TYPE_CHECKING:
    from streamloop.cli.target import Loop
    from streamloop.kafka.topics import PlainTopic

WAIT: Final = "10s"
"""How long it waits for a broker."""


@click.command(short_help="Create missing topics.")
@click.argument("target", metavar="[MODULE:LOOP]", required=False)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="YAML with topics: [{name, partitions, replicationFactor, config}].",
)
@click.option(
    "--wait",
    callback=seconds,
    default=WAIT,
    show_default=True,
    metavar="DURATION",
    help="Give up after this time without a broker.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be created, and create nothing.")
@with_connection
def topics(
    target: str | None, file: Path | None, wait: float, dry_run: bool, config: Path | None, **options: Any
) -> None:
    """Create missing topics: those that a file lists, and with MODULE:LOOP its retry and dead-letter topics.

    A topic that exists is never changed. Exit code 2 when one is missing afterwards.
    """
    if file is None and target is None:
        raise click.UsageError("Give --file, or MODULE:LOOP, or both.")
    with mistakes():
        if file is not None:
            _of_a_file(read_topics(file), wait, dry_run, config, options, target)
        if target is not None:
            _of_a_loop(target, wait, dry_run, config, options)


def _of_a_file(
    wanted: list[PlainTopic],
    wait: float,
    dry_run: bool,
    config: Path | None,
    options: dict[str, Any],
    target: str | None,
) -> None:
    if target is None:
        loaded = Settings.load(yaml_path=config, command_line=overrides(options))
    else:  # its code may name the brokers
        loaded = _loop(target, config, options).load_settings()
    loaded.require("brokers")
    for line in create_missing(make_admin(loaded.settings), wanted, wait, create=not dry_run):
        click.echo(line)


def _of_a_loop(target: str, wait: float, dry_run: bool, config: Path | None, options: dict[str, Any]) -> None:
    loop = _loop(target, config, options)
    if dry_run:
        report = loop.check(timeout=wait)
        for problem in report.problems:
            click.echo(str(problem))
        if not report.ok:
            sys.exit(TopicError.exit_code)
        return
    assembly = loop.assemble()
    check_settings(assembly)
    check = TopicCheck(assembly, topics_of(assembly), make_admin(assembly.settings))
    check.look(wait, create=True)
    for name in check.created:
        click.echo(f"created {name}")
    for warning in check.warnings:
        click.echo(warning, err=True)
    if check.missing:
        raise TopicError(check.sentence_about_missing())
    click.echo(f"{len(check.known)} topics of {target} are there")


def _loop(target: str, config: Path | None, options: dict[str, Any]) -> Loop:
    loop = load_loop(target)
    loop.configure(overrides(options), config=config)
    return loop
