"""``streamloop dlq replay | status | purge | import``: what died comes back once, or is put away.

Exit codes: 0 it went through, 1 it stopped before its end or failed (the sentences say why and what it did),
2 a mistake, 130 it was told to stop and did so after the transaction in hand. Registered into the group of
``cli/dlq.py``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from streamloop.cli.dlq_edit import document_of, edit_of
from streamloop.cli.dlq_options import (
    INTERRUPTED,
    filter_of,
    interruptible,
    mistakes,
    settings_of,
    shown_progress,
    target_of,
    with_cluster,
    with_filter,
    with_topics,
)
from streamloop.cli.dlq_replay_view import (
    import_lines,
    preview_lines,
    progress_text,
    purge_lines,
    readers_lines,
    runs_lines,
    status_lines,
    summary_lines,
)
from streamloop.dlq.api import DeadLetters
from streamloop.dlq.exporting import line
from streamloop.dlq.plan import DEFAULT_CANARY, DEFAULT_SETTLE, DEFAULT_THRESHOLD, ReplayPlan
from streamloop.dlq.targets import Target
from streamloop.errors import ConfigurationError
from streamloop.settings.units import duration
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamloop.cli.dlq_options import Target as Chosen
    from streamloop.dlq.filters import Filter
    from streamloop.dlq.plan import RunProgress
    from streamloop.dlq.targets import Edit

REDRAW: Final = 0.1


def letters_of(chosen: Chosen) -> DeadLetters:
    """The facade for what a command is about."""
    sources = {topic: build.settings for build in chosen.consumers for topic in build.topics}
    return DeadLetters(chosen.settings, topics=chosen.names, sources=sources)


# ----------------------------------------------------------------------------------------------------- replay


@click.command(short_help="Bring dead letters back to the group that failed, once.")
@with_filter
@with_topics
@click.option("--dry-run", is_flag=True, help="Say what would be replayed, and change nothing.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many letters.")
@click.option("--rate", metavar="N[/s]", help="At most so many letters a second.")
@click.option("--again", is_flag=True, help="Also those that were replayed before.")
@click.option(
    "--canary",
    metavar="N|P%",
    default=str(DEFAULT_CANARY),
    show_default=True,
    help="So many first; the rest only when they do well. 0: none.",
)
@click.option(
    "--threshold",
    metavar="P%",
    default=f"{DEFAULT_THRESHOLD:.0%}",
    show_default=True,
    help="Stop when more than this share of what was replayed fails again.",
)
@click.option(
    "--settle",
    metavar="DURATION",
    default=f"{DEFAULT_SETTLE:g}s",
    show_default=True,
    help="How long to wait for what becomes of them, after the canary and at the end. 0: not at all.",
)
@click.option("--to-retry", is_flag=True, help="Into the first retry topic: after its delay.")
@click.option("--to-source", is_flag=True, help="Into the topic where it first failed: its groups see it.")
@click.option("--to-topic", metavar="TOPIC", help="Into this topic.")
@click.option("--edit", is_flag=True, help="Change value or headers of a single letter in $EDITOR first.")
@click.option("--takeover", is_flag=True, help="End another run that is at work.")
@click.option("--by", metavar="NAME", help="Who, for the record. Else the user of this process.")
@click.option("--yes", is_flag=True, help="Do not ask, where other groups would see it.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one line of JSON.")
@with_cluster
def replay(
    dry_run: bool,
    limit: int | None,
    rate: str | None,
    again: bool,
    canary: str,
    threshold: str,
    settle: str,
    to_retry: bool,
    to_source: bool,
    to_topic: str | None,
    edit: bool,
    takeover: bool,
    by: str | None,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Bring dead letters back to the group that failed, each once.

    They go into the group's replay topic with their whole plan anew: what is fixed is handled, what is not
    dies again. Replayed once is not replayed again unless --again. Ctrl-C stops after the transaction in
    hand, and the next replay goes on from there.
    """
    with mistakes(), interruptible() as stop:
        target, name = _target(to_retry, to_source, to_topic)
        plan = ReplayPlan(
            target=target,
            to_topic=name,
            limit=limit,
            rate=_rate(rate),
            again=again,
            canary=_count_or_share("--canary", canary),
            threshold=_share("--threshold", threshold),
            settle=_seconds("--settle", settle),
            takeover=takeover,
        )
        where = filter_of(options)
        letters = letters_of(target_of(options, where))
        if dry_run:
            with _status() as show:
                found = letters.preview(where, plan, progress=show, stop=stop)
            _print(preview_lines(found), found.to_json(), as_json=as_json)
            sys.exit(INTERRUPTED if stop.is_set() else 0)
        if edit:
            made = _edited(letters, where)
            if made is None:
                click.echo("Nothing was changed: it was not replayed.", err=True)
                return
            plan = _with_edit(plan, made)
        if target in (Target.SOURCE, Target.TOPIC) and not yes:
            _ask_about_readers(letters, where, plan)
        with _status() as show:
            summary = letters.replay(where, plan, by=by, progress=show, stop=stop)
        _print(summary_lines(summary), summary.to_json(), as_json=as_json)
        if summary.exit_code:
            sys.exit(INTERRUPTED if stop.is_set() else summary.exit_code)


def _target(to_retry: bool, to_source: bool, to_topic: str | None) -> tuple[Target, str | None]:
    if to_retry + to_source + (to_topic is not None) > 1:
        raise ConfigurationError("Give one of --to-retry, --to-source and --to-topic.")
    if to_topic is not None:
        return Target.TOPIC, to_topic
    return (Target.RETRY if to_retry else Target.SOURCE if to_source else Target.REPLAY), None


def _ask_about_readers(letters: DeadLetters, where: Filter, plan: ReplayPlan) -> None:
    found = letters.preview(where, plan)
    for each in readers_lines(found.readers):
        click.echo(each, err=True)
    if not found.would_go:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("Other groups may see what is replayed: give --yes.")
    click.confirm(f"Replay {found.would_go:,} dead letters there?", abort=True, err=True)


def _edited(letters: DeadLetters, where: Filter) -> Edit | None:
    place = where.at[0] if len(where.at) == 1 else None
    if place is None or place.partition is None or place.last != place.first:
        raise ConfigurationError("--edit is of a single letter: name it with --at TOPIC/PARTITION/OFFSET.")
    letter = letters.get(place.topic, place.partition, place.first)
    try:
        text = click.edit(document_of(letter), extension=".txt", require_save=True)
    except click.ClickException as error:
        raise ConfigurationError(f"{error.format_message()} (--edit uses $VISUAL or $EDITOR).") from None
    return edit_of(letter, text)


def _with_edit(plan: ReplayPlan, edit: Edit) -> ReplayPlan:
    from dataclasses import replace

    return replace(plan, edit=edit)


# ----------------------------------------------------------------------------------------------------- status


@click.command(short_help="Show what was replayed, purged or imported, and by whom.")
@click.argument("run", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Rows.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
@with_cluster
def status(run: str | None, limit: int, as_json: bool, **options: Any) -> None:
    """Show the runs that replayed, purged or imported; of one RUN also what became of its letters now."""
    with mistakes():
        settings, _ = settings_of(options)
        letters = DeadLetters(settings)
        if run is not None:
            found = letters.status(run)
            _print(status_lines(found, time.time()), found.to_json(), as_json=as_json)
            return
        runs = letters.runs()
        if as_json:
            for each in runs:
                _write(line(each.to_json()))
        elif not runs:
            click.echo(f"Nothing was ever replayed, purged or imported in group {settings.group}.")
        else:
            for text in runs_lines(runs[:limit], time.time()):
                click.echo(text)
            if len(runs) > limit:
                click.echo(f"and {len(runs) - limit:,} older ones (--limit)")


# ------------------------------------------------------------------------------------------------------ purge


@click.command(short_help="Put dead letters away.")
@with_filter
@with_topics
@click.option("--all", "everything", is_flag=True, help="All dead letters; else a filter has to be given.")
@click.option("--yes", metavar="COUNT", help="Do not ask: purge if exactly so many letters are open.")
@click.option(
    "--delete-records",
    is_flag=True,
    help="Free disk, too: delete what is before the first open letter of each partition.",
)
@click.option("--forget", is_flag=True, help="Drop what the ledger knows of letters that are deleted.")
@click.option("--takeover", is_flag=True, help="End another run that is at work.")
@click.option("--by", metavar="NAME", help="Who, for the record. Else the user of this process.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one line of JSON.")
@with_cluster
def purge(
    everything: bool,
    yes: str | None,
    delete_records: bool,
    forget: bool,
    takeover: bool,
    by: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Put dead letters away: they are neither listed nor replayed any more.

    The count is asked for (or given with --yes COUNT), so that it is this many and not more. They stay in
    their topic unless --delete-records.
    """
    with mistakes(), interruptible() as stop:
        where = filter_of(options)
        if where.is_all and not everything:
            raise ConfigurationError("Which dead letters? Give a filter, or --all.")
        if forget and not delete_records:
            raise ConfigurationError("--forget is about letters that --delete-records deletes: give both.")
        letters = letters_of(target_of(options, where))
        with shown_progress(Console(stderr=True, highlight=False)) as progress:
            counted = letters.groups(where, progress=progress, stop=stop)
        count = counted.states.get("open", 0)
        if not counted.complete:
            sys.exit(INTERRUPTED)
        _confirm(count, where, yes)
        with shown_progress(Console(stderr=True, highlight=False)) as progress:
            summary = letters.purge(
                where,
                by=by,
                delete_records=delete_records,
                forget=forget,
                takeover=takeover,
                within=counted.bounds,
                progress=progress,
                stop=stop,
            )
        _print(purge_lines(summary), summary.to_json(), as_json=as_json)
        if summary.exit_code:
            sys.exit(INTERRUPTED if stop.is_set() else summary.exit_code)


def _confirm(count: int, where: Filter, yes: str | None) -> None:
    what = f"{count:,} open dead letters ({printable(where.describe())})"
    if yes is None:
        if not sys.stdin.isatty():
            raise ConfigurationError(f"{what} would be purged: say so with --yes {count}.")
        yes = click.prompt(f"{what} will be purged. Type their number to go on", err=True)
    if str(yes).replace(",", "").strip() != str(count):
        raise ConfigurationError(f"There are {what}, not {printable(str(yes)[:20])}: nothing was purged.")


# ----------------------------------------------------------------------------------------------------- import


@click.command("import", short_help="Put exported dead letters back.")
@click.argument("file", metavar="FILE")
@with_topics
@click.option("--takeover", is_flag=True, help="End another run that is at work.")
@click.option("--by", metavar="NAME", help="Who, for the record. Else the user of this process.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one line of JSON.")
@with_cluster
def import_(file: str, takeover: bool, by: str | None, as_json: bool, **options: Any) -> None:
    """Put the letters of an export (FILE, or -) back into their dead-letter topics, byte for byte.

    Left out is what was replayed or purged, what was put back before, and what is still there.
    """
    with mistakes(), interruptible() as stop:
        topics = list(options.pop("dead_topics"))
        settings, _ = settings_of(options)
        letters = DeadLetters(settings, topics=topics)
        with _opened(file) as opened:
            summary = letters.import_(
                opened, "the input" if file == "-" else printable(file), by=by, takeover=takeover, stop=stop
            )
        _print(import_lines(summary), summary.to_json(), as_json=as_json)
        if summary.exit_code:
            sys.exit(INTERRUPTED if stop.is_set() else summary.exit_code)


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A file that can be read twice."""
    if file == "-":
        with tempfile.TemporaryFile() as copy:
            while chunk := sys.stdin.buffer.read(1 << 20):
                copy.write(chunk)
            yield copy
        return
    try:
        opened: IO[bytes] = open(file, "rb")  # noqa: SIM115 - closed below, and its errors are sentences
    except OSError as error:
        raise ConfigurationError(f"{printable(file)} can't be read: {error.strerror}.") from None
    with opened:
        yield opened


# ------------------------------------------------------------------------------------------------- in common


COMMANDS: Final = (replay, status, purge, import_)
"""What is added to the group ``dlq``."""


@contextmanager
def _status() -> Iterator[Callable[[RunProgress], None]]:
    """A line on a terminal's stderr; elsewhere a line for each phase."""
    errors = Console(stderr=True, highlight=False)
    if not errors.is_terminal:
        said: list[str] = []

        def tell(progress: RunProgress) -> None:
            if progress.phase and said[-1:] != [progress.phase]:
                said.append(progress.phase)
                click.echo(progress_text(progress), err=True)

        yield tell
        return
    drawn = 0.0
    with errors.status("asking the brokers") as shown:

        def draw(progress: RunProgress) -> None:
            nonlocal drawn
            if time.monotonic() - drawn >= REDRAW:
                drawn = time.monotonic()
                shown.update(progress_text(progress))

        yield draw


def _print(lines: Iterable[str], found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        _write(line(found))
    else:
        for each in lines:
            click.echo(each)


def _write(raw: bytes) -> None:
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = float(text.strip().removesuffix("/s"))
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise ConfigurationError(f"--rate {text[:40]!r} is none: give letters a second, such as 50 or 0.5/s.")
    return found


def _count_or_share(option: str, text: str) -> float:
    """A count, or below 1 a share."""
    if text.strip().endswith("%"):
        return min(_share(option, text), 0.999)
    if not text.strip().isdecimal():
        raise ConfigurationError(f"{option} {text[:40]!r} is none: give a count such as 10, or 1%.")
    return int(text)


def _share(option: str, text: str) -> float:
    try:
        found = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise ConfigurationError(f"{option} {text[:40]!r} is none: give a percentage such as 10%.")
    return found


def _seconds(option: str, text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} {text[:40]!r}: {error}.") from None
