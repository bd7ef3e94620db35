"""A number of bytes as people read it."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """Rounded to the greatest unit that leaves a digit before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
