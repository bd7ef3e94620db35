"""The commands as real clients spell them, and errors with the position."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.commands import (
    OPTION_COMMANDS,
    AlterReplicationSlot,
    BaseBackup,
    Command,
    CreateReplicationSlot,
    DropReplicationSlot,
    IdentifySystem,
    OptionCommand,
    ReadReplicationSlot,
    Show,
    StartLogicalReplication,
    StartReplication,
    TimelineHistory,
    UploadManifest,
    format_option_command,
    format_start_replication,
    parse_command,
)
from quorum_wal.pgwire.errors import CommandSyntaxError

LSN = Lsn.parse("16/B374D848")
NODE_ID = "5/000102030405060708090a0b0c0d0e0f"

COMMANDS: list[tuple[str, Command]] = [
    ("IDENTIFY_SYSTEM", IdentifySystem()),
    ("  identify_system ;\n", IdentifySystem()),
    ("SHOW data_directory_mode", Show("data_directory_mode")),
    ("show Wal_Segment_Size;", Show("wal_segment_size")),
    ('SHOW "My".param', Show("My.param")),
    ("TIMELINE_HISTORY 2", TimelineHistory(2)),
    ("TIMELINE_HISTORY 4294967295", TimelineHistory(0xFFFFFFFF)),
    # walreceiver and pg_receivewal, 13 to 18
    ("START_REPLICATION 16/B374D848 TIMELINE 1", StartReplication(LSN, timeline=1)),
    (
        'START_REPLICATION SLOT "s" 16/B374D848 TIMELINE 3',
        StartReplication(LSN, slot="s", timeline=3),
    ),
    # psycopg2: the low word has eight digits
    ("START_REPLICATION 0/0000ABCD", StartReplication(Lsn(0xABCD))),
    # pglogrepl: free spaces
    (
        "START_REPLICATION SLOT s PHYSICAL 16/b374d848  TIMELINE 1 ",
        StartReplication(LSN, slot="s", timeline=1),
    ),
    # pgjdbc
    ("START_REPLICATION PHYSICAL 0/0", StartReplication(Lsn(0))),
    # pgmoneta
    (
        "START_REPLICATION SLOT s PHYSICAL 16/B374D848 TIMELINE 1;",
        StartReplication(LSN, slot="s", timeline=1),
    ),
    # ours
    (
        f"START_REPLICATION 16/B374D848 (node_id '{NODE_ID}')",
        StartReplication(LSN, options={"node_id": NODE_ID}),
    ),
    # pg_recvlogical
    (
        'START_REPLICATION SLOT "l" LOGICAL 0/0 ("proto_version" \'3\', two_phase)',
        StartLogicalReplication("l", Lsn(0), {"proto_version": "3", "two_phase": "true"}),
    ),
    ('CREATE_REPLICATION_SLOT "s" PHYSICAL', CreateReplicationSlot("s")),
    ("CREATE_REPLICATION_SLOT MySlot PHYSICAL", CreateReplicationSlot("myslot")),
    (
        'CREATE_REPLICATION_SLOT "pg_walreceiver_1" TEMPORARY PHYSICAL RESERVE_WAL',  # 13, 14
        CreateReplicationSlot("pg_walreceiver_1", temporary=True, options={"reserve_wal": "true"}),
    ),
    (
        'CREATE_REPLICATION_SLOT "pg_basebackup_1" TEMPORARY PHYSICAL ( RESERVE_WAL)',  # 15
        CreateReplicationSlot("pg_basebackup_1", temporary=True, options={"reserve_wal": "true"}),
    ),
    (
        "CREATE_REPLICATION_SLOT l LOGICAL pgoutput NOEXPORT_SNAPSHOT TWO_PHASE",
        CreateReplicationSlot(
            "l", plugin="pgoutput", options={"noexport_snapshot": "true", "two_phase": "true"}
        ),
    ),
    (
        'CREATE_REPLICATION_SLOT "l" LOGICAL "p" ( TWO_PHASE,  SNAPSHOT \'nothing\')',
        CreateReplicationSlot(
            "l", plugin="p", options={"two_phase": "true", "snapshot": "nothing"}
        ),
    ),
    ("READ_REPLICATION_SLOT s", ReadReplicationSlot("s")),
    ('DROP_REPLICATION_SLOT "s"', DropReplicationSlot("s")),
    ("DROP_REPLICATION_SLOT s wait", DropReplicationSlot("s", wait=True)),
    (
        "ALTER_REPLICATION_SLOT s (FAILOVER false, TWO_PHASE 1)",
        AlterReplicationSlot("s", {"failover": "false", "two_phase": "1"}),
    ),
    ("UPLOAD_MANIFEST", UploadManifest()),
    ("BASE_BACKUP LABEL 'x;y' PROGRESS FAST MAX_RATE 32;", BaseBackup()),  # 13, 14
    ("BASE_BACKUP ( LABEL 'x',  PROGRESS,  CHECKPOINT 'fast',  WAIT 0)", BaseBackup()),
    ("START_WAL_PUSH", OptionCommand("START_WAL_PUSH")),
    (
        "create_timeline (tenant_id 'it''s', tli 1, \"Odd name\" b, flag)",
        OptionCommand(
            "CREATE_TIMELINE",
            {"tenant_id": "it's", "tli": "1", "Odd name": "b", "flag": "true"},
        ),
    ),
]


@pytest.mark.parametrize(("text", "command"), COMMANDS)
def test_commands(text: str, command: Command) -> None:
    assert parse_command(text) == command


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 1, "at end of input: expected a replication command"),
        ("  SELECT 2", 3, 'at or near "SELECT": expected a replication command'),
        ("IDENTIFY_SYSTEM x", 17, "expected the end of the command"),
        ("IDENTIFY_SYSTEM;;", 17, 'near ";"'),
        ("SHOW", 5, "expected the name of a parameter"),
        ("TIMELINE_HISTORY 0", 18, "expected a timeline, 1 to 4294967295"),
        ("TIMELINE_HISTORY 4294967296", 18, "expected a timeline"),
        ("TIMELINE_HISTORY " + "9" * 5000, 18, "expected a timeline"),
        ("TIMELINE_HISTORY ²", 18, "expected a timeline"),
        ("START_REPLICATION SLOT s PHYSICAL 0", 35, "expected an LSN such as"),
        ("START_REPLICATION 123456789/0", 19, "expected an LSN such as"),
        ("START_REPLICATION LOGICAL 0/0", 19, "expected an LSN such as"),
        ("START_REPLICATION 0/0 TIMELINE x", 32, "expected a timeline"),
        ("START_REPLICATION 0/0 (a 'b'", 29, "at end of input: expected )"),
        ("START_REPLICATION 0/0 ()", 24, "expected the name of an option"),
        ("START_WAL_PUSH (a 'b',)", 23, "expected the name of an option"),
        ("START_WAL_PUSH (a 'b' 'c')", 23, "expected )"),
        ("START_WAL_PUSH (a 'b', A 'c')", 24, 'option "a" is given twice'),
        ("START_WAL_PUSH (a 'b", 19, "expected a closing quote"),
        ("START_WAL_PUSH (a 'b'')", 19, "expected a closing quote"),
        ('DROP_REPLICATION_SLOT "s', 23, "expected a closing quote"),
        ('DROP_REPLICATION_SLOT ""', 23, "expected a closing quote"),
        ("CREATE_REPLICATION_SLOT s", 26, "expected PHYSICAL or LOGICAL"),
        ("ALTER_REPLICATION_SLOT s", 25, "expected ("),
        ("BASE_BACKUP LABEL 'x", 19, "expected a closing quote"),
        ("\u017fHOW x", 1, "expected a replication command"),  # upper-cases to SHOW
    ],
)
def test_errors_have_a_position(text: str, position: int, expected: str) -> None:
    with pytest.raises(CommandSyntaxError) as caught:
        parse_command(text)
    assert expected in str(caught.value)
    assert (caught.value.position, caught.value.sqlstate) == (position, "42601")


def test_a_slot_reserves_wal_only_on_request() -> None:
    for text, reserves in (
        ("", False),
        ("RESERVE_WAL", True),
        ("(RESERVE_WAL)", True),
        ("(RESERVE_WAL 'on')", True),
        ("(RESERVE_WAL false)", False),
        ("(RESERVE_WAL 0)", False),
    ):
        command = parse_command(f"CREATE_REPLICATION_SLOT s PHYSICAL {text}")
        assert isinstance(command, CreateReplicationSlot)
        assert command.reserve_wal is reserves, text


@given(
    st.sampled_from(sorted(OPTION_COMMANDS)),
    st.dictionaries(st.text(min_size=1), st.text()),
)
@example("START_WAL_PUSH", {"a": "'); DROP_REPLICATION_SLOT s; --", 'b" (': "''"})
def test_a_formatted_command_is_parsed_back(name: str, options: dict[str, str]) -> None:
    assert parse_command(format_option_command(name, options)) == OptionCommand(name, options)


@given(
    st.builds(
        StartReplication,
        st.integers(0, 2**64 - 1).map(Lsn),
        st.none() | st.text(min_size=1),
        st.none() | st.integers(1, 2**32 - 1),
        st.dictionaries(st.text(min_size=1), st.text()),
    )
)
def test_a_formatted_start_replication_is_parsed_back(command: StartReplication) -> None:
    assert parse_command(format_start_replication(command)) == command


def error_of(text: str) -> CommandSyntaxError | None:
    """The error of parse_command(), which may raise no other."""
    try:
        parse_command(text)
    except CommandSyntaxError as error:
        return error
    return None


WORDS = sorted({word for text, _ in COMMANDS for word in text.split()})


@given(st.text() | st.lists(st.sampled_from(WORDS) | st.text(max_size=3)).map(" ".join))
def test_any_text_is_a_command_or_a_syntax_error(text: str) -> None:
    error = error_of(text)
    if error is not None:
        assert error.position in range(1, len(text) + 2)


@pytest.mark.parametrize(
    "text",
    [
        "BASE_BACKUP " + "'" * 1_000_001,
        "BASE_BACKUP " + "a" * 1_000_000,
        "BASE_BACKUP " + " " * 1_000_000,
        "START_REPLICATION " + "0" * 1_000_000,
        "START_WAL_PUSH (" + "a" * 500_000 + '"' * 500_001,
    ],
    ids=lambda text: text[:20],
)
def test_the_longest_command_is_parsed_in_linear_time(text: str) -> None:
    begin = time.monotonic()
    assert len(str(error_of(text))) < 200, "a report must not repeat it all"
    assert time.monotonic() - begin < 5, "a scan that tries again would take hours"
