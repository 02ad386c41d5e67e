"""Reads dead letters within bounds: grouped, or a single one.

Everything here blocks and belongs to one thread; ``stop`` (an event) ends it early, with what was read so
far. The ledger's word on a letter comes in as a function, so that nothing here knows how it is kept. Called
by ``streamloop dlq ls``, ``show`` and ``export``, and by the library.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from streamloop.dlq.filters import ALL
from streamloop.dlq.groups import MOST_GROUPS, OPEN, Grouper, Groups
from streamloop.dlq.letter import DeadLetter, letter_of
from streamloop.dlq.reading import TIMEOUT, BoundedReader, Bounds, NoRecord, open_bounds, read_one

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from streamloop.dlq.filters import Filter
    from streamloop.dlq.reading import Progress
    from streamloop.settings import Settings

    StateOf = Callable[[DeadLetter], str]

MOST_NOTES: Final = 5


def read_groups(
    settings: Settings,
    topics: Sequence[str],
    where: Filter = ALL,
    *,
    state_of: StateOf | None = None,
    bounds: Bounds | None = None,
    most_groups: int = MOST_GROUPS,
    most_letters: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Groups:
    """Group the dead letters of ``topics`` that match. Raises ReadError, ConfigurationError.

    ``state_of``: a letter's state as the ledger has it; all are open without it. ``bounds``: fixed before
    (else now). At most ``most_groups`` groups are kept and ``most_letters`` letters read. When it is stopped,
    the result has what was read and says that it is not complete.
    """
    began = time.monotonic()
    fixed = bounds if bounds is not None else open_bounds(settings, topics, where)
    grouper = Grouper(most_groups)
    add, matches, everything = grouper.add, where.matches, where.is_all
    skipped = 0
    with BoundedReader(settings, fixed, progress=progress, stop=stop) as reader:
        for batch in reader:
            # Each message is let go before the next one is read: with its headers it is some thirty objects,
            # and so many that live at once keep Python's garbage collector busy (a fifth of the time).
            batch.reverse()
            while batch:
                letter = letter_of(batch.pop())
                if everything or matches(letter):
                    add(letter, OPEN if state_of is None else state_of(letter))
                else:
                    skipped += 1
            if most_letters is not None and grouper.letters >= most_letters:
                break
        return Groups(
            groups=grouper.found(),
            letters=grouper.letters,
            others=grouper.others,
            skipped=skipped,
            complete=reader.complete,
            offsets=fixed.offsets,
            offsets_left=reader.offsets_left,
            seconds=time.monotonic() - began,
            topics=list(fixed.topic_ids),
            states=grouper.states,
            notes=notes_of(reader),
            bounds=fixed,
        )


def read_letter(
    settings: Settings, topic: str, partition: int, offset: int, *, timeout: float = TIMEOUT
) -> tuple[DeadLetter | NoRecord, Bounds]:
    """The record at a place, or why there is none; with it the ids of its topic and cluster.

    Raises ReadError when neither can be told within ``timeout`` seconds.
    """
    found, bounds = read_one(settings, topic, partition, offset, timeout=timeout)
    return (found if isinstance(found, NoRecord) else letter_of(found)), bounds


def notes_of(reader: BoundedReader) -> list[str]:
    """Sentences about what of the bounds could not be read, or was not there to be read."""
    notes = list(reader.bounds.expired)
    notes += [
        f"{topic}/{partition}: retention removed up to {count:,} offsets before they could be read."
        for (topic, partition), count in sorted(reader.expired.items())
    ]
    notes += [
        f"{topic}/{partition}: up to {count:,} offsets at its end are held back by a transaction that is "
        "still open; they are not counted."
        for (topic, partition), count in sorted(reader.bounds.hidden.items())
    ]
    if len(notes) > MOST_NOTES:
        return [*notes[:MOST_NOTES], f"and {len(notes) - MOST_NOTES:,} more such partitions."]
    return notes
