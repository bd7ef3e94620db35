"""`python -m cli.reference > docs/cli.md`: the manual of `sk`, made of the help of its commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from cli import output
from cli.main import cli

_INTRODUCTION = """\
# The `sk` command

`python -m cli.reference` writes this page from the commands. Do not edit it.

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

An unknown key is an error. Keep passwords in a passfile. They are never printed.

Data is written to stdout, logs and errors to stderr. `--json` prints all data, with the field names
of the status pages.

## Exit codes

"""


def reference() -> str:
    """The whole page."""
    codes = inspect.cleandoc(output.__doc__ or "").partition("\n\n")[2].partition("\n\n")[0]
    context = click.Context(cli, info_name="sk", auto_envvar_prefix="SK")
    return _INTRODUCTION + codes + "\n" + "".join(_sections(cli, context))


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    """The section of this command, then those of its subcommands."""
    yield f"\n## `{context.command_path}`\n\n{inspect.cleandoc(command.help or '')}\n"
    if not isinstance(command, click.Group):
        yield f"\n    {command.get_usage(context).removeprefix('Usage: ')}\n"
    lines = [line for line in map(lambda p: _option(p, context), command.params) if line]
    if lines:
        yield "\n" + "\n".join(lines) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from _sections(child, click.Context(child, info_name=name, parent=context))


def _option(parameter: click.Parameter, context: click.Context) -> str:
    """A list item; "" for an argument, which the help of the command explains."""
    record = parameter.get_help_record(context)
    if not isinstance(parameter, click.Option) or record is None:
        return ""
    flag, text = record
    variable = f"{context.auto_envvar_prefix}_{(parameter.name or '').upper()}"
    return f"- `{flag}`: {text}" + ("" if flag == "--version" else f" (`{variable}`)")


if __name__ == "__main__":
    click.echo(reference(), nl=False)
