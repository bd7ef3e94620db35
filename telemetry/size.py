"""A number of bytes as text for people."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """Rounded to the greatest unit in which the number is at least 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
