"""Member changes through the proposer's HTTP port and without a proposer, while clients commit;
refusals; and how every tool finds the present members afterwards."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from quorum_wal.consensus.membership import Member
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Refusal, Unreachable
from quorum_wal.walproposer.members.change import cancel_change, change_members
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.request_page import request_page
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.events import ChangeRequest
from quorum_wal.walproposer.timelines.survey import survey
from quorum_wal.walproposer.timelines.timeline_creation import require_timeline

SEGMENT_BYTES = 1 << 20
TIMEOUT = 120.0
ROWS = 50
JSON = {"Content-Type": "application/json"}


class World:
    """A cluster of three, spare safekeepers, and clients that commit."""

    def __init__(self, cluster: QuorumCluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self._stack = stack
        self.safekeepers = {s.id: s for s in cluster.safekeepers}

    def add_spares(self, *ids: int) -> None:
        """Empty safekeepers, which run."""
        for id in ids:
            spare = SafekeeperProcess(id, self.cluster.root / f"safekeeper-{id}")
            self.safekeepers[id] = self._stack.enter_context(spare)

    def config(self, *ids: int) -> ProposerConfig:
        """The configuration of a proposer that knows only these addresses."""
        addresses = tuple(map(self.address, ids or (1, 2, 3)))
        return ProposerConfig(PrimaryAddress(""), addresses)

    def address(self, id: int) -> SafekeeperAddress:
        return SafekeeperAddress.parse(self.safekeepers[id].address)

    def request(self, ids: Sequence[int], *, knows: Sequence[int] = (1, 2, 3)) -> ChangeRequest:
        _, found = require_timeline(self.config(*knows).safekeepers, None, None)
        answers = survey([self.address(id) for id in ids])
        members = [
            Member(m.safekeeper_id, bytes.fromhex(m.instance), m.address.host, m.address.port)
            for m in answers
        ]
        return ChangeRequest(found.membership.generation, tuple(members))

    def change(self, *ids: int, knows: Sequence[int] = (1, 2, 3)) -> list[str]:
        """The progress that was reported."""
        told: list[str] = []
        change_members(self.config(*knows), self.request(ids, knows=knows), told.append)
        return told

    def page(self) -> dict[str, Any]:
        """GET /members."""
        code, page = self.ask("GET", "/members")
        assert code == HTTPStatus.OK
        return page

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        host, _, port = self.cluster.proposer.http_address.rpartition(":")
        text = None if body is None else json.dumps(body).encode()
        with closing(HTTPConnection(host, int(port), timeout=30)) as connection:
            connection.request(method, path, text, {**JSON, **headers})
            response = connection.getresponse()
            content = response.read()
        is_json = response.headers.get_content_type() == JSON["Content-Type"]
        return response.status, json.loads(content) if is_json else content.decode()

    def members(self) -> list[int]:
        return [member["id"] for member in self.page()["members"] if member["sets"]]


@pytest.fixture
def world(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path: Path,
) -> Iterator[World]:
    cluster = QuorumCluster(
        tmp_path / "cluster",
        binaries=pg_binaries,
        wal_seg_size=SEGMENT_BYTES,
        template=initdb_template(pg_binaries, SEGMENT_BYTES),
    )
    with cluster, ExitStack() as stack:
        yield World(cluster, stack)


@pytest.fixture
def ledger(world: World) -> Iterator[Ledger]:
    """At the end of every test no acknowledged row is lost."""
    with Ledger(world.cluster.postgres.dsn(), clients=3, seed=secrets.randbits(32)) as ledger:
        ledger.wait_for_progress(ROWS, TIMEOUT)
        yield ledger
        ledger.wait_for_progress(ROWS, TIMEOUT)
    assert ledger.verify().ok


def end(*safekeepers: SafekeeperProcess) -> None:
    for safekeeper in safekeepers:
        safekeeper.kill()


# ---- through the running proposer


def test_all_members_are_replaced_while_commits_continue(world: World, ledger: Ledger) -> None:
    """The old members are switched off. The proposer, which was given only their addresses,
    continues after a restart of its primary."""
    world.add_spares(4, 5, 6)
    term = world.cluster.proposer.term
    told = world.change(4, 5, 6)
    assert told[-1] == "done"
    page = world.page()
    assert world.members() == [4, 5, 6]
    assert (page["generation"], page["is_joint"], page["in_force"]) == (3, False, True)
    assert page["change"] == {"state": "done", "wanted": [4, 5, 6], "waits_for": None,
                              "error": None}  # fmt: skip
    assert world.cluster.proposer.term == term
    for id in (1, 2, 3):
        left = world.safekeepers[id]
        wait_until(lambda left=left: has_left(left), TIMEOUT, "it to leave")  # type: ignore[misc]
    end(*(world.safekeepers[id] for id in (1, 2, 3)))
    ledger.wait_for_progress(ROWS, TIMEOUT)

    world.cluster.postgres.crash()
    world.cluster.postgres.start()
    world.cluster.proposer.wait_streaming_above(term, TIMEOUT)
    assert world.members() == [4, 5, 6]
    ledger.wait_for_progress(ROWS, TIMEOUT)
    world.cluster.safekeepers[:] = [world.safekeepers[id] for id in (4, 5, 6)]
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    lsn = world.cluster.postgres.flush_lsn()
    world.cluster.wait_flushed(lsn)
    world.cluster.compare_wal(lsn)
    ledger.resume()


def has_left(safekeeper: SafekeeperProcess) -> bool:
    status = safekeeper.timeline()
    return status is not None and status["has_left"] is True


def test_the_same_request_again_finds_it_done_and_who_has_left_may_return(
    world: World, ledger: Ledger
) -> None:
    world.add_spares(4)
    request = world.request((1, 2, 4))
    change_members(world.config(), request)
    generation = world.page()["generation"]
    change_members(world.config(), request)
    assert world.page()["generation"] == generation
    code, page = world.ask("POST", "/members", request_page(request))
    assert (code, page["change"]["state"]) == (HTTPStatus.ACCEPTED, "done")
    ledger.wait_for_progress(ROWS, TIMEOUT)
    world.change(1, 2, 3)
    assert world.members() == [1, 2, 3]
    lsn = world.cluster.commit_lsn()
    world.cluster.wait_flushed(lsn)


def test_a_dead_member_is_replaced(world: World, ledger: Ledger) -> None:
    world.add_spares(4)
    end(world.safekeepers[3])
    told = world.change(1, 2, 4)
    assert told[-1] == "done"
    end(world.safekeepers[2])  # of the three present members
    ledger.wait_for_progress(ROWS, TIMEOUT)


def test_a_wiped_disk_counts_as_lost_under_its_id_and_joins_under_another(
    world: World, ledger: Ledger
) -> None:
    wiped = world.safekeepers[3]
    wiped.terminate()
    shutil.rmtree(wiped.data_dir)
    wiped.start()
    wiped.wait_ready()

    def is_seen() -> bool:
        (member,) = [each for each in world.page()["members"] if each["id"] == 3]
        return bool(member["state"] == "lost its data")

    wait_until(is_seen, TIMEOUT, "the loss to be seen")
    with pytest.raises(Refusal, match="another data directory"):
        world.change(1, 2, 3)
    port = int(wiped.address.rpartition(":")[2])
    wiped.terminate()
    shutil.rmtree(wiped.data_dir)
    with SafekeeperProcess(7, wiped.data_dir, port=port) as renamed:
        world.safekeepers[7] = renamed
        world.change(1, 2, 7)
        assert world.members() == [1, 2, 7]
        end(world.safekeepers[1])
        ledger.wait_for_progress(ROWS, TIMEOUT)
        world.safekeepers[1].start()
        world.safekeepers[1].wait_ready()


# ---- what is refused


def test_a_request_based_on_other_members_is_refused(world: World) -> None:
    world.add_spares(4)
    request = world.request((1, 2, 4))
    stale = ChangeRequest(request.generation + 1, request.members)
    code, page = world.ask("POST", "/members", request_page(stale))
    assert code == HTTPStatus.CONFLICT
    assert "have generation 1, the request was made for 2" in page["error"]
    with pytest.raises(Refusal, match="have generation 1, the request was made for 2"):
        change_members(world.config(), stale)
    for body in (None, [], {"generation": 1}, {"generation": "x", "members": []},
                 {"generation": 1, "members": [{"id": 1}]}):  # fmt: skip
        code, page = world.ask("POST", "/members", body)
        assert code == HTTPStatus.BAD_REQUEST, page
    code, page = world.ask("DELETE", "/members/change")
    assert (code, page["error"]) == (HTTPStatus.CONFLICT, "no change is under way")
    assert world.page()["change"] is None
    assert world.members() == [1, 2, 3]


def test_a_running_change_excludes_others_and_can_be_cancelled(
    world: World, ledger: Ledger
) -> None:
    """A new safekeeper that is frozen never answers."""
    world.add_spares(4, 5)
    stuck, other = world.request((1, 2, 4)), world.request((1, 2, 5))
    world.safekeepers[4].pause()
    outcomes: list[str] = []

    def ask() -> None:
        try:
            change_members(world.config(), stuck)
        except Refusal as error:
            outcomes.append(str(error))

    thread = Thread(target=ask)
    thread.start()
    wait_until(lambda: (world.page()["change"] or {}).get("state") == "joining", TIMEOUT, "it")
    assert "to get the timeline: 4" in world.page()["change"]["waits_for"]
    with pytest.raises(Refusal, match="another change is under way"):
        change_members(world.config(), other)
    ledger.wait_for_progress(ROWS, TIMEOUT)
    cancel_change(world.config())
    thread.join(TIMEOUT)
    assert outcomes == ["the members stay as they were: it was cancelled"]
    assert world.members() == [1, 2, 3]
    change_members(world.config(), other)
    assert world.members() == [1, 2, 5]
    world.safekeepers[4].resume()


def test_the_token_is_required_and_a_proposer_that_cannot_be_asked_is_not_fenced(
    world: World, ledger: Ledger, tmp_path: Path
) -> None:
    world.add_spares(4)
    tokens = {"--http-token-file": "r" * 20, "--admin-token-file": "a" * 20}
    arguments = []
    for option, token in tokens.items():
        path = tmp_path / option.strip("-")
        path.write_text(token)
        path.chmod(0o600)
        arguments += [option, str(path)]
    world.cluster.proposer.terminate()
    proposer = world.cluster.new_proposer(configure=True, arguments=arguments)
    world.cluster.proposer = proposer
    request = world.request((1, 2, 4))
    with proposer:
        wait_until(lambda: streams_to(world), TIMEOUT, "it to stream")
        term = promised_term(world)
        with pytest.raises(Unreachable, match="its HTTP port is not reachable"):
            change_members(world.config(), request)
        bearer = {"Authorization": f"Bearer {tokens['--http-token-file']}"}
        code, _ = world.ask("POST", "/members", request_page(request), **bearer)
        assert code == HTTPStatus.UNAUTHORIZED
        change_members(world.config(), request, http_token=tokens["--admin-token-file"])
        assert promised_term(world) == term
        ledger.wait_for_progress(ROWS, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
    world.cluster.proposer = world.cluster.new_proposer(configure=True)
    world.cluster.proposer.start()
    world.cluster.proposer.wait_streaming()
    ledger.resume()


def streams_to(world: World) -> bool:
    status = world.safekeepers[1].timeline()
    return status is not None and status["proposer"] is not None


def promised_term(world: World) -> int:
    status = world.safekeepers[1].timeline()
    assert status is not None
    return int(status["promised"]["term"])


# ---- without a proposer


def test_a_change_without_a_proposer(world: World, ledger: Ledger) -> None:
    """A proposer that is given only the address of a member that has left finds the new members."""
    world.add_spares(4, 5)
    world.cluster.proposer.terminate()
    world.change(3, 4, 5, knows=(1,))
    end(world.safekeepers[2])
    proposer = world.cluster.proposer = attach(world, 1)
    assert world.members() == [3, 4, 5]
    ledger.wait_for_progress(ROWS, TIMEOUT)
    status = proposer.status()
    assert status["quorum"]["members"] == 3
    assert {peer["id"] for peer in status["safekeepers"]} == {3, 4, 5}
    lsn = Lsn.parse(status["commit_lsn"])
    world.cluster.wait_flushed(lsn, safekeepers=[world.safekeepers[id] for id in (3, 4, 5)])


def attach(world: World, *ids: int) -> ProposerProcess:
    """A proposer that was given only these addresses."""
    cluster = world.cluster
    proposer = ProposerProcess(
        cluster.postgres.dsn(),
        [world.safekeepers[id].address for id in ids],
        log_path=cluster.root / f"proposer-of-{'-'.join(map(str, ids))}.log",
        configure=True,
    )
    proposer.start()
    proposer.wait_streaming()
    return proposer
