"""The SQL of a two-phase transaction. Other tests run it on a real Postgres."""

from __future__ import annotations

import psycopg
import pytest

from quorum_wal.qsync.errors import UsageError
from quorum_wal.qsync.gid import Gid, Policy
from quorum_wal.qsync.options import Options
from quorum_wal.qsync.statements import Facts, Finish, Result, begin, format_lsn, parse_lsn, prepare

GID = Gid(Policy.DETACH, 5000, 1, 0x1000, 725, 1, "0" * 32)
ERROR = Result(error=psycopg.OperationalError("no"))
LSN = Result(row=("16/B374D848",))


def test_begin_has_the_attributes_of_the_connection() -> None:
    mark = "; SET LOCAL qsync.transaction = 'on'"
    assert begin(None, None, None).decode() == "BEGIN" + mark
    level = psycopg.IsolationLevel.REPEATABLE_READ
    asked = "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE DEFERRABLE"
    assert begin(level, False, True).decode() == asked + mark


def test_prepare_waits_for_no_standby() -> None:
    local, command, position = prepare(GID).decode().split("; ")
    assert local == "SET LOCAL synchronous_commit = local"
    assert command == f"PREPARE TRANSACTION '{GID}'"
    assert position.startswith("SELECT pg_current_wal_flush_lsn()")


def test_finish_alone() -> None:
    finish = Finish(GID, is_commit=False)
    assert finish.statements[0].decode() == f"ROLLBACK PREPARED '{GID}'"
    assert finish.flush_lsn([Result("ROLLBACK PREPARED"), LSN]) == 0x16_B374D848
    assert finish.flush_lsn([Result("ROLLBACK PREPARED"), ERROR]) == 0
    assert finish.error([ERROR, LSN]) is ERROR.error
    assert finish.is_restored([ERROR, LSN])
    alone = Finish(GID, is_commit=True, returns_lsn=False)
    assert alone.statements == (f"COMMIT PREPARED '{GID}'".encode(),)
    assert alone.flush_lsn([Result("COMMIT PREPARED")]) == 0


def test_finish_with_settings_of_its_own() -> None:
    finish = Finish(GID, True, True, (("synchronous_commit", "local"), ("role", "o'b\\")))
    texts = [statement.decode() for statement in finish.statements]
    assert texts[:2] == [
        f"SELECT set_config('qsync.{name}', current_setting('{name}'), false)"
        for name in ("synchronous_commit", "role")
    ]
    assert texts[2] == "SELECT set_config('synchronous_commit', E'local', false)"
    assert texts[3] == "SELECT set_config('role', E'o''b\\\\', false)"
    assert texts[4] == f"COMMIT PREPARED '{GID}'"
    assert texts[5].endswith(
        "('synchronous_commit', current_setting('qsync.synchronous_commit'), false)"
    )
    ok = [Result("SELECT 1")] * 7
    assert finish.is_restored([*ok, LSN])
    assert not finish.is_restored([*ok[:6], ERROR, LSN])
    assert finish.error([*ok[:4], ERROR, *ok[:2], LSN]) is ERROR.error


def test_facts() -> None:
    wal_file = "0000000A00000016000000B3"
    row = ("on", "725", "0/1000", wal_file, "1795514464.318123", "1795500000.000123", "", "77")
    assert Facts.of(row) == Facts(True, 725, 0x1000, 10, 1795514464318, 1795500000000123, False, 77)
    other = (None, None, "0/1000", wal_file, "1795514464", "0.5", "ANY 1 (a)", "77")
    assert Facts.of(other) == Facts(False, None, 0x1000, 10, 1795514464000, 500_000, True, 77)


def test_positions() -> None:
    assert parse_lsn("16/B374D848") == 0x16_B374D848
    assert format_lsn(0x16_B374D848) == "16/B374D848"
    assert format_lsn(parse_lsn("0/0")) == "0/0"


@pytest.mark.parametrize(
    "wrong",
    [{"timeout": 0}, {"timeout": -1}, {"on_timeout": "commit"}, {"confirm": "no"}, {"wait": ""}],
)
def test_options_that_do_not_exist(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"invalid {next(iter(wrong))}"):
        Options(**wrong)  # type: ignore[arg-type]


def test_options_but() -> None:
    assert Options().with_changes(timeout=1, wait="submit") == Options(timeout=1, wait="submit")
    assert Options(on_timeout="rollback").with_changes(confirm="visible").policy is Policy.ROLLBACK
