"""Dead letters as JSON lines, byte for byte, with the identity that the replay ledger knows them by.

The first line says what the file is (``kind`` dead-letters, ``version`` 1), each further one is a record
(``kind`` record), the last one (``kind`` end) says how many there are: without it the file is not whole.
Keys, values and header values stand in base64; texts beside them are for reading only and mean nothing to an
import. A file is written beside its place and put there only when it is whole. Called by ``streamloop dlq
export`` and the library.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import secrets
import stat
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final

import orjson

from streamloop.dlq.groups import OPEN
from streamloop.dlq.letter import letter_of
from streamloop.dlq.listing import notes_of
from streamloop.dlq.reading import BoundedReader, ReadError, recreated
from streamloop.errors import ConfigurationError, StreamLoopError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from streamloop.dlq.filters import Filter
    from streamloop.dlq.letter import DeadLetter
    from streamloop.dlq.reading import Bounds, Progress
    from streamloop.settings import Settings

KIND: Final = "dead-letters"
VERSION: Final = 1
LONGEST_TEXT: Final = 64 * 1024
"""Bytes up to which a readable text stands beside the base64."""


_HARMFUL: Final = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""What orjson leaves as it is (below 0x20 it escapes itself)."""


class ExportError(StreamLoopError):
    """An export could not be written. Nothing was put in its place."""


def head_line(
    *,
    cluster_id: str,
    topic_ids: Mapping[str, str],
    group: str,
    where: Filter,
    now: float,
) -> dict[str, Any]:
    """The first line. ``now``: epoch seconds."""
    return {
        "kind": KIND,
        "version": VERSION,
        "exported_at": time_text(now),
        "cluster_id": cluster_id,
        "topics": {topic: {"topic_id": topic_id} for topic, topic_id in topic_ids.items()},
        "group": group,
        "filter": where.to_json(),
    }


def end_line(records: int, *, complete: bool = True) -> dict[str, Any]:
    """The last line. ``complete``: everything that the filter chose is there (no limit cut it off)."""
    return {"kind": "end", "records": records, "complete": complete}


def letter_json(
    letter: DeadLetter, *, topic_id: str, cluster_id: str, state: str | None = None
) -> dict[str, Any]:
    """A dead letter as JSON has it: the record byte for byte, its identity, and what its headers say.

    ``state``: open, replayed or purged, as the ledger says; None where it was not asked. A record with a
    header whose name is not UTF-8 has ``exact`` false: that name stands escaped.
    """
    original = letter.original
    found: dict[str, Any] = {
        "kind": "record",
        "id": {
            "cluster_id": cluster_id,
            "topic_id": topic_id,
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
        },
        "timestamp_ms": letter.timestamp_ms,
        **_bytes("key", letter.key),
        **_bytes("value", letter.value),
        "headers": [{"name": name, **_bytes("value", value)} for name, value in letter.headers],
        "written_by": letter.written_by,
        "original": None
        if original is None
        else {
            "topic": original.topic,
            "partition": original.partition,
            "offset": original.offset,
            "timestamp_ms": original.timestamp_ms,
        },
        "group": letter.group,
        "error_class": letter.error_class,
        "error_message": letter.error_message,
        "fingerprint": letter.fingerprint,
        "attempts": letter.attempts,
        "first_failed_at": None if letter.first_failed_at is None else time_text(letter.first_failed_at),
        "failed_at": None if letter.failed_at is None else time_text(letter.failed_at),
        "replay_id": letter.replay_id,
        "replay_count": letter.replay_count,
        "trace_id": letter.trace_id,
    }
    if not letter.exact:
        found["exact"] = False
    if state is not None:
        found["state"] = state
    return found


def line(found: Mapping[str, Any]) -> bytes:
    """One JSON line, with its end. No character in it is one that a terminal would obey."""
    raw = orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)
    if raw.isascii() and b"\x7f" not in raw:
        return raw
    return _HARMFUL.sub(lambda match: f"\\u{ord(match[0]):04x}", raw.decode("utf-8")).encode("utf-8")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote. ``complete``: all that the filter chose; ``notes``: what could not be read."""

    records: int
    complete: bool
    notes: list[str]


def export_letters(
    settings: Settings,
    bounds: Bounds,
    where: Filter,
    out: IO[bytes],
    *,
    state_of: Callable[[DeadLetter], str] | None = None,
    only_open: bool = False,
    limit: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Exported:
    """Write the dead letters within ``bounds`` that match to ``out``; at most ``limit``.

    ``only_open``: without those that ``state_of`` knows as replayed or purged. Raises ReadError,
    ConfigurationError, and OSError of ``out``.
    """
    head = head_line(
        cluster_id=bounds.cluster_id,
        topic_ids=bounds.topic_ids,
        group=settings.group,
        where=where,
        now=time.time(),
    )
    out.write(line(head))
    records = 0
    whole = True
    with BoundedReader(settings, bounds, progress=progress, stop=stop) as reader:
        for batch in reader:
            for message in batch:
                letter = letter_of(message)
                if not where.matches(letter):
                    continue
                state = None if state_of is None else state_of(letter)
                if only_open and state not in (None, OPEN):
                    continue
                if limit is not None and records >= limit:
                    whole = False
                    break
                topic_id = bounds.topic_ids[letter.topic]
                found = letter_json(letter, topic_id=topic_id, cluster_id=bounds.cluster_id, state=state)
                out.write(line(found))
                records += 1
            if not whole:
                break
        complete = whole and reader.complete
        notes = notes_of(reader)
    for topic in recreated(settings, bounds):
        raise ReadError(
            f"The topic {topic} was deleted or made anew while it was exported: its records can't be told "
            "from those of the old one. Start again."
        )
    out.write(line(end_line(records, complete=complete)))
    return Exported(records, complete, notes)


@contextmanager
def written_atomically(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """A file that is at ``path`` when the block ends without an exception, and else is not there at all.

    Readable by its owner only: it holds payloads. Raises ConfigurationError when there is a file already and
    not ``force``, ExportError when it can't be written.
    """
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder: name a file in it.")
    if os.path.lexists(path) and not force:
        raise ConfigurationError(f"{path} exists: name another file, or give --force to replace it.")
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is no file: name one, or give - for the standard output.")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    except OSError as error:
        raise ExportError(f"{path} can't be written: {error.strerror}.") from None
    try:
        with os.fdopen(descriptor, "wb", buffering=1 << 20) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                raise ExportError(f"{path} can't be written: {error.strerror}. It was not made.") from None
        if force:
            os.replace(beside, path)
        else:
            # Unlike a rename this does not replace a file that came into being meanwhile.
            try:
                os.link(beside, path)
            except FileExistsError:
                raise ConfigurationError(
                    f"{path} exists by now: name another file, or give --force to replace it."
                ) from None
            except OSError:  # a file system without links
                os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def time_text(seconds: float) -> str:
    """RFC 3339, UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bytes(name: str, raw: bytes | None) -> dict[str, Any]:
    """``name``_base64 (None: null), and ``name`` as text where it is one."""
    if raw is None:
        return {f"{name}_base64": None}
    found: dict[str, Any] = {f"{name}_base64": base64.b64encode(raw).decode("ascii")}
    if len(raw) <= LONGEST_TEXT:
        with contextlib.suppress(UnicodeDecodeError):
            found[name] = raw.decode("utf-8")
    return found
