"""The headline of a report: one sentence about who writes the WAL, and what would reduce it.

    Evidence --headline()--> Headline(text, advice)

Pure. Law: it advises only what the WAL shows. WAL does not contain settings, nor the use of indexes
by queries, so each advice states its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from quorum_wal.telemetry.size import bytes_text

#: With less WAL, one checkpoint or one command determines all shares.
EVIDENCE_BYTES_MIN = 1 << 20
#: Full-page images below this share are not worth longer recovery, or CPU for compression.
IMAGE_PERCENT_MIN = 20
#: Fewer images do not show that wal_compression is off: pages of random bytes stay uncompressed.
IMAGES_MIN = 64
#: Two, because the distance of checkpoints is measured between them.
CHECKPOINTS_MIN = 2
#: Crash recovery replays the WAL since the last checkpoint, so it takes longer with each increase.
CHECKPOINT_SECONDS_ENOUGH = 1800
#: Indexes that are needed remain, so dropping the others saves only a part of this share.
INDEX_PERCENT_MIN = 30
COMMIT_PERCENT_MIN = 20
#: A longer commit record lists invalidations of DDL or subtransactions, which remain when
#: transactions are combined.
PLAIN_COMMIT_BYTES_MAX = 128
#: A share that deserves its mention, although no advice follows from it.
NOTABLE_PERCENT = 50
NEW_PAGES_PERCENT_MIN = 20


class Advice(Enum):
    CHECKPOINT_DISTANCE = "checkpoint_distance"
    WAL_COMPRESSION = "wal_compression"
    INDEXES = "indexes"
    COMMITS = "commits"


@dataclass(frozen=True, slots=True)
class Writer:
    """A table with its indexes and TOAST table, a file, or the records without a relation of a
    resource manager. `has_parts`: indexes or TOAST have a part of the bytes."""

    name: str
    bytes: int
    has_parts: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """Sums over the WAL that was read. Seconds are None if no transaction shows the time."""

    bytes: int
    images: int
    compressed_images: int
    image_bytes: int
    #: of `image_bytes`, the images of pages that were written as a whole; checkpoints do not
    #: cause them
    new_page_bytes: int
    index_bytes: int
    commits: int
    commit_bytes: int
    seconds: float | None
    checkpoints: int
    #: from the first checkpoint to the last one
    checkpoint_seconds: float | None
    checkpoint_bytes: int
    largest_writer: Writer | None
    largest_xid: int = 0
    largest_xid_bytes: int = 0
    #: only some records were selected
    is_filtered: bool = False


@dataclass(frozen=True, slots=True)
class Headline:
    text: str
    advice: tuple[Advice, ...]


def headline(evidence: Evidence) -> Headline:
    """One sentence, without advice if the WAL shows too little."""
    if not evidence.bytes or evidence.largest_writer is None:
        return Headline("There are no WAL records.", ())
    writers = _writers(evidence, evidence.largest_writer)
    if evidence.is_filtered:
        return Headline(f"{writers}; only a report of all records can advise.", ())
    if evidence.bytes < EVIDENCE_BYTES_MIN:
        return Headline(
            f"{writers}; {bytes_text(evidence.bytes)} of WAL are too little for advice.", ()
        )
    found = list(_advice(evidence))
    if not found:
        return Headline(f"{writers}; this WAL does not show how to reduce it.", ())
    words = _list(text for _, text in found)
    return Headline(f"{writers}; to reduce the WAL, {words}.", tuple(advice for advice, _ in found))


def _writers(evidence: Evidence, largest: Writer) -> str:
    what = "the selected records" if evidence.is_filtered else "the WAL"
    parts = " with its indexes and TOAST" if largest.has_parts else ""
    facts = [f"{largest.name}{parts} wrote {_percent(largest.bytes, evidence)} of {what}"]
    if _share(evidence.largest_xid_bytes, evidence) >= NOTABLE_PERCENT:
        share = _percent(evidence.largest_xid_bytes, evidence)
        facts.append(f"transaction {evidence.largest_xid} wrote {share}")
    if _share(evidence.new_page_bytes, evidence) >= NEW_PAGES_PERCENT_MIN:
        share = _percent(evidence.new_page_bytes, evidence)
        facts.append(f"{share} are pages of built indexes and of rewritten or copied tables")
    return _list(facts)


def _advice(evidence: Evidence) -> Iterator[tuple[Advice, str]]:
    after_checkpoints = evidence.image_bytes - evidence.new_page_bytes
    distance = _checkpoint_distance(evidence)
    is_many = _share(after_checkpoints, evidence) >= IMAGE_PERCENT_MIN
    if is_many and distance is not None and distance[0] < CHECKPOINT_SECONDS_ENOUGH:
        yield (
            Advice.CHECKPOINT_DISTANCE,
            f"increase max_wal_size and checkpoint_timeout (checkpoints were "
            f"{_seconds_text(distance[0])} and {bytes_text(distance[1])} apart, and the full-page "
            f"images that follow them are {_percent(after_checkpoints, evidence)})",
        )
    if (
        _share(evidence.image_bytes, evidence) >= IMAGE_PERCENT_MIN
        and evidence.images >= IMAGES_MIN
        and not evidence.compressed_images
    ):
        yield (
            Advice.WAL_COMPRESSION,
            f"turn on wal_compression (full-page images are "
            f"{_percent(evidence.image_bytes, evidence)}, and none of them is compressed)",
        )
    if _share(evidence.index_bytes, evidence) >= INDEX_PERCENT_MIN:
        yield (
            Advice.INDEXES,
            "drop indexes that pg_stat_user_indexes reports as unused "
            f"(records of indexes are {_percent(evidence.index_bytes, evidence)})",
        )
    if (
        _share(evidence.commit_bytes, evidence) >= COMMIT_PERCENT_MIN
        and evidence.commit_bytes <= evidence.commits * PLAIN_COMMIT_BYTES_MAX
    ):
        yield (
            Advice.COMMITS,
            f"combine small transactions (commit records are "
            f"{_percent(evidence.commit_bytes, evidence)}{_rate(evidence)})",
        )


def _checkpoint_distance(evidence: Evidence) -> tuple[float, float] | None:
    """Seconds and bytes from a checkpoint to the next one, on average."""
    if evidence.checkpoints < CHECKPOINTS_MIN or evidence.checkpoint_seconds is None:
        return None
    spans = evidence.checkpoints - 1
    return evidence.checkpoint_seconds / spans, evidence.checkpoint_bytes / spans


def _rate(evidence: Evidence) -> str:
    if not evidence.seconds or evidence.seconds < 1:
        return ""
    return f", at {evidence.commits / evidence.seconds:,.0f} commits a second"


def _share(part: int, evidence: Evidence) -> float:
    return 100 * part / evidence.bytes


def _percent(part: int, evidence: Evidence) -> str:
    return f"{_share(part, evidence):.0f} %"


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _list(parts: Iterable[str]) -> str:
    """`a`, `a and b`, or `a, b, and c`; a part may contain "and"."""
    *first, last = parts
    if not first:
        return last
    return f"{first[0]}, and {last}" if len(first) == 1 else f"{', '.join(first)}, and {last}"
