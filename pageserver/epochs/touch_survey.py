"""`TouchSurveyor`: derives `Touches` from WAL records.

Compiled loops (`touch_kernel`) read the frequent records. This file reads the rare ones: files
created, truncated and dropped, databases, tablespaces, checkpoints.

    XLOG        checkpoints, PARAMETER_CHANGE        Transaction   relations dropped at its end
    Storage     CREATE, TRUNCATE                     Database      CREATE..., DROP
    Tablespace  CREATE, DROP                         custom ones   refused, unless listed

Sources: Postgres `catalog/storage_xlog.h`, `commands/dbcommands_xlog.h`, `commands/tablespace.h`,
`catalog/pg_control.h`, `access/xact.h`; `visibilitymap_prepare_truncate` in `visibilitymap.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

import numpy as np

from quorum_wal.pageserver.epochs.touch_kernel import (
    KIND_SHIFT,
    NEEDS_BASE,
    RARE,
    RELATION_SHIFT,
    RELATIONS,
    TOUCHES,
    VM_HEAP_BLOCKS,
    TouchTables,
    find_relation,
    note_touches,
    refill_relations,
    refill_touches,
    touch,
)
from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pageserver.layers.touches import (
    Checkpoint,
    Database,
    ForkPages,
    NewTablespace,
    Touches,
)
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.walrecords.filter_tables import pass_all
from quorum_wal.walrecords.record_index import RecordIndex
from quorum_wal.walrecords.record_survey import RecordFacts, RecordSurvey, RecordSurveyor

#: initial number of slots of hash tables
SLOTS_MIN = 1 << 12
_LOCATOR = struct.Struct("<III")
_DATABASE = struct.Struct("<II")
_TRUNCATE = struct.Struct("<IIIIi")
_TRUNCATE_HEAP, _TRUNCATE_VM = 0x1, 0x2
_HAS_DATABASE, _HAS_SUBXACTS = 1, 2

_XLOG, _XACT, _SMGR, _DBASE, _TBLSPC = 0, 1, 2, 4, 5


class TouchSurveyor:
    """Surveys one range. `custom_rmgrs`: custom resource managers whose block references are
    complete."""

    def __init__(self, version_major: int, custom_rmgrs: Collection[int] = ()) -> None:
        version = wal_version(version_major)
        self._major = version_major
        self._custom_rmgrs = frozenset(custom_rmgrs)
        self._surveyor = RecordSurveyor(version, pass_all())
        self._apply_mask = version.image_apply
        self._tables = TouchTables(
            relations=np.zeros((SLOTS_MIN, 3), np.uint32),
            relation_slots=np.full(SLOTS_MIN, -1, np.int32),
            keys=np.zeros(SLOTS_MIN, np.uint64),
            flags=np.zeros(SLOTS_MIN, np.uint8),
            counts=np.zeros(3, np.int64),
        )
        self._begin_lsn: int | None = None
        self.end_lsn = 0
        self._limits: dict[Fork, int] = {}
        self._dropped: set[tuple[int, int, int]] = set()
        self._fresh: set[Database] = set()
        self._copied: list[tuple[Database, Database]] = []
        self._spaces_created: list[NewTablespace] = []
        self._spaces_dropped: list[int] = []
        self._prepared_max = 0
        self.checkpoints: list[Checkpoint] = []

    def feed(self, index: RecordIndex) -> RecordSurvey:
        """Takes the next records. Returns their survey, until the next call. Raises
        SurveyError."""
        survey = self._surveyor.survey(index)
        if not len(index):
            return survey
        if self._begin_lsn is None:
            self._begin_lsn = int(index.start_lsn[0])
        self.end_lsn = int(index.end_lsn[-1])
        facts, places, _, bad = survey
        if bad >= 0:
            raise SurveyError(
                f"could not decode the record at {format_lsn(int(index.start_lsn[bad]))}",
                hint="Run sk archive verify to check the copy in the archive.",
            )
        blocks = int(facts.block_offsets[-1])
        self._make_room(2 * blocks)  # each may also clear a page of the visibility map
        rare = np.empty(len(facts.record), np.int64)
        note_touches(
            index.data, index.at, facts.record, facts.length, facts.operation, facts.main_length,
            facts.block_offsets, places.header_at, places.relation_at, places.number_at,
            self._apply_mask, self._tables, rare,
        )  # fmt: skip
        for row in rare[: self._tables.counts[RARE]].tolist():
            self._read_rare(index, facts, row)
        return survey

    def finish(self) -> Touches:
        """The result for all records."""
        return Touches(
            begin_lsn=self._begin_lsn or 0,
            end_lsn=self.end_lsn,
            pages=tuple(self._pages()),
            limits=dict(self._limits),
            dropped=frozenset(self._dropped),
            fresh_databases=frozenset(self._fresh),
            copied_databases=tuple(self._copied),
            tablespaces_created=tuple(self._spaces_created),
            tablespaces_dropped=tuple(self._spaces_dropped),
            prepared_max=self._prepared_max,
            checkpoints=tuple(self.checkpoints),
        )

    # ---- tables

    def _make_room(self, more: int) -> None:
        relations, slots, keys, flags, counts = self._tables
        needed = 2 * (int(counts[TOUCHES]) + more)
        if needed > len(keys):
            size = _power_of_two(needed)
            more_keys, more_flags = np.zeros(size, np.uint64), np.zeros(size, np.uint8)
            refill_touches(keys, flags, more_keys, more_flags)
            keys, flags = more_keys, more_flags
        needed = 2 * (int(counts[RELATIONS]) + more)
        if needed > len(slots):
            size = _power_of_two(needed)
            count = int(counts[RELATIONS])
            more_relations = np.zeros((size, 3), np.uint32)
            more_relations[:count] = relations[:count]
            slots = np.full(size, -1, np.int32)
            refill_relations(more_relations, count, slots)
            relations = more_relations
        self._tables = TouchTables(relations, slots, keys, flags, counts)

    def _pages(self) -> list[ForkPages]:
        """In the order of layers."""
        relations, _, keys, flags, counts = self._tables
        taken = keys != 0
        keys, flags = keys[taken] - np.uint64(1), flags[taken]
        order = np.argsort(keys)
        keys, flags = keys[order], flags[order]
        if not len(keys):
            return []  # no record touches a page
        groups, starts = np.unique(keys >> np.uint64(KIND_SHIFT), return_index=True)
        found = []
        for group, begin, end in zip(groups, starts, [*starts[1:], len(keys)], strict=True):
            relation = int(group) >> (RELATION_SHIFT - KIND_SHIFT)
            kind = ForkKind(int(group) & 3)
            tablespace, database, number = map(int, relations[relation])
            fork = Fork(tablespace, database, number, kind)
            blocks = (keys[begin:end] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            found.append(ForkPages(fork, blocks, flags[begin:end] & NEEDS_BASE != 0))
        assert sum(len(each.blocks) for each in found) == counts[TOUCHES]
        return sorted(found, key=lambda each: each.fork)

    def _touch(self, fork: Fork, block: int) -> None:
        self._make_room(1)
        relations, slots, keys, flags, counts = self._tables
        relation = find_relation(
            fork.tablespace, fork.database, fork.number, relations, slots, counts
        )
        touch(relation, int(fork.kind), block, keys, flags, counts)

    # ---- rare records

    def _read_rare(self, index: RecordIndex, facts: RecordFacts, row: int) -> None:
        record = int(facts.record[row])
        begin, length = int(index.at[record]), int(facts.length[row])
        main_length = int(facts.main_length[row])
        main = index.data[begin + length - main_length : begin + length].tobytes()
        rmgr, op = divmod(int(facts.operation[row]), 16)
        try:
            if rmgr == _XLOG:
                self._read_xlog(index, record, op, main)
            elif rmgr == _XACT:
                self._read_end(main)
            elif rmgr == _SMGR:
                self._read_storage(op, main)
            elif rmgr == _DBASE:
                self._read_database(op, main)
            elif rmgr == _TBLSPC:
                self._read_tablespace(int(index.start_lsn[record]), op, main)
            elif rmgr not in self._custom_rmgrs:
                raise SurveyError(
                    f"the WAL at {format_lsn(int(index.start_lsn[record]))} has records of custom "
                    f"resource manager {rmgr}",
                    hint="The pageserver does not know which pages such records change, so it "
                    "makes no cuts of clusters with this extension.",
                )
        except struct.error as error:
            raise SurveyError(
                f"the record at {format_lsn(int(index.start_lsn[record]))} is too short: "
                f"{main_length} bytes of data"
            ) from error

    def _read_xlog(self, index: RecordIndex, record: int, op: int, main: bytes) -> None:
        if op == 0x6:  # PARAMETER_CHANGE: connections, worker processes, WAL senders, prepared
            self._prepared_max = max(self._prepared_max, struct.unpack_from("<i", main, 12)[0])
            return
        lsns = int(index.start_lsn[record]), int(index.end_lsn[record])
        self.checkpoints.append(Checkpoint.parse(main, *lsns))

    def _read_end(self, main: bytes) -> None:
        """Reads the end of a transaction that drops relations."""
        for tablespace, database, number in dropped_relations(main):
            self._dropped.add((tablespace, database, number))
            for kind in ForkKind:
                self._limit(Fork(tablespace, database, number, kind), 0)

    def _read_storage(self, op: int, main: bytes) -> None:
        if op == 0x1:  # CREATE: locator, fork
            tablespace, database, number, kind = struct.unpack_from("<IIIi", main)
            self._limit(Fork(tablespace, database, number, ForkKind(kind)), 0)
        elif op == 0x2:  # TRUNCATE
            blocks, tablespace, database, number, flags = _TRUNCATE.unpack_from(main)
            if flags & _TRUNCATE_HEAP:
                self._limit(Fork(tablespace, database, number, ForkKind.MAIN), blocks)
            if flags & _TRUNCATE_VM:
                self._truncate_vm(Fork(tablespace, database, number, ForkKind.VM), blocks)

    def _truncate_vm(self, fork: Fork, heap_blocks: int) -> None:
        """TRUNCATE clears bits of the last remaining page, without a block reference."""
        blocks, rest = divmod(heap_blocks, VM_HEAP_BLOCKS)
        if rest:
            self._touch(fork, blocks)
        self._limit(fork, blocks + (rest > 0))

    def _read_database(self, op: int, main: bytes) -> None:
        # Before 15: CREATE copies files, DROP is 1. Since 15: FILE_COPY, WAL_LOG, DROP.
        is_drop = op == (0x2 if self._major >= 15 else 0x1)
        if is_drop:
            database, count = _DATABASE.unpack_from(main)
            for (tablespace,) in struct.iter_unpack("<I", main[8 : 8 + 4 * count]):
                self._fresh.add(Database(tablespace, database))
            return
        database, tablespace = _DATABASE.unpack_from(main)
        target = Database(tablespace, database)
        self._fresh.add(target)
        if op == 0x0:
            database, tablespace = _DATABASE.unpack_from(main, 8)
            self._copied.append((Database(tablespace, database), target))

    def _read_tablespace(self, lsn: int, op: int, main: bytes) -> None:
        (tablespace,) = struct.unpack_from("<I", main)
        if op == 0x0:
            path = main[4:].split(b"\0", 1)[0].decode(errors="surrogateescape")
            self._spaces_created.append(NewTablespace(tablespace, path, lsn, len(main)))
        else:
            self._spaces_dropped.append(tablespace)

    def _limit(self, fork: Fork, blocks: int) -> None:
        self._limits[fork] = min(blocks, self._limits.get(fork, blocks))


def dropped_relations(main: bytes) -> Iterator[tuple[int, int, int]]:
    """The relations dropped at the end of a transaction. `main` must have
    XACT_XINFO_HAS_RELFILELOCATORS. Raises struct.error."""
    (xinfo,) = struct.unpack_from("<I", main, 8)
    at = 12
    if xinfo & _HAS_DATABASE:
        at += 8
    if xinfo & _HAS_SUBXACTS:
        (count,) = struct.unpack_from("<i", main, at)
        at += 4 + 4 * count
    (count,) = struct.unpack_from("<i", main, at)
    for position in range(count):
        yield _LOCATOR.unpack_from(main, at + 4 + 12 * position)


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
