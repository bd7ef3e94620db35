"""A variable of all commands holds for each command that has its option."""

from __future__ import annotations

from quorum_wal.cli.reference import each_command, top_context
from quorum_wal.cli.shared_option import SharedOption

SHARED = {
    "--safekeepers": "SK_SAFEKEEPERS",
    "--safekeeper-conninfo": "SK_SAFEKEEPER_CONNINFO",
    "--archive": "SK_ARCHIVE",
}
#: Postgres runs `fetch`, with the environment of the server. The options of the others are those of
#: a Spark source, which a job without `sk` has as well.
OWN = ("sk archive fetch", "sk catalog", "sk spark")


def test_every_command_reads_them() -> None:
    context = top_context()
    found = set()
    for command, each in each_command(context.command, context):
        for option in command.params:
            for flag in SHARED.keys() & set(option.opts):
                name = f"{each.command_path} {flag}"
                if not each.command_path.startswith(OWN):
                    assert isinstance(option, SharedOption), name
                    assert option.envvar == SHARED[flag], name
                found.add(flag)
    assert found == SHARED.keys()
