"""An archive in a folder, which a test makes unavailable for a while."""

from __future__ import annotations

from pathlib import Path


def take_away(folder: Path) -> Path:
    """The store is gone: in place of its folder there is a file."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")
    return aside


def give_back(folder: Path, aside: Path) -> None:
    folder.unlink()
    aside.rename(folder)
