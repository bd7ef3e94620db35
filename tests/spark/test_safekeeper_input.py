"""Live safekeepers as an input, alone and with an archive: one log, whichever of them serves it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from archived_log import TIMELINE, log_facts
from pyspark.sql.streaming.datasource import ReadAllAvailable
from wal_rows import lsns, rows_of

from quorum_wal.objectstore.archive import TimelineArchive, find_timelines
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs import safekeeper_input
from quorum_wal.spark.inputs.archive_input import ArchiveInput
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.joined_input import JoinedInput
from quorum_wal.spark.inputs.safekeeper_input import SafekeeperInput
from quorum_wal.spark.inputs.safekeeper_session import SafekeeperSession, parse_safekeepers
from quorum_wal.spark.inputs.wal_input import LostWal
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange
from quorum_wal.spark.sources import slot
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.slot import StreamSlot
from quorum_wal.spark.sources.wal_stream import WalStreamReader

MIB = 1 << 20
TIMEOUT = 180.0
ALL = ReadAllAvailable()
real = SafekeeperSession.commit_lsn
FILL = (
    "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 900000)) FROM generate_series(1, {})"
)


@pytest.fixture
def cluster(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> QuorumCluster:
    """With an archive, little WAL kept on disk, and five segments written."""
    made = quorum_cluster(
        wal_seg_size=MIB,
        settings={"wal_keep_size": "1GB", "autovacuum": False},
        safekeeper_arguments=[
            f"--archive={tmp_path / 'archive'}",
            "--archive-partial-interval=0.2",
            "--wal-keep-size=2MB",
        ],
    )
    made.postgres.execute("CREATE TABLE t AS SELECT md5(i::text) FROM generate_series(1, 5000) i")
    made.postgres.execute(FILL.format(4))
    flush_lsn = made.postgres.flush_lsn()
    wait_until(
        lambda: all(
            Lsn.parse(timeline_of(safekeeper)["commit_lsn"]) >= flush_lsn
            for safekeeper in made.safekeepers
        ),
        TIMEOUT,
        "all to know what is committed",
    )
    return made


def input_of(cluster: QuorumCluster, timeline: str | None = None) -> SafekeeperInput:
    return SafekeeperInput(parse_safekeepers(cluster.replica_conninfo(), timeline))


def archived_timeline(tmp_path: Path) -> str:
    """Its name, once there is an archive."""
    store = LocalStore(str(tmp_path / "archive"))
    return str(wait_until(lambda: find_timelines(store), TIMEOUT, "an archive")[0])


def archived(tmp_path: Path) -> ArchiveInput:
    return ArchiveInput(str(tmp_path / "archive"))


def archived_lsn(tmp_path: Path) -> int:
    """0 before there is an archive."""
    store = LocalStore(str(tmp_path / "archive"))
    try:
        (timeline,) = find_timelines(store)
    except ValueError:
        return 0
    archive = TimelineArchive.open(store, timeline)
    return archive.archived_lsn(archive.newest_history(), archive.facts.timeline_start_lsn)


def timeline_of(safekeeper: SafekeeperProcess) -> dict[str, Any]:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return timeline


def primary_rows(cluster: QuorumCluster, begin: int, end: int) -> pa.Table:
    """The rows from the primary's own files."""
    return rows_of(FolderInput(str(cluster.postgres.pg_wal)), begin, end)


def test_one_log_from_archive_and_safekeepers(cluster: QuorumCluster, tmp_path: Path) -> None:
    live = pickle.loads(pickle.dumps(input_of(cluster, archived_timeline(tmp_path))))
    held, first_lsn, end_lsn = hold_all(live)
    wait_until(lambda: archived_lsn(tmp_path) >= end_lsn - MIB, TIMEOUT, "the archive to follow")

    # alone, as far as they still have the WAL
    expected = primary_rows(cluster, first_lsn, end_lsn)
    assert expected.num_rows > 5000
    assert rows_of(live, first_lsn, end_lsn).equals(expected)

    # one is killed while it serves: another one continues
    chunks = live.read(first_lsn, end_lsn)
    wal = next(chunks).data
    cluster.safekeepers[0].kill()
    wal += b"".join(chunk.data for chunk in chunks)
    assert wal == b"".join(c.data for c in input_of(cluster).read(first_lsn, end_lsn))
    assert rows_of(live, first_lsn, end_lsn).equals(expected)
    cluster.safekeepers[0].start()
    cluster.safekeepers[0].wait_ready()

    # old WAL is removed from the safekeepers, and is in the archive
    def is_removed() -> bool:
        return all(Lsn.parse(timeline_of(s)["local_start_lsn"]) > first_lsn for s in keepers)

    keepers = cluster.safekeepers
    held.drop()
    cluster.postgres.execute(FILL.format(4))
    wait_until(is_removed, TIMEOUT, "old WAL to leave the safekeepers")
    with pytest.raises(LostWal, match=f"no safekeeper has WAL from {format_lsn(first_lsn)} on"):
        rows_of(live, first_lsn, end_lsn)
    local_start = max(Lsn.parse(timeline_of(s)["local_start_lsn"]) for s in keepers)
    assert live.extent()[0] <= local_start

    joined = pickle.loads(pickle.dumps(JoinedInput(archived(tmp_path), live)))
    assert joined.facts() == live.facts()
    begin, end_lsn = joined.extent()
    assert begin <= first_lsn
    whole = primary_rows(cluster, begin, end_lsn)
    assert rows_of(joined, begin, end_lsn).equals(whole)
    cuts = [begin, *range(begin + MIB + 4321, end_lsn, MIB), end_lsn]
    parts = [rows_of(joined, *cut) for cut in pairwise(cuts)]
    assert pa.concat_tables(parts).equals(whole)


def hold_all(live: SafekeeperInput) -> tuple[StreamSlot, int, int]:
    """A slot, and the extent of the existing WAL: none of it is removed while the slot exists."""
    while True:
        held = StreamSlot("held", live.addresses)
        first_lsn, end_lsn = live.extent()
        held.hold(first_lsn, MIB)
        if live.extent()[0] == first_lsn:
            return held, first_lsn, end_lsn
        held.drop()  # retention was faster


def test_a_safekeeper_that_stands_still_is_left(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, but learns of no commit: another one is used."""
    monkeypatch.setattr(safekeeper_input, "STALL_SECONDS", 0.2)
    live = input_of(cluster)
    before = live.newest_lsn()
    monkeypatch.setattr(
        SafekeeperSession,
        "commit_lsn",
        lambda session: before if session.name == live.addresses[0].name else real(session),
    )
    cluster.postgres.execute(FILL.format(1))
    assert live.newest_lsn() == before
    wait_until(lambda: live.newest_lsn() > before, 10, "another one to be asked")


def test_a_slot_follows_what_was_committed(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "RETRY_SECONDS", 0.0)
    options = {"safekeepers": cluster.replica_conninfo(), "slot": "spark", "columns": "lsn"}
    reader = WalStreamReader(parse_options(options, is_stream=True))
    start = reader.initialOffset()

    def slots() -> list[Any]:
        return [
            Lsn.parse(each["restart_lsn"])
            for safekeeper in cluster.safekeepers
            for each in timeline_of(safekeeper)["slots"]
        ]

    end = reader.latestOffset(start, ALL)
    assert slots() == [Lsn.parse(start["lsn"])] * 3
    tasks = reader.partitions(start, end)
    found = [lsn for task in tasks for b in reader.read(task) for lsn in b["lsn"].to_pylist()]
    expected = primary_rows(cluster, Lsn.parse(start["lsn"]), Lsn.parse(end["lsn"]))
    assert found == lsns(expected)
    reader.commit(end)  # only the next one counts
    assert slots() == [Lsn.parse(start["lsn"])] * 3

    cluster.postgres.execute(FILL.format(2))
    cluster.safekeepers[2].kill()  # a slot that cannot be moved stays behind
    behind = reader.latestOffset(end, ALL)
    assert slots_of(cluster, 2) == [Lsn.parse(end["lsn"])] * 2
    cluster.safekeepers[2].start()
    cluster.safekeepers[2].wait_ready()
    wait_until(
        lambda: (
            Lsn.parse(timeline_of(cluster.safekeepers[2])["commit_lsn"]) >= Lsn.parse(behind["lsn"])
        ),
        TIMEOUT,
        "the third to catch up",
    )
    reader.latestOffset(behind, ALL)
    assert slots() == [Lsn.parse(behind["lsn"])] * 3

    StreamSlot("spark", input_of(cluster).addresses).drop()
    assert slots() == []


def slots_of(cluster: QuorumCluster, count: int) -> list[Any]:
    return [
        Lsn.parse(each["restart_lsn"])
        for safekeeper in cluster.safekeepers[:count]
        for each in timeline_of(safekeeper)["slots"]
    ]


def test_a_look_back_does_not_end_where_one_has_removed_wal(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots belong to one safekeeper. The unreachable ones have WAL that the answering one lacks,
    with changes of a transaction that was open."""
    postgres, live = cluster.postgres, input_of(cluster)
    begin_lsn = live.newest_lsn()
    StreamSlot("held", live.addresses[1:]).hold(begin_lsn, MIB)
    postgres.execute("CHECKPOINT")  # it lists the transactions that are open
    with postgres.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES ('long open')")
        postgres.execute(FILL.format(8))
        wait_until(lambda: kept_from(cluster, 0) > begin_lsn + MIB, TIMEOUT, "WAL to be removed")
        assert max(kept_from(cluster, 1), kept_from(cluster, 2)) <= begin_lsn
        start_lsn = postgres.flush_lsn() // MIB * MIB
        connection.commit()
    catalog, end_lsn = take_catalog(postgres.dsn()), postgres.flush_lsn()
    wait_until(lambda: committed_on(cluster, 0) >= end_lsn, TIMEOUT, "the first one to have it")

    def read() -> list[dict[str, Any]]:
        batches = read_changes(
            live, WalRange(start_lsn, end_lsn, end_lsn), ChangeOptions(catalog), OnDamage.FAIL
        )
        return [row for batch in batches for row in batch.to_pylist()]

    assert [(row["operation"], row["detail"]) for row in read()] == [("insert", None)]
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.kill()
    monkeypatch.setattr(safekeeper_input, "WAIT_SECONDS", 1.0)
    with pytest.raises(WalInputError, match=r"another one may have it: .*connection failed"):
        read()


def kept_from(cluster: QuorumCluster, number: int) -> Lsn:
    return Lsn.parse(timeline_of(cluster.safekeepers[number])["local_start_lsn"])


def committed_on(cluster: QuorumCluster, number: int) -> Lsn:
    return Lsn.parse(timeline_of(cluster.safekeepers[number])["commit_lsn"])


def test_an_archive_of_another_cluster_is_refused(cluster: QuorumCluster, tmp_path: Path) -> None:
    stranger = TimelineArchive.create(LocalStore(str(tmp_path / "other")), TIMELINE, log_facts())
    joined = JoinedInput(ArchiveInput(stranger.store.url), input_of(cluster))
    with pytest.raises(WalInputError, match="has WAL of another server"):
        joined.facts()
