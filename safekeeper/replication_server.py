"""The commands of Postgres's replication protocol, for unmodified clients: a safekeeper as a
WAL server. Answers, codes and their order are those of `walsender.c`.

    IDENTIFY_SYSTEM  SHOW  TIMELINE_HISTORY  START_REPLICATION
    CREATE_REPLICATION_SLOT  DROP_REPLICATION_SLOT  READ_REPLICATION_SLOT

Commands that need data files or a catalog (base backups, logical replication) are refused. So is
all SQL, except for the queries of `monitoring_query.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from quorum_wal.consensus.ids import NodeId, TimelineId, parse_id
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch, history_file_name
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwire.blocking import Session
from quorum_wal.pgwire.commands import (
    Command,
    CreateReplicationSlot,
    DropReplicationSlot,
    IdentifySystem,
    ReadReplicationSlot,
    Show,
    StartReplication,
)
from quorum_wal.pgwire.commands import TimelineHistory as AskedHistory
from quorum_wal.pgwire.copy_stream import CopyStream
from quorum_wal.pgwire.errors import QUERY_CANCELED, CopyEnd, CopyEnded, ProtocolError
from quorum_wal.pgwire.messages import BOOL_OID, BYTEA_OID, INT4_OID, INT8_OID, TEXT_OID, Column
from quorum_wal.pgwire.monitoring_query import (
    SelectMayMonitor,
    SelectOne,
    SelectSetting,
    SelectSlot,
    SetApplicationName,
)
from quorum_wal.safekeeper.command_roles import command_name
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.join_rules import check_not_left
from quorum_wal.safekeeper.replica import (
    Client,
    ReplicaSender,
    check_timeline,
    committed_lsn,
    committed_tli,
    first_lsn_of,
    next_tli,
)
from quorum_wal.safekeeper.send_wal import DonorSender, check_not_ahead
from quorum_wal.safekeeper.server_settings import find_setting, plain_settings, shown_settings
from quorum_wal.safekeeper.slots import Slot
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timelines import Timelines
from quorum_wal.safekeeper.trim_rule import parse_suffix
from quorum_wal.storage.errors import StorageError

log = structlog.get_logger()

FEATURE_NOT_SUPPORTED = "0A000"
UNDEFINED_OBJECT = "42704"
UNDEFINED_FILE = "58P01"
INVALID_PARAMETER = "22023"

# The major versions of Postgres in which an answer changed.
HISTORY_IS_TEXT_SINCE = 14
TIMELINE_IS_INT8_SINCE = 16
NEXT_TIMELINE = (Column("next_tli", INT8_OID), Column("next_tli_startpos"))


def select_timeline(timelines: Timelines, parameters: Mapping[str, str]) -> Timeline:
    """The timeline that `options=-c tenant_id=... -c timeline_id=...` names; without options, the
    only one. Without a tenant_id, the tenant is all zeros; without a timeline_id, it is the only
    one of the tenant. A timeline that was left is selected only if there is no other. Raises
    SafekeeperError, ConsensusError.
    """
    if "timeline_id" in parameters:
        tenant_id = parse_id(parameters.get("tenant_id", "0" * 32), "tenant id")
        return timelines.get(
            TimelineId(tenant_id, parse_id(parameters["timeline_id"], "timeline id"))
        )
    found, whose = timelines.all(), "this safekeeper"
    if "tenant_id" in parameters:
        tenant_id, whose = parse_id(parameters["tenant_id"], "tenant id"), "this tenant"
        found = [t for t in found if t.control.timeline.tenant_id == tenant_id]
    found = [t for t in found if not t.control.has_left] or found
    if len(found) != 1:
        raise SafekeeperError(
            f'option "timeline_id" is missing, and {whose} has {len(found)} timelines',
            sqlstate=INVALID_PARAMETER,
            hint="Name the timeline: options='-c tenant_id=... -c timeline_id=...'",
        )
    return found[0]


class ReplicationServer:
    """Executes the commands of one session; `client.number` names the session."""

    def __init__(self, session: Session, timelines: Timelines, client: Client) -> None:
        self._session = session
        self._timelines = timelines
        self._client = client
        self._held: list[Timeline] = []  # kept awake until the session ends
        self._used: set[Timeline] = set()

    def execute(self, command: Command) -> None:
        """Answers the command. Raises SafekeeperError, ConsensusError, WalError, WireError."""
        match command:
            case IdentifySystem():
                self._identify_system()
            case Show(name):
                self._show(name)
            case AskedHistory(tli):
                self._timeline_history(tli)
            case StartReplication():
                self._start_replication(command)
            case CreateReplicationSlot(plugin=None):
                self._create_slot(command)
            case DropReplicationSlot(name, wait):
                self._timeline().slots.drop(name, self._client.number, wait=wait)
                self._session.send_complete("DROP_REPLICATION_SLOT")
            case ReadReplicationSlot(name):
                self._read_slot(name)
            case SelectOne():
                self._send_value("?column?", "1", INT4_OID)
            case SelectSetting(name):
                self._select_setting(name)
            case SelectSlot(name):
                self._select_slot(name)
            case SelectMayMonitor():
                self._send_value("?column?", "t", BOOL_OID)  # the role was checked before
            case SetApplicationName(name):
                self._session.set_parameter("application_name", name)
            case _:
                raise _unsupported(command)

    def close(self) -> None:
        """The session ends; its temporary slots are dropped."""
        for timeline in self._used:
            timeline.slots.end_session(self._client.number)
        while self._held:
            self._held.pop().sleep.allow()

    def _timeline(self) -> Timeline:
        timeline = select_timeline(self._timelines, self._session.parameters)
        check_not_left(timeline.control)
        if timeline not in self._held:
            timeline.sleep.prevent()
            self._held.append(timeline)
        return timeline

    # ---- queries

    def _identify_system(self) -> None:
        timeline = self._timeline()
        lsn = committed_lsn(timeline)
        tli = committed_tli(timeline.control.tli_history, lsn)
        server = timeline.control.server
        columns = (
            Column("systemid"),
            Column("timeline", INT8_OID if server.pg_major >= TIMELINE_IS_INT8_SINCE else INT4_OID),
            Column("xlogpos"),
            Column("dbname"),
        )
        row = (str(server.system_id), tli, format_lsn(lsn), None)
        self._session.send_rows(columns, [row], "IDENTIFY_SYSTEM")

    def _show(self, name: str) -> None:
        application_name = self._session.parameters.get("application_name", "")
        control = self._timeline().control
        settings = {
            **shown_settings(control.server, application_name),
            # Our own setting: no member has, or ever had, WAL below it.
            "timeline_start_lsn": format_lsn(control.timeline_start_lsn),
        }
        found = find_setting(settings, name)
        if found is None:
            raise SafekeeperError(
                f'unrecognized configuration parameter "{name}"',
                hint="A safekeeper has only the settings for replication; ask the primary.",
                sqlstate=UNDEFINED_OBJECT,
            )
        own_name, value = found
        self._session.send_rows([Column(own_name)], [(value,)], "SHOW")

    def _select_setting(self, name: str) -> None:
        value = plain_settings(self._timeline().control.server).get(name)
        rows = [] if value is None else [(value,)]
        self._session.send_rows([Column("setting")], rows, f"SELECT {len(rows)}")

    def _send_value(self, name: str, value: str, type_oid: int) -> None:
        self._session.send_rows([Column(name, type_oid)], [(value,)], "SELECT 1")

    def _timeline_history(self, tli: int) -> None:
        timeline = self._timeline()
        newest = timeline.control.tli_history
        history = _ancestors(newest, tli)
        if history is None or tli > committed_tli(newest, committed_lsn(timeline)):
            raise SafekeeperError(
                f'could not open file "pg_wal/{history_file_name(tli)}": No such file or directory',
                sqlstate=UNDEFINED_FILE,
            )
        is_text = timeline.control.server.pg_major >= HISTORY_IS_TEXT_SINCE
        columns = (Column("filename"), Column("content", TEXT_OID if is_text else BYTEA_OID))
        row = (history_file_name(tli), history.format())
        self._session.send_rows(columns, [row], "TIMELINE_HISTORY")

    # ---- slots

    def _create_slot(self, command: CreateReplicationSlot) -> None:
        timeline = self._timeline()
        restart_lsn = committed_lsn(timeline) if command.reserve_wal else 0
        owner = self._client.number if command.temporary else None
        timeline.slots.create(command.slot, restart_lsn, temporary_for=owner)
        self._used.add(timeline)
        log.info("slot created", slot=command.slot, client=self._client.address)
        columns = [
            Column(name)
            for name in ("slot_name", "consistent_point", "snapshot_name", "output_plugin")
        ]
        row = (command.slot, "0/0", None, None)
        self._session.send_rows(columns, [row], "CREATE_REPLICATION_SLOT")

    def _read_slot(self, name: str) -> None:
        """Returns nulls, not an error, if the slot does not exist."""
        timeline = self._timeline()
        slot = timeline.slots.find(name)
        row: tuple[str | int | None, ...] = (None, None, None)
        if slot is not None:
            row = ("physical", None, None)
            if slot.restart_lsn and not slot.is_lost:
                lsn = committed_lsn(timeline)
                history = timeline.control.tli_history
                tli = history.tli_at(min(slot.restart_lsn, max(lsn - 1, 0)))
                row = ("physical", format_lsn(slot.restart_lsn), tli)
        columns = (Column("slot_type"), Column("restart_lsn"), Column("restart_tli", INT8_OID))
        self._session.send_rows(columns, [row], "READ_REPLICATION_SLOT")

    def _select_slot(self, name: str) -> None:
        slot, rows = self._timeline().slots.find(name), list[tuple[str | None, ...]]()
        if slot is not None:
            lsn = format_lsn(slot.restart_lsn) if slot.restart_lsn else None
            rows.append((slot.name, "f" if slot.holder is None else "t", lsn))
        columns = (Column("slot_name"), Column("active", BOOL_OID), Column("restart_lsn"))
        self._session.send_rows(columns, rows, f"SELECT {len(rows)}")

    # ---- streams

    def _start_replication(self, command: StartReplication) -> None:
        unknown = set(command.options) - {"node_id", "chained", "pageserver"}
        if unknown:
            raise SafekeeperError(
                f"unrecognized option: {min(unknown)}",
                hint="START_REPLICATION has the options node_id (for proposers), chained (for "
                "safekeepers that follow this one) and pageserver.",
                sqlstate=INVALID_PARAMETER,
            )
        timeline = self._timeline()
        node_id = command.options.get("node_id")
        if node_id:
            self._stream_to_donors_reader(timeline, command, NodeId.parse(node_id))
            return
        slots, slot, suffix = timeline.slots, None, None
        if "pageserver" in command.options:
            suffix = parse_suffix(command.options["pageserver"])
            slots.register(suffix)
        if command.slot is not None:
            slot = slots.acquire(command.slot, self._client.number)
        try:
            self._start_stream(timeline, command, slot, suffix)
        finally:
            if slot is not None:
                slots.release(slot)

    def _stream_to_donors_reader(
        self, timeline: Timeline, command: StartReplication, node_id: NodeId
    ) -> None:
        is_chained = command.options.get("chained") == "true"
        sender = DonorSender(timeline, command.start_lsn, node_id, is_chained=is_chained)
        sender.check_start()
        stream = self._session.start_copy_both()
        try:
            sender.run(stream)
        except CopyEnded as ended:
            self._end_ended(stream, ended)

    def _start_stream(
        self, timeline: Timeline, command: StartReplication, slot: Slot | None, suffix: int | None
    ) -> None:
        """As StartReplication(): checks timeline and position, then streams if there is WAL."""
        start_lsn, history = int(command.start_lsn), timeline.control.tli_history
        lsn = committed_lsn(timeline)
        tli = command.timeline or committed_tli(history, lsn)
        check_timeline(history, tli, start_lsn, lsn)
        sender = ReplicaSender(timeline, start_lsn, tli, self._client, slot, suffix)
        if tli != committed_tli(history, lsn) and start_lsn == history.switch_lsn_of(tli):
            row = (next_tli(history, tli), format_lsn(start_lsn))
            self._session.send_rows(NEXT_TIMELINE, [row], "START_STREAMING", "START_REPLICATION")
            return
        # Before the client is told that the stream begins: a stop that comes now waits for it.
        timeline.replicas.add(sender)
        try:
            stream = self._session.start_copy_both()
            check_not_ahead(start_lsn, lsn)
            if start_lsn < first_lsn_of(history, tli, timeline.control.server.wal_seg_size):
                raise sender.removed()
            self._stream(sender, stream)
        finally:
            timeline.replicas.remove(sender)

    def _stream(self, sender: ReplicaSender, stream: CopyStream) -> None:
        log.info("replica streams", **_about(sender))
        reason = ""
        try:
            sender.run(stream)
            reason = self._end_stream(sender, stream)
        except CopyEnded as ended:
            reason = str(ended)
            self._end_ended(stream, ended)
        except ProtocolError as error:
            reason = str(error)
            self._session.send_fatal(error)
        except (SafekeeperError, StorageError) as error:
            reason = str(error)
            raise
        finally:
            log.info("replica disconnected", client=self._client.address, reason=reason)

    def _end_stream(self, sender: ReplicaSender, stream: CopyStream) -> str:
        """All WAL of the timeline was sent, or the safekeeper shuts down. Returns which."""
        following = sender.next_timeline()
        if following is None or sender.sent_lsn < following[1]:
            stream.stop()
            return "the safekeeper shuts down"
        tli, switch_lsn = following
        stream.end_copy(columns=NEXT_TIMELINE, rows=[(tli, format_lsn(switch_lsn))])
        return f"timeline {sender.tli} ended at {format_lsn(switch_lsn)}, {tli} follows"

    def _end_ended(self, stream: CopyStream, ended: CopyEnded) -> None:
        match ended.how:
            case CopyEnd.CANCELED:
                self._session.send_error(QUERY_CANCELED, "canceling statement due to user request")
            case CopyEnd.COPY_DONE:
                stream.end_copy()
            case CopyEnd.COPY_FAIL:
                self._session.send_error(QUERY_CANCELED, f"COPY from stdin failed: {ended}")
            case CopyEnd.TERMINATE | CopyEnd.DISCONNECT:
                self._session.shutdown()


def _ancestors(history: TimelineHistory, tli: int) -> TimelineHistory | None:
    """The history of `tli`, which is `history`'s timeline or an ancestor. None for the first one,
    which has no history, and for an unknown one."""
    before: tuple[TimelineSwitch, ...] = tuple(e for e in history.entries if e.tli < tli)
    is_known = tli == history.tli or any(e.tli == tli for e in history.entries)
    return TimelineHistory(tli, before) if is_known and before else None


def _about(sender: ReplicaSender) -> dict[str, object]:
    return {
        "client": sender.client.address,
        "application_name": sender.client.application_name,
        "start_lsn": format_lsn(sender.sent_lsn),
        "tli": sender.tli,
        "slot": sender.slot.name if sender.slot is not None else None,
    }


def _unsupported(command: Command) -> SafekeeperError:
    return SafekeeperError(
        f"{command_name(command)} is not supported by a safekeeper: it stores WAL, but no data "
        "files and no catalogs; connect to the primary for it",
        hint="A safekeeper serves physical replication only. Take base backups from the primary.",
        sqlstate=FEATURE_NOT_SUPPORTED,
    )
