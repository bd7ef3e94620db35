"""The SQLite file: foreign files are refused, and a file that is set back does little harm."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quorum_wal.generations import sqlite_store
from quorum_wal.generations.errors import GenerationDatabaseError, GenerationServiceUnavailable
from quorum_wal.generations.messages import TenantGeneration
from quorum_wal.generations.operations import Generations, embedded_generations
from quorum_wal.generations.sqlite_store import SqliteStore
from quorum_wal.generations.suffix import Suffix

EXTRA = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "generations.db"


@pytest.fixture
def generations(path: Path) -> Iterator[Generations]:
    found = embedded_generations(str(path))
    yield found
    found.close()


def test_the_settings_for_durability(path: Path) -> None:
    store = SqliteStore(path, create=True)
    try:
        read = store.read
        assert read(lambda transaction: transaction.rows("PRAGMA synchronous")) == [(EXTRA,)]
        assert read(lambda transaction: transaction.rows("PRAGMA journal_mode")) == [("delete",)]
    finally:
        store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_file_is_created_only_on_request(path: Path) -> None:
    with pytest.raises(GenerationDatabaseError, match="No such file") as refused:
        SqliteStore(path, create=False)
    assert "sk generations serve" in refused.value.hint
    assert not path.exists()
    path.touch()
    with pytest.raises(GenerationDatabaseError, match="does not contain generations"):
        SqliteStore(path, create=False)


def test_a_foreign_file_is_not_changed(path: Path) -> None:
    path.write_bytes(b"a letter, not a database" * 100)
    with pytest.raises(GenerationDatabaseError, match="file is not a database"):
        SqliteStore(path, create=True)
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE tenants (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(GenerationDatabaseError, match="does not contain generations"):
        SqliteStore(path, create=True)
    assert path.read_bytes() == before
    with pytest.raises(GenerationDatabaseError, match="Is a directory"):
        SqliteStore(path.parent, create=True)


def test_a_newer_format_is_refused(path: Path, generations: Generations) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE format SET version = 2")
        connection.commit()
    with pytest.raises(GenerationDatabaseError, match=r"has format \[2\], expected \[1\]"):
        SqliteStore(path, create=True)


def test_a_long_lock_makes_the_service_unavailable(
    path: Path, generations: Generations, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS", 0.1)
    with closing(embedded_generations(str(path))) as other:
        with closing(sqlite3.connect(path)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            with pytest.raises(GenerationServiceUnavailable, match="database is locked"):
                other.register_node(3, "x")
            with pytest.raises(GenerationServiceUnavailable, match="database is locked"):
                other.validate(3, 1, [TenantGeneration(tenant, 1)])
        assert other.register_node(3, "x").node_generation == 1


def test_a_replaced_file_is_refused(path: Path, generations: Generations) -> None:
    generations.register_node(3, "x")
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    os.replace(copy, path)
    with pytest.raises(GenerationDatabaseError, match="was replaced while it was open"):
        generations.register_node(3, "x")
    path.unlink()
    with pytest.raises(GenerationDatabaseError, match="was replaced while it was open"):
        generations.status()


def restore(path: Path, content: bytes) -> None:
    """Like `cp old generations.db`: overwrites the open file."""
    path.write_bytes(content)


def test_a_database_that_is_set_back_repeats_no_number(
    path: Path, generations: Generations, tenant: str
) -> None:
    """New numbers are greater than all assigned before. An attachment that is stale, but current in
    the old copy, does not become valid."""
    generations.register_node(3, "x")
    generations.register_node(4, "x")
    generations.attach(tenant, 3)
    old = path.read_bytes()
    generations.register_node(3, "y")
    generations.move(tenant, 4)
    restore(path, old)
    with capture_logs() as lines:
        for node, process, generation in ((3, 1, 1), (3, 2, 1), (4, 1, 2)):
            asked = [TenantGeneration(tenant, generation)]
            answer = generations.validate(node, process, asked)
            assert not answer.tenants[0].is_valid
    assert lines[0]["event"].startswith("the database was set back")
    assert generations.register_node(3, "z").node_generation == 3
    assert generations.fence_tenant(tenant, 4).attachment_generation == 3
    asked = [TenantGeneration(tenant, 3)]
    assert generations.validate(4, 1, asked).tenants[0].is_valid


def test_advance_repairs_a_service_on_an_old_copy(path: Path, tenant: str) -> None:
    with closing(embedded_generations(str(path))) as first:
        first.attach(tenant, 3)
        first.register_node(4, "x")
        old = path.read_bytes()
        first.move(tenant, 4)
        seen = Suffix.pack(2, 4, first.register_node(4, "y").node_generation)
    restore(path, old)
    with closing(embedded_generations(str(path))) as second:
        current = second.advance(tenant, seen).current
        assert current is not None
        assert (current.node_id, current.attachment_generation) == (3, 3)
        assert second.register_node(4, "z").node_generation > seen.node_generation
