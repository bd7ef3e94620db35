"""`lake`: an archive to a Parquet lake by the job of `sk spark ingest`, against decoding alone.

    decode      one process: checks CRCs, builds columns and drops them       segments, page cache
    ingest      Spark on two cores: the same, written as Parquet with zstd    the archive of them

The share is the ingest's rate over twice the rate of decoding. Two sizes show whether the cost
grows with the WAL alone. Memory is the peak of the driver's Python, and of any one worker. Spark's
start is not counted: a session runs many batches, and each size here is one batch.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import decode
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict
from benchmarks.usage import descendants, rss_peak_bytes
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.jobs.ingest import Ingest
from quorum_wal.spark.jobs.ingested_wal import IngestedWal
from quorum_wal.spark.session import new_session
from quorum_wal.spark.sources.input_options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECODE, INGEST = "decode alone", "ingest"
MASTER, CORES = "local[2]", 2
COLUMNS = (
    "job", "MB of WAL", "seconds", "MB/s", "million records/s", "share of decode x 2", "driver MB",
    "worker MB",
)  # fmt: skip
SHARE_MIN = 0.6
MILLION_RECORDS_PER_SECOND_MIN = 2.5
#: the ratio of the larger size to the smaller one, in time over WAL
GROWTH_MAX = 1.25
DRIVER_MB_MAX, WORKER_MB_MAX = 600.0, 400.0
SMALL_PART = 8


@dataclass(frozen=True, slots=True)
class LakeSample:
    """One pass over that much WAL. Memory in MB; None if only this process ran."""

    setup: str
    round: int
    wal_bytes: int
    records: int
    seconds: float
    driver_mb: float | None = None
    worker_mb: float | None = None

    @property
    def megabytes_per_second(self) -> float:
        return self.wal_bytes / self.seconds / (1 << 20)

    @property
    def million_records_per_second(self) -> float:
        return self.records / self.seconds / 1e6


def measure(primary: Primary, directory: Path, rounds: int, megabytes: int) -> Iterator[LakeSample]:
    """Yields each sample when it is taken: for an eighth of the WAL, and for all of it."""
    segments = decode.write_segments(primary, directory / "segments", megabytes)
    archive = str(directory / "archive")
    _archive(segments, archive)
    session = new_session("benchmark", MASTER, {"spark.driver.memory": "1g"})
    session.sparkContext.setLogLevel("OFF")
    try:
        _ingest(
            session, archive, segments.first(2), directory / "warm"
        )  # compilers and workers are warm
        for number in range(rounds):
            for count in (len(segments.paths) // SMALL_PART, len(segments.paths)):
                wal_bytes = count * WAL_SEG_SIZE
                begun = time.perf_counter()
                records = decode.decode_segments(segments.first(count))
                seconds = time.perf_counter() - begun
                yield LakeSample(DECODE, number, wal_bytes, records, seconds)
                ingested = _ingest(session, archive, segments.first(count), directory / "lake")
                yield LakeSample(INGEST, number, wal_bytes, *ingested, *_peak_megabytes())
    finally:
        session.stop()


def _archive(segments: decode.Segments, url: str) -> None:
    """Archives them as a safekeeper does."""
    wal_input = FolderInput(str(segments.paths[0].parent))
    facts, start_lsn = wal_input.facts(), int(segments.start_lsn)
    timeline = ArchivedTimeline(facts.system_id, facts.pg_version, WAL_SEG_SIZE, 1, start_lsn)
    archive = TimelineArchive.create(LocalStore(url), TimelineId.parse("1" * 32), timeline)
    for segno, path in enumerate(segments.paths, start_lsn // WAL_SEG_SIZE):
        wal = ArchivedWal(1, segno, (segno + 1) * WAL_SEG_SIZE)
        archive.put_wal(wal, path.read_bytes())


def _ingest(
    session: SparkSession, archive: str, segments: decode.Segments, lake: Path
) -> tuple[int, float]:
    """Ingests these segments from the archive. Returns the number of records, and the seconds."""
    end_lsn = segments.start_lsn + len(segments.paths) * WAL_SEG_SIZE
    options = {"path": archive, "end_lsn": format_lsn(end_lsn)}
    job = Ingest(session, IngestedWal(parse_options(options)), str(lake), {})
    begun = time.perf_counter()
    records = sum(file.rows for batch in job.run_once() for file in batch.files)
    seconds = time.perf_counter() - begun
    shutil.rmtree(lake)
    return records, seconds


def _peak_megabytes() -> tuple[float, float]:
    """(this process, the largest of Spark's Python workers) so far."""
    pythons = [pid for pid in descendants(os.getpid()) if _is_python(pid)]
    peaks = [rss_peak_bytes(pid) / (1 << 20) for pid in (os.getpid(), *pythons)]
    return peaks[0], max(peaks[1:])


def _is_python(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().startswith(("python", "sk"))


def table(samples: Sequence[LakeSample]) -> list[list[str]]:
    rows = [list(COLUMNS)]
    for setup in (DECODE, INGEST):
        for wal_bytes in sorted({sample.wal_bytes for sample in samples}):
            found = [s for s in samples if (s.setup, s.wal_bytes) == (setup, wal_bytes)]
            share = _shares(samples, wal_bytes).format(2) if setup == INGEST else ""
            rows.append(
                [
                    setup,
                    str(wal_bytes >> 20),
                    Spread.of([sample.seconds for sample in found]).format(1),
                    f"{Spread.of([s.megabytes_per_second for s in found]).median:.0f}",
                    Spread.of([s.million_records_per_second for s in found]).format(2),
                    share,
                    _most(sample.driver_mb for sample in found),
                    _most(sample.worker_mb for sample in found),
                ]
            )
    return rows


def verdicts(samples: Sequence[LakeSample]) -> list[Verdict]:
    small, large = sorted({sample.wal_bytes for sample in samples})
    ingests = [sample for sample in samples if sample.setup == INGEST]
    seconds = {
        size: [sample.seconds for sample in ingests if sample.wal_bytes == size]
        for size in (small, large)
    }
    growth = Spread.of(
        [b / a * small / large for a, b in zip(seconds[small], seconds[large], strict=True)]
    )
    rate = Spread.of([s.million_records_per_second for s in ingests if s.wal_bytes == large])
    driver = Spread.of([sample.driver_mb or 0.0 for sample in ingests])
    worker = Spread.of([sample.worker_mb or 0.0 for sample in ingests])
    name = f"{large // small} times the WAL"
    return [
        Verdict(
            f"ingest on {CORES} cores >= {MILLION_RECORDS_PER_SECOND_MIN:g} million records/s",
            rate, MILLION_RECORDS_PER_SECOND_MIN, at_least=True,
        ),
        Verdict(
            f"ingest on {CORES} cores >= {SHARE_MIN} x {CORES} x decode",
            _shares(samples, large), SHARE_MIN, at_least=True,
        ),
        Verdict(f"{name}: time / WAL <= {GROWTH_MAX} x", growth, GROWTH_MAX, at_least=False),
        Verdict("memory of the driver", driver, DRIVER_MB_MAX, at_least=False, unit=" MB"),
        Verdict("memory of a worker", worker, WORKER_MB_MAX, at_least=False, unit=" MB"),
    ]  # fmt: skip


def _shares(samples: Sequence[LakeSample], wal_bytes: int) -> Spread:
    """For each round: the ingest's rate over that of decoding on as many cores."""
    rates = {
        setup: [
            sample.megabytes_per_second
            for sample in samples
            if (sample.setup, sample.wal_bytes) == (setup, wal_bytes)
        ]
        for setup in (DECODE, INGEST)
    }
    pairs = zip(rates[INGEST], rates[DECODE], strict=True)
    return Spread.of([ingest / (decode * CORES) for ingest, decode in pairs])


def _most(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.0f}" if known else ""
