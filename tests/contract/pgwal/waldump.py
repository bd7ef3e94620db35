"""pg_waldump as the reference: its line for every record.

rmgr: Heap        len (rec/tot):     54/  8214, tx:        730, lsn: 0/01547E98, prev 0/01547E60,
desc: HOT_UPDATE off 4 ..., blkref #0: rel 1663/5/1259 blk 0 FPW

The first of the two lengths is without page images.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from wal_folder import WalFolder

_LINE = re.compile(
    rb"rmgr: (\S+) +len \(rec/tot\): +(\d+)/ *(\d+), tx: +(\d+), "
    rb"lsn: ([0-9A-F]+)/([0-9A-F]+), prev ([0-9A-F]+)/([0-9A-F]+), "
    rb"desc: (UNKNOWN \([0-9a-f]+\)|\S+) ?"
)
_BLOCK = re.compile(rb"blkref #(\d+): rel (\S+)(?: fork (\w+))? blk (\d+)( FPW)?")
_FORKS = {b"": 0, b"main": 0, b"fsm": 1, b"vm": 2, b"init": 3}

#: start, total length, prev, xid, name of the resource manager
DumpedRecord = tuple[int, int, int, int, str]

#: block id, relation, fork, block number, whether it has a page image
DumpedBlock = tuple[int, str, int, int, bool]


#: name of the operation, bytes of page images
DumpedOperation = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Dump:
    """All records, the blocks of every n-th record (by index), and the reason for the end.

    `transactions` has the descriptions of the Transaction manager's records, by index, with times
    in UTC.
    """

    records: list[DumpedRecord]
    operations: list[DumpedOperation]
    transactions: dict[int, str]
    blocks: dict[int, list[DumpedBlock]]
    error: str


def dump(folder: WalFolder, *, blocks_every: int = 0) -> Dump:
    """pg_waldump from the folder's first segment to the end of its WAL."""
    program = folder.binaries.program("pg_waldump")
    records: list[DumpedRecord] = []
    operations: list[DumpedOperation] = []
    transactions: dict[int, str] = {}
    blocks: dict[int, list[DumpedBlock]] = {}
    with subprocess.Popen(
        [program, f"--path={folder.path}", *folder.segment_names],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=1 << 20,
        env={**os.environ, "TZ": "UTC"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        names: dict[bytes, str] = {}
        for line in process.stdout:
            match = _LINE.match(line)
            if match is None:
                assert line.startswith(b"first record is after"), line
                continue
            name, rest, length, xid, *lsns, operation = match.groups()
            high, low, prev_high, prev_low = (int(part, 16) for part in lsns)
            if blocks_every and len(records) % blocks_every == 0:
                blocks[len(records)] = _blocks(line)
            if name == b"Transaction":
                transactions[len(records)] = line[match.end() :].decode().rstrip()
            operations.append(
                (names.setdefault(operation, operation.decode()), int(length) - int(rest))
            )
            records.append(
                (
                    high << 32 | low,
                    int(length),
                    prev_high << 32 | prev_low,
                    int(xid),
                    names.setdefault(name, name.decode()),
                )
            )
        error = process.stderr.read().decode()
    return Dump(records, operations, transactions, blocks, error)


def _blocks(line: bytes) -> list[DumpedBlock]:
    return [
        (int(number), relation.decode(), _FORKS[fork], int(block), bool(image))
        for number, relation, fork, block, image in _BLOCK.findall(line)
    ]
