"""Numbers and times as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


def seconds_of(text: str | None) -> float | None:
    """Seconds since 1970 of an ISO 8601 time; None for none, or for one that can't be read."""
    if not text:
        return None
    try:
        # Before Python 3.11 a final Z isn't understood.
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):  # a year that has no such number
        return None


def duration(seconds: float | None) -> str:
    """`45s`, `3m05s`, `2h07m`, `3d04h`; a dash for none."""
    if seconds is None:
        return "-"
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded}s"
    if rounded < 3600:
        return f"{rounded // 60}m{rounded % 60:02}s"
    if rounded < 86400:
        return f"{rounded // 3600}h{rounded % 3600 // 60:02}m"
    return f"{rounded // 86400}d{rounded % 86400 // 3600:02}h"


def size(count: float | None) -> str:
    """Bytes in the binary unit that leaves one to three digits before the point."""
    if count is None:
        return "-"
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"


def number(value: float | None, digits: int = 4) -> str:
    """A number in so many significant digits; a whole one keeps all of its own."""
    if value is None:
        return "-"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def rates(measured: Sequence[tuple[float | None, str]]) -> tuple[str, list[str]]:
    """A column of throughputs with their units: its header and its cells, which have the units where these differ."""
    used = {unit for value, unit in measured if value is not None}
    if len(used) < 2:
        return next(iter(used), "samples/s"), [number(value) for value, _ in measured]
    return "rate", ["-" if value is None else f"{number(value)} {unit}" for value, unit in measured]


def ratio(value: float | None) -> str:
    """A ratio to two decimals; a small one to two significant digits, since 0.00 would say that it is nothing."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"
