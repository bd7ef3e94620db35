"""`sk archive status, ls, verify, prune` on the archive of a real cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from failover_world import FailoverWorld, Loss
from sk_command import assert_refused, assert_wrong_usage, sk, sk_json
from test_archiving import ArchivedCluster, timeline_of

from quorum_wal.cli.archive_fetch import PATIENCE_SECONDS
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name

TIMEOUT = 120.0
MB = 1 << 20
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', {} << 20))"
INTERVAL = "--archive-partial-interval=0.5"


@pytest.fixture
def archived(
    quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> Callable[[], ArchivedCluster]:
    def make() -> ArchivedCluster:
        folder = tmp_path / "archive"
        cluster = quorum_cluster(
            wal_seg_size=MB, safekeeper_arguments=[f"--archive={folder}", INTERVAL]
        )
        return ArchivedCluster(cluster, folder)

    return make


def wait_all_archived(world: ArchivedCluster) -> int:
    """Return the archived WAL when all committed WAL is archived, the last segment partially."""
    primary = world.cluster.postgres
    primary.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
    lsn = int(primary.flush_lsn())
    world.wait_archived(lsn)

    def is_known() -> bool:
        keepers = world.cluster.safekeepers
        return all(Lsn.parse(timeline_of(keeper)["commit_lsn"]) >= lsn for keeper in keepers)

    wait_until(is_known, TIMEOUT, "all to know what is committed")
    return world.archived_lsn()


def test_status_ls_verify_prune(archived: Callable[[], ArchivedCluster]) -> None:
    world = archived()
    world.cluster.postgres.execute(FILL.format(6))
    end_lsn = wait_all_archived(world)
    check_status(world, end_lsn)
    check_ls(world, end_lsn)
    check_verify(world, end_lsn)
    check_prune(world, end_lsn)


def check_status(world: ArchivedCluster, end_lsn: int) -> None:
    safekeepers = ",".join(safekeeper.address for safekeeper in world.cluster.safekeepers)
    (status,) = sk_json("archive", "status", option(world), f"--safekeepers={safekeepers}")
    facts = world.archive().facts
    assert status["system_id"] == str(facts.system_id)
    assert status["pg_version"] == facts.pg_version
    assert Lsn.parse(status["timeline_start_lsn"]) == facts.timeline_start_lsn
    assert status["begin_lsn"] == status["timeline_start_lsn"]
    assert Lsn.parse(status["archived_lsn"]) >= end_lsn
    assert Lsn.parse(status["commit_lsn"]) >= end_lsn
    assert (status["behind_bytes"], status["gaps"], status["backups"]) == (0, 0, 0)
    age = datetime.now(UTC) - datetime.fromisoformat(status["newest_object_at"])
    assert age.total_seconds() < TIMEOUT
    table = sk("archive", "status", option(world)).stdout
    assert str(world.timeline) in table
    assert status["archived_lsn"] in table


def lists_of_one_moment(
    world: ArchivedCluster,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the ranges and every object of one moment; the server may write more WAL meanwhile."""
    ranges: list[dict[str, Any]] = []
    every: list[dict[str, Any]] = []

    def is_still() -> bool:
        ranges[:] = sk_json("archive", "ls", option(world))
        every[:] = sk_json("archive", "ls", option(world), "--all")
        return ranges == sk_json("archive", "ls", option(world))

    wait_until(is_still, TIMEOUT, "a moment without a new object")
    return ranges, every


def check_ls(world: ArchivedCluster, end_lsn: int) -> None:
    archive = world.archive()
    ranges, every = lists_of_one_moment(world)
    start_lsn = archive.facts.timeline_start_lsn
    assert Lsn.parse(ranges[0]["begin_lsn"]) == start_lsn
    assert ranges[0]["objects"] == end_lsn // MB - start_lsn // MB
    assert Lsn.parse(ranges[0]["end_lsn"]) == end_lsn // MB * MB
    assert all(Lsn.parse(row["end_lsn"]) % MB for row in ranges[1:])  # partial segments
    stored = {info.key: info.size_bytes for info in archive.store.list(archive.keys.wal)}
    assert {row["key"]: row["stored_bytes"] for row in every} == stored
    for column in ("objects", "stored_bytes"):
        assert sum(row[column] for row in ranges) == sum(row[column] for row in every)


def check_verify(world: ArchivedCluster, end_lsn: int) -> None:
    start_lsn, first = world.archive().facts.timeline_start_lsn, first_segno(world)
    for options in ((), ("--fast",), ("--jobs=1",)):
        code, text = verdict(world, end_lsn, *options)
        assert code == 0, text
        assert f"sound: the log from {Lsn(start_lsn)} to {Lsn(end_lsn)}" in text
    for safekeeper in world.cluster.safekeepers:
        safekeeper.kill()  # they would upload the hidden segment again
    key = world.archive().keys.segment
    hidden, damaged = (world.folder / key(1, first + number) for number in (2, 4))
    content = hidden.read_bytes()
    hidden.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-7])
    for options in ((), ("--fast",)):
        code, text = verdict(world, end_lsn, *options)
        assert code == 1
        assert f"gap: {Lsn((first + 2) * MB)} to {Lsn((first + 3) * MB)}" in text
        assert f'damaged: object "{key(1, first + 4)}" is damaged' in text
        assert "NOT SOUND: 1 gaps and 1 damaged objects" in text
    code, text = verdict(world, end_lsn, "--json", f"--from={Lsn((first + 2) * MB)}")
    assert (code, json.loads(text)["sound"]) == (1, False)
    assert verdict(world, end_lsn, f"--from={Lsn((first + 5) * MB)}")[0] == 0
    (status,) = sk_json("archive", "status", option(world))
    assert Lsn.parse(status["archived_lsn"]) == (first + 2) * MB  # the WAL that a restore can reach
    assert "1 GAPS" in sk("archive", "status", option(world)).stdout
    hidden.write_bytes(content)


def check_prune(world: ArchivedCluster, end_lsn: int) -> None:
    horizon_lsn = (first_segno(world) + 5) * MB
    before = f"--before={Lsn(horizon_lsn + 100)}"
    would = sk("archive", "prune", option(world), before, "--dry-run")
    assert would.returncode == 0
    assert "would remove 5 segments" in would.stdout
    assert would.stdout.count("/wal/") == 5
    assert first_segno(world) * MB + 5 * MB == horizon_lsn  # all objects still exist
    done = sk("archive", "prune", option(world), before)
    assert "removed 5 segments" in done.stdout, done.stderr
    assert verdict(world, end_lsn, f"--from={Lsn(horizon_lsn)}")[0] == 0
    (status,) = sk_json("archive", "status", option(world))
    assert Lsn.parse(status["begin_lsn"]) == horizon_lsn
    assert (status["gaps"], Lsn.parse(status["archived_lsn"]) >= end_lsn) == (0, True)
    beyond = sk("archive", "prune", option(world), "--before=FF/0")
    assert_refused(beyond, 1, "--before is beyond it", hint="the newest segment is always kept")
    nothing = sk("archive", "prune", option(world), "--keep-backups")
    assert_refused(nothing, 1, "there is no backup", hint="sk backup create")


def option(world: ArchivedCluster) -> str:
    return f"--archive={world.folder}"


def first_segno(world: ArchivedCluster) -> int:
    return next(world.archive().wal(1)).segno


def verdict(world: ArchivedCluster, end_lsn: int, *options: str) -> tuple[int, str]:
    done = sk("archive", "verify", option(world), f"--to={Lsn(end_lsn)}", *options)
    assert done.stderr == ""  # no progress bar without a terminal
    return done.returncode, done.stdout


def test_after_a_failover(failover_world: Callable[..., FailoverWorld], tmp_path: Path) -> None:
    """The log continues from one timeline to the next inside a segment, and that segment can be
    fetched for each of the two."""
    folder = tmp_path / "archive"
    world = failover_world(safekeeper_arguments=[f"--archive={folder}", INTERVAL])
    archived = ArchivedCluster(world.cluster, folder)
    world.cluster.postgres.execute(FILL.format(2))
    archived.wait_archived(world.cluster.postgres.flush_lsn())
    world.lose(Loss.MACHINE)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        world.standby.execute(FILL.format(2))
        end_lsn = world.standby.flush_lsn()
        archived.wait_archived(end_lsn)
        (switch,) = archived.archive().newest_history().entries
        source = option(archived)
        done = sk("archive", "verify", source, f"--to={end_lsn}")
        assert done.returncode == 0, done.stdout + done.stderr
        (status,) = sk_json("archive", "status", source)
        assert status["tli"] == 2
        assert [row["tli"] for row in sk_json("archive", "ls", source)][-1] == 2
        # The files that a recovery on either timeline requests.
        segno, length = divmod(int(switch.switch_lsn), MB)
        new = fetched(tmp_path, source, format_segment_name(2, segno, MB))
        old = fetched(tmp_path, source, format_segment_name(1, segno, MB))
        safekeepers = ",".join(s.address for s in world.cluster.safekeepers)
        live = fetched(tmp_path, f"--safekeepers={safekeepers}", format_segment_name(1, segno, MB))
        assert old == live == new[:length].ljust(MB, b"\0")
        assert new == (world.standby.pg_wal / format_segment_name(2, segno, MB)).read_bytes()
        for where in (source, f"--safekeepers={safekeepers}"):
            history = fetched(tmp_path, where, "00000002.history").decode()
            assert history.split()[:2] == ["1", str(switch.switch_lsn)]
            missing = sk("archive", "fetch", where, "00000003.history", tmp_path / "x")
            assert missing.returncode == 1
            later = format_segment_name(1, segno + 1, MB)
            assert sk("archive", "fetch", where, later, tmp_path / "x").returncode == 1


def fetched(folder: Path, source: str, name: str) -> bytes:
    path = folder / "fetched"
    path.unlink(missing_ok=True)
    done = sk("archive", "fetch", "--prefetch=0", source, name, path)
    assert done.returncode == 0, done.stderr
    return path.read_bytes()


NAME = "000000010000000000000001"


def test_fetch_refuses_with_255(tmp_path: Path) -> None:
    """Postgres must take no other answer for "the file does not exist"."""
    target = tmp_path / "x"
    for arguments, sentence in (
        (["--archive=/nowhere/at/all"], "has 0 timelines"),
        (["--archive=relative"], "must be an absolute path"),
        (["--archive=ftp://x/y"], "could not open archive"),
        (["--archive=/x", "--archive-option=region=x"], "a folder has no options"),
        (["--archive=/x", "--timeline=nonsense"], "invalid timeline id"),
        (["--safekeepers=127.0.0.1:1"], "only 0 of 1 safekeepers answered"),
    ):
        done = sk("archive", "fetch", "--patience=0", *arguments, NAME, target)
        assert_refused(done, 255, sentence, hint=_hint_in(done.stderr))
    for arguments in (["--no-such-option", NAME, target], [NAME], [NAME, target], [f"{NAME}"]):
        done = sk("archive", "fetch", *arguments)
        assert done.returncode == 255, done.stderr
        assert "Traceback" not in done.stderr
    assert not target.exists()


def test_fetch_does_not_retry_a_lasting_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    begun = time.monotonic()
    archive = (f"--archive={tmp_path}/file/archive", f"--timeline={'00' * 16}/{'11' * 16}")
    done = sk("archive", "fetch", *archive, NAME, tmp_path / "x")
    assert_refused(done, 255, "Not a directory", "Name a folder for the archive")
    assert time.monotonic() - begun < PATIENCE_SECONDS / 2


def _hint_in(text: str) -> str:
    hints = [line for line in text.splitlines() if line.startswith("hint: ")]
    return hints[0].removeprefix("hint: ") if hints else ""


def test_wrong_usage(tmp_path: Path) -> None:
    archive = f"--archive={tmp_path}"
    both = sk("archive", "prune", archive, "--before=0/1", "--keep-backups")
    assert_wrong_usage(both, "give either --before LSN or")
    for command in ("status", "ls", "verify", "prune"):
        assert_wrong_usage(sk("archive", command), "Missing option '--archive'")
    assert_refused(sk("archive", "verify", archive), 1, "has 0 timelines", hint="sk attach")
    assert sk("archive", "status", archive).stdout == f"archive {tmp_path} is empty\n"
