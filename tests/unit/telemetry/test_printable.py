"""A text of another program can neither command a terminal nor look like a second line of a log."""

from __future__ import annotations

import io
import json

import pytest
import structlog
from rich.text import Text

from quorum_wal.cli.output import CommandError, console, plain_table
from quorum_wal.telemetry.logs import LogFormat, configure_logs
from quorum_wal.telemetry.printable import printable

#: ESC, the CSI of C1, a bell, an override of the direction of text, a delete.
COMMANDS = ("\x1b[2J", "\x9b31m", "\x07", "\u202e", "\x7f")


def test_only_printable_characters_are_left() -> None:
    assert printable("Zürich, 東京 ✕\n") == "Zürich, 東京 ✕\n"
    assert printable("a\x1b[31m\x00\u202e") == r"a\x1b[31m\x00\u202e"
    for command in COMMANDS:
        assert printable(command).isascii()


@pytest.mark.parametrize("text", [f"a{command}b" for command in COMMANDS] + ["a\n2026 [error] b"])
def test_a_log_line_is_one_line_of_text(capsys: pytest.CaptureFixture[str], text: str) -> None:
    configure_logs(LogFormat.TEXT, "info")
    structlog.get_logger().info(text, client=text, reason=f"user {text}", number=1)
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert written.rstrip("\n").isprintable()
    assert "number=1" in written


def test_a_log_in_json_keeps_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogFormat.JSON, "info")
    structlog.get_logger().info("event", client="a\x1b\nb")
    assert json.loads(capsys.readouterr().err)["client"] == "a\x1b\nb"


def test_a_command_prints_texts_as_texts(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(COMMANDS)
    printed = console()
    printed.file = io.StringIO()
    table = plain_table(text)
    table.add_row(text)
    printed.print(Text(text), table, f"[bold]{text}")
    CommandError(text, text).show(printed.file)
    assert printed.file.getvalue().replace("\n", "").isprintable()
    assert "[bold]" in printed.file.getvalue()
