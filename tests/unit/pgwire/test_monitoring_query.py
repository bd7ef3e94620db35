"""The SQL that a safekeeper supports: as barman 3.19 spells it, and no other."""

from __future__ import annotations

import time

import pytest

from quorum_wal.pgwire.commands import parse_command
from quorum_wal.pgwire.errors import CommandSyntaxError
from quorum_wal.pgwire.monitoring_query import (
    MonitoringQuery,
    SelectMayMonitor,
    SelectOne,
    SelectSetting,
    SelectSlot,
    SetApplicationName,
)

MAY_MONITOR = """
            SELECT
            (
                pg_has_role(CURRENT_USER, 'pg_monitor', 'USAGE')
                OR
                (
                    pg_has_role(CURRENT_USER, 'pg_read_all_settings', 'USAGE')
                    AND pg_has_role(CURRENT_USER, 'pg_read_all_stats', 'USAGE')
                )
            )
            """
SLOT = (
    "SELECT slot_name, active, restart_lsn FROM pg_replication_slots "
    "WHERE slot_type = 'physical' AND slot_name = {}"
)

QUERIES: list[tuple[str, MonitoringQuery]] = [
    ("SELECT 1", SelectOne()),
    (" select  1 ;\n", SelectOne()),
    ("SELECT setting FROM pg_settings WHERE name='wal_segment_size'",
     SelectSetting("wal_segment_size")),
    (SLOT.format("'barman'"), SelectSlot("barman")),
    (SLOT.format("'it''s'"), SelectSlot("it's")),
    (MAY_MONITOR, SelectMayMonitor()),
    ("SET application_name TO barman", SetApplicationName("barman")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "query"), QUERIES)
def test_statements(text: str, query: MonitoringQuery) -> None:
    assert parse_command(text) == query


@pytest.mark.parametrize(
    "text",
    [
        "SELECT", "SELECT 2", "SELECT 1; SELECT 1", "SELECT 1 -- so", "SELECT version()",
        "SELECT setting FROM pg_settings", "SELECT setting FROM pg_settings WHERE name = $",
        "SELECT setting FROM pg_settings WHERE name = 'a' OR 'a'", SLOT.format("current_user"),
        SLOT.format("'a' OR 1"), SLOT.format("'a"), SLOT.format("(SELECT 1)"),
        "SET application_name TO", "SET session_authorization TO a", "SELECTsetting",
        "SET application_name TO ;",
    ],
)  # fmt: skip
def test_all_other_sql_is_none(text: str) -> None:
    with pytest.raises(CommandSyntaxError) as error:
        parse_command(text)
    assert error.value.hint == "This server does not execute SQL."


@pytest.mark.parametrize("piece", ["'", "''", "SELECT ", " ", "(", "a'"])
def test_parsing_takes_linear_time(piece: str) -> None:
    begin = time.process_time()
    with pytest.raises(CommandSyntaxError):
        parse_command("SELECT " + piece * 200_000)
    assert time.process_time() - begin < 2
