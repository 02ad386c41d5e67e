"""How a replay looks on a terminal: what it would do, how far it is, what it did. Pure.

What errors, names of topics and of people say is others' text and is escaped. Called by the commands of
``dlq_replay``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamloop.cli.show import age, moment, number, size
from streamloop.dlq.runs import FINISHED, RUNNING
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from streamloop.dlq.api import RunStatus
    from streamloop.dlq.importing import ImportSummary
    from streamloop.dlq.plan import Preview, ReplaySummary, RunProgress
    from streamloop.dlq.purge import PurgeSummary
    from streamloop.dlq.runs import RunRecord
    from streamloop.dlq.settle import Outcomes


def preview_lines(found: Preview) -> Iterator[str]:
    """What a replay would do."""
    yield (
        f"Would replay {number(found.would_go)} of {number(found.matched)} ({printable(found.described)}), "
        f"{size(found.bytes)}, to {printable(found.target)}:"
    )
    for topic, count in sorted(found.targets.items()):
        yield f"  {number(count):>9}  to {printable(topic)}"
    yield from _skipped(found.skipped)
    yield from _expired(found.expired, found.expired_notes, found.hidden)
    if found.samples:
        rest = found.would_go - len(found.samples)
        shown = ", ".join(map(printable, found.samples[:5]))
        yield f"The first: {shown}" + (", .." if rest > 0 or len(found.samples) > 5 else "")
    yield from readers_lines(found.readers)
    if found.waiting:
        yield found.waiting
    if found.busy:
        yield f"At work now: {printable(found.busy)}."
    if not found.complete:
        yield "Stopped before the end: there may be more."
    yield "Nothing was changed (--dry-run)."


def readers_lines(readers: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Who else would see what is replayed."""
    for topic, groups in readers.items():
        names = ", ".join(map(printable, groups)) or "no group that can be told"
        yield f"{printable(topic)} is read by: {names}. Each of them gets what is replayed there;"
        yield "those that read uncommitted can see a record more than once when a replay is interrupted."


def summary_lines(found: ReplaySummary) -> Iterator[str]:
    """What a replay did."""
    how = {FINISHED: "Replayed"}.get(found.state, f"{found.state.capitalize()}. Replayed")
    yield (
        f"{how} {number(found.replayed)} of {number(found.matched)} ({printable(found.described)}) to "
        f"{printable(found.target)} in {age(found.seconds)}."
    )
    if found.note:
        yield printable(found.note)
    if found.unsure:
        yield (
            f"Whether the last {number(found.unsure)} were replayed is not known: the next run knows, and "
            "goes on from there."
        )
    if found.replayed and found.settles:
        yield "  " + outcomes_text(found.outcomes)
    yield from _skipped(found.skipped)
    for place, why in found.refused:
        yield f"  refused: {printable(place)}: {printable(why)} (it stays open)"
    if found.refused_count > len(found.refused):
        yield f"  and {number(found.refused_count - len(found.refused))} more were refused"
    yield from _expired(found.expired, found.expired_notes, found.hidden)
    if found.replayed and found.settles and found.outcomes.unknown:
        yield f"Later: streamloop dlq status {found.run}"
    elif found.replayed and not found.settles:
        yield "What becomes of them there can't be told."
    if found.settles and found.outcomes.bad:
        yield "Why again: streamloop dlq ls --replayed shows those that died again; others are still retried."
    if found.state == FINISHED and not found.matched:
        yield "No dead letter matched: streamloop dlq ls shows those that there are."
    yield f"Run {found.run}"


def outcomes_text(found: Outcomes) -> str:
    """acked 5, failed again 1, dead 0, not known yet 2."""
    return (
        f"acked {number(found.acked)}, failed again {number(found.failed_again)}, dead again "
        f"{number(found.dead)}, not known yet {number(found.unknown)}"
    )


def progress_text(found: RunProgress) -> str:
    """One line."""
    share = 100 * found.offsets_done / found.offsets_total if found.offsets_total else 100
    known = found.outcomes
    told = f"; {outcomes_text(known)}" if known.total - known.unknown else ""
    return f"{found.phase}: {found.replayed:,} replayed, {share:.0f} % read{told} (Ctrl-C: stop)"


def purge_lines(found: PurgeSummary) -> Iterator[str]:
    """What a purge did."""
    how = "Purged" if found.state == FINISHED else f"{found.state.capitalize()}. Purged"
    yield f"{how} {number(found.purged)} of {number(found.matched)} ({printable(found.described)})."
    if found.note:
        yield printable(found.note)
    yield from _skipped(found.skipped)
    for place, count in sorted(found.freed.items()):
        yield f"  {number(count):>9}  offsets deleted from {printable(place)}"
    if found.forgotten:
        yield f"  {number(found.forgotten):>9}  entries dropped from the ledger"
    yield f"Run {found.run}"


def import_lines(found: ImportSummary) -> Iterator[str]:
    """What an import did."""
    how = "Imported" if found.state == FINISHED else f"{found.state.capitalize()}. Imported"
    yield f"{how} {number(found.imported)} of {number(found.records)}."
    if found.note:
        yield printable(found.note)
    yield from _skipped(found.skipped)
    for place, why in found.refused:
        yield f"  refused: {printable(place)}: {printable(why)}"
    yield f"Run {found.run}"


def runs_lines(runs: Iterable[RunRecord], now: float) -> Iterator[str]:
    """All runs, two lines each. ``now``: epoch seconds."""
    for run in runs:
        yield (
            f"{printable(run.run)}  {printable(run.kind)}  {state_text(run, now)}  {number(_done(run))} "
            f"letters  by {printable(run.by)} on {printable(run.host)}"
        )
        yield f"    {printable(run.described)}" + (f", to {printable(run.target)}" if run.target else "")


def status_lines(found: RunStatus, now: float) -> Iterator[str]:
    """One run."""
    run = found.record
    yield f"{run.kind} {printable(run.run)}: {state_text(run, now)}"
    rows: list[tuple[str, Any]] = [
        ("by", f"{run.by} on {run.host} (pid {run.pid})"),
        ("began", moment(int(run.started_at * 1000))),
        ("ended", moment(None if run.ended_at is None else int(run.ended_at * 1000))),
        ("what", run.described),
        ("from", ", ".join(map(str, run.topics))),
        ("to", run.target or "-"),
        ("options", ", ".join(f"{name} {value}" for name, value in run.options.items()) or "-"),
        ("counts", ", ".join(f"{name} {number(value)}" for name, value in run.counts.items()) or "-"),
    ]
    if found.outcomes is not None:
        rows.append(("outcomes", outcomes_text(found.outcomes)))
    if run.note:
        rows.append(("note", run.note))
    for name, value in rows:
        yield f"  {name:<9} {printable(str(value))}"


def state_text(run: RunRecord, now: float) -> str:
    """Its state; of one that does not say how it ended, when it was last heard of."""
    if run.state != RUNNING:
        return printable(run.state)
    if run.is_alive(now):
        return f"running: {printable(run.phase)}" if run.phase else "running"
    return f"not heard of for {age(max(0.0, now - run.heartbeat_at))}"


def _done(run: RunRecord) -> Any:
    names = {"replay": "replayed", "purge": "purged", "import": "imported"}
    return run.counts.get(names.get(run.kind, ""), 0)


def _skipped(skipped: Mapping[str, int]) -> Iterator[str]:
    for why, count in sorted(skipped.items(), key=lambda each: -each[1]):
        if count:
            yield f"  {number(count):>9}  left out: {printable(why)}"


def _expired(expired: int, notes: Sequence[str], hidden: int) -> Iterator[str]:
    if expired:
        yield f"  {number(expired):>9}  offsets expired (retention) before they could be read"
    for note in notes[:5]:
        yield f"  expired: {printable(note)}"
    if hidden:
        yield f"  {number(hidden):>9}  offsets are held back by a transaction that is still open"
