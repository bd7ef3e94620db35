"""Commands to a safekeeper, on short connections: identify, list timelines, create, delete, join,
leave.

The data path has its own connection (`stream/peer.py`). This one may block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.join import TimelineOffer, encode_offer
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.pgclient.connection import connect_safekeeper
from quorum_wal.pgclient.errors import PgClientError
from quorum_wal.pgclient.questions import ask
from quorum_wal.pgwire.commands import format_option_command
from quorum_wal.pgwire.startup import format_options
from quorum_wal.walproposer.connection import connecting, port_number, server_error
from quorum_wal.walproposer.errors import Unreachable, WalProposerError

DEFAULT_PORT = 5454
#: For an answer that the safekeeper has in memory. Other commands write files.
ANSWER_SECONDS_MAX = 30.0
#: Objects and lists in the status of a timeline: see AnswerLimits in `timelines/status_page.py`. A
#: replica is one, a slot another.
STATUS_PARTS_MAX = 10_000

#: The text of libpq for a server that does not request the authentication that `require_auth`
#: demands.
NOT_ASKED = "server did not complete authentication"
ASKED_NOTHING_HINT = (
    "It requests no password. Check that it is the right server, and was started with "
    "--user-file. require_auth=none in --safekeeper-conninfo accepts it without a password."
)


@dataclass(frozen=True, slots=True)
class SafekeeperAddress:
    """host:port, and the other libpq settings (sslmode, user, passfile ...) as a conninfo."""

    host: str
    port: int
    conninfo: str = ""

    @classmethod
    def parse(cls, text: str, conninfo: str = "") -> SafekeeperAddress:
        """Parse `host`, `host:port`, `[v6]:port`. Raises WalProposerError."""
        host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if not host:
            host, port = port, ""
        host = host.removeprefix("[").removesuffix("]")
        number = port_number(port) if port else DEFAULT_PORT
        if not host or number is None:
            raise WalProposerError(f'invalid safekeeper address "{text}"', hint="Give host:port.")
        return cls(host, number, conninfo)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, timeline: TimelineId | None = None, **options: str) -> psycopg.Connection:
        """A replication connection, with the timeline in its `options`. Raises Unreachable."""
        if timeline is not None:
            options["tenant_id"] = timeline.tenant_id.hex()
            options["timeline_id"] = timeline.timeline_id.hex()
        try:
            with connecting(f"safekeeper {self}"):
                return connect_safekeeper(
                    self.conninfo,
                    host=self.host,
                    port=self.port,
                    dbname="replication",
                    options=format_options(options),
                    user=conninfo_to_dict(self.conninfo).get("user") or "walproposer",
                )
        except Unreachable as error:
            if NOT_ASKED in str(error):
                error.hint = ASKED_NOTHING_HINT
            raise

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Converts an error of the safekeeper in the block to WalProposerError with its message; a
        lost connection to Unreachable."""
        try:
            yield
        except PgClientError as error:
            raise server_error(error, f"lost safekeeper {self}: ") from error


class SafekeeperClient:
    """Each method is one command, and outside of `connected` one connection. Raises Unreachable if
    the safekeeper does not answer, WalProposerError with its message if it refuses."""

    def __init__(self, address: SafekeeperAddress) -> None:
        self.address = address
        self._connection: psycopg.Connection | None = None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """In the block all commands share a connection. For one thread."""
        with self._open() as self._connection:
            try:
                yield
            finally:
                self._connection = None

    @contextmanager
    def _open(self) -> Iterator[psycopg.Connection]:
        if self._connection is not None:
            yield self._connection
            return
        with closing(self.address.connect()) as connection:
            yield connection

    def command(
        self,
        name: str,
        options: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, str]]:
        """The rows of one of our commands, by column name. `timeout` in seconds; None waits as long
        as the connection lasts."""
        with self._open() as connection, self.address.answering():
            return ask(connection.pgconn, format_option_command(name, options), timeout)

    def identify(self) -> dict[str, str]:
        """safekeeper_id, version, http (host:port of its status page), instance (of its data
        directory: 8 bytes in hex), site (its location; or "")."""
        return self.command("IDENTIFY_SAFEKEEPER", timeout=ANSWER_SECONDS_MAX)[0]

    def timelines(self) -> list[dict[str, Any]]:
        """The status of every timeline, as on the status page. For a timeline that the safekeeper
        cannot open only `folder`, `state` and `stopped_reason`."""
        rows = self.command("LIST_TIMELINES", timeout=ANSWER_SECONDS_MAX)
        return [self._decoded(row["status"]) for row in rows]

    def _decoded(self, status: str) -> Any:
        if status.count("[") + status.count("{") > STATUS_PARTS_MAX:
            raise Unreachable(
                f"{self.address} does not answer like a safekeeper: the status of a timeline has "
                f"more than {STATUS_PARTS_MAX} objects and lists"
            )
        return msgspec.json.decode(status)

    def join(self, timeline: TimelineId, offer: TimelineOffer) -> None:
        """Begin the timeline at the position in the offer. A leader streams to it from there on."""
        self.command("JOIN_TIMELINE", {**_named(timeline), "offer": encode_offer(offer).hex()})

    def leave(self, timeline: TimelineId, membership: Membership) -> None:
        """Order it to leave: it is in no set of `membership`. It deletes its WAL, and refers
        clients to the members."""
        encoded = encode_membership(membership).hex()
        self.command("LEAVE_TIMELINE", {**_named(timeline), "membership": encoded})


def _named(timeline: TimelineId) -> dict[str, str]:
    return {"tenant_id": timeline.tenant_id.hex(), "timeline_id": timeline.timeline_id.hex()}
