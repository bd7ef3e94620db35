"""Valid encodings of everything, as input of the mutations."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from crc32c import crc32c

from quorum_wal.consensus.codec import encode
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.join import TimelineOffer, encode_offer
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.consensus.messages import (
    Append,
    AppendResponse,
    Configure,
    Elected,
    HotStandbyFeedback,
    ProposerGreeting,
    SafekeeperGreeting,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.sealed import seal, unseal
from quorum_wal.pageserver.branches.branch_record import Branch
from quorum_wal.pageserver.objects.attachment_id import AttachmentId
from quorum_wal.pageserver.objects.deletion_list import (
    DeletionList,
    QueueHeader,
    encode_claim,
    encode_header,
    encode_list,
)
from quorum_wal.pageserver.objects.page_index import (
    Cut,
    FrameRef,
    LayerRef,
    PageIndex,
    encode_index,
)
from quorum_wal.pageserver.objects.page_keys import (
    ClaimName,
    HeaderName,
    IndexName,
    ListName,
    PageKeys,
    QueueKeys,
    TombstoneName,
)
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwire import extended_query, logical, messages, replication, startup
from quorum_wal.pgwire.auth import ScramClient, ScramServer, make_verifier
from quorum_wal.pgwire.messages import Column, Message
from quorum_wal.safekeeper.block_sums import BlockSums, encode_block_sums
from quorum_wal.safekeeper.control_state import ControlState, encode_control_state
from quorum_wal.safekeeper.slots_file import SavedSlot, encode_slots
from quorum_wal.safekeeper.trim_rule import Trim

A, B = NodeId(1, b"A" * 16), NodeId(3, b"B" * 16)
TIMELINE = TimelineId(bytes(16), bytes(range(16)))
SERVER = ServerFacts(7_123_456_789, 150018, 1 << 20)
MEMBERSHIP = Membership(Stamp.FIRST, (1, 2, 3))
ROSTER = (Member(2, b"instance", "10.0.0.2", 5454, "a"), Member(4, b"INSTANCE", "::4", 1, "\u00e9"))
JOINT = Membership(Stamp(B, 2), (1, 2, 3), (2, 3, 4), ROSTER)
HISTORY = TermHistory.initial(0x100000).extended(A, 0x100080).extended(B, 0x2000000)
TLI_TEXT = "1\t0/3000110\tno recovery target specified\n\n2\t0/50001A8\tbefore 2026-11-21\n"
TLI_HISTORY = TimelineHistory.parse(3, TLI_TEXT)

# ---- consensus

FROM_PROPOSER = (
    encode(ProposerGreeting(2, TIMELINE, SERVER, b"A" * 16)),
    encode(VoteRequest(Stamp(A, 1), A)),
    encode(Elected(B, 0x2000000, 0x100000, JOINT, HISTORY, TLI_HISTORY)),
    encode(Configure(B, JOINT)),
    encode(Append(1, A, 0x2000000, 0x2000010, 0x2000010, 0x100080, 0x100000, b"sixteen bytes...")),
    encode(Append(1, A, 0x2000000, 0x2000000, 0x2000000, 0, 0, b"")),
)
FROM_SAFEKEEPER = (
    encode(SafekeeperGreeting(2, b"instance", True, A, MEMBERSHIP)),
    encode(VoteResponse(True, B, 0x2000000, 9, 8, 0x100000, JOINT, HISTORY, TLI_HISTORY)),
    encode(AppendResponse(1, B, 5, 6, 4, 3, HotStandbyFeedback(1, 2, 3, 4, 5))),
)

MEMBERSHIPS = (encode_membership(MEMBERSHIP), encode_membership(JOINT))
_OFFER = TimelineOffer(
    SERVER, 0x5100000, 0x100000, B, JOINT, HISTORY.clipped(0x5100000), TLI_HISTORY
)
OFFERS = (encode_offer(_OFFER), encode_offer(_OFFER.beginning_at(0x1000000)))
ADDRESSES = ("10.0.0.1:5454", "[fd00::4]:1", "")

# ---- files

_STATE = ControlState(
    TIMELINE, SERVER, True, MEMBERSHIP, B, HISTORY, TLI_HISTORY, 0x100000, 0x100000, 9, 8
)
_DATA = Path(__file__).parents[1] / "data"
CONTROL_FILES = (
    encode_control_state(_STATE),
    encode_control_state(replace(_STATE, membership=JOINT, active=False)),
    encode_control_state(replace(_STATE, has_left=True)),
    *(bytes.fromhex((_DATA / f"control_v{n}.hex").read_text()) for n in (1, 2)),
)
SEGMENT_BYTES = 1 << 20
_SUMS = BlockSums(SEGMENT_BYTES)
_SUMS.extend(bytes(range(256)) * (SEGMENT_BYTES // 256))
BLOCK_SUMS = (encode_block_sums(_SUMS),)
SLOTS_FILES = (
    encode_slots([]),
    encode_slots([SavedSlot("standby_1", 0x2000000, False), SavedSlot("a" * 63, 0, True)]),
    encode_slots([SavedSlot("standby_1", 0x2000000, False)], Trim(0x700000300001A, 0x3000000)),
)
OBJECTS = (seal(b"content " * 100), seal(b"content", None), seal(b""), seal(bytes(100_000)))
_SUFFIX = Suffix.pack(7, 3, 26)
_INDEX = PageIndex(
    200,
    (Cut(150, 180, 200, 1, 1_700_000_000), Cut(260, 290, 300, 2, 1_700_000_900)),
    (LayerRef(200, 0, Suffix(1), 2, 64 << 20), LayerRef(300, 1, _SUFFIX, 1, 7)),
    (FrameRef(200, _SUFFIX, 4, 9),),
)
_ATTACHMENT = AttachmentId(TIMELINE, _SUFFIX)
_NAMES = (*(layer.name for layer in _INDEX.layers), IndexName(_SUFFIX, 1), _INDEX.frames[0].name)


def _raw(data: bytes) -> bytes:
    """The same object, not compressed, so that a mutation changes its content."""
    return seal(unseal(data, "key"), None)


PAGE_INDICES = (_raw(encode_index(_INDEX)), _raw(encode_index(PageIndex())))
CLAIMS = (_raw(encode_claim("5f" * 16)),)
DELETION_LISTS = (
    _raw(encode_list(DeletionList({_ATTACHMENT: tuple(name.format() for name in _NAMES)}))),
)
QUEUE_HEADERS = (_raw(encode_header(QueueHeader("5f" * 16, 41, frozenset({_ATTACHMENT})))),)
BRANCHES = (
    Branch(
        name="a.b-1", timeline=str(TIMELINE), lsn=300, cut_lsn=200, tli=2,
        moment=datetime(2026, 11, 21, 10, 15, tzinfo=UTC), last_commit_at=None,
        pg_version="15.18", bin_dir="/usr/lib/postgresql/15/bin", port=5433, database="postgres",
        superuser="postgres", prepared=1, created_at=datetime(2026, 11, 21, 10, 25, tzinfo=UTC),
    ).encode(),
)  # fmt: skip
PAGE_KEYS = tuple(
    PageKeys(TIMELINE).key(name) for name in (*_NAMES, ClaimName(_SUFFIX), TombstoneName())
)
QUEUE_KEYS = tuple(
    QueueKeys(1).key(name) for name in (ListName(_SUFFIX, 42), HeaderName(_SUFFIX, 42))
)
VERIFIER = make_verifier("pencil", b"0123456789abcdef", 2)
USER_FILES = (
    f"# who\n\nprimary1:proposer:{VERIFIER}\nops:monitor,replica:{VERIFIER}\n",
    f"\u00e9t\u00e9:admin:{VERIFIER}",
)
TOKENS = (b"abcdefghijklmnop0123456789\n", b"dG9rZW4tLl9+Ky8tLl9+Ky8=")
CONFIG_FILES = (
    'log-level = "debug"\n[safekeeper.run]\nid = 1\ndata-dir = "/d"\nuser_file = "/a"\n'
    '[attach]\nsafekeepers = ["a:1", "b:2"]\nconfigure = true\n[elect]\ntimeout = 2.5\n',
    "[safekeeper]\nrun = {id = 0x1f}\n[timeline.list]\njson = true\n",
)
CONTROL_DATA = (
    "Database system identifier:           7123456789012345678\nwal_log_hints setting: on\n"
    "Data page checksum version:           0\nMin recovery ending loc's timeline:   0\n"
    "Latest checkpoint's TimeLineID:       1\nLatest checkpoint's REDO location:    0/272FDC00\n",
)

# ---- the wire

_ID = "00112233445566778899aabbccddeeff"

_SCRAM_CLIENT = ScramClient("pencil", "client-nonce")
_SCRAM_SERVER = ScramServer("u", VERIFIER, "server-nonce")
CLIENT_FIRST = _SCRAM_CLIENT.first()
SERVER_FIRST = _SCRAM_SERVER.first(CLIENT_FIRST)
CLIENT_FINAL = _SCRAM_CLIENT.respond(SERVER_FIRST)
SERVER_FINAL = _SCRAM_SERVER.final(CLIENT_FINAL)
BOUND_FIRST = b"p=tls-server-end-point,,n=,r=client-nonce"
# Up to its signature: SEQUENCE { SEQUENCE {}, SEQUENCE { RSASSA-PSS, { [0] { { SHA-256 }}}}}.
CERTIFICATE = (
    b"-----BEGIN CERTIFICATE-----\n"
    + base64.b64encode(
        bytes.fromhex("30203000301c06092a864886f70d01010a300fa00d300b0609608648016503040201")
    )
    + b"\n-----END CERTIFICATE-----\n"
)

#: With a version, a serial number, and both kinds of times.
DATED_CERTIFICATE = (
    b"-----BEGIN CERTIFICATE-----\n"
    + base64.b64encode(
        bytes.fromhex("3030302ea003020102020101300030003020170d")
        + b"261127000000Z"
        + bytes.fromhex("180f")
        + b"20500101000000Z"
    )
    + b"\n-----END CERTIFICATE-----\n"
)

STARTUP = startup.StartupMessage(
    {"user": "u", "replication": "true", "options": r"-c a=b\ c --d=e"}, 2, {"_pq_.x": "y"}
)
STARTUP_PACKETS = tuple(
    packet.encode()[4:]
    for packet in (
        STARTUP,
        startup.SSLRequest(),
        startup.GSSENCRequest(),
        startup.CancelRequest(7, b"key!"),
    )
)
OPTIONS = (r"-c a=b\ c --d=e", "-ctenant_id=00 -c timeline-id=11", "--x=1")
SETTINGS = (f"-c timeline_id={_ID} -c my_ext.x=1", "-cdatestyle=iso -c client_encoding=utf-8")
PARSE = extended_query.Parse(b"s\0WAIT_LSN $1 TIMEOUT $2\0\0\2" + bytes(4) + b"\0\0\0\x15")
BIND = extended_query.Bind(b"p\0s\0\0\2\0\0\0\1\0\2\0\0\0\0030/2\0\0\0\2\1\0\0\1\0\0")
MESSAGES: tuple[Message, ...] = (
    messages.NegotiateProtocolVersion(2, ("_pq_.x", "_pq_.y")),
    messages.AuthenticationOk(),
    messages.AuthenticationSasl(("SCRAM-SHA-256", "SCRAM-SHA-256-PLUS")),
    messages.AuthenticationSaslContinue(SERVER_FIRST),
    messages.AuthenticationSaslFinal(SERVER_FINAL),
    messages.SaslInitialResponse("SCRAM-SHA-256", CLIENT_FIRST),
    messages.SaslResponse(CLIENT_FINAL),
    messages.ParameterStatus("server_version", "15.18"),
    messages.BackendKeyData(7, b"1234"),
    messages.ReadyForQuery("T"),
    messages.Query("IDENTIFY_SYSTEM"),
    messages.Terminate(),
    extended_query.Parse(b"\0select $1\0\0\1\0\0\0\x17"),
    extended_query.Bind(b"\0\0\0\0\0\1\0\0\0\1" + b"7\0\0"),
    extended_query.Describe(b"P\0"),
    extended_query.Execute(bytes(5)),
    extended_query.Close(b"S\0"),
    extended_query.Flush(),
    extended_query.Sync(),
    extended_query.FunctionCall(bytes(10)),
    extended_query.ParseComplete(),
    extended_query.BindComplete(),
    extended_query.CloseComplete(),
    extended_query.NoData(),
    extended_query.ParameterDescription((25, 23)),
    messages.RowDescription((Column("systemid"), Column("timeline", messages.INT4_OID))),
    messages.DataRow((b"7", None, b"")),
    messages.CommandComplete("SELECT"),
    messages.EmptyQueryResponse(),
    messages.ErrorResponse("FATAL", "57P01", "m", "d", "h", 12),
    messages.NoticeResponse("WARNING", "01000", "m"),
    messages.CopyBothResponse(),
    messages.CopyData(b"payload"),
    messages.CopyDone(),
    messages.CopyFail("why"),
)
FROM_WAL_SENDER = (
    replication.XLogData(1, 2, 3, b"wal").encode(),
    replication.Keepalive(1, 2, True).encode(),
)
FROM_STANDBY = (
    replication.StandbyStatus(1, 2, 3, 4, True).encode(),
    replication.HotStandbyFeedback(1, 2, 3, 4, 5).encode(),
)
_GID = "skq1.d.19c1f0a3e55.2-16b374d848-2f1-1.019c1f0a3e557b2c8d0e4f6a7b8c9d0e"
GIDS = (_GID, _GID.replace(".d.", ".r."))
FROM_LOGICAL_STREAM = (
    logical.BeginPrepare(1, 2, 3, 4, _GID).encode(),
    logical.Prepare(1, 2, 3, 4, _GID).encode(),
    logical.Prepare(1, 2, 3, 4, "other", is_streamed=True).encode(),
    logical.CommitPrepared(1, 2, 3, 4, _GID).encode(),
    logical.RollbackPrepared(1, 2, 3, 4, 5, _GID).encode(),
)
GID = f"skq1.d.19c1f0a3e55.2-16b374d848-2f1-1.{_ID}"
VERBS = (
    "ADMIT;",
    f"WAIT_LSN 16/B374D848 TIMEOUT 5000 GID '{GID}'",
    "BARRIER 0/1 TIMEOUT 0 TLI 4294967295 START 9223372036854775807",
    f"OUTCOME '{GID}' LSN 0/1",
    "QSYNC_STATUS",
    "QSYNC_LIST",
    f"RESOLVE '{GID}' ROLLBACK TIMEOUT 1",
)
STATEMENTS = (*VERBS, "WAIT_LSN $2 TIMEOUT $1 GID $3", "BARRIER $1 TIMEOUT $1")
COMMANDS = (
    "IDENTIFY_SYSTEM;",
    'SHOW "Data Dir".x',
    "TIMELINE_HISTORY 4294967295",
    'START_REPLICATION SLOT "a""b" PHYSICAL 16/B374D848 TIMELINE 3 (node_id \'5/00\', x 7)',
    "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'it''s')",
    "CREATE_REPLICATION_SLOT s TEMPORARY PHYSICAL RESERVE_WAL",
    "CREATE_REPLICATION_SLOT s LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE)",
    "DROP_REPLICATION_SLOT s WAIT",
    "READ_REPLICATION_SLOT s",
    "ALTER_REPLICATION_SLOT s (FAILOVER true)",
    "BASE_BACKUP (LABEL 'x', PROGRESS, CHECKPOINT 'fast')",
    "UPLOAD_MANIFEST",
    f"CREATE_TIMELINE (tenant_id '{'0' * 32}', system_id 7, members '1,2,3', start_lsn '0/1')",
    "SELECT setting FROM pg_settings WHERE name = 'wal_segment_size'",
    "SELECT slot_name, active, restart_lsn FROM pg_replication_slots"
    " WHERE slot_type = 'physical' AND slot_name = 'it''s'",
    "SET application_name TO barman;",
)

# ---- WAL


def _block(block_id: int, flags: int, length: int, image: bytes, relation: bytes) -> bytes:
    return bytes([block_id, flags]) + struct.pack("<H", length) + image + relation + b"\5\0\0\0"


_TABLE = struct.pack("<III", 1663, 5, 16384)
_HOLE, _COMPRESSED = struct.pack("<HHB", 100, 24, 3), struct.pack("<HHBH", 60, 24, 7, 900)
RECORD_BODIES = (
    b"\xff\x03abc",
    b"\xfe" + struct.pack("<I", 300) + b"m" * 300,
    b"".join((
        _block(0, 0x20, 4, b"", _TABLE), _block(2, 0x91, 0, _HOLE, b""),
        b"\xfd\x09\x00\xfc\xbc\x02\x00\x00\xff\x02", b"data", b"i" * 100, b"mm",
    )),
    _block(1, 0x10, 0, _COMPRESSED, _TABLE) + b"\xff\x00" + b"c" * 60,
)  # fmt: skip
_EXTENDED = (
    *(PARSE, extended_query.Describe(b"Ss\0"), BIND, extended_query.Describe(b"Pp\0")),
    *(extended_query.Execute(b"p\0\0\0\0\0"), extended_query.Close(b"Ss\0")),
    *(extended_query.Flush(), extended_query.Sync()),
)
_SIMPLE = (*(messages.Query(text) for text in VERBS), extended_query.FunctionCall(b"x"))
PORT_CONVERSATIONS = tuple(
    b"".join(message.encode() for message in said)
    for said in ((*_EXTENDED, *_SIMPLE, messages.Terminate()), _EXTENDED, _SIMPLE)
)

VALIDATIONS = (
    b'{"node_id": 3, "node_generation": 26, "tenants": [{"tenant": '
    b'"00112233445566778899aabbccddeeff", "attachment_generation": 7}]}',
)
REGISTRATIONS = (
    b'{"node_id": 3, "node_generation": 26, "attachments": [{"tenant": '
    b'"00112233445566778899aabbccddeeff", "node_id": 3, "attachment_generation": 7, '
    b'"mode": "single"}], "more": [1e9, null]}',
)


def _heap_page(rows: tuple[bytes, ...]) -> bytes:
    """Tuples with a header of 24 bytes, 128 bytes apart."""
    page = bytearray(8192)
    struct.pack_into("<HHH", page, 12, 24 + 4 * len(rows), 8192 - 128 * len(rows), 8192)
    for number, row in enumerate(rows, 1):
        offset = 8192 - 128 * number
        struct.pack_into("<I", page, 20 + 4 * number, offset | 1 << 15 | 24 + len(row) << 17)
        page[offset + 22] = 24
        page[offset + 24 : offset + 24 + len(row)] = row
    return bytes(page)


def _relation_map(room: int) -> bytes:
    pairs = struct.pack("<4I", 1259, 16390, 1247, 16391)
    data = struct.pack("<II", 0x592717, 2) + pairs.ljust(8 * room, b"\0")
    return (data + struct.pack("<I", crc32c(data))).ljust(512, b"\0")


HEAP_PAGE = _heap_page((b"one", b"the second"))
RELATION_MAPS = (_relation_map(62), _relation_map(64))
