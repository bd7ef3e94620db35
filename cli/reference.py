"""`python -m quorum_wal.cli.reference > docs/cli.md`: the manual of `sk`, made of the help of its
commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from quorum_wal.cli import output
from quorum_wal.cli.main import cli

_INTRODUCTION = """\
# The `sk` command

`python -m quorum_wal.cli.reference` writes this page from the commands. Do not edit it.

Every option can be given in three ways. The flag takes precedence over the environment variable,
which is named in parentheses. The variable takes precedence over the file given by `--config` (or
`SK_CONFIG`), in which every command has a table:

    log-level = "warning"

    [safekeeper.run]
    id = 1
    data-dir = "/var/lib/safekeeper"

    [attach]
    primary = "host=db1 user=walproposer dbname=postgres passfile=/etc/sk/pgpass"
    safekeepers = ["sk1:5454", "sk2:5454", "sk3:5454"]
    configure = true

Some variables hold for all commands: `SK_SAFEKEEPERS`, `SK_SAFEKEEPER_CONNINFO`, `SK_PRIMARY`,
`SK_HTTP_TOKEN_FILE`, `SK_ARCHIVE`. The help of an option names the one that it reads. The variable
of one command, in parentheses here, takes precedence over it:

    export SK_SAFEKEEPERS=sk1:5454,sk2:5454,sk3:5454
    export SK_PRIMARY='host=db1 user=walproposer dbname=postgres passfile=/etc/sk/pgpass'
    sk status

An unknown key is an error. Keep passwords in a passfile. They are never printed.

Data is written to stdout, logs and errors to stderr. `--json` prints all data, with the field names
of the status pages.

## Exit codes

"""


def reference() -> str:
    """The whole page."""
    sections = (_section(*each) for each in each_command(cli, top_context()))
    return _INTRODUCTION + exit_codes() + "\n" + "".join(sections)


def each_command(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """This command, then its subcommands, each with the context that has its whole name."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from each_command(child, click.Context(child, info_name=name, parent=context))


def top_context() -> click.Context:
    """The context of `sk` itself."""
    return click.Context(cli, info_name="sk", auto_envvar_prefix="SK")


def usage(command: click.Command, context: click.Context) -> str:
    """`sk user add [OPTIONS] FILE USER`"""
    return command.get_usage(context).removeprefix("Usage: ")


def option_text(
    parameter: click.Parameter, context: click.Context
) -> tuple[str, str, str | None] | None:
    """The flag, its help and its variable; None for an argument, which the help text explains."""
    record = parameter.get_help_record(context)
    if not isinstance(parameter, click.Option) or record is None:
        return None
    variable = f"{context.auto_envvar_prefix}_{(parameter.name or '').upper()}"
    return *record, None if record[0] == "--version" else variable


def exit_codes() -> str:
    """The table in the docstring of `output.py`."""
    return inspect.cleandoc(output.__doc__ or "").partition("\n\n")[2].partition("\n\n")[0]


def _section(command: click.Command, context: click.Context) -> str:
    text = f"\n## `{context.command_path}`\n\n{inspect.cleandoc(command.help or '')}\n"
    if not isinstance(command, click.Group):
        text += f"\n    {usage(command, context)}\n"
    options = [each for p in command.params if (each := option_text(p, context)) is not None]
    lines = [
        f"- `{flag}`: {said}" + (f" (`{variable}`)" if variable else "") + "\n"
        for flag, said, variable in options
    ]
    return text + ("\n" if lines else "") + "".join(lines)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
