"""The table: every parser of outside bytes and texts, and the errors that it may raise.

`covers` names the functions of a row; `tests/unit/test_fuzz.py` fails if a public parse or decode
function is in no row. Parsers that get their input in pieces: `streams.py`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import psycopg
from crc32c import crc32c

from quorum_wal.access import users
from quorum_wal.backup.backup_record import parse_backup_id
from quorum_wal.backup.base_backup import parse_message
from quorum_wal.backup.errors import BackupError
from quorum_wal.cli import config_file, listening, parameters
from quorum_wal.cli import generations as generation_commands
from quorum_wal.cli.main import cli
from quorum_wal.consensus.codec import decode_proposer_message, decode_safekeeper_message
from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId, TimelineId, parse_id
from quorum_wal.consensus.join import decode_offer
from quorum_wal.consensus.membership_codec import decode_membership
from quorum_wal.consensus.membership_page import split_address
from quorum_wal.generations import messages
from quorum_wal.generations.client import ServiceAddress
from quorum_wal.generations.errors import (
    GenerationError,
    GenerationServiceUnavailable,
    RequestInvalid,
)
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore import (
    remote,  # noqa: F401  else the first URL of a remote store would load it
    sealed,
)
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectStoreError
from quorum_wal.objectstore.keys import ArchiveKeys
from quorum_wal.objectstore.store import open_store
from quorum_wal.pageserver.branches.branch_record import decode_branch
from quorum_wal.pageserver.checks.page_comparison import Expectation, compare
from quorum_wal.pageserver.checks.visibility_bits import are_bits_valid
from quorum_wal.pageserver.errors import BranchError, LayerDamaged, SurveyError, TableNameError
from quorum_wal.pageserver.layers.base_cache import decode_places
from quorum_wal.pageserver.layers.control_file import ControlFile
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, ForkKind, parse_file
from quorum_wal.pageserver.layers.page_header import PageHeader
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pageserver.objects.deletion_list import decode_claim, decode_header, decode_list
from quorum_wal.pageserver.objects.page_index import decode_index
from quorum_wal.pageserver.objects.page_keys import PageKeys, QueueKeys
from quorum_wal.pageserver.pitr.catalog_rows import (
    parse_class_row,
    parse_named_row,
    parse_pair_row,
    parse_role_row,
)
from quorum_wal.pageserver.pitr.heap_page import heap_rows
from quorum_wal.pageserver.pitr.relation_map import parse_relation_map
from quorum_wal.pageserver.pitr.table_name import TableName
from quorum_wal.pg_server.postmaster_file import PostmasterFile
from quorum_wal.pgwal.block_ref import decode_body
from quorum_wal.pgwal.errors import (
    LsnSyntaxError,
    SegmentNameError,
    TimelineHistoryError,
    WalFormatError,
)
from quorum_wal.pgwal.history import TimelineHistory, parse_history_file_name
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.page import parse_page_header
from quorum_wal.pgwal.record import Record
from quorum_wal.pgwal.segment import parse_segment_name
from quorum_wal.pgwire import startup
from quorum_wal.pgwire.auth import MECHANISM_PLUS, ScramClient, ScramServer, ScramVerifier
from quorum_wal.pgwire.certificate import end_point_hash, end_time
from quorum_wal.pgwire.commands import parse_command
from quorum_wal.pgwire.errors import CommandSyntaxError, ConnectionRefused, ProtocolError
from quorum_wal.pgwire.extended_fields import (
    decode_bind,
    decode_execute,
    decode_parse,
    decode_target,
)
from quorum_wal.pgwire.logical import parse_logical_message
from quorum_wal.pgwire.replication import parse_server_message, parse_standby_message
from quorum_wal.qsync.gid import Gid, GidError
from quorum_wal.qsync.statements import parse_epoch_us, parse_lsn
from quorum_wal.safekeeper import startup_parameters
from quorum_wal.safekeeper.block_sums import decode_block_sums
from quorum_wal.safekeeper.control_state import decode_control_state
from quorum_wal.safekeeper.data_directory import parse_folder_name
from quorum_wal.safekeeper.errors import ControlFileError, SafekeeperError
from quorum_wal.safekeeper.slots_file import decode_slots
from quorum_wal.safekeeper.trim_rule import parse_suffix
from quorum_wal.telemetry.http_token import read_http_token, read_private_token
from quorum_wal.telemetry.page.sign_in import parse_token_form
from quorum_wal.walproposer.errors import Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.failover import log_view
from quorum_wal.walproposer.failover.rewind import ControlData, standby_settings
from quorum_wal.walproposer.failover.standby import sources_of
from quorum_wal.walproposer.locks.lease import open_lock
from quorum_wal.walproposer.primary.standby_names import parse_standby_names
from quorum_wal.walproposer.qsync import verbs
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.status_page import PageAddress

from . import seeds
from .parser import Parser
from .spark_parsers import SPARK_PARSERS


def _crc_big_endian(data: bytes) -> bytes:
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "big")


def _reseal_object(data: bytes) -> bytes:
    """Corrects the seal's own checksum; its statement about the content may still be wrong."""
    head = data[-sealed.SEAL.size : -4]
    return data[:-4] + crc32c(head).to_bytes(4, "little")


def _reseal_content(data: bytes) -> bytes:
    """All of it becomes the content of a valid object: the content is parsed."""
    return sealed.seal(data[: -sealed.SEAL.size], None)


def _compare_page(case: bytes) -> object:
    """As a page of a heap, and of the visibility map of a heap with that page."""
    page = case[:PAGE_BYTES].ljust(PAGE_BYTES, b"\0")
    expected = Expectation(
        seeds.HEAP_PAGE, 1 << 40, are_bits_valid=lambda _, bits: are_bits_valid(bits, page)
    )
    return [compare(kind, 7, page, expected, has_checksum=False) for kind in ForkKind]


def _reseal_map(data: bytes) -> bytes:
    end = {512: 504, 524: 520}.get(len(data))
    return (
        data
        if end is None
        else data[:end] + crc32c(data[:end]).to_bytes(4, "little") + data[end + 4 :]
    )


def file_of(content: bytes | str) -> Any:
    """The content, instead of the path."""
    return _File(content)


class _File:
    def __init__(self, content: bytes | str) -> None:
        encode = "utf-8", "surrogatepass"  # a surrogate is not UTF-8: the parser must report it
        self._content = content if isinstance(content, bytes) else content.encode(*encode)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._content.decode(encoding, errors)


class _Secret:
    """A file without a name that no other process can read."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("secret")
        os.fchmod(self._descriptor, 0o600)

    def of(self, content: bytes) -> Path:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)
        return Path(f"/proc/self/fd/{self._descriptor}")


_SECRET = _Secret()


def _record(body: bytes) -> Record:
    data = bytes(24) + body
    return Record(Lsn(40), Lsn(40 + len(data)), len(data), Lsn(0), 7, 10, 0, data)


def _unseal_pieces(case: bytes) -> None:
    found = sealed.Seal.decode(case, "key")
    pieces = (case[begin : begin + 1000] for begin in range(0, len(case), 1000))
    for _ in sealed.unseal_pieces(pieces, found, "key"):
        continue


def _scram_server_final(case: bytes) -> None:
    server = ScramServer("u", seeds.VERIFIER, "server-nonce")
    server.first(seeds.CLIENT_FIRST)
    server.final(case)


def _scram_client_respond(case: bytes) -> None:
    ScramClient("pencil", "client-nonce").respond(case)


def _scram_client_verify(case: bytes) -> None:
    client = ScramClient("pencil", "client-nonce")
    client.respond(seeds.SERVER_FIRST)
    client.verify(case)


_CONTEXT = click.Context(cli)
# Loaded here, so that the first case that needs one does not exceed its limits.
_COMMANDS = [cli.get_command(_CONTEXT, name) for name in cli.list_commands(_CONTEXT)]


def _config(case: str) -> None:
    config_file.read_config(file_of(case), cli, _CONTEXT)


def _convert(kind: click.ParamType[Any]) -> Callable[[str], object]:
    return lambda text: kind.convert(text, None, None)


def _file_of(message: object) -> str:
    return type(message).__module__.removeprefix("quorum_wal.")


def _messages() -> list[Parser]:
    return [
        Parser(
            f"{_file_of(message)}.{type(message).__name__}",
            type(message).decode,
            (ProtocolError,),
            seeds=(message.payload(),),
            covers=(f"{_file_of(message)}.*",),
        )
        for message in seeds.MESSAGES
    ]


_KEYS = ArchiveKeys(seeds.TIMELINE, 1 << 20)
_SEGMENT = "000000010000000A000000FE"
_LSNS = ("16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF")
_ID = "00112233445566778899aabbccddeeff"
_ADDRESSES = ("a:5454", "[::1]:5454", "::1", "https://0.0.0.0:7676")
_CONNINFO = ("host=a,b port=1,2 user=x", "postgresql://u:p@[::1]:7/db", "hostaddr=10.0.0.1 port=7")
_SCRAM_ERRORS = (ProtocolError, ConnectionRefused)
#: what a reader of rows reports in the row
_DATUM_ERRORS = (ValueError, IndexError, RecursionError, struct.error)

PARSERS: list[Parser] = [
    Parser("consensus.codec.decode_proposer_message", decode_proposer_message, (MessageError,),
           seeds=seeds.FROM_PROPOSER),
    Parser("consensus.codec.decode_safekeeper_message", decode_safekeeper_message, (MessageError,),
           seeds=seeds.FROM_SAFEKEEPER),
    Parser("consensus.membership_codec.decode_membership", decode_membership, (MessageError,),
           seeds=seeds.MEMBERSHIPS),
    Parser("consensus.join.decode_offer", decode_offer, (MessageError,), seeds=seeds.OFFERS),
    Parser("consensus.membership_page.split_address", split_address, (MessageError,),
           texts=seeds.ADDRESSES),
    Parser("consensus.ids.NodeId.parse", NodeId.parse, (MessageError,),
           texts=(f"5/{_ID}", f"18446744073709551615/{_ID}")),
    Parser("consensus.ids.TimelineId.parse", TimelineId.parse, (MessageError,),
           texts=(f"{_ID}/{_ID}", _ID)),
    Parser("consensus.ids.parse_id", lambda text: parse_id(text, "id"), (MessageError,),
           texts=(_ID, "00112233-4455-6677-8899-aabbccddeeff")),
    Parser("safekeeper.control_state.decode_control_state",
           lambda case: decode_control_state(case, "control"), (ControlFileError,),
           seeds=seeds.CONTROL_FILES, reseal=_crc_big_endian),
    Parser("safekeeper.block_sums.decode_block_sums",
           lambda case: decode_block_sums(case, seeds.SEGMENT_BYTES, seeds.SEGMENT_BYTES), (),
           seeds=seeds.BLOCK_SUMS, reseal=_crc_big_endian),
    Parser("safekeeper.slots_file.decode_slots", lambda case: decode_slots(case, "slots"),
           (SafekeeperError,), seeds=seeds.SLOTS_FILES, reseal=_crc_big_endian),
    Parser("safekeeper.trim_rule.parse_suffix", parse_suffix, (SafekeeperError,),
           texts=("000007000300001A", "F" * 16)),
    Parser("access.users.parse_users", users.parse_users, (users.UserFileError,),
           texts=seeds.USER_FILES, covers=("access.users.*",)),
    Parser("access.users.read_users", lambda case: users.read_users(_SECRET.of(case)),
           (users.UserFileError,), seeds=tuple(text.encode() for text in seeds.USER_FILES)),
    Parser("safekeeper.data_directory.parse_folder_name", parse_folder_name, (),
           texts=(f"{_ID}.{_ID}",)),
    Parser("telemetry.http_token.read_http_token", lambda case: read_http_token(file_of(case)),
           (ValueError,), seeds=seeds.TOKENS),
    Parser("telemetry.http_token.read_private_token",
           lambda case: read_private_token(_SECRET.of(case)), (ValueError,), seeds=seeds.TOKENS),
    Parser("telemetry.page.sign_in.parse_token_form", parse_token_form, (ValueError,),
           seeds=(b"token=abc%2Fdef", b"a=1&token=x+y", b"")),
    Parser("objectstore.store.open_store", open_store, (ObjectStoreError,),
           texts=("/srv/archive", "file:///srv/a%20b", "file://[::1]/x")),
    Parser("walproposer.locks.lease.open_lock", lambda url: open_lock(url, 10.0), (Refusal,),
           texts=("etcd://[::1]:2379/shop", "etcds://a:2379/x", "/srv/lock")),
    Parser("objectstore.sealed.unseal", lambda case: sealed.unseal(case, "key"), (ObjectDamaged,),
           seeds=seeds.OBJECTS, reseal=_reseal_object, covers=("objectstore.sealed.Seal.decode",)),
    Parser("objectstore.sealed.unseal_pieces", _unseal_pieces, (ObjectDamaged,),
           seeds=seeds.OBJECTS, reseal=_reseal_object),
    *(Parser(f"pageserver.objects.{module}.{decode.__name__}", partial(decode, key="key"),
             (ObjectDamaged,), seeds=objects, reseal=_reseal_content)
      for module, decode, objects in (
          ("page_index", decode_index, seeds.PAGE_INDICES),
          ("deletion_list", decode_claim, seeds.CLAIMS),
          ("deletion_list", decode_list, seeds.DELETION_LISTS),
          ("deletion_list", decode_header, seeds.QUEUE_HEADERS))),
    Parser("pageserver.branches.branch_record.decode_branch", decode_branch, (BranchError,),
           seeds=seeds.BRANCHES),
    Parser("pageserver.layers.control_file.ControlFile.parse", ControlFile.parse, (LayerDamaged,),
           seeds=(bytes(8192),)),
    Parser("pageserver.layers.fork.parse_file", parse_file, (),
           texts=("base/5/16384", "base/5/16384_vm.1", "global/1262",
                  "pg_tblspc/16390/PG_16_202307071/5/16391_fsm")),
    Parser("pageserver.objects.page_keys.PageKeys.parse", PageKeys(seeds.TIMELINE).parse, (),
           texts=seeds.PAGE_KEYS, covers=("pageserver.objects.page_keys.parse_page_name",)),
    Parser("pageserver.objects.page_keys.QueueKeys.parse", QueueKeys(1).parse, (),
           texts=seeds.QUEUE_KEYS, covers=("pageserver.objects.page_keys.parse_queue_name",)),
    Parser("objectstore.keys.ArchiveKeys.parse_wal", _KEYS.parse_wal, (),
           texts=(_KEYS.segment(1, 7), f"{_KEYS.partials(1, 7)}0000000000712340")),
    Parser("pgwire.startup.decode_startup_packet", startup.decode_startup_packet,
           (ProtocolError, ConnectionRefused), seeds=seeds.STARTUP_PACKETS),
    Parser("pgwire.startup.decode_encryption_answer",
           lambda case: [startup.decode_encryption_answer(byte) for byte in case],
           (ProtocolError,), seeds=(b"S", b"N")),
    Parser("pgwire.startup.parse_options", startup.parse_options, (ConnectionRefused,),
           texts=seeds.OPTIONS),
    Parser("safekeeper.startup_parameters",
           lambda case: startup_parameters.check_startup_parameters({"options": case}),
           (ConnectionRefused,), texts=seeds.SETTINGS),
    Parser("pgwire.startup.check_replication", startup.check_replication, (ConnectionRefused,),
           texts=("database", "TRUE", "of", "0")),
    Parser("pgwire.replication.parse_server_message", parse_server_message, (ProtocolError,),
           seeds=seeds.FROM_WAL_SENDER),
    Parser("pgwire.replication.parse_standby_message", parse_standby_message, (ProtocolError,),
           seeds=seeds.FROM_STANDBY),
    Parser("pgwire.logical.parse_logical_message", parse_logical_message, (ProtocolError,),
           seeds=seeds.FROM_LOGICAL_STREAM, covers=("pgwire.logical.*",)),
    Parser("qsync.gid.Gid.parse", Gid.parse, (GidError,), texts=seeds.GIDS),
    Parser("qsync.statements.parse_lsn", parse_lsn, (psycopg.DataError,),
           texts=("16/B374D848", "0/0")),
    Parser("qsync.statements.parse_epoch_us", parse_epoch_us, (psycopg.DataError,),
           texts=("1795526266.123456", "0")),
    Parser("pgwire.commands.parse_command", parse_command, (CommandSyntaxError,),
           texts=seeds.COMMANDS, covers=("pgwire.monitoring_query.parse_monitoring_query",)),
    Parser("pgwire.auth.ScramVerifier.parse", ScramVerifier.parse, (ValueError,),
           texts=(str(seeds.VERIFIER),)),
    Parser("pgwire.auth.ScramServer.first",
           lambda case: ScramServer("u", seeds.VERIFIER, "nonce").first(case),
           _SCRAM_ERRORS, seeds=(seeds.CLIENT_FIRST,)),
    Parser("pgwire.auth.ScramServer.final", _scram_server_final, _SCRAM_ERRORS,
           seeds=(seeds.CLIENT_FINAL,)),
    Parser("pgwire.auth.ScramClient.respond", _scram_client_respond, _SCRAM_ERRORS,
           seeds=(seeds.SERVER_FIRST,)),
    Parser("pgwire.auth.ScramClient.verify", _scram_client_verify, _SCRAM_ERRORS,
           seeds=(seeds.SERVER_FINAL,)),
    Parser("pgwire.auth.ScramServer.first (bound)",
           lambda case: ScramServer("u", seeds.VERIFIER, "n", bytes(9)).first(case, MECHANISM_PLUS),
           _SCRAM_ERRORS, seeds=(seeds.BOUND_FIRST,)),
    Parser("pgwire.certificate.end_point_hash", end_point_hash, (ValueError,),
           seeds=(seeds.CERTIFICATE,)),
    Parser("pgwire.certificate.end_time", end_time, (ValueError,),
           seeds=(seeds.DATED_CERTIFICATE,)),
    Parser("pgwal.lsn.Lsn.parse", Lsn.parse, (LsnSyntaxError,), texts=_LSNS),
    Parser("pgwal.segment.parse_segment_name", partial(parse_segment_name, wal_seg_size=1 << 24),
           (SegmentNameError,), texts=(_SEGMENT, f"{_SEGMENT}.partial")),
    Parser("pgwal.history.TimelineHistory.parse", partial(TimelineHistory.parse, 3),
           (TimelineHistoryError,), texts=(seeds.TLI_TEXT, "", f"# comment\n{seeds.TLI_TEXT}")),
    Parser("pgwal.history.parse_history_file_name", parse_history_file_name,
           (TimelineHistoryError,), texts=("00000002.history",)),
    Parser("pgwal.page.parse_page_header", parse_page_header, (),
           seeds=(b"\x13\xd1\x02\x00" + bytes(36),)),
    Parser("pgwal.block_ref.decode_body", lambda case: decode_body(_record(case), 16),
           (WalFormatError,), seeds=seeds.RECORD_BODIES),
    Parser("pageserver.layers.touches.Checkpoint.parse",
           lambda case: Checkpoint.parse(case, 8, 120), (SurveyError,), seeds=(bytes(80),)),
    Parser("pageserver.layers.page_header.PageHeader.parse", PageHeader.parse, (LayerDamaged,),
           seeds=(seeds.HEAP_PAGE, bytes(8192))),
    Parser("pageserver.pitr.heap_page.heap_rows", lambda case: list(heap_rows(case)),
           (LayerDamaged,), seeds=(seeds.HEAP_PAGE, bytes(8192))),
    Parser("pageserver.layers.base_cache.decode_places", decode_places, (LayerDamaged,),
           seeds=(bytes.fromhex("919805cd4e20cd4000000000cd0200cd2000"),)),
    Parser("pageserver.checks.page_comparison", _compare_page, (),
           seeds=(seeds.HEAP_PAGE, bytes(8192))),
    Parser("pageserver.pitr.relation_map.parse_relation_map", parse_relation_map,
           (LayerDamaged,), seeds=seeds.RELATION_MAPS, reseal=_reseal_map),
    Parser("pageserver.pitr.catalog_rows.parse_class_row",
           partial(parse_class_row, pg_major=18), (LayerDamaged,), seeds=(bytes(160),)),
    *(
        Parser(f"pageserver.pitr.catalog_rows.{read.__name__}", read, (LayerDamaged,),
               seeds=(bytes(80),))
        for read in (parse_named_row, parse_pair_row, parse_role_row)
    ),
    Parser("pageserver.pitr.table_name.TableName.parse", TableName.parse, (TableNameError,),
           texts=("shop.public.orders", 'shop."Odd.Name"."we""ird"')),
    Parser("pgwire.extended_fields.decode_parse", decode_parse, (ProtocolError,),
           seeds=(seeds.PARSE.data,)),
    Parser("pgwire.extended_fields.decode_bind", decode_bind, (ProtocolError,),
           seeds=(seeds.BIND.data,)),
    Parser("pgwire.extended_fields.decode_target", decode_target, (ProtocolError,),
           seeds=(b"Ss\0", b"P\0")),
    Parser("pgwire.extended_fields.decode_execute", decode_execute, (ProtocolError,),
           seeds=(b"p\0\0\0\0\1",)),
    Parser("walproposer.qsync.verbs.parse_verb", verbs.parse_verb, (CommandSyntaxError,),
           texts=seeds.VERBS),
    Parser("walproposer.qsync.verbs.parse_verb (values)",
           lambda text: verbs.parse_verb(seeds.STATEMENTS[-2], text.split("|")),
           (CommandSyntaxError,), texts=(f"5|16/B374D848|{seeds.GID}",)),
    Parser("walproposer.qsync.verbs.parse_statement", verbs.parse_statement,
           (CommandSyntaxError,), texts=seeds.STATEMENTS),
    Parser("walproposer.failover.log_view.parse", log_view.parse, (LsnSyntaxError,), texts=_LSNS),
    Parser("walproposer.safekeeper_client.SafekeeperAddress.parse", SafekeeperAddress.parse,
           (WalProposerError,), texts=_ADDRESSES),
    Parser("walproposer.timelines.status_page.PageAddress.parse",
           lambda text: PageAddress.parse(text, "reached"), (Unreachable,), texts=_ADDRESSES),
    Parser("walproposer.failover.rewind.ControlData.parse", ControlData.parse, (ValueError,),
           texts=seeds.CONTROL_DATA),
    Parser("walproposer.failover.rewind.standby_settings",
           lambda text: standby_settings(text, "host=a"), (),
           texts=("primary_conninfo = 'host=a'\nport = 1\n",)),
    Parser("walproposer.failover.standby.sources_of", sources_of, (), texts=_CONNINFO),
    Parser("walproposer.primary.standby_names.parse_standby_names", parse_standby_names,
           (WalProposerError,), texts=("walproposer", 'ANY 2 (a, "b ""c", *)', "FIRST 1 (a)", "")),
    Parser("backup.base_backup.parse_message", lambda case: parse_message(memoryview(case)),
           (BackupError,), seeds=(b"nbase.tar\0/tablespace\0", b"dbytes", b"m", b"p" + bytes(8))),
    Parser("backup.backup_record.parse_backup_id", parse_backup_id, (BackupError,),
           texts=("20261121T101500.123Z-0000000005000028",)),
    Parser("pg_server.postmaster_file.PostmasterFile.parse", PostmasterFile.parse, (),
           texts=("4711\n/data\n1763900000\n5432\n/tmp\n127.0.0.1\n  5432001  3\nready   \n",)),
    Parser("generations.suffix.Suffix.parse", Suffix.parse, (GenerationError,),
           texts=("000007000300001A", "FFFFFFFFFFFFFFFF")),
    Parser("generations.client.ServiceAddress.parse", ServiceAddress.parse, (GenerationError,),
           texts=("https://sk.example:7670", "http://[::1]:7670/", "http://localhost")),
    Parser("generations.messages.decode_request",
           lambda case: messages.decode_request(case, messages.Validate), (RequestInvalid,),
           seeds=seeds.VALIDATIONS),
    Parser("generations.messages.decode_answer",
           lambda case: messages.decode_answer(case, messages.NodeRegistration),
           (GenerationServiceUnavailable,), seeds=seeds.REGISTRATIONS),
    Parser("cli.generations.TenantName", _convert(generation_commands.TenantName()),
           (click.UsageError,), texts=(_ID,)),
    Parser("cli.generations.SuffixText", _convert(generation_commands.SuffixText()),
           (click.UsageError,), texts=("000007000300001A",)),
    Parser("cli.config_file.read_config", _config, (click.UsageError,),
           texts=seeds.CONFIG_FILES),
    Parser("cli.parameters.ByteSize", _convert(parameters.ByteSize()), (click.UsageError,),
           texts=("512MB", "1 GB", "0")),
    Parser("cli.parameters.TimelineName", _convert(parameters.TimelineName()), (click.UsageError,),
           texts=(_ID, f"{_ID}/{_ID}")),
    Parser("cli.parameters.Safekeepers", _convert(parameters.Safekeepers()), (click.UsageError,),
           texts=("a:1,b:2,[::1]:3",)),
    Parser("cli.parameters.Dsn", _convert(parameters.Dsn()), (click.UsageError,), texts=_CONNINFO),
    Parser("cli.listening.HostPort", _convert(listening.HostPort()), (click.UsageError,),
           texts=("a:5454", "[::1]:5454", "0.0.0.0:7676")),
    *SPARK_PARSERS,
    *_messages(),
]  # fmt: skip
