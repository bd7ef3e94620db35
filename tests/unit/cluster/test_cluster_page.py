"""What the pages of a proposer and a safekeeper show: the verdict of `sk status`, or UNKNOWN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from cluster_pages import (
    HTTP,
    NOW,
    OTHER_HTTP,
    TIMELINE,
    Answers,
    address,
    instance,
    lost_peer,
    node_id,
    page,
    peer,
    proposer_of,
    safekeeper,
    silent,
    timeline_status,
)

from quorum_wal.cluster.page import cluster_watch
from quorum_wal.cluster.page.cluster_picture import READERS_MAX, cluster_picture
from quorum_wal.cluster.page.cluster_watch import ClusterWatch
from quorum_wal.cluster.page.proposer_page import discovery_of, own_view, sampled
from quorum_wal.cluster.page.safekeeper_page import (
    KeptStatus,
    SafekeeperPage,
    Source,
    host_of,
    may_ask,
    without_secrets,
)
from quorum_wal.cluster.page.state_changes import state_changes
from quorum_wal.cluster.page.timeline_page import UNKNOWN, headline_of, page_link, tables_of
from quorum_wal.cluster.verdict import Condition, judge
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.telemetry.page.picture import Node
from quorum_wal.telemetry.page.rendering import render_body
from quorum_wal.telemetry.page.tone import Tone
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.timelines import discovery

LOST = page(peer(1), lost_peer(2), peer(3))
HERE = "10.0.0.1:5454"
TENANT = {"tenant_id": TIMELINE.tenant_id.hex(), "timeline_id": TIMELINE.timeline_id.hex()}


def replica(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "application_name": name,
        "address": "10.0.1.1:40000",
        "state": "streaming",
        "slot": None,
        "pageserver": None,
        "sent_lsn": "0/2000000",
        "flush_lsn": None,
        "replay_lsn": None,
        **changes,
    }


def archive(**changes: Any) -> dict[str, Any]:
    return {
        "archived_lsn": "0/1000000",
        "backlog_bytes": 0,
        "backlog_is_high": False,
        "state": "following",
        "error": None,
        **changes,
    }


def nodes_of(answers: Answers) -> dict[str, Node]:
    picture = cluster_picture(answers.view())
    keys = [node.key for column in picture.columns for node in column]
    assert len(keys) == len({*keys})
    for link in picture.links:
        assert {link.source, link.target} <= {*keys}
    return {node.key: node for column in picture.columns for node in column}


# ---- the picture


def test_a_healthy_cluster_is_ok() -> None:
    nodes = nodes_of(Answers())
    assert list(nodes) == ["primary", "proposer", "safekeeper 1", "safekeeper 2", "safekeeper 3"]
    assert {node.tone for node in nodes.values()} == {Tone.OK}
    assert nodes["proposer"].state == "streaming, term 5"
    assert nodes["primary"].detail == "db"


def test_a_member_is_lost() -> None:
    nodes = nodes_of(Answers([safekeeper(1), silent(2), safekeeper(3)], {HTTP: LOST}))
    assert (nodes["safekeeper 2"].state, nodes["safekeeper 2"].tone) == ("unreachable", Tone.BAD)
    assert nodes["safekeeper 1"].tone is Tone.OK


def test_a_member_catches_up_via_another() -> None:
    peers = (peer(1), peer(2, state="catching up", lag_bytes=4096, via=1), peer(3))
    picture = cluster_picture(Answers(pages={HTTP: page(*peers)}).view())
    (link,) = [link for link in picture.links if link.target == "safekeeper 2"]
    assert (link.source, link.tone) == ("safekeeper 1", Tone.WARN)
    assert "catching up via 1" in link.title


def test_the_quorum_and_the_primary_are_lost() -> None:
    found = page(quorum={"ok": False, "since": "2026-01-31T11:59:00+00:00"},
                 primary={"dsn": "host=db port=5433 password=hidden", "connected": False},
                 state="waiting_for_primary")  # fmt: skip
    nodes = nodes_of(Answers(pages={HTTP: found}))
    assert (nodes["primary"].state, nodes["primary"].tone) == ("not connected", Tone.BAD)
    assert nodes["primary"].detail == "db:5433"
    assert nodes["proposer"].tone is Tone.BAD


def test_readers_archive_pageserver_and_limbo_are_there_when_they_exist() -> None:
    statuses: list[dict[str, Any]] = [
        {"archive": archive(state="archiving"), "replicas": [replica("standby")]},
        {"archive": archive(error="denied"), "replicas": [replica("", state="catchup")]},
        {"pageserver": {"suffix": "00-1", "horizon_lsn": None, "held_bytes": 2048},
         "replicas": [replica("ps", pageserver="00-1")]},
    ]  # fmt: skip
    qsync = {"owner": "ab", "len": 2, "len_max": 50, "age": 3.0, "refuses": None}
    answers = Answers(
        [safekeeper(n, **changes) for n, changes in enumerate(statuses, 1)],
        {HTTP: page(qsync=qsync)},
    )
    nodes = nodes_of(answers)
    assert nodes["limbo"].state == "2 of 50 prepared"
    assert (nodes["archive"].state, nodes["archive"].tone) == ("failing", Tone.WARN)
    assert nodes["pageserver 00-1"].detail == "holds 2.0 KiB of WAL"
    assert nodes["replica standby 10.0.1.1:40000"].tone is Tone.OK
    assert nodes["replica replica 10.0.1.1:40000"].tone is Tone.WARN
    closed = page(qsync={"owner": None, "refuses": "no quorum"})
    assert nodes_of(Answers(pages={HTTP: closed}))["limbo"].state == "not open"


def test_of_many_readers_some_are_drawn_and_all_are_counted() -> None:
    readers = [replica(f"standby {n}") for n in range(70)]
    answers = Answers([safekeeper(1, replicas=readers), safekeeper(2), safekeeper(3)])
    nodes = nodes_of(answers)
    assert nodes["others"].name == f"{70 - READERS_MAX} more readers"
    (table,) = [t for t in tables_of(answers.view(), {}) if t.title == "Readers"]
    assert (len(table.rows), table.left_out) == (50, 20)


# ---- the proposer's page


def own_page(**changes: Any) -> dict[str, Any]:
    return page(**{**TENANT, **changes})


def own_verdict(status: Mapping[str, Any], *reports: Any, http: str = HTTP) -> str:
    view = own_view(discovery_of(reports, status, http, NOW), status)
    assert view is not None
    return str(judge(view))


def test_a_proposer_judges_as_sk_status_does() -> None:
    reports = (safekeeper(1), silent(2), safekeeper(3))
    status = own_page(safekeepers=LOST["safekeepers"])
    expected = str(judge(Answers([*reports], {HTTP: LOST}).view()))
    assert expected.startswith("DEGRADED")
    assert own_verdict(status, *reports) == expected
    # It gets the host under which the safekeepers know a page that listens on all addresses.
    assert own_verdict(status, *reports, http="0.0.0.0:7677") == expected


def test_a_proposer_that_no_safekeeper_names_yet_knows_itself() -> None:
    reports = [safekeeper(n, proposer=None) for n in (1, 2, 3)]
    status = own_page(state="waiting_for_primary", node_id=None, safekeepers=[],
                      primary={"dsn": "host=db", "connected": False, "error": "refused"},
                      quorum={"ok": False, "connected": 0})  # fmt: skip
    assert own_verdict(status, *reports).startswith("NO PRIMARY")


def test_a_proposer_sees_that_another_one_leads() -> None:
    reports = [safekeeper(n, proposer=proposer_of(6, OTHER_HTTP)) for n in (1, 2, 3)]
    status = own_page(state="waiting_for_lock", node_id=None, safekeepers=[])
    view = own_view(discovery_of(reports, status, HTTP, NOW), status)
    assert view is not None
    assert view.leader is not None
    assert (view.leader.http, view.leader.page) == (OTHER_HTTP, None)


def test_of_a_timeline_that_no_safekeeper_told_of_there_is_no_view() -> None:
    status = own_page()
    assert own_view(discovery_of([silent(1)], status, HTTP, NOW), status) is None


def test_what_is_sampled_is_of_members_that_are_connected() -> None:
    status = page(peer(1, lag_bytes=7), lost_peer(2), commit_lsn="0/1", unconfirmed_bytes=9,
                  commit_bytes_per_second=3, qsync={"owner": "ab", "len": 4})  # fmt: skip
    assert sampled(status) == {"rate": 3, "unconfirmed": 9, "lag of 1": 7, "limbo": 4}
    assert sampled({"state": "waiting_for_primary"}) == {}


# ---- asking the safekeepers


def test_the_safekeepers_are_asked_while_a_page_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(cluster_watch, "LOOK_SECONDS", 0.0)
    answers = SimpleQueue[Any]()
    watch = ClusterWatch(lambda: answer_of(answers.get()))
    answers.put([safekeeper(1)])
    first = watch.latest()
    assert first is not None
    assert [report.safekeeper_id for report in first.reports] == [1]
    # The thread has ended, or ends with its next step; then another request starts a new one.
    for error in (Unreachable("no route"), KeyError("bug")):
        answers.put(error)
        answers.put(error)
        wait_until(lambda: str(error.args[0]) in said(watch), 30, str(error))  # noqa: B023


def test_a_page_does_not_wait_for_safekeepers_that_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_watch, "FIRST_WAIT_SECONDS", 0.01)
    answers = SimpleQueue[Any]()
    watch = ClusterWatch(lambda: answer_of(answers.get()))
    assert watch.latest() is None
    answers.put([])
    wait_until(lambda: watch.latest() is not None, 30, "the answer")


def answer_of(found: Any) -> Any:
    if isinstance(found, Exception):
        raise found
    return found


def said(watch: ClusterWatch) -> str:
    latest = watch.latest()
    return latest.error if latest is not None else ""


# ---- events


def changes_of(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [event.text for event in state_changes(before, now, NOW)]


def test_an_election_a_loss_and_a_catch_up_are_events() -> None:
    campaigning = page(state="campaigning")
    assert changes_of({}, campaigning) == ["the proposer is campaigning"]
    assert changes_of(campaigning, page()) == ["election won, term 5"]
    assert changes_of(page(), page()) == []
    assert changes_of(page(), page(node_id=node_id(7))) == ["election won, term 7"]
    behind = page(peer(1), peer(2, state="catching up", lag_bytes=8), peer(3))
    name = f"safekeeper 2 ({address(2)})"
    assert changes_of(LOST, behind) == [f"{name} is catching up"]
    assert changes_of(behind, page()) == [f"{name} follows"]


# ---- the safekeeper's page


def safekeeper_status(**changes: Any) -> dict[str, Any]:
    """As in safekeeper/service.py."""
    status = timeline_status(**{
        **TENANT, "has_left": False, "asleep": False, "replicas": [], "slots": [], **changes,
    })  # fmt: skip
    return {
        "safekeeper_id": 1, "instance": instance(1), "site": "", "version": "0.1.0",
        "listen": HERE, "http": "10.0.0.1:7676", "data_dir": "/d", "timelines": [status],
        "disk": {"total_bytes": 9 << 30, "free_bytes": 8 << 30}, "damaged": {}, "scrub": {},
        "unusable_files": {},
        "certificate_until": None,
    }  # fmt: skip


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the proposer's page answers: `page`; None: nothing. `asked` counts."""
    found: dict[str, Any] = {"page": page(), "asked": 0}

    def read(*_: object) -> dict[str, Any]:
        found["asked"] += 1
        if found["page"] is None:
            raise Unreachable("status page does not answer")
        return dict(found["page"])

    monkeypatch.setattr(discovery, "read_status_page", read)
    return found


def shown(status: Mapping[str, Any], asked_for: str = "") -> Any:
    return SafekeeperPage(Source(lambda: status, lambda _: {})).view(asked_for)


def test_a_safekeeper_has_its_proposers_verdict(answer: dict[str, Any]) -> None:
    assert shown(safekeeper_status()).headline == headline_of(judge(Answers().view()))
    answer["page"] = LOST
    headline = shown(safekeeper_status()).headline
    assert headline.condition == "DEGRADED"
    assert "start it, or sk member replace 2 NEWADDR" in headline.text


def test_without_the_proposers_page_it_is_unknown(answer: dict[str, Any]) -> None:
    answer["page"] = None
    view = shown(safekeeper_status())
    assert view.headline.condition == "UNKNOWN"
    assert "its page cannot be read here" in view.headline.text
    assert view.picture is not None
    nodes = {node.key: node for column in view.picture.columns for node in column}
    assert nodes["safekeeper 2"].state == "not asked"
    nobody = shown(safekeeper_status(proposer=None)).headline
    assert "no proposer is connected to it" in nobody.text


@pytest.mark.parametrize(
    "hostile",
    [
        {},
        {"state": 7},
        {"timeline_id": TIMELINE.timeline_id.hex()},
        page(safekeepers=[{}]),
        page(safekeepers={"a": 1}),
        page(primary=None),
        page(primary={"dsn": "no dsn ="}),
        page(quorum={"ok": True, "since": 7}, stalled_seconds="x"),
        page(node_id={"term": "x", "uuid": "zz"}),
    ],
)
def test_a_proposer_that_says_anything_harms_no_page(
    answer: dict[str, Any], hostile: dict[str, Any]
) -> None:
    answer["page"] = hostile
    view = shown(safekeeper_status())
    assert view.headline.condition in [UNKNOWN, *(each.value for each in Condition)]
    assert "safekeeper 1" in render_body(view)


def test_a_safekeeper_is_sent_to_no_other_host(answer: dict[str, Any]) -> None:
    for http in ("169.254.169.254:80", "127.0.0.1:7677", "localhost:1", "evil.example:80"):
        view = shown(safekeeper_status(proposer=proposer_of(5, http)))
        assert "does not ask a page at another host than 10.0.0.9" in view.headline.text
    assert answer["asked"] == 0
    assert may_ask("localhost", "127.0.0.1")
    assert may_ask("::1", host_of("[::1]:4000"))
    assert not may_ask("127.0.0.1", "10.0.0.9")


def test_one_that_looks_often_asks_now_and_then(answer: dict[str, Any]) -> None:
    status = safekeeper_status()
    found = SafekeeperPage(Source(lambda: status, lambda _: {}))
    for _ in range(5):
        found.view("")
    assert answer["asked"] == 1


def test_a_status_that_takes_long_is_asked_for_seldom() -> None:
    now, asked = [100.0], [0]

    def ask() -> dict[str, Any]:
        asked[0] += 1
        now[0] += 0.5
        return {"asked": asked[0]}

    kept = KeptStatus(ask, lambda: now[0])
    assert [kept.get()["asked"] for _ in range(3)] == [1, 1, 1]
    now[0] += 4.9
    assert kept.get()["asked"] == 1
    now[0] += 0.2
    assert kept.get()["asked"] == 2


def test_the_timeline_asked_for_is_shown(answer: dict[str, Any]) -> None:
    status = safekeeper_status()
    stopped = {**status["timelines"][0], "timeline_id": "cd" * 16, "state": "stopped",
               "stopped_reason": "no space left", "asleep": True}  # fmt: skip
    status["timelines"].append(stopped)
    view = shown(status)
    assert [(c.is_chosen, c.tone) for c in view.choices] == [(False, Tone.BAD), (True, Tone.OK)]
    other = shown(status, "cd" * 16)
    assert "stopped: no space left" in other.headline.text
    for unknown in ("ef" * 16, "nonsense", "<b>", "/"):
        assert shown(status, unknown).headline.text == "this safekeeper has no such timeline"


def test_an_empty_and_a_damaged_safekeeper(answer: dict[str, Any]) -> None:
    empty = {**safekeeper_status(), "timelines": []}
    assert shown(empty).headline.condition == "NO TIMELINE"
    damaged = {**empty, "damaged": {"0.1": "bad checksum"}}
    assert "0.1: bad checksum" in shown(damaged).headline.text


def test_one_that_has_left_says_so(answer: dict[str, Any]) -> None:
    view = shown(safekeeper_status(state="left", has_left=True, proposer=None))
    assert "left" in view.headline.text


# ---- small things


def test_an_archive_is_shown_without_its_keys() -> None:
    assert without_secrets("s3://key:secret@bucket/a/b?token=x") == "s3://bucket/a/b"
    assert without_secrets("/srv/archive") == "/srv/archive"
    assert without_secrets("") == ""


def test_a_link_is_http_or_nothing() -> None:
    assert page_link("0.0.0.0:7676", "10.0.0.1") == "http://10.0.0.1:7676/"
    assert page_link("https://[::1]:7676", "") == "https://[::1]:7676/"
    for bad in ("", "javascript:alert(1)", "x", "host:99999", "us@evil.example:80", "a/b:80"):
        assert page_link(bad, "") == ""


def test_members_that_joined_are_in_the_table() -> None:
    view = Answers().view()
    (members,) = [table for table in tables_of(view, {1: "http://a/"}) if table.title == "Members"]
    assert [row[0].text for row in members.rows] == ["1", "2", "3"]
    assert members.rows[0][0].link == "http://a/"
    assert replace(members.rows[0][2]).tone is Tone.OK
