"""One client's connection: authentication, then one command after another until it disconnects.

Every error that a client can cause is answered with its SQLSTATE and affects no other client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import structlog

from quorum_wal.access.errors import AccessError
from quorum_wal.consensus.errors import ConsensusError
from quorum_wal.consensus.ids import TimelineId, parse_id
from quorum_wal.consensus.join import decode_offer
from quorum_wal.consensus.membership_codec import decode_membership
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwire.blocking import Session
from quorum_wal.pgwire.commands import OptionCommand, parse_command
from quorum_wal.pgwire.errors import CommandSyntaxError
from quorum_wal.pgwire.messages import Column
from quorum_wal.safekeeper.command_roles import command_name, roles_for
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.receive_wal import WalReceiver
from quorum_wal.safekeeper.refusals import members_in_words
from quorum_wal.safekeeper.replica import Client
from quorum_wal.safekeeper.replication_server import ReplicationServer
from quorum_wal.safekeeper.segment_repair import SegmentRepair
from quorum_wal.safekeeper.status import damaged_status, timeline_status
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.wal_removal import forget_pageserver
from quorum_wal.storage.errors import StorageError

if TYPE_CHECKING:
    from quorum_wal.safekeeper.service import Safekeeper

log = structlog.get_logger()

INVALID_PARAMETER = "22023"

DECIMAL_DIGITS_MAX = 20  # of a 64-bit number

_TIMELINE = frozenset({"tenant_id", "timeline_id"})
#: The options allowed in the parentheses; the other commands have none.
OPTIONS: Mapping[str, frozenset[str]] = {
    "TIMELINE_STATUS": _TIMELINE,
    "CREATE_TIMELINE": _TIMELINE
    | {
        *("system_id", "pg_version", "wal_seg_size", "membership"),
        *("start_lsn", "tli", "tli_history"),
    },
    "JOIN_TIMELINE": _TIMELINE | {"offer"},
    "LEAVE_TIMELINE": _TIMELINE | {"membership"},
    "FORCE_MEMBERSHIP": _TIMELINE | {"membership"},
    "ACTIVATE_TIMELINE": _TIMELINE,
    "DELETE_TIMELINE": _TIMELINE | {"unfinished"},
    "MEND_SEGMENT": frozenset({"lsn"}),
    "FORGET_PAGESERVER": _TIMELINE,
}


class ClientSession:
    """Runs in a thread of its own."""

    def __init__(self, safekeeper: Safekeeper, session: Session, number: int, address: str) -> None:
        self._safekeeper = safekeeper
        self._session = session
        self._number = number
        self._address = address
        self._replication = ReplicationServer(
            session,
            safekeeper.timelines,
            Client(
                number,
                address,
                session.parameters.get("application_name", ""),
                safekeeper.config.wal_sender_timeout_seconds,
            ),
        )

    def run(self) -> None:
        """Runs until the client disconnects. OSError: it did so during an answer."""
        try:
            self._run()
        finally:
            self._replication.close()

    def _run(self) -> None:
        while (text := self._session.read_command()) is not None:
            try:
                self._execute(text)
            except CommandSyntaxError as error:
                self._session.send_error(
                    error.sqlstate, str(error), hint=error.hint, position=error.position
                )
            except (SafekeeperError, AccessError, StorageError) as error:
                self._log_refusal(text, error.sqlstate, str(error))
                self._session.send_error(error.sqlstate, str(error), hint=error.hint or None)
            except (ConsensusError, WalError) as error:
                self._log_refusal(text, error.sqlstate, str(error))
                self._session.send_error(error.sqlstate, str(error))

    def _log_refusal(self, command: str, sqlstate: str, reason: str) -> None:
        name = command.split(maxsplit=1)[0]
        self._safekeeper.refusals.note(
            "refused", self._address, command=name, sqlstate=sqlstate, reason=reason
        )

    def _execute(self, text: str) -> None:
        parsed = parse_command(text)
        user = self._session.parameters["user"]
        self._safekeeper.access.check_role(user, roles_for(parsed), command_name(parsed))
        match parsed:
            case OptionCommand(name, options):
                _check_options(name, options)
                handlers: dict[str, Callable[[Mapping[str, str]], None]] = {
                    "START_WAL_PUSH": self._start_wal_push,
                    "IDENTIFY_SAFEKEEPER": self._identify,
                    "LIST_TIMELINES": self._list_timelines,
                    "TIMELINE_STATUS": self._timeline_status,
                    "CREATE_TIMELINE": self._create_timeline,
                    "JOIN_TIMELINE": self._join_timeline,
                    "LEAVE_TIMELINE": self._leave_timeline,
                    "FORCE_MEMBERSHIP": self._force_membership,
                    "ACTIVATE_TIMELINE": self._activate_timeline,
                    "DELETE_TIMELINE": self._delete_timeline,
                    "MEND_SEGMENT": self._mend_segment,
                    "FORGET_PAGESERVER": self._forget_pageserver,
                }
                handlers[name](options)
            case command:
                self._replication.execute(command)

    # ---- streams

    def _timeline(self, options: Mapping[str, str]) -> Timeline:
        return self._safekeeper.timelines.get(timeline_id_of(options))

    def _start_wal_push(self, _: Mapping[str, str]) -> None:
        timeline = self._timeline(self._session.parameters)
        conninfo = self._safekeeper.config.peer_conninfo
        receiver = WalReceiver(self._number, self._session, self._address, conninfo)
        receiver.run(timeline)

    def _mend_segment(self, options: Mapping[str, str]) -> None:
        lsn = int(Lsn.parse(_option(options, "lsn")))
        timeline = self._timeline(self._session.parameters)
        with timeline.sleep.prevented():
            SegmentRepair(timeline, lsn).run(self._session)

    # ---- answers in rows

    def _identify(self, _: Mapping[str, str]) -> None:
        safekeeper = self._safekeeper
        row = (
            str(safekeeper.config.safekeeper_id),
            safekeeper.version,
            safekeeper.http_address,
            safekeeper.data_directory.instance.hex(),
            safekeeper.config.site,
        )
        self._send_rows(("safekeeper_id", "version", "http", "instance", "site"), [row])

    def _list_timelines(self, _: Mapping[str, str]) -> None:
        """Includes timelines that cannot be opened: a client must know them to create another."""
        timelines = self._safekeeper.timelines
        statuses = [timeline_status(timeline) for timeline in timelines.all()]
        statuses += [damaged_status(folder, why) for folder, why in timelines.damaged.items()]
        self._send_rows(("status",), [(msgspec.json.encode(s).decode(),) for s in statuses])

    def _timeline_status(self, options: Mapping[str, str]) -> None:
        status = timeline_status(self._timeline(options))
        self._send_rows(("status",), [(msgspec.json.encode(status).decode(),)])

    def _create_timeline(self, options: Mapping[str, str]) -> None:
        self._safekeeper.timelines.create(
            timeline_id_of(options),
            ServerFacts(
                _integer(options, "system_id", bits=64),
                _integer(options, "pg_version"),
                _integer(options, "wal_seg_size"),
            ),
            decode_membership(_hex(options, "membership")),
            int(Lsn.parse(_option(options, "start_lsn"))),
            TimelineHistory.parse(_integer(options, "tli"), options.get("tli_history", "")),
        )
        log.info("timeline created", timeline=str(timeline_id_of(options)))
        self._session.send_complete("CREATE_TIMELINE")

    def _join_timeline(self, options: Mapping[str, str]) -> None:
        offer = decode_offer(_hex(options, "offer"))
        self._safekeeper.timelines.join(timeline_id_of(options), offer)
        log.info(
            "timeline joined",
            timeline=str(timeline_id_of(options)),
            start_lsn=format_lsn(offer.start_lsn),
            node_id=str(offer.node_id),
        )
        self._session.send_complete("JOIN_TIMELINE")

    def _leave_timeline(self, options: Mapping[str, str]) -> None:
        membership = decode_membership(_hex(options, "membership"))
        self._safekeeper.timelines.leave(timeline_id_of(options), membership)
        log.warning(
            "timeline left",
            timeline=str(timeline_id_of(options)),
            members=members_in_words(membership),
        )
        self._session.send_complete("LEAVE_TIMELINE")

    def _force_membership(self, options: Mapping[str, str]) -> None:
        membership = decode_membership(_hex(options, "membership"))
        self._safekeeper.timelines.force(timeline_id_of(options), membership)
        log.error(
            "MEMBERS FORCED: acknowledged commits may be missing",
            timeline=str(timeline_id_of(options)),
            members=members_in_words(membership),
            stamp=str(membership.stamp),
            client=self._address,
            user=self._session.parameters["user"],
        )
        self._session.send_complete("FORCE_MEMBERSHIP")

    def _activate_timeline(self, options: Mapping[str, str]) -> None:
        self._safekeeper.timelines.activate(timeline_id_of(options))
        log.info("timeline activated", timeline=str(timeline_id_of(options)))
        self._session.send_complete("ACTIVATE_TIMELINE")

    def _delete_timeline(self, options: Mapping[str, str]) -> None:
        unfinished_only = options.get("unfinished", "false") == "true"
        self._safekeeper.timelines.delete(timeline_id_of(options), unfinished_only=unfinished_only)
        log.warning("timeline deleted", timeline=str(timeline_id_of(options)))
        self._session.send_complete("DELETE_TIMELINE")

    def _forget_pageserver(self, options: Mapping[str, str]) -> None:
        forget_pageserver(self._timeline(options))
        log.warning("pageserver forgotten", timeline=str(timeline_id_of(options)))
        self._session.send_complete("FORGET_PAGESERVER")

    def _send_rows(self, names: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        self._session.send_rows([Column(name) for name in names], rows, "SELECT")


def _check_options(command: str, options: Mapping[str, str]) -> None:
    """Refuses a misspelt option: without it the command might do harm."""
    unknown = options.keys() - OPTIONS.get(command, frozenset())
    if unknown:
        known = ", ".join(sorted(OPTIONS.get(command, ())))
        raise SafekeeperError(
            f'unrecognized option "{min(unknown)}" of {command}',
            sqlstate=INVALID_PARAMETER,
            hint=f"Its options are {known}." if known else "It has no options.",
        )


def timeline_id_of(options: Mapping[str, str]) -> TimelineId:
    """Raises SafekeeperError, ConsensusError."""
    tenant = parse_id(_option(options, "tenant_id"), "tenant id")
    return TimelineId(tenant, parse_id(_option(options, "timeline_id"), "timeline id"))


def _option(options: Mapping[str, str], name: str) -> str:
    try:
        return options[name]
    except KeyError:
        raise SafekeeperError(
            f'option "{name}" is missing',
            sqlstate=INVALID_PARAMETER,
            hint="Name the timeline: options=-c tenant_id=... -c timeline_id=...",
        ) from None


def _integer(options: Mapping[str, str], name: str, *, bits: int = 32) -> int:
    return _unsigned(_option(options, name), name, bits)


def _hex(options: Mapping[str, str], name: str) -> bytes:
    text = _option(options, name)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise SafekeeperError(
            f'option "{name}" is "{text[:40]}", expected bytes in hex', sqlstate=INVALID_PARAMETER
        ) from None


def _unsigned(text: str, name: str, bits: int) -> int:
    """The number in an option. Counts the digits first: int() refuses thousands of them."""
    if text.isascii() and text.isdecimal() and len(text) <= DECIMAL_DIGITS_MAX:
        number = int(text)
        if number < 1 << bits:
            return number
    raise SafekeeperError(
        f'option "{name}" is "{text[:DECIMAL_DIGITS_MAX]}", expected a number below 2^{bits}',
        sqlstate=INVALID_PARAMETER,
    )
