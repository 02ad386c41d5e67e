"""A set of offsets that takes little room: a bit for each where they are dense, a small piece where not.

Pure. Called by the ledger's view and by the outcomes of a replay, which hold an entry for each dead letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE: Final = 512
"""Offsets of a piece: 64 bytes, and as many again for itself. A million dense offsets take some 400 KiB."""


class OffsetSet:
    """Offsets of one partition."""

    __slots__ = ("_count", "_pieces")

    def __init__(self) -> None:
        self._pieces: dict[int, bytearray] = {}
        self._count = 0

    def add(self, offset: int) -> bool:
        """Put it in; whether it was not there."""
        piece = self._pieces.get(offset // PIECE)
        if piece is None:
            piece = self._pieces[offset // PIECE] = bytearray(PIECE // 8)
        at, bit = offset % PIECE // 8, 1 << (offset % 8)
        if piece[at] & bit:
            return False
        piece[at] |= bit
        self._count += 1
        return True

    def discard(self, offset: int) -> bool:
        """Take it out; whether it was there."""
        if offset not in self:
            return False
        self._pieces[offset // PIECE][offset % PIECE // 8] &= ~(1 << (offset % 8))
        self._count -= 1
        return True

    def __contains__(self, offset: int) -> bool:
        piece = self._pieces.get(offset // PIECE)
        return piece is not None and bool(piece[offset % PIECE // 8] & (1 << (offset % 8)))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for number in sorted(self._pieces):
            piece = self._pieces[number]
            for at, byte in enumerate(piece):
                for bit in range(8 if byte else 0):
                    if byte >> bit & 1:
                        yield number * PIECE + at * 8 + bit

    def __repr__(self) -> str:
        return f"<OffsetSet of {self._count}>"
