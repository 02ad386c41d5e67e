"""``streamloop group``: a whole group as it is now, from its control topic; no member has to listen anywhere.

``drawn`` is pure: a view in, something to draw out. What members say is others' text: shown only through
``show.text``. Called by the command line.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

import click
import orjson
from rich.console import Console, Group
from rich.text import Text

from streamloop.cli.options import mistakes, overrides, with_connection
from streamloop.cli.show import NONE, age, moment, number, text
from streamloop.cli.top import held_text, holder_text, plain_table
from streamloop.control.outside import GroupControl
from streamloop.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from streamloop.control.view import GroupPartition, GroupView, MemberView

MOST: Final = 50
"""Partitions that are shown: those that need attention first."""


def drawn(view: GroupView, *, most: int | None = MOST) -> RenderableType:
    """The group: what is held, its members, its topics, and its partitions (``most`` of them)."""
    here = view.here
    held = sum(each.held for each in view.topics)
    count = sum(each.partitions for each in view.topics)
    head = Text().append_text(text(view.group, "bold cyan"))
    gone = len(view.members) - len(here)
    head.append(
        f"  {len(here)} member{'' if len(here) == 1 else 's'}" + (f", {gone} gone" if gone else ""),
        style="bold",
    )
    head.append(
        f"   {number(count)} partitions, {number(held)} held   lag {number(view.lag)}   "
        f"in retry topics {number(view.waiting_retry)}"
    )
    parts: list[RenderableType] = [head]
    for hold in view.holds:
        since = moment(round(hold.since * 1000))
        reason = f": {hold.reason}" if hold.reason else ""
        parts.append(text(f"  paused: {hold.scope}, by {hold.by} at {since}{reason}", "bold yellow"))
    parts += [text(f"  can't be read by this version: {each}", "yellow") for each in view.unreadable]
    parts += [Text(), _members(view), Text(), _partitions(view.partitions, most)]
    left = len(view.partitions) - (len(view.partitions) if most is None else most) + view.partitions_cut
    if left > 0:
        parts.append(Text(f"  and {left:,} more partitions", style="dim"))
    return Group(*parts)


def _members(view: GroupView) -> RenderableType:
    if not view.members:
        return Text("  no member has said anything yet", style="yellow")
    left = ("  member", "state", "version", "host", "listens on", "")
    table = plain_table("  member", "state", "partitions", "up", "heard of", *left[2:], left=left)
    for each in view.members:
        status = each.record.status
        table.add_row(
            text(f"  {each.name}", "" if each.gone_since is None else "dim"),
            _state(each),
            number(len(status.partitions) + each.record.partitions_cut),
            age(status.uptime + each.silent),
            f"{age(each.silent)} ago",
            text(each.record.version),
            text(each.record.host),
            text(status.listening.get("control_address", NONE)),
            text("" if each.applied_all or each.gone_since is not None else "has not applied all pauses yet"),
        )
    return table


def _state(member: MemberView) -> Text:
    if member.record.ended:
        return text(f"ended: {member.record.ended}"[:200], "red")
    if member.gone_since is not None:
        return text(f"gone since {moment(round(member.gone_since * 1000))}", "red")
    state = member.record.status.state
    return text(state, "green" if state == "running" else "yellow")


def _partitions(found: Sequence[GroupPartition], most: int | None) -> RenderableType:
    left = ("  partition", "member", "holds the commit position", "held")
    table = plain_table("  partition", "member", "lag", "lag time", "in flight", "gap", *left[2:], left=left)
    for each in found if most is None else found[:most]:
        status: dict[str, Any] = asdict(each.status)
        table.add_row(
            text(f"  {each.status.topic}/{each.status.partition}"),
            text(each.member),
            number(each.status.lag),
            age(each.status.lag_seconds),
            number(each.status.buffered),
            number(each.status.gap),
            holder_text(status),
            held_text(each.status.held),
        )
    return table


@click.command(short_help="Show a whole group: members, pauses, partitions.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all partitions.")
@click.option("--all", "everything", is_flag=True, help=f"Show all partitions, not {MOST} of them.")
@with_connection
def group(as_json: bool, everything: bool, config: Path | None, **options: Any) -> None:
    """Show a whole group: its members, what is paused, and its partitions, what needs you first.

    It reads the group's control topic: give --brokers and --group. Exit code 1 when there is none.
    """
    with mistakes():
        loaded = Settings.load(yaml_path=config, command_line=overrides(options))
        loaded.require("brokers", "group")
        with GroupControl(loaded.settings) as control:
            view = control.view()
    if as_json:
        shown = {each.name: getattr(view, each.name) for each in fields(view)}
        shown |= {"lag": view.lag, "waiting_retry": view.waiting_retry}
        click.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
        return
    Console(highlight=False).print(drawn(view, most=None if everything else MOST))
