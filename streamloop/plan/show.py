"""How a plan's numbers are written in formulas: rounded for reading; the settings' own texts are exact."""

from __future__ import annotations

import math

from streamloop.settings.model import MIB
from streamloop.settings.units import show_size


def show_time(seconds: float) -> str:
    """Seconds as people say them: 28.7 us, 20 ms, 35.6 min."""
    if seconds >= 60:
        minutes = seconds / 60
        return f"{minutes:.3g} min" if minutes < 120 else f"{minutes / 60:.3g} h"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms" if seconds >= 0.001 or seconds == 0 else f"{seconds * 1e6:.3g} us"


def show_bytes(size: int) -> str:
    """Bytes, exact where they are few."""
    if size % 1024 == 0:
        return show_size(size)
    return f"{size} bytes" if size < 10_240 else f"{size / 1024:.1f} KiB"


def show_mib(size: int) -> str:
    """Bytes in whole MiB, rounded up."""
    return f"{math.ceil(size / MIB)} MiB"


def show_number(value: float) -> str:
    """A count or a rate: four digits, and no exponent below a billion."""
    return f"{value:,.0f}" if 1_000 <= value < 1e9 else f"{value:.4g}"
