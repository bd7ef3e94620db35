"""`python -m quorum_wal.cli.man_pages man`: the manual pages of `sk`, one for each command.

    man/sk.1                    sk itself: its options, its commands, the config file, exit codes
    man/sk-safekeeper-run.1     sk safekeeper run

The pages are generated from the commands, like docs/cli.md. Source: groff_man(7) for the macros,
groff_char(7) for the special characters of roff. Law: a page has no date and no version, so that it
changes only when its command changes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from quorum_wal.cli.main import cli
from quorum_wal.cli.reference import each_command, exit_codes, option_text, top_context, usage

#: Characters that roff interprets, or replaces by typographic ones.
_CHARACTERS = {
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
    '"': r"\(dq",
}
_EXIT_CODE = re.compile(r"(\d+) +(.*)")
_CONFIG = """\
Every option can be given as a flag, as the environment variable listed with it, or in the TOML file
given by --config or SK_CONFIG, in which every command has a table; in this order of precedence.

An unknown key is an error. Keep passwords in a passfile. They are never printed.
"""


def man_pages() -> dict[str, str]:
    """The source of each page, by file name."""
    return {
        f"{_page_name(context)}.1": "\n".join(_lines(command, context)) + "\n"
        for command, context in each_command(cli, top_context())
    }


def write_man_pages(folder: Path) -> None:
    """Replaces all pages in the folder, which is created if it does not exist."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("sk*.1"):
        path.unlink()
    for name, text in man_pages().items():
        (folder / name).write_text(text)


def _lines(command: click.Command, context: click.Context) -> Iterator[str]:
    name = _page_name(context)
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    summary = " ".join(paragraphs[0].split()).rstrip(".")
    yield f'.TH {name.upper()} 1 "" quorum-wal "quorum-wal Manual"'
    yield from (".SH NAME", rf"{_escaped(name)} \- {_escaped(summary)}")
    path = context.command_path
    yield from (".SH SYNOPSIS", rf"\fB{_escaped(path)}\fR{_escaped(_arguments(command, context))}")
    if paragraphs[1:]:
        yield ".SH DESCRIPTION"
        yield from _paragraphs(paragraphs[1:])
    yield from _options(command, context)
    yield from _commands(command, context)
    if context.parent is None:
        yield ".SH CONFIGURATION"
        yield from _paragraphs(_CONFIG.split("\n\n"))
        yield from _exit_status()
    yield from _see_also(context)


def _arguments(command: click.Command, context: click.Context) -> str:
    return " ".join(usage(command, context).split()).removeprefix(context.command_path)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    options = [each for p in command.params if (each := option_text(p, context)) is not None]
    if options:
        yield ".SH OPTIONS"
    for flag, said, variable in options:
        yield from _item(flag, said, f"Environment: {variable}" if variable else "")


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            summary = inspect.cleandoc(child.help or "").partition("\n\n")[0]
            yield from _item(name, summary, f"See {_page_name(context)}-{name}(1).")


def _exit_status() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    rows: list[list[str]] = []
    for line in exit_codes().splitlines():
        row = _EXIT_CODE.fullmatch(line.strip())
        if row is not None:
            rows.append(list(row.groups()))
        else:
            rows[-1][1] += f" {line.strip()}"
    for code, text in rows:
        yield from _item(code, text)


def _see_also(context: click.Context) -> Iterator[str]:
    parent = context.parent
    if parent is not None:
        names = [_page_name(each) for each in (parent, parent.find_root())]
        yield ".SH SEE ALSO"
        yield ", ".join(rf"\fB{_escaped(name)}\fR(1)" for name in dict.fromkeys(names))


def _item(tag: str, *texts: str) -> Iterator[str]:
    """A tag and its texts, each of which begins a line."""
    yield from (".TP", rf"\fB{_escaped(tag)}\fR")
    said = [_escaped(" ".join(text.split())) for text in texts if text]
    yield "\n.br\n".join(said)


def _paragraphs(paragraphs: list[str]) -> Iterator[str]:
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        yield _escaped(" ".join(paragraph.split()))


def _escaped(text: str) -> str:
    """The text with the special characters of roff escaped, so that no line is a request."""
    plain = "".join(_CHARACTERS.get(character, character) for character in text)
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain


def _page_name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


if __name__ == "__main__":
    write_man_pages(Path(sys.argv[1]))
