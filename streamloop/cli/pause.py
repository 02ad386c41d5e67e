"""``streamloop pause`` and ``streamloop resume``: hold a whole group, or part of what it reads; let it go.

Both write to the group's control topic with the group's settings; no member has to run, and none is asked.
Then they read what the members say of it. Called by the command line.
"""

from __future__ import annotations

import getpass
import socket
import sys
from typing import TYPE_CHECKING, Any

import click

from streamloop.cli.options import mistakes, overrides, seconds, with_connection
from streamloop.cli.show import age, moment
from streamloop.control.outside import GroupControl
from streamloop.control.records import OperatorHold, Scope
from streamloop.errors import ConfigurationError
from streamloop.settings import Settings
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streamloop.control.view import GroupView, MemberView


def _me() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


_where = click.argument("where", metavar="[TOPIC[/PARTITION]]", required=False)
_by = click.option("--by", metavar="NAME", help="Who does it, for the others. Else user@host.")
_wait = click.option(
    "--wait",
    callback=seconds,
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="How long the members get to say that they have applied it.",
)


@click.command(short_help="Hold the whole group, a topic or a partition.")
@_where
@click.option("--reason", default="", metavar="TEXT", help="Why, for the others.")
@_by
@_wait
@with_connection
def pause(
    where: str | None,
    reason: str,
    by: str | None,
    wait: float,
    config: Path | None,
    **options: Any,
) -> None:
    """Hold the whole group, a topic of it or a partition, until it is resumed.

    Members that start later hold it, too. Exit code 1 when a member has not applied it in time.
    """
    _act(where, by or _me(), wait, config, options, reason=reason)


@click.command(short_help="End a pause.")
@_where
@_by
@_wait
@with_connection
def resume(where: str | None, by: str | None, wait: float, config: Path | None, **options: Any) -> None:
    """End what a pause with the same words began; without any: everything that is paused.

    Exit code 1 when a member has not applied it in time.
    """
    _act(where, by or _me(), wait, config, options, reason=None)


def _act(
    where: str | None,
    by: str,
    wait: float,
    path: Path | None,
    options: dict[str, Any],
    *,
    reason: str | None,
) -> None:
    """``reason`` None: resume."""
    with mistakes():
        scope = Scope() if where is None else Scope.parse(where)
        loaded = Settings.load(yaml_path=path, command_line=overrides(options))
        loaded.require("brokers", "group")
        with GroupControl(loaded.settings, timeout=max(1.0, wait)) as control:
            before = control.view()
            if reason is None:
                ended = [each for each in before.holds if scope in (Scope(), each.scope)]
                if not ended:
                    _tell_holds(before, f"{scope} of group {before.group} was not paused.")
                    return
                offset = control.resume(scope, by)
                said = ", ".join(_held(each) for each in ended)
                _say(f"resumed in group {before.group}: {said}")
            else:
                _check_topic(scope, before)
                offset = control.pause(scope, by, reason)
                why = f": {reason}" if reason else ""
                _say(f"paused {scope} in group {before.group} (by {by}{why})")
            done, late = control.await_applied(offset, wait)
            left = control.view()
    _tell_members(done, late, wait)
    if reason is None:
        _tell_holds(left, "")
    sys.exit(1 if late else 0)


def _check_topic(scope: Scope, view: GroupView) -> None:
    """A slip of the pen would hold nothing, and look as if it did."""
    known = sorted({each.topic for each in view.topics})
    if scope.topic is not None and known and scope.topic not in known:
        raise ConfigurationError(
            f"No member of group {view.group} reads {scope.topic}: they read {', '.join(known)}."
        )


def _held(hold: OperatorHold) -> str:
    since = moment(round(hold.since * 1000))
    return f"{hold.scope} (paused by {hold.by} at {since}{': ' + hold.reason if hold.reason else ''})"


def _tell_members(done: Sequence[MemberView], late: Sequence[MemberView], wait: float) -> None:
    if not done and not late:
        _say("  no member runs now: those that start will find it")
    if done:
        _say(f"  applied by {', '.join(each.name for each in done)}")
    for each in late:
        _say(f"  not applied within {wait:g} s by {each.name} (heard of {age(each.silent)} ago)")


def _tell_holds(view: GroupView, first: str) -> None:
    if first:
        _say(first)
    for hold in view.holds:
        _say(f"  still paused: {_held(hold)}")


def _say(line: str) -> None:
    click.echo(printable(line))
