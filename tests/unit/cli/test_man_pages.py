"""The manual pages: there is one for each command, as the command is now, and roff reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from quorum_wal.cli.man_pages import man_pages, write_man_pages
from quorum_wal.cli.reference import each_command, option_text, top_context

FOLDER = Path(__file__).parents[3] / "man"


def test_the_pages_are_current(tmp_path: Path) -> None:
    pages = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert pages == man_pages(), "run: python -m quorum_wal.cli.man_pages man"


def test_the_pages_of_a_folder_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "sk-removed.1").write_text("of a command that is no more")
    (tmp_path / "other.1").write_text("not ours")
    write_man_pages(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {*man_pages(), "other.1"}


def test_roff_reads_each_page_without_a_warning_and_shows_each_option() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed: apt install groff-base")
    pages = sorted(FOLDER.iterdir())
    command = ["groff", "-man", "-ww", "-Tascii", "-P-cbou", "-rLL=200n", *pages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    shown = " ".join(done.stdout.split())
    context = top_context()
    for each, its_context in each_command(context.command, context):
        assert f" {its_context.command_path.replace(' ', '-')} - " in shown
        for parameter in each.params:
            option = option_text(parameter, its_context)
            if option is not None:
                flag, said, _ = option
                assert f"{flag} {' '.join(said.split())}" in shown
