"""`cuts`: the time that a pageserver's cuts save, with a day of WAL after the only base backup.

    base backup    cut 1   cut 2   ..   cut n    end           WAL: WAL_FACTOR times the database
    |--------------|-------|------------|--------|
    replay         `sk restore --backup`: the base, and all of the WAL
    cuts           `sk restore`: the newest cut, and the rest of the WAL
    table, page    `sk table restore`, `sk page get` at the end; the page also at the newest cut

Both restores use the same archive, and are timed from the empty folder until the server accepts
writes. Each command is a new process that has only the archive.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import pgbench
from benchmarks.archive import archived_lsn
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from benchmarks.setups import OTHER, OURS, SafekeeperQuorum, attached, checkout_env
from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pg_fixtures.pageserver import PageserverProcess
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.lsn import Lsn

CUTS, REPLAY, BACKUP, TABLE = "cuts", "replay", "backup of a cut", "table"
PAGE, PAGE_REPLAYED = "page at a cut", "page at the end"
OTHER_CUTS = f"cuts, {OTHER}"
COLUMNS = ("what", "seconds", "seconds / replay")
DATABASE_GB = 1.5
WAL_FACTOR = 4
WAL_BYTES_BETWEEN_CUTS_MAX = 1 << 30
CUTS_MIN = 16
TABLE_ROWS = 380_000
LOAD_SECONDS, LOAD_CLIENTS = 3, 8
TIMEOUT = 3600.0
RATIO_MAX = 1 / 3
SECONDS_MAX = {TABLE: 15.0, PAGE: 2.0, PAGE_REPLAYED: 2.0}
#: Each round reads another page.
PAGES = 20


@dataclass(frozen=True, slots=True)
class CutsSample:
    """`wal_mb` is the WAL after the base backup, `tail_mb` its part after the newest cut."""

    setup: str
    round: int
    seconds: float
    database_mb: float
    wal_mb: float
    tail_mb: float


class _Material:
    """An archive with a base backup, WAL and cuts, created once."""

    def __init__(self, binaries: PostgresBinaries, root: Path, env: Mapping[str, str]) -> None:
        self._binaries = binaries
        self._root = root
        self._archive = root / "archive"
        self._other_env = env
        self.database_bytes = self._begin_lsn = self._cut_lsn = self._end_lsn = 0

    # ---- preparation

    def make(self, gigabytes: float) -> None:
        setup = SafekeeperQuorum(OURS, arguments=[f"--archive={self._archive}"])
        primary = Primary(self._binaries, self._root)
        primary.postgres.init("--data-checksums")
        with primary, attached(primary, setup, self._root / "copies"):
            primary.execute("ALTER DATABASE postgres SET synchronous_commit = off")
            pgbench.initialize(primary.postgres, max(1, int(gigabytes * 1000 / 15)))
            primary.execute(
                "CREATE TABLE hundred AS SELECT g AS id, repeat(md5(g::text), 7) AS text"
                f" FROM generate_series(1, {TABLE_ROWS}) g"
            )
            ((size,),) = primary.execute("SELECT sum(pg_database_size(oid)) FROM pg_database")
            self.database_bytes = int(size)
            ((self._path,),) = primary.execute("SELECT pg_relation_filepath('pgbench_accounts')")
            self._base = self._sk(
                "backup", "create", "--from", primary.postgres.dsn(), "--no-wait"
            ).strip()
            self._begin_lsn = primary.insert_lsn()
            self._load(primary, setup)
        shutil.rmtree(primary.postgres.data_dir)

    def _load(self, primary: Primary, setup: SafekeeperQuorum) -> None:
        total = WAL_FACTOR * self.database_bytes
        step = min(WAL_BYTES_BETWEEN_CUTS_MAX, total // CUTS_MIN)
        addresses = [each.address for each in setup.safekeepers]
        with PageserverProcess(
            self._archive, addresses, self._root / "pageserver", arguments=["--cut-bytes", "1MB"]
        ) as pageserver:
            for number in range(1, total // step + 1):
                self._write(primary, self._begin_lsn + number * step)
                primary.execute("CHECKPOINT")
                ((redo,),) = primary.execute("SELECT redo_lsn::text FROM pg_control_checkpoint()")
                primary.execute("SELECT pg_switch_wal()")
                cut = pageserver.wait_cut(int(Lsn.parse(redo)), TIMEOUT)
                self._cut_lsn = int(Lsn.parse(cut["cut_lsn"]))
        ((xid,),) = primary.execute("SELECT pg_current_xact_id()::xid::text")
        self._write(primary, self._cut_lsn + step // 2)
        changed = primary.execute(
            "SELECT DISTINCT (ctid::text::point)[0]::int FROM pgbench_accounts"
            f" WHERE age(xmin) < age('{xid}'::xid) LIMIT {PAGES}"
        )
        self._blocks = [int(block) for (block,) in changed]
        primary.execute("SELECT pg_switch_wal()")
        self._end_lsn = primary.insert_lsn() // WAL_SEG_SIZE * WAL_SEG_SIZE
        wait_until(lambda: archived_lsn(setup) >= self._end_lsn, TIMEOUT, "all to be archived")

    def _write(self, primary: Primary, until_lsn: int) -> None:
        while primary.insert_lsn() < until_lsn:
            primary.postgres.pgbench(
                f"--client={LOAD_CLIENTS}", f"--time={LOAD_SECONDS}", "--no-vacuum",
                "--skip-some-updates", "--protocol=prepared",
            )  # fmt: skip

    # ---- measurements

    def measure(self, what: str, number: int) -> CutsSample:
        out = self._root / "out"
        how = {
            CUTS: partial(self._restore, (), {}),
            REPLAY: partial(self._restore, ("--backup", self._base), {}),
            OTHER_CUTS: partial(self._restore, (), self._other_env),
            BACKUP: self._backup,
            TABLE: partial(self._timed, "table", "restore", "postgres.public.hundred",
                           "--dump", f"{out}.dump", "--pg-bin", self._binaries.bin_dir),
            PAGE: partial(self._page_get, number, "--at-lsn", str(Lsn(self._cut_lsn))),
            PAGE_REPLAYED: partial(self._page_get, number),
        }  # fmt: skip
        os.sync()
        seconds = how[what]()
        for path in self._root.glob("out*"):
            path.unlink()
        return CutsSample(
            setup=what,
            round=number,
            seconds=seconds,
            database_mb=self.database_bytes / 1e6,
            wal_mb=(self._end_lsn - self._begin_lsn) / 1e6,
            tail_mb=(self._end_lsn - self._cut_lsn) / 1e6,
        )

    def _sk(self, *words: object, env: Mapping[str, str] | None = None) -> str:
        command = [*SK, *map(str, words), "--archive", str(self._archive)]
        return run_program(command, env=env, timeout=TIMEOUT).stdout

    def _timed(self, *words: object) -> float:
        begun = time.perf_counter()
        self._sk(*words)
        return time.perf_counter() - begun

    def _page_get(self, number: int, *words: object) -> float:
        """Of a page that the WAL after the newest cut changes."""
        block = self._blocks[number % len(self._blocks)]
        return self._timed(
            "page", "get", self._path, block, "--pg-bin", self._binaries.bin_dir, *words
        )

    def _backup(self) -> float:
        """Creates and deletes one."""
        begun = time.perf_counter()
        backup_id = self._sk("backup", "create", "--from", "pageserver", "--no-wait").strip()
        seconds = time.perf_counter() - begun
        self._sk("backup", "delete", backup_id)
        return seconds

    def _restore(self, words: Sequence[str], env: Mapping[str, str]) -> float:
        """Restores, and removes the result."""
        data_dir = self._root / "restored"
        server = Postgres(self._binaries, data_dir, port=free_port())
        data_dir.mkdir()
        account = server_account()
        if account is not None:
            os.chown(data_dir, account.uid, account.gid)
        options = f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        begun = time.perf_counter()
        try:
            self._sk(
                *("restore", "--data-dir", data_dir, "--pg-bin", self._binaries.bin_dir),
                *("--start", "--server", server.dsn(), "--server-options", options, *words),
                env=env,
            )
            server.execute("CREATE TABLE restored ()")
            return time.perf_counter() - begun
        finally:
            stop: list[str | Path] = [
                *(self._binaries.program("pg_ctl"), "stop", "-m", "immediate", "-D", data_dir)
            ]
            run_program(stop, account=account, check=False)
            server.crash()
            shutil.rmtree(data_dir)


def measure(
    binaries: PostgresBinaries,
    directory: Path,
    rounds: int,
    gigabytes: float,
    against: Path | None,
) -> Iterator[CutsSample]:
    """Yields each sample when it is taken."""
    material = _Material(binaries, directory, checkout_env(against))
    material.make(gigabytes)
    others = () if against is None else (OTHER_CUTS,)
    setups = (CUTS, REPLAY, *others, BACKUP, TABLE, PAGE, PAGE_REPLAYED)
    for number, what in interleaved(setups, rounds):
        yield material.measure(what, number)


def table(samples: Sequence[CutsSample]) -> list[list[str]]:
    """Medians, and the spread of the ratios to the replay in the same round."""
    rows = [list(COLUMNS)]
    for setup in dict.fromkeys(sample.setup for sample in samples):
        seconds = Spread.of([sample.seconds for sample in samples_of(samples, setup)])
        ratio = paired_ratios(samples, "seconds", setup, REPLAY).format(2)
        rows.append([setup, f"{seconds.median:.1f}", ratio])
    return rows


def remark(samples: Sequence[CutsSample]) -> str:
    """The sizes of database and WAL."""
    first = samples[0]
    return (
        f"a database of {first.database_mb:.0f} MB, {first.wal_mb:.0f} MB of WAL after its base "
        f"backup, {first.tail_mb:.0f} MB after the newest cut"
    )


def verdicts(samples: Sequence[CutsSample]) -> list[Verdict]:
    """A restore in a third of the time; limits for a table and a page."""
    ratio = paired_ratios(samples, "seconds", CUTS, REPLAY)
    found = [Verdict("a restore in a third of the time of a replay", ratio, RATIO_MAX, False)]
    for setup, seconds_max in SECONDS_MAX.items():
        seconds = Spread.of([sample.seconds for sample in samples_of(samples, setup)])
        claim = f"{setup}: {seconds_max:g} s"
        found.append(Verdict(claim, seconds, seconds_max, False, unit=" s"))
    return found
