"""Which letters a replay takes: decided alike in a preview, which changes nothing, and in a replay.

Called by ``replay`` and by the facade in ``api``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamloop.dlq.filters import ALL, Filter
from streamloop.dlq.ledger import IMPORTED, PURGED, REPLAYED, LedgerView, read_ledger
from streamloop.dlq.letter import DeadLetter, letter_of
from streamloop.dlq.plan import DEFAULT, MOST_NAMED, Preview, ReplayPlan, RunProgress
from streamloop.dlq.reading import BoundedReader, open_bounds, topic_admin
from streamloop.dlq.targets import Skip, Target, Targets, describe_target, members_of, record_for
from streamloop.kafka.config import retry_group

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from streamloop.dlq.writer import Publish
    from streamloop.settings import ConsumerSettings, Settings


@dataclass(slots=True)
class Item:
    """A letter with the record that takes it back."""

    letter: DeadLetter
    publish: Publish
    times: int
    number: int = 0
    """Of its send's span."""


class Chooser:
    """Decides of each letter whether and where it goes; alike in a preview and in a replay."""

    def __init__(self, targets: Targets, where: Filter, plan: ReplayPlan) -> None:
        self._targets = targets
        self._where = where
        self._plan = plan

    def choose(self, letter: DeadLetter, view: LedgerView, run: str, now_ms: int) -> Item | Skip | None:
        """None: the filter does not mean it."""
        if not self._where.matches(letter):
            return None
        state = view.state(letter)
        if state == PURGED:
            return Skip.PURGED
        if state == IMPORTED:
            return Skip.IMPORTED
        if state == REPLAYED and not self._plan.again:
            return Skip.REPLAYED
        destination = self._targets.of(letter)
        if isinstance(destination, Skip):
            return destination
        times = view.times(letter) + 1
        made = record_for(
            letter,
            destination,
            group=self._targets.settings.group,
            run=run,
            count=letter.replay_count + times,
            now_ms=now_ms,
            edit=self._plan.edit,
        )
        return made if isinstance(made, Skip) else Item(letter, made, times)


def preview(
    settings: Settings,
    topics: Sequence[str],
    where: Filter = ALL,
    plan: ReplayPlan = DEFAULT,
    *,
    sources: Mapping[str, ConsumerSettings] | None = None,
    progress: Callable[[RunProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> Preview:
    """What a replay would do now. Changes nothing, and disturbs no run."""
    admin = topic_admin(settings)
    targets = Targets(settings, admin, plan.target, plan.to_topic, sources or {})
    bounds = open_bounds(settings, topics, where, admin=admin)
    view = read_ledger(settings, bounds.topic_ids, admin=admin, stop=stop)
    found = Preview(where.describe(), describe_target(plan.target, plan.to_topic, settings))
    now = time.time()
    found.busy = next((run.whose for run in view.open_runs() if run.is_alive(now)), "")
    chooser = Chooser(targets, where, plan)
    began = time.monotonic()
    origins: set[str] = set()
    with BoundedReader(settings, bounds, stop=stop) as reader:
        for batch in reader:
            for message in batch:
                letter = letter_of(message)
                chosen = chooser.choose(letter, view, "preview", int(now * 1000))
                if chosen is None:
                    continue
                found.matched += 1
                if isinstance(chosen, Skip):
                    found.skipped[chosen.value] += 1
                elif plan.limit is None or found.would_go < plan.limit:
                    found.would_go += 1
                    found.bytes += len(chosen.publish.value or b"")
                    found.targets[chosen.publish.topic] += 1
                    if len(found.samples) < MOST_NAMED:
                        found.samples.append(letter.place)
                    if letter.original is not None and len(origins) < MOST_NAMED:
                        origins.add(letter.original.topic)
                else:
                    found.skipped["beyond the limit"] += 1
            if progress is not None:
                left = reader.offsets_left
                progress(
                    RunProgress(
                        "",
                        "looking",
                        found.matched,
                        found.would_go,
                        bounds.offsets - left,
                        bounds.offsets,
                        seconds=time.monotonic() - began,
                    )
                )
        found.complete = reader.complete
        found.expired = sum(reader.expired.values())
    found.expired_notes = list(bounds.expired)
    found.hidden = sum(bounds.hidden.values())
    if found.would_go:
        found.readers = targets.readers(sorted(origins))
        group = {Target.SOURCE: settings.group, Target.TOPIC: ""}.get(plan.target, retry_group(settings))
        if group and members_of(settings, group) == 0:
            found.waiting = (
                f"No member of {group} is there now: what is replayed waits in its topic until one is."
            )
    return found
