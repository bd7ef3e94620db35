"""`sk archive` on an archive in S3; the secret appears nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from archived_log import FIRST_SEGNO, SEG_SIZE, TIMELINE, log_facts, log_of
from s3_server import SECRET, S3Server
from sk_command import Done, assert_refused, sk

from quorum_wal.backup.wal_prefetch import FOLDER
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import open_store
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.segment import format_segment_name

TIMEOUT = 60.0
SEGNOS = range(FIRST_SEGNO, FIRST_SEGNO + 6)


@pytest.fixture
def archive(s3_server: S3Server) -> TimelineArchive:
    store = open_store(s3_server.new_bucket() + "/db 1", s3_server.options())
    made = TimelineArchive.create(store, TIMELINE, log_facts())
    for segno in SEGNOS:
        made.put_wal(ArchivedWal(1, segno, (segno + 1) * SEG_SIZE), log_of(segno))
    return made


def command(server: S3Server, url: str, *arguments: object) -> Done:
    """The secret is in the environment, as it should be."""
    options = server.options()
    secret = options.pop("secret_access_key")
    given = [f"--archive-option={name}={value}" for name, value in options.items()]
    env = {"AWS_SECRET_ACCESS_KEY": secret}
    done = sk("archive", arguments[0], f"--archive={url}", *given, *arguments[1:], env=env)
    assert SECRET not in done.stdout + done.stderr
    return done


def test_the_content_of_an_archive(s3_server: S3Server, archive: TimelineArchive) -> None:
    url = archive.store.url
    (status,) = json.loads(command(s3_server, url, "status", "--json").stdout)
    assert (status["objects"], status["archived_lsn"]) == (len(SEGNOS), "0/900000")
    done = command(s3_server, url, "verify")
    assert done.returncode == 0, done.stdout + done.stderr
    archive.store.delete(archive.keys.segment(1, 5))
    done = command(s3_server, url, "verify", "--fast")
    assert "gap: 0/500000 to 0/600000" in done.stdout
    assert command(s3_server, url, "prune", "--before=0/700000").returncode == 0
    assert [wal.segno for wal in archive.wal(1)] == [7, 8]


def files_in(folder: Path) -> Iterator[bytes]:
    """The content of each file, except one that a prefetch renames meanwhile."""
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            yield path.read_bytes()


def test_a_restore(s3_server: S3Server, archive: TimelineArchive, tmp_path: Path) -> None:
    """In order, as Postgres requests them; prefetched segments exist, and are removed at the
    end."""
    target = tmp_path / "RECOVERYXLOG"
    url = archive.store.url
    for segno in SEGNOS:
        target.unlink(missing_ok=True)
        name = format_segment_name(1, segno, SEG_SIZE)
        done = command(s3_server, url, "fetch", f"--timeline={TIMELINE}", name, target)
        assert done.returncode == 0, done.stderr
        assert target.read_bytes() == log_of(segno)
        assert not any(SECRET.encode() in content for content in files_in(tmp_path / FOLDER))
    last = format_segment_name(1, SEGNOS.stop, SEG_SIZE)
    done = command(s3_server, url, "fetch", f"--timeline={TIMELINE}", last, target)
    assert done.returncode == 1
    wait_until(lambda: not (tmp_path / FOLDER).exists(), TIMEOUT, "nothing to be left")


def test_a_bucket_that_is_missing(s3_server: S3Server, tmp_path: Path) -> None:
    """This is not the end of the WAL."""
    name = format_segment_name(1, FIRST_SEGNO, SEG_SIZE)
    arguments = ("fetch", "--patience=0", f"--timeline={TIMELINE}", name, tmp_path / "x")
    done = command(s3_server, "s3://nobodys", *arguments)
    assert_refused(done, 255, "s3://nobodys does not exist", hint="Create the bucket")
