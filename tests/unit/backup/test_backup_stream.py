"""BASE_BACKUP: the command, the messages, and malicious answers of a server."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from quorum_wal.backup.base_backup import (
    ArchiveData,
    BackupOptions,
    BaseBackup,
    NewArchive,
    Progress,
    parse_message,
)
from quorum_wal.backup.errors import BackupError


def test_the_command() -> None:
    assert BackupOptions(label="it's").command() == (
        "BASE_BACKUP (LABEL 'it''s', PROGRESS, CHECKPOINT 'fast', WAL false, WAIT false, "
        "MANIFEST 'yes')"
    )
    slow = BackupOptions(label="x", is_fast=False, max_rate_kb=64).command()
    assert "CHECKPOINT 'spread'" in slow
    assert slow.endswith(", MAX_RATE 64)")


def test_messages() -> None:
    assert parse_message(memoryview(b"nbase.tar\0\0")) == NewArchive("base.tar", "")
    assert parse_message(memoryview(b"n16384.tar\0/ts\0")) == NewArchive("16384.tar", "/ts")
    assert parse_message(memoryview(b"m")) == NewArchive("backup_manifest")
    assert parse_message(memoryview(b"p" + (258).to_bytes(8, "big"))) == Progress(258)
    message = parse_message(memoryview(b"dxyz"))
    assert isinstance(message, ArchiveData)
    assert bytes(message.data) == b"xyz"


def test_a_server_that_is_too_old_is_not_asked() -> None:
    connection = Mock()
    connection.info.server_version = 140012
    with pytest.raises(BackupError, match="needs Postgres 15 or newer, the server is 14"):
        BaseBackup(connection, BackupOptions(label="x")).start()
    connection.pgconn.send_query.assert_not_called()


@pytest.mark.parametrize(
    "payload",
    [b"n", b"nbase.tar\0", b"n../base.tar\0\0", b"n.tar\0\0", b"nbase\0\0", b"p123", b"x", b""],
)
def test_unknown_messages_are_refused(payload: bytes) -> None:
    with pytest.raises(BackupError):
        parse_message(memoryview(payload))
