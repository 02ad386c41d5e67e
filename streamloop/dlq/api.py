"""A group's dead letters as a library: look at them, and bring them back.

Everything here blocks, and each call has clients of its own: call it from any thread, and from an event loop
in a thread. Looking joins no group, commits nothing, creates nothing and disturbs no replay. Called by the
command line, the console and services.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol

from streamloop.dlq.choosing import preview
from streamloop.dlq.exporting import export_letters
from streamloop.dlq.filters import ALL, Filter
from streamloop.dlq.importing import Import, ImportSummary
from streamloop.dlq.ledger import LedgerView, read_ledger
from streamloop.dlq.letter import DeadLetter, letter_of
from streamloop.dlq.listing import read_groups
from streamloop.dlq.plan import DEFAULT, Preview, ReplayPlan, ReplaySummary, RunProgress
from streamloop.dlq.purge import Purge, PurgeSummary
from streamloop.dlq.reading import BoundedReader, NoRecord, ReadError, open_bounds, read_one, topic_admin
from streamloop.dlq.replay import Replay
from streamloop.dlq.runs import RunRecord, who_am_i
from streamloop.dlq.settle import Outcomes, Settling, place_of
from streamloop.dlq.topics import dead_letter_topics
from streamloop.dlq.writer import Placed
from streamloop.kafka.topics import TopicFacts

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamloop.assembly import Assembly
    from streamloop.dlq.exporting import Exported
    from streamloop.dlq.groups import Groups
    from streamloop.dlq.reading import Bounds, Progress
    from streamloop.settings import ConsumerSettings, Settings


class Loop(Protocol):
    """A StreamLoop, as far as its dead letters go."""

    def assemble(self) -> Assembly:
        """Everything that a run is made of, checked."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run, and what became of what it replayed, as it is now.

    ``outcomes`` is None where that can't be told: a purge, an import, a replay to any topic.
    """

    record: RunRecord
    alive: bool
    outcomes: Outcomes | None

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            **self.record.to_json(),
            "alive": self.alive,
            "outcomes": self.record.outcomes if self.outcomes is None else self.outcomes.to_json(),
        }


class DeadLetters:
    """The dead letters of the group that ``settings`` name.

    ``topics``: exactly these dead-letter topics, of whatever program; None: those that the settings' names
    make. ``sources``: what is in force for source topics whose consumers have settings of their own (see
    ``of``). Raises ConfigurationError without brokers or a group.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        topics: Sequence[str] | None = None,
        sources: Mapping[str, ConsumerSettings] | None = None,
    ) -> None:
        self.settings = settings
        self._named = tuple(topics or ())
        self._sources = dict(sources or {})

    @classmethod
    def of(cls, loop: Loop, *, topics: Sequence[str] | None = None) -> DeadLetters:
        """The dead letters of a StreamLoop, with what each of its consumers has of its own."""
        assembly = loop.assemble()
        sources = {topic: build.settings for build in assembly.consumers for topic in build.topics}
        return cls(assembly.settings, topics=topics, sources=sources)

    def topics(self) -> list[str]:
        """The dead-letter topics that exist. Raises ReadError when no broker tells."""
        pairs = [
            (source, consumer.dead_letter_topic(source))
            for source, consumer in self._sources.items()
            if consumer.dead_letter
        ]
        return [each.name for each in dead_letter_topics(self.settings, named=self._named, sources=pairs)]

    # ------------------------------------------------------------------------------------------- looking

    def groups(
        self,
        where: Filter = ALL,
        *,
        limit: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Groups:
        """The letters that the filter means, grouped by error; ``limit``: letters at most."""
        topics = self.topics()
        bounds = open_bounds(self.settings, topics, where)
        return read_groups(
            self.settings,
            topics,
            where,
            bounds=bounds,
            state_of=read_ledger(self.settings, bounds.topic_ids, stop=stop).state,
            most_letters=limit,
            progress=progress,
            stop=stop,
        )

    def letters(
        self,
        where: Filter = ALL,
        *,
        limit: int | None = None,
        only_open: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[DeadLetter]:
        """The letters that the filter means, in order within each partition; those there are now.

        ``only_open``: neither replayed nor purged. Raises ReadError.
        """
        admin = topic_admin(self.settings)
        bounds = open_bounds(self.settings, self.topics(), where, admin=admin)
        view = read_ledger(self.settings, bounds.topic_ids, admin=admin, stop=stop) if only_open else None
        given = 0
        with BoundedReader(self.settings, bounds, stop=stop) as reader:
            for batch in reader:
                for message in batch:
                    letter = letter_of(message)
                    if not where.matches(letter) or (view is not None and not view.is_open(letter)):
                        continue
                    yield letter
                    given += 1
                    if limit is not None and given >= limit:
                        return

    def get(self, topic: str, partition: int, offset: int) -> DeadLetter:
        """One letter. Raises ReadError when there is none at that place, with why."""
        found, _ = read_one(self.settings, topic, partition, offset)
        if isinstance(found, NoRecord):
            raise ReadError(f"There is no dead letter at {topic}/{partition}/{offset}: {found.reason}.")
        return letter_of(found)

    def ledger(self, topics: Sequence[str] = ()) -> LedgerView:
        """What was replayed and purged, as the ledger says now, and the runs that did it."""
        admin = topic_admin(self.settings)
        names = topics or self.topics()
        described = admin.describe(names, 30.0, configs=False)
        ids = {name: each.topic_id for name, each in described.items() if isinstance(each, TopicFacts)}
        return read_ledger(self.settings, ids, admin=admin)

    # ----------------------------------------------------------------------------------------- replaying

    def preview(
        self,
        where: Filter = ALL,
        plan: ReplayPlan = DEFAULT,
        *,
        progress: Callable[[RunProgress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Preview:
        """What a replay would do now; changes nothing, and disturbs no run."""
        return preview(
            self.settings, self.topics(), where, plan, sources=self._sources, progress=progress, stop=stop
        )

    def replay(
        self,
        where: Filter = ALL,
        plan: ReplayPlan = DEFAULT,
        *,
        by: str | None = None,
        progress: Callable[[RunProgress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> ReplaySummary:
        """Replay each letter that the filter means and that is open, once, and tell what became of them.

        ``by``: who, for the record (default: the user of this process). ``progress`` is called now and then,
        on this thread. ``stop``: an event that ends it after the present transaction. Raises InProgressError
        when another run is alive (``ReplayPlan.takeover`` ends that one), ReadError and ConfigurationError
        for what kept it from beginning; what ends it later is in the summary.
        """
        return self.prepare(where, plan, by=by, progress=progress, stop=stop).run()

    def prepare(
        self,
        where: Filter = ALL,
        plan: ReplayPlan = DEFAULT,
        *,
        by: str | None = None,
        progress: Callable[[RunProgress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Replay:
        """The replay, not begun: its ``record`` has the run's id before ``run()`` is called."""
        return Replay(
            self.settings,
            self.topics(),
            where,
            plan,
            by=by or who_am_i(),
            sources=self._sources,
            progress=progress,
            stop=stop,
        )

    # ------------------------------------------------------------------------------------- putting away

    def purge(
        self,
        where: Filter,
        *,
        by: str | None = None,
        delete_records: bool = False,
        forget: bool = False,
        takeover: bool = False,
        within: Bounds | None = None,
        progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> PurgeSummary:
        """Put the open letters that the filter means away: neither listed nor replayed any more.

        ``delete_records``: also delete the records before the first open letter of each partition, those
        that were replayed included. ``forget``: drop the ledger's entries of deleted letters; an export made
        before could then bring them back open. ``within``: no letters but those that were there when
        somebody looked (``groups().bounds``). Raises InProgressError, ReadError, ConfigurationError.
        """
        return Purge(
            self.settings,
            self.topics(),
            where,
            by=by or who_am_i(),
            delete_records=delete_records,
            forget=forget,
            takeover=takeover,
            within=within,
            progress=progress,
            stop=stop,
        ).run()

    def export(
        self,
        where: Filter,
        out: IO[bytes],
        *,
        only_open: bool = False,
        limit: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Exported:
        """Write letters as JSON lines, byte for byte, with the identity that the ledger knows them by."""
        bounds = open_bounds(self.settings, self.topics(), where)
        return export_letters(
            self.settings,
            bounds,
            where,
            out,
            state_of=read_ledger(self.settings, bounds.topic_ids).state,
            only_open=only_open,
            limit=limit,
            progress=progress,
            stop=stop,
        )

    def import_(
        self,
        file: BinaryIO,
        name: str = "export",
        *,
        by: str | None = None,
        takeover: bool = False,
        stop: threading.Event | None = None,
    ) -> ImportSummary:
        """Put exported letters back that were neither replayed, purged nor put back since, and are gone.

        ``file`` must be seekable; ``name`` is for messages. Raises InProgressError, ReadError,
        ConfigurationError.
        """
        return Import(
            self.settings,
            file,
            name,
            by=by or who_am_i(),
            topics=self._named,
            takeover=takeover,
            stop=stop,
        ).run()

    # ------------------------------------------------------------------------------------------ the runs

    def runs(self) -> list[RunRecord]:
        """All runs that the ledger knows, the newest first."""
        view = read_ledger(self.settings)
        return sorted(view.runs.values(), key=lambda run: -run.started_at)

    def status(self, run: str) -> RunStatus:
        """A run, and what became of what it replayed; ``run``: its id, or the beginning of one.

        Raises ReadError when there is no such run, or more than one.
        """
        placed: list[tuple[str, tuple[str, int, int], Placed]] = []
        admin = topic_admin(self.settings)

        def see(_key: bytes, value: Mapping[str, Any]) -> None:
            made_by = value.get("run")
            if not isinstance(made_by, str) or not made_by.startswith(run):
                return
            source, target = place_of(value.get("from")), place_of(value.get("to"))
            if source is not None and target is not None:
                placed.append((made_by, source, Placed(*target)))

        view = read_ledger(self.settings, admin=admin, each=see)
        found = [each for each in view.runs.values() if each.run.startswith(run)]
        if len(found) != 1:
            raise ReadError(
                f"{'No run' if not found else 'More than one run'} of group {self.settings.group} is named "
                f"{run!r}: 'streamloop dlq status' shows them."
            )
        record = found[0]
        alive = record.is_alive(time.time())
        if record.kind != "replay" or not record.settles:
            return RunStatus(record, alive, None)
        settling = Settling(self.settings, record.run, group=record.target_group, admin=admin)
        try:
            settling.go_on_from(record.scan_from, record.dead_topics)
            for made_by, source, target in placed:
                if made_by == record.run:
                    settling.sent(*source, target)
            return RunStatus(record, alive, settling.look())
        finally:
            settling.close()
