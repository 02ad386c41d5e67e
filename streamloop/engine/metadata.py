"""The code that carries acknowledged offsets beyond the committed one in a commit's metadata string.

After a crash only what was not acknowledged comes again, because the committed offset's metadata says which
later offsets are done. It is believed only if it names the same cluster, topic (by id), group and committed
offset as what is seen at the assignment: metadata can be another program's, a newer version's, copied to
another group or topic, or left from a topic that was deleted and made again. What is not believed is ignored:
then messages come twice, and none is skipped.

Form: ``sl1.`` and URL-safe base64 without padding of: kind (1 runs, 2 bitset), cluster id, topic id (each one
length byte and UTF-8), group (8 bytes of its BLAKE2b hash), committed offset (varint), highest leader epoch
among the acknowledged records (varint, plus one; 0 = unknown), payload, CRC-32 of all before it. At most
4,095 characters: a broker refuses 4,096 bytes and more (its default offset.metadata.max.bytes). What does
not fit is left out, highest first.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX: Final = "sl1."
FAMILY: Final = "sl"
LIMIT: Final = 4095
"""Characters that a broker takes with its default settings."""
UNKNOWN: Final = "unknown"

_RUNS: Final = 1
_BITSET: Final = 2
_MOST_BYTES: Final = (LIMIT - len(PREFIX)) * 3 // 4
_MAX_OFFSET: Final = 2**63 - 1
_ONES: Final = re.compile("1+")
_GROUP_BYTES: Final = 8

Run = tuple[int, int]
"""Acknowledged offsets from the first (included) to the second (excluded)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a commit belongs to. An id that can't be had is 'unknown', and equals only 'unknown'."""

    cluster_id: str = UNKNOWN
    topic_id: str = UNKNOWN
    group: str = UNKNOWN
    """The consumer group: what one group has handled means nothing to another that starts at its offsets."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Believed metadata: these runs are acknowledged, for records whose leader epoch is not newer."""

    runs: tuple[Run, ...]
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Ignored:
    """Metadata that is not believed, and why (a sentence's end)."""

    reason: str


def encode(identity: Identity, committed: int, leader_epoch: int, runs: Sequence[Run]) -> str:
    """Metadata for a commit of ``committed``: ascending, disjoint, non-touching runs at or above it.

    A run may begin at ``committed`` itself: what an earlier commit knew, and was not received again yet.
    Without runs it says only whose the commit is, which a recreated topic is known by; an empty string where
    the topic has no id either. Never longer than :data:`LIMIT`.
    """
    if not runs and identity.topic_id == UNKNOWN:
        return ""
    cluster = _short(identity.cluster_id)
    topic = _short(identity.topic_id)
    head = cluster + topic + _hashed(identity.group) + _varint(committed) + _varint(leader_epoch + 1)
    room = _MOST_BYTES - 1 - len(head) - 4
    as_runs, runs_reach = _encode_runs(committed, runs, room)
    as_bits, bits_reach = _encode_bits(committed, runs, room) if runs else (b"", committed)
    # The one that reaches further; of two that reach as far, the shorter.
    if (runs_reach, -len(as_runs)) >= (bits_reach, -len(as_bits)):
        kind, payload = _RUNS, as_runs
    else:
        kind, payload = _BITSET, as_bits
    body = bytes((kind,)) + head + payload
    body += zlib.crc32(body).to_bytes(4, "big")
    return PREFIX + base64.urlsafe_b64encode(body).rstrip(b"=").decode("ascii")


def decode(text: str, identity: Identity, committed: int) -> Restored | Ignored | None:
    """What committed metadata says, if it belongs to this cluster, topic and offset. None: it is empty."""
    if not text:
        return None
    if not text.startswith(PREFIX):
        if text.startswith(FAMILY) and text[len(FAMILY) :].split(".", 1)[0].isdigit() and "." in text:
            return Ignored(
                f"it is of another version of streamloop ({text.split('.', 1)[0]}, this one reads sl1)"
            )
        return Ignored("it was written by another program")
    if len(text) > LIMIT:
        return Ignored(f"it is longer than {LIMIT} characters")
    body = _body(text)
    if isinstance(body, Ignored):
        return body
    try:
        return _decode_body(body, identity, committed)
    except (_MalformedError, UnicodeDecodeError):
        return Ignored("it is malformed")


def is_of_recreated(text: str, identity: Identity, committed: int) -> bool:
    """Whether this group committed this very offset to an earlier topic of the same name.

    A commit that was on its way when the topic was deleted and made again lands on the new one. Its offset
    means nothing there, and starting at it would skip the records below. Metadata of another cluster or group
    (a mirror's, a copied group's) says nothing about the offset beside it.
    """
    body = _body(text) if text.startswith(PREFIX) and len(text) <= LIMIT else None
    if body is None or isinstance(body, Ignored):
        return False
    try:
        written = _read_head(body)
    except (_MalformedError, UnicodeDecodeError):
        return False
    known = UNKNOWN not in (written.topic, identity.topic_id, written.cluster, identity.cluster_id)
    return (
        known
        and written.topic != _shown(identity.topic_id)
        and written.cluster == _shown(identity.cluster_id)
        and written.group == _hashed(identity.group)
        and written.offset == committed
    )


def _body(text: str) -> bytes | Ignored:
    """The bytes of metadata of this version, without the checksum."""
    coded = text[len(PREFIX) :]
    try:
        body = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return Ignored("it is damaged (not base64)")
    if len(body) < 5 or zlib.crc32(body[:-4]).to_bytes(4, "big") != body[-4:]:
        return Ignored("it is damaged (its checksum does not match)")
    return body[:-4]


class _MalformedError(Exception):
    """The bytes do not follow the form."""


class _Head(NamedTuple):
    """What metadata says of itself; ``at`` is where the payload begins."""

    kind: int
    cluster: str
    topic: str
    group: bytes
    offset: int
    leader_epoch: int
    at: int


def _read_head(body: bytes) -> _Head:
    if not body:
        raise _MalformedError
    cluster, at = _read_short(body, 1)
    topic, at = _read_short(body, at)
    group, at = body[at : at + _GROUP_BYTES], at + _GROUP_BYTES
    offset, at = _read_varint(body, at)
    epoch, at = _read_varint(body, at)
    return _Head(body[0], cluster, topic, group, offset, epoch - 1, at)


def _decode_body(body: bytes, identity: Identity, committed: int) -> Restored | Ignored:
    kind, cluster, topic, group, offset, leader_epoch, at = _read_head(body)
    if cluster != _shown(identity.cluster_id):
        return Ignored(f"it belongs to cluster {cluster}, and this is {identity.cluster_id}")
    if topic != _shown(identity.topic_id):
        return Ignored(
            f"it belongs to the topic with id {topic}, and this one has {identity.topic_id} "
            "(recreated or copied)"
        )
    if group != _hashed(identity.group):
        return Ignored(f"it was written by another group than {identity.group} (copied)")
    if offset != committed:
        return Ignored(
            f"it belongs to the committed offset {offset}, and the committed offset is {committed}"
        )
    if kind == _RUNS:
        runs = _decode_runs(body, at, committed)
    elif kind == _BITSET:
        runs = _decode_bits(body, at, committed)
    else:
        return Ignored(f"it uses a form ({kind}) that this version does not know")
    return Restored(tuple(runs), leader_epoch)


def _encode_runs(committed: int, runs: Sequence[Run], room: int) -> tuple[bytes, int]:
    """Pairs of varints: how many are not acknowledged, how many are. Returns also the end of the last run."""
    out = bytearray()
    at = committed
    for start, end in runs:
        pair = _varint(start - at) + _varint(end - start)
        if len(out) + len(pair) > room:
            break
        out += pair
        at = end
    return bytes(out), at


def _encode_bits(committed: int, runs: Sequence[Run], room: int) -> tuple[bytes, int]:
    """One bit an offset, the first one for ``committed``. Returns also the end of the last run."""
    span = min(runs[-1][1] - committed, room * 8)
    bits = 0
    reach = committed
    for start, end in runs:
        low, high = start - committed, min(end - committed, span)
        if low >= span:
            break
        bits |= ((1 << (high - low)) - 1) << low
        reach = committed + high
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little"), reach


def _decode_runs(body: bytes, at: int, committed: int) -> list[Run]:
    runs: list[Run] = []
    offset = committed
    while at < len(body):
        gap, at = _read_varint(body, at)
        count, at = _read_varint(body, at)
        start = offset + gap
        offset = start + count
        if (gap < 1 and runs) or count < 1 or offset > _MAX_OFFSET:
            raise _MalformedError
        runs.append((start, offset))
    return runs


def _decode_bits(body: bytes, at: int, committed: int) -> list[Run]:
    # As text, lowest offset first: to shift a number bit by bit would copy all of it for each run.
    bits = bin(int.from_bytes(body[at:], "little"))[:1:-1]
    if committed + len(bits) > _MAX_OFFSET:
        raise _MalformedError
    return [(committed + run.start(), committed + run.end()) for run in _ONES.finditer(bits)]


def _short(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")[:120]
    raw = raw.decode("utf-8", "ignore").encode()
    return bytes((len(raw),)) + raw


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=_GROUP_BYTES).digest()


def _shown(text: str) -> str:
    """A name as it is written: cut at its limit."""
    return _short(text)[1:].decode()


def _read_short(body: bytes, at: int) -> tuple[str, int]:
    if at >= len(body):
        raise _MalformedError
    end = at + 1 + body[at]
    if end > len(body):
        raise _MalformedError
    return body[at + 1 : end].decode("utf-8"), end


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(body) or shift > 63:
            raise _MalformedError
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
