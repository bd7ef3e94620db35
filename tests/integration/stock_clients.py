"""Unmodified clients of a safekeeper: `pg_receivewal` as a process, and the data of a standby."""

from __future__ import annotations

import gzip
import signal
from pathlib import Path

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program

TIMEOUT = 120.0
GZ = ".gz"
STREAMING = "starting log streaming"


class WalReceiverProcess(ServiceProcess):
    """`pg_receivewal` into `directory`, which remains when it restarts."""

    def __init__(
        self, binaries: PostgresBinaries, directory: Path, conninfo: str, *options: str
    ) -> None:
        directory.mkdir()
        self.directory = directory
        self.command = [
            binaries.program("pg_receivewal"),
            f"--dbname={conninfo}",
            f"--directory={directory}",
            "--no-loop",
            "--verbose",
            *options,
        ]
        super().__init__(
            self.command,
            name=f"pg_receivewal {directory.name}",
            log_path=directory.with_name(f"{directory.name}.log"),
        )

    def start_streaming(self) -> None:
        """Start it, and return when it streams."""
        said = self.log_text().count(STREAMING)
        self.start()
        self.wait_until(lambda: self.log_text().count(STREAMING) > said, TIMEOUT, STREAMING)

    def run_once(self, *options: str) -> str:
        """Run it for a command such as --create-slot; returns its output."""
        done = run_program([*self.command, *options])
        return done.stdout + done.stderr

    def interrupt(self) -> None:
        """End it as an operator does; it must end with exit code 0."""
        self.send_signal(signal.SIGINT)
        assert self.wait(TIMEOUT) == 0, self.log_tail()

    def wait_segment(self, name: str) -> None:
        """Return when it has that whole segment."""
        paths = [self.directory / name, self.directory / (name + GZ)]
        self.wait_until(lambda: any(path.exists() for path in paths), TIMEOUT, f"segment {name}")

    def segments(self) -> dict[str, bytes]:
        """All whole segments that it has, by name."""
        files = [path for path in self.directory.iterdir() if not path.name.endswith(".partial")]
        return {
            path.name.removesuffix(GZ): gzip.decompress(path.read_bytes())
            if path.name.endswith(GZ)
            else path.read_bytes()
            for path in files
            if not path.name.removesuffix(GZ).endswith(".partial")
        }


def assert_files_equal(
    receiver: WalReceiverProcess, *pg_wals: Path, at_least: int, unfinished: int = 0
) -> None:
    """Every segment and history file equals the primary's, byte for byte, and none is missing
    except those that a timeline left `unfinished`."""
    received = receiver.segments()
    assert len(received) >= at_least
    for name, content in received.items():
        copies = [folder / name for folder in pg_wals if (folder / name).exists()]
        assert copies, f"{receiver.name}: {name} is nobody's"
        assert all(content == copy.read_bytes() for copy in copies), f"{name} differs"
    wal = sorted(name for name in received if not name.endswith(".history"))
    theirs = {p.name for folder in pg_wals for p in folder.iterdir() if len(p.name) == len(wal[0])}
    missing = {name for name in theirs if wal[0] <= name <= wal[-1]} - set(wal)
    # Not under its own name in the archive, but as NAME.partial.
    assert all((receiver.directory / f"{name}.partial").exists() for name in missing)
    assert len(missing) == unfinished


def slots_of(safekeeper: SafekeeperProcess) -> dict[str, dict[str, object]]:
    """By name, as its status shows them."""
    timeline = safekeeper.timeline()
    assert timeline is not None
    return {slot["slot_name"]: slot for slot in timeline["slots"]}


def finish_segment(primary: Postgres) -> str:
    """End the current segment, and return the name of the file."""
    ((name,),) = primary.execute(
        "SELECT pg_walfile_name(pg_switch_wal() - 1) FROM pg_logical_emit_message(true, 'x', 'y')"
    )
    primary.execute("SELECT pg_logical_emit_message(true, 'next', 'segment')")
    return str(name)


def table_checksums(postgres: Postgres) -> dict[str, str]:
    """A checksum of all rows of every user table."""
    with postgres.connect() as connection:
        names = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"
        ).fetchall()
        return {
            name: connection.execute(
                f"SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)), 0)"
                f" FROM {name} t"
            ).fetchall()[0][0]
            for (name,) in names
        }


def assert_same_data(primary: Postgres, standby: Postgres) -> None:
    """The data is equal, and the heap and indexes of the standby are sound."""
    wait_until(
        lambda: (
            standby.execute(
                "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (str(primary.flush_lsn()),)
            )
            == [(True,)]
        ),
        TIMEOUT,
        f"{standby.data_dir.name} to replay everything",
    )
    expected = table_checksums(primary)
    assert len(expected) >= 4
    assert table_checksums(standby) == expected
    if standby.execute("SELECT 1 FROM pg_extension WHERE extname = 'amcheck'"):
        standby.client("pg_amcheck", "--database=postgres")
