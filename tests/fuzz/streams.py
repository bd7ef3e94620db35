"""Parsers that get their input in pieces: the result must be the same for all ways of cutting
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from quorum_wal.pgwal.boundary import BoundaryFinder
from quorum_wal.pgwal.end_of_wal import READ_LENGTH, find_end_of_wal
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.page import check_page_header, parse_page_header
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker
from tests.odd_wal import MIB, PAGE, random_log
from tests.wal_log import SYSTEM_ID

from .bounds import bounded
from .mutation import mutate, split
from .seeds import PORT_CONVERSATIONS
from .wire import POLICIES, ClientShell, PortShell, ServerShell, conversation, converse

Transcript = list[str]
MAJOR = 16


@dataclass(frozen=True, slots=True)
class Stream:
    """`read` takes the pieces in order, and returns everything that it understood and how it ended;
    it raises nothing. `cut_matters` is the reason, if the cuts may matter."""

    name: str
    read: Callable[[Sequence[bytes]], Transcript]
    seeds: tuple[bytes, ...]
    cut_matters: str = ""
    piece_bytes: int = 1

    def case(self, random: Random) -> bytes:
        return mutate(random, self.seeds)

    def try_case(self, case: bytes, random: Random) -> Transcript:
        """Whole, in small pieces and in random ones. Raises Excess, AssertionError, and the errors
        of the stream."""
        size = self.piece_bytes
        whole = bounded(lambda: self.read([case]), len(case))
        small = [case[at : at + size] for at in range(0, len(case), size)]
        for pieces in (small, split(random, case)):
            # Each piece costs a call: it is a unit of input, too.
            found = bounded(partial(self.read, pieces), len(case) + len(pieces))
            if not self.cut_matters:
                assert found == whole, f"cut into {[len(piece) for piece in pieces][:40]}"
        return whole


# ---- the wire


def _server(policy: str, pieces: Sequence[bytes]) -> Transcript:
    return converse(ServerShell(policy), pieces)


def _client(policy: str, pieces: Sequence[bytes]) -> Transcript:
    shell = ClientShell(policy)
    shell.start()
    return converse(shell, pieces)


def _server_in_copy(prefix: bytes, pieces: Sequence[bytes]) -> Transcript:
    shell = ServerShell("scram")
    converse(shell, [prefix])
    return converse(shell, pieces)


def _port(pieces: Sequence[bytes]) -> Transcript:
    shell = PortShell()
    return [*converse(shell, pieces), bytes(shell.said).hex()]


def _wire() -> list[Stream]:
    streams = []
    said = {policy: conversation(policy) for policy in POLICIES}
    everything = [half for halves in said.values() for half in halves]
    for policy, (to_server, to_client) in said.items():
        tls = "bytes before the TLS handshake are refused" if policy == "tls" else ""
        for side, read, seed in (
            ("server", _server, to_server),
            ("client", _client, to_client),
        ):
            seeds = (seed, seed, *everything)
            streams.append(Stream(f"wire.{side}.{policy}", partial(read, policy), seeds, tls))
    to_server = said["scram"][0]
    at = to_server.index(b"\0", to_server.index(b"START_WAL_PUSH")) + 1
    read = partial(_server_in_copy, to_server[:at])
    streams.append(Stream("wire.server.copy", read, (to_server[at:],)))
    streams.append(Stream("walproposer.qsync.conversation", _port, PORT_CONVERSATIONS))
    return streams


# ---- WAL

_LOG = random_log(Random(7), 4 * PAGE)
_SMALL = random_log(Random(8), 2 * PAGE)


def _walk(skip_continuation: bool, start_lsn: int, pieces: Sequence[bytes]) -> Transcript:
    walker = RecordWalker(
        start_lsn,
        wal_seg_size=MIB,
        version_major=MAJOR,
        system_id=SYSTEM_ID,
        skip_continuation=skip_continuation,
    )
    found: Transcript = []
    try:
        for piece in pieces:
            walker.feed(piece)
            while (record := walker.next()) is not NEED_DATA:
                found.append(f"{record.start_lsn} {record.end_lsn} {len(record.data)}")
    except WalFormatError as error:
        found.append(str(error))
    assert walker.record_end_lsn <= walker.fed_lsn
    return found


def _find_boundaries(pieces: Sequence[bytes]) -> Transcript:
    finder = BoundaryFinder(_LOG.start_lsn, wal_seg_size=MIB, version_major=MAJOR)
    try:
        for piece in pieces:
            boundary_lsn = finder.feed(finder.end_lsn, piece)
            assert boundary_lsn <= finder.end_lsn
    except WalFormatError as error:
        return [str(error)]
    return [str(finder.record_end_lsn)]


def _find_end(pieces: Sequence[bytes]) -> Transcript:
    wal = b"".join(pieces)
    reads = 0

    def read(lsn: int, length: int) -> bytes:
        nonlocal reads
        reads += 1
        return wal[lsn - _LOG.start_lsn : lsn - _LOG.start_lsn + length]

    end = find_end_of_wal(
        read, _LOG.start_lsn, wal_seg_size=MIB, version_major=MAJOR, system_id=SYSTEM_ID
    )
    assert _LOG.start_lsn <= end.end_lsn <= _LOG.start_lsn + len(wal) + 7
    assert reads <= len(wal) // min(READ_LENGTH, PAGE) + 2
    return [f"{end.end_lsn} {end.last_record_lsn} {end.reason}"]


def _check_header(pieces: Sequence[bytes]) -> Transcript:
    header = parse_page_header(b"".join(pieces))
    if header is None:
        return ["too short"]
    try:
        check_page_header(
            header,
            _LOG.start_lsn,
            version=wal_version(MAJOR),
            wal_seg_size=MIB,
            system_id=SYSTEM_ID,
        )
    except WalFormatError as error:
        return [str(error)]
    return [str(header)]


def _wal() -> list[Stream]:
    logs = bytes(_LOG.wal), bytes(_SMALL.wal)
    start = _LOG.start_lsn
    pages = (logs[0][PAGE:], logs[0][2 * PAGE :])
    return [
        Stream("pgwal.walker", partial(_walk, False, start), logs, piece_bytes=61),
        Stream(
            "pgwal.walker.continuation", partial(_walk, True, start + PAGE), pages, piece_bytes=61
        ),
        Stream(
            "pgwal.boundary", _find_boundaries, logs, piece_bytes=PAGE // 2,
            cut_matters="it believes the primary's WAL, and looks only near the end of a piece",
        ),
        Stream("pgwal.end_of_wal", _find_end, logs, piece_bytes=PAGE),
        Stream("pgwal.page.check_page_header", _check_header, (logs[0][:40],)),
    ]  # fmt: skip


STREAMS = [*_wire(), *_wal()]
