"""`decode`: the same segments decoded to Arrow by us, and to text and statistics by `pg_waldump`.

All read the files from the page cache, check every CRC and use one processor. The figure is CPU
time, user and system, because the machine may do other work. Our decoder runs in this process, so
the start of Python and the compiler are not counted; a `pg_waldump` starts in milliseconds.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import pgbench
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pgwal.segment import format_segment_name, segment_start_lsn, segno_of
from quorum_wal.spark.records.wal_decoder import WalDecoder
from quorum_wal.walrecords.record_index import RecordIndexer

OURS, TEXT, STATS, CONTROL = "ours", "pg_waldump", "pg_waldump --stats", "the same again"
COLUMNS = ("decoder", "CPU seconds", "million records/s", "MB/s", "rate / text", "rate / stats")
TEXT_RATIO_MIN = 2.0
STATS_RATIO_MIN = 1.0

PGBENCH_SCALE = 10
PGBENCH_TRANSACTIONS = 5_000
PGBENCH_BYTES_MAX = 128 << 20
ROWS_PER_INSERT = 100_000
#: bytes that are decoded at once: the result stays in the processor's cache
CHUNK_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class DecodeSample:
    """One pass over all segments."""

    setup: str
    round: int
    records: int
    wal_bytes: int
    cpu_seconds: float

    @property
    def records_per_second(self) -> float:
        return self.records / self.cpu_seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.wal_bytes / self.cpu_seconds / (1 << 20)


@dataclass(frozen=True, slots=True)
class Segments:
    """Adjacent segments of one timeline."""

    paths: Sequence[Path]
    start_lsn: int
    version_major: int
    program: Path

    def first(self, count: int) -> Segments:
        """The first `count` segments."""
        return replace(self, paths=self.paths[:count])


def measure(
    primary: Primary, directory: Path, rounds: int, megabytes: int
) -> Iterator[DecodeSample]:
    """Yields each sample when it is taken."""
    segments = write_segments(primary, directory / "segments", megabytes)
    decoders: dict[str, Callable[[Segments], int]] = {
        OURS: decode_segments,
        TEXT: _print_text,
        STATS: _print_stats,
        CONTROL: _print_stats,
    }
    expected = {name: decode(segments) for name, decode in decoders.items()}
    if len({*expected.values()} - {0}) != 1:
        raise FixtureError(f"the decoders found different numbers of records: {expected}")
    for number, name in interleaved(list(decoders), rounds):
        before = _cpu_seconds()
        decoders[name](segments)
        yield DecodeSample(
            name,
            number,
            expected[OURS],
            len(segments.paths) * WAL_SEG_SIZE,
            _cpu_seconds() - before,
        )


def write_segments(primary: Primary, target: Path, megabytes: int) -> Segments:
    """Half of the WAL, limited to about a minute, is from small transactions with page images; the
    rest from inserted rows and their index."""
    primary.postgres.configure(synchronous_commit=False)
    pgbench.initialize(primary.postgres, PGBENCH_SCALE)
    primary.execute("CREATE TABLE loaded (id bigserial PRIMARY KEY, payload text)")
    primary.execute("CHECKPOINT")
    begin_lsn = primary.insert_lsn()
    while primary.insert_lsn() - begin_lsn < min(megabytes << 19, PGBENCH_BYTES_MAX):
        primary.postgres.pgbench(
            "--client=2", "--protocol=prepared", f"--transactions={PGBENCH_TRANSACTIONS}"
        )
    while primary.insert_lsn() - begin_lsn < megabytes << 20:
        primary.execute(
            "INSERT INTO loaded (payload) SELECT md5(i::text)"
            f" FROM generate_series(1, {ROWS_PER_INSERT}) i"
        )
    end_lsn = primary.insert_lsn()
    primary.execute("SELECT pg_switch_wal()")
    first, last = segno_of(begin_lsn, WAL_SEG_SIZE) + 1, segno_of(end_lsn, WAL_SEG_SIZE)
    target.mkdir()
    names = [format_segment_name(1, segno, WAL_SEG_SIZE) for segno in range(first, last)]
    paths = [Path(shutil.copy(primary.postgres.pg_wal / name, target)) for name in names]
    binaries = primary.postgres.binaries
    start_lsn = segment_start_lsn(first, WAL_SEG_SIZE)
    return Segments(paths, start_lsn, binaries.major, binaries.program("pg_waldump"))


def _cpu_seconds() -> float:
    """The CPU time of this process and of its ended children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def decode_segments(segments: Segments) -> int:
    """Decodes the default columns of every record to Arrow. Returns the number of records."""
    indexer = RecordIndexer(
        segments.start_lsn, wal_seg_size=WAL_SEG_SIZE, version_major=segments.version_major
    )
    decoder = WalDecoder(segments.version_major)
    count = 0
    chunk = memoryview(bytearray(CHUNK_BYTES))
    for path in segments.paths:
        with open(path, "rb", buffering=0) as file:
            while length := file.readinto(chunk):
                count += decoder.decode(indexer.feed(chunk[:length])).num_rows
    if indexer.failure is not None:
        raise indexer.failure
    return count


def _print_text(segments: Segments) -> int:
    """Lines are not counted."""
    _run(segments, subprocess.DEVNULL)
    return 0


def _print_stats(segments: Segments) -> int:
    printed = _run(segments, subprocess.PIPE, "--stats=record")
    found = re.search(r"^Total +(\d+)", printed, re.MULTILINE)
    assert found is not None, printed
    return int(found[1])


def _run(segments: Segments, output: int, *options: str) -> str:
    process = subprocess.run(
        [
            segments.program,
            *options,
            f"--path={segments.paths[0].parent}",
            segments.paths[0].name,
            segments.paths[-1].name,
        ],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise FixtureError(f"pg_waldump failed: {process.stderr}")
    return process.stdout or ""


def table(samples: Sequence[DecodeSample]) -> list[list[str]]:
    """Medians of each decoder."""
    rows = [list(COLUMNS)]
    for name in (OURS, TEXT, STATS, CONTROL):
        own = samples_of(samples, name)
        rows.append(
            [
                name,
                Spread.of([s.cpu_seconds for s in own]).format(2),
                f"{Spread.of([s.records_per_second for s in own]).median / 1e6:.2f}",
                f"{Spread.of([s.megabytes_per_second for s in own]).median:.0f}",
                paired_ratios(samples, "records_per_second", name, TEXT).format(2),
                paired_ratios(samples, "records_per_second", name, STATS).format(2),
            ]
        )
    return rows


def verdicts(samples: Sequence[DecodeSample]) -> list[Verdict]:
    control = paired_ratios(samples, "records_per_second", CONTROL, STATS)
    return [
        Verdict(
            f"rate >= {TEXT_RATIO_MIN:g} of pg_waldump's that prints text",
            paired_ratios(samples, "records_per_second", OURS, TEXT),
            TEXT_RATIO_MIN,
            True,
            control,
        ),
        Verdict(
            "rate >= that of pg_waldump --stats=record",
            paired_ratios(samples, "records_per_second", OURS, STATS),
            STATS_RATIO_MIN,
            True,
            control,
        ),
    ]
