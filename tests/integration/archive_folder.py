"""Makes the folder of an archive unavailable for a while."""

from __future__ import annotations

from pathlib import Path


def take_away(folder: Path) -> Path:
    """The store is unavailable: a file replaces its folder."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")
    return aside


def give_back(folder: Path, aside: Path) -> None:
    folder.unlink()
    aside.rename(folder)
