"""The replication commands: text <-> values.

Postgres's own, in all spellings of versions 13 to 18 (`repl_gram.y`):

    IDENTIFY_SYSTEM                     SHOW name                    TIMELINE_HISTORY n
    READ_REPLICATION_SLOT s             DROP_REPLICATION_SLOT s [WAIT]
    START_REPLICATION [SLOT s] [PHYSICAL] X/X [TIMELINE n] [(option, ...)]
    START_REPLICATION SLOT s LOGICAL X/X [(option, ...)]
    CREATE_REPLICATION_SLOT s [TEMPORARY] PHYSICAL [RESERVE_WAL] | [(option, ...)]
    CREATE_REPLICATION_SLOT s [TEMPORARY] LOGICAL plugin [word ...] | [(option, ...)]
    ALTER_REPLICATION_SLOT s (option, ...)       BASE_BACKUP ...       UPLOAD_MANIFEST


and ours, all of one form: WORD, or WORD (option, ...), with the words of OPTION_COMMANDS; and the
few SQL statements of `monitoring_query.py`.

An option is `name`, `name word`, `name number` or `name 'value'`; alone it means 'true'. Options of
a physical START_REPLICATION are our extension. Key words are case-insensitive. Names are folded to
lower case unless "quoted"; a quote in quotes is doubled; one `;` may end the command. The parser
also accepts commands that the server does not support: the server refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct, field

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.errors import CommandSyntaxError
from quorum_wal.pgwire.monitoring_query import MonitoringQuery, parse_monitoring_query
from quorum_wal.pgwire.tokens import Tokens

OPTION_COMMANDS = frozenset(
    {
        "START_WAL_PUSH",
        "IDENTIFY_SAFEKEEPER",
        "LIST_TIMELINES",
        "CREATE_TIMELINE",
        "ACTIVATE_TIMELINE",
        "JOIN_TIMELINE",
        "LEAVE_TIMELINE",
        "FORCE_MEMBERSHIP",
        "DELETE_TIMELINE",
        "MEND_SEGMENT",
        "FORGET_PAGESERVER",
        "TIMELINE_STATUS",
    }
)
_TIMELINE_MAX = 0xFFFFFFFF


class IdentifySystem(Struct, frozen=True):
    """The system's identifier, timeline and position."""


class Show(Struct, frozen=True):
    """The value of a configuration parameter."""

    name: str


class TimelineHistory(Struct, frozen=True):
    """The `.history` file of a timeline."""

    timeline: int


class StartReplication(Struct, frozen=True):
    """Stream WAL from `start_lsn`. Without a timeline: the latest."""

    start_lsn: Lsn
    slot: str | None = None
    timeline: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


class StartLogicalReplication(Struct, frozen=True):
    """Stream decoded changes from `start_lsn`."""

    slot: str
    start_lsn: Lsn
    options: Mapping[str, str] = field(default_factory=dict)


class CreateReplicationSlot(Struct, frozen=True):
    """Create a slot, logical if it has a `plugin`; old key words become options in lower case."""

    slot: str
    temporary: bool = False
    plugin: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def reserve_wal(self) -> bool:
        """Whether WAL must be kept from the creation on."""
        return self.options.get("reserve_wal", "off").lower() in ("true", "on", "1", "yes")


class DropReplicationSlot(Struct, frozen=True):
    """Drop a slot; with `wait`, after it is no longer in use."""

    slot: str
    wait: bool = False


class ReadReplicationSlot(Struct, frozen=True):
    """The type and the restart position of a slot."""

    slot: str


class AlterReplicationSlot(Struct, frozen=True):
    """Change the properties of a slot."""

    slot: str
    options: Mapping[str, str] = field(default_factory=dict)


class BaseBackup(Struct, frozen=True):
    """Send a base backup. Its many options are not parsed."""


class UploadManifest(Struct, frozen=True):
    """Receive the manifest on which an incremental backup is based."""


class OptionCommand(Struct, frozen=True):
    """A command of our own: one of OPTION_COMMANDS and its options."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


Command: TypeAlias = (
    IdentifySystem
    | Show
    | TimelineHistory
    | StartReplication
    | StartLogicalReplication
    | CreateReplicationSlot
    | DropReplicationSlot
    | ReadReplicationSlot
    | AlterReplicationSlot
    | BaseBackup
    | UploadManifest
    | OptionCommand
    | MonitoringQuery
)


def parse_command(text: str) -> Command:
    """The command in `text`. Raises only CommandSyntaxError (42601), with the position."""
    tokens = _Tokens(text)
    parse = _PARSERS.get(tokens.text.upper())
    if parse is None:
        query = parse_monitoring_query(text)
        if query is not None:
            return query
        tokens.fail("a replication command", hint="This server does not execute SQL.")
    tokens.step()
    command = parse(tokens)
    tokens.accept(";")
    if tokens.kind != "end":
        tokens.fail("the end of the command")
    return command


def format_option_command(name: str, options: Mapping[str, str] | None = None) -> str:
    """`WORD (name 'value', ...)`, quoted so that every value is safe."""
    assert name in OPTION_COMMANDS, name
    return name + _format_options(options or {})


def format_start_replication(command: StartReplication) -> str:
    """The text of a physical START_REPLICATION."""
    slot = "" if command.slot is None else f" SLOT {quote_name(command.slot)}"
    timeline = "" if command.timeline is None else f" TIMELINE {command.timeline}"
    options = _format_options(command.options)
    return f"START_REPLICATION{slot} PHYSICAL {command.start_lsn}{timeline}{options}"


def quote_name(name: str) -> str:
    """A name quoted so that it is kept as it is: `"My slot"`."""
    return '"' + name.replace('"', '""') + '"'


def quote_value(value: str) -> str:
    """A value quoted so that it is kept as it is: `'it''s'`."""
    return "'" + value.replace("'", "''") + "'"


def _format_options(options: Mapping[str, str]) -> str:
    if not options:
        return ""
    pairs = (
        f"{name if _BARE_NAME.fullmatch(name) else quote_name(name)} {quote_value(value)}"
        for name, value in options.items()
    )
    return f" ({', '.join(pairs)})"


# --- tokens --------------------------------------------------------------------------------------

_BARE_NAME = re.compile("[a-z_][a-z0-9_$]*")


class _Tokens(Tokens):
    """Adds the elements that only replication commands have."""

    def timeline(self) -> int:
        if self.kind == "number" and len(self.text) <= 10 and 1 <= int(self.text) <= _TIMELINE_MAX:
            return int(self.take("number", ""))
        self.fail(f"a timeline, 1 to {_TIMELINE_MAX}")

    def options(self) -> dict[str, str]:
        """`(name value, ...)`, or nothing."""
        options: dict[str, str] = {}
        if not self.accept("("):
            return options
        while True:
            position = self._at + 1
            name = self.name("the name of an option")
            if name in options:
                raise CommandSyntaxError(f'option "{name}" is given twice', position=position)
            options[name] = self._option_value()
            if not self.accept(","):
                break
        self.expect(")")
        return options

    def _option_value(self) -> str:
        match self.kind:
            case "value":
                return self.take("value", "")[1:-1].replace("''", "'")
            case "number":
                return self.take("number", "")
            case "word" | "name":
                return self.name("")
            case _:
                return "true"

    def option_words(self) -> dict[str, str]:
        """The old form: `RESERVE_WAL`, `NOEXPORT_SNAPSHOT`; each word is an option set to true."""
        words: dict[str, str] = {}
        while self.kind == "word":
            words[self.name("")] = "true"
        return words


# --- one function per command --------------------------------------------------------------------


def _show(tokens: _Tokens) -> Command:
    name = tokens.name("the name of a parameter")
    while tokens.accept("."):
        name += "." + tokens.name("the rest of the parameter's name")
    return Show(name)


def _start_replication(tokens: _Tokens) -> Command:
    slot = tokens.name("the name of a slot") if tokens.accept("SLOT") else None
    if slot is not None and tokens.accept("LOGICAL"):
        return StartLogicalReplication(slot, tokens.lsn(), tokens.options())
    tokens.accept("PHYSICAL")
    start_lsn = tokens.lsn()
    timeline = tokens.timeline() if tokens.accept("TIMELINE") else None
    return StartReplication(start_lsn, slot, timeline, tokens.options())


def _create_replication_slot(tokens: _Tokens) -> Command:
    slot = tokens.name("the name of a slot")
    temporary = tokens.accept("TEMPORARY")
    plugin = None
    if tokens.accept("LOGICAL"):
        plugin = tokens.name("the name of an output plugin")
    elif not tokens.accept("PHYSICAL"):
        tokens.fail("PHYSICAL or LOGICAL")
    options = tokens.options() or tokens.option_words()
    return CreateReplicationSlot(slot, temporary, plugin, options)


def _drop_replication_slot(tokens: _Tokens) -> Command:
    return DropReplicationSlot(tokens.name("the name of a slot"), wait=tokens.accept("WAIT"))


def _alter_replication_slot(tokens: _Tokens) -> Command:
    slot = tokens.name("the name of a slot")
    return AlterReplicationSlot(slot, tokens.options() or tokens.fail("("))


def _base_backup(tokens: _Tokens) -> Command:
    while tokens.kind not in ("end", "bad") and tokens.text != ";":
        tokens.step()
    return BaseBackup()


def _option_command(name: str) -> Callable[[_Tokens], Command]:
    return lambda tokens: OptionCommand(name, tokens.options())


_PARSERS: dict[str, Callable[[_Tokens], Command]] = {
    "IDENTIFY_SYSTEM": lambda _: IdentifySystem(),
    "SHOW": _show,
    "TIMELINE_HISTORY": lambda tokens: TimelineHistory(tokens.timeline()),
    "START_REPLICATION": _start_replication,
    "CREATE_REPLICATION_SLOT": _create_replication_slot,
    "DROP_REPLICATION_SLOT": _drop_replication_slot,
    "READ_REPLICATION_SLOT": lambda tokens: ReadReplicationSlot(tokens.name("the name of a slot")),
    "ALTER_REPLICATION_SLOT": _alter_replication_slot,
    "BASE_BACKUP": _base_backup,
    "UPLOAD_MANIFEST": lambda _: UploadManifest(),
    **{name: _option_command(name) for name in OPTION_COMMANDS},
}
