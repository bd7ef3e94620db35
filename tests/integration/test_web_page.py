"""The web pages of a real cluster in a real browser: light and dark, on a phone, without scripts,
with a token, and while a member is killed and started again.

The screenshots are kept in the folder that SK_ARTEFACTS names, or else for failed tests.
"""

from __future__ import annotations

import http.client
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from browser import Browser
from sk_command import assert_refused, assert_wrong_usage, sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import is_healthy
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0
DESKTOP, PHONE = 1280, 360
TOKEN = "0123456789-open-sesame"
#: A user name that a stranger may choose.
HOSTILE = "<img src=x onerror=document.title=1>"


@pytest.fixture(scope="module")
def started_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(started_browser: Browser) -> Iterator[Browser]:
    """At the end no request was refused, and the console has no error."""
    yield started_browser
    complaints, started_browser.complaints = started_browser.complaints, []
    started_browser.look(width=DESKTOP)
    started_browser.open("about:blank")
    assert complaints == []


@pytest.fixture(scope="module")
def cluster_options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    archive = tmp_path_factory.mktemp("archive")
    return {"safekeeper_arguments": ["--archive", str(archive)]}


def page_of(service: SafekeeperProcess | QuorumCluster) -> str:
    address = service.proposer.http_address if isinstance(service, QuorumCluster) else (
        service.http_address
    )  # fmt: skip
    return f"http://{address}/"


def wait_text(browser: Browser, *texts: str) -> str:
    """Return when the page shows all of them; its script polls."""

    def found() -> str | None:
        shown = browser.text()
        return shown if all(text in shown for text in texts) else None

    return wait_until(found, TIMEOUT, f"the page to show {texts}", interval=0.1)


def assert_fits(browser: Browser) -> None:
    width = browser.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, f"{width} pixels beyond the window"


def test_a_member_is_killed_and_returns_on_an_open_page(
    cluster: QuorumCluster, browser: Browser
) -> None:
    victim = cluster.safekeepers[1]
    cluster.postgres.execute("CREATE TABLE IF NOT EXISTS t (a int)")
    browser.look(width=DESKTOP)
    browser.open(page_of(cluster))
    wait_text(browser, "OK", "Commits proceed, 3 of 3 safekeepers.", "Committed WAL")
    loaded = browser.loaded
    browser.screenshot("proposer-ok-light")
    assert_fits(browser)

    victim.kill()
    cluster.postgres.execute("INSERT INTO t VALUES (1)")
    shown = wait_text(browser, "DEGRADED", "Commits proceed with 2 of 3 safekeepers.",
                      "is unreachable since", "start it, or sk member replace 2 NEWADDR",
                      "safekeeper lost")  # fmt: skip
    assert "Commits proceed, 3 of 3" not in shown
    assert browser.evaluate("document.title").split(" · ")[0].endswith("DEGRADED")
    drawn = "[...document.querySelectorAll('svg.wide .box.tone-bad .name')].map(n => n.textContent)"
    assert browser.evaluate(drawn) == ["safekeeper 2"]
    browser.screenshot("proposer-degraded-light")

    victim.start()
    wait_text(browser, "OK", "Commits proceed, 3 of 3 safekeepers.",
              f"safekeeper 2 ({victim.address}) follows")  # fmt: skip
    assert browser.loaded == loaded  # the script of the page did all of that
    browser.look(width=DESKTOP, dark=True)
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 23, 26)"
    path = browser.screenshot("proposer-ok-dark")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_quorum_is_lost(cluster: QuorumCluster, browser: Browser) -> None:
    for victim in cluster.safekeepers[1:]:
        victim.kill()
    browser.look(width=PHONE, dark=True)
    browser.open(page_of(cluster))
    wait_text(browser, "BLOCKED", "1 of 3 safekeepers follow, 2 are needed", "QUORUM LOST")
    assert_fits(browser)
    browser.screenshot("proposer-blocked-phone-dark")


def test_on_a_phone_without_scripts(cluster: QuorumCluster, browser: Browser) -> None:
    browser.look(width=PHONE, scripts=False)
    browser.open(page_of(cluster))
    wait_text(browser, "Commits proceed, 3 of 3 safekeepers.")  # the test before lost the quorum
    assert_fits(browser)
    visible = "[...document.querySelectorAll('.picture svg')].map(s => getComputedStyle(s).display)"
    assert browser.evaluate(visible) == ["none", "block"]
    before = browser.loaded
    browser.screenshot("proposer-phone-light")
    cluster.safekeepers[0].kill()
    browser.wait_loaded(before)
    wait_text(browser, "DEGRADED")  # reloaded by the browser itself


def test_a_safekeepers_page_and_a_reader_with_a_hostile_name(
    cluster: QuorumCluster, browser: Browser, tmp_path: Path
) -> None:
    safekeeper = cluster.safekeepers[0]
    program = cluster.postgres.binaries.program("pg_receivewal")
    conninfo = cluster.replica_conninfo(application_name=HOSTILE)
    (tmp_path / "wal").mkdir()
    reader = subprocess.Popen(
        [program, "-D", tmp_path / "wal", "-d", conninfo], stderr=subprocess.DEVNULL
    )
    try:
        browser.look(width=DESKTOP)
        browser.open(page_of(safekeeper))
        wait_text(browser, "OK", HOSTILE, "archive", "Waits for the archive", safekeeper.address)
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        assert_fits(browser)
        browser.screenshot("safekeeper-light")
        browser.look(width=PHONE)
        assert_fits(browser)
        browser.screenshot("safekeeper-phone-light")
        proposer = '[...document.querySelectorAll("dd a")].map(a => a.href)'
        assert browser.evaluate(proposer) == [page_of(cluster)]
        browser.open(page_of(cluster))
        wait_text(browser, HOSTILE)
    finally:
        reader.kill()
        reader.wait()


def test_a_stopped_service_is_reported_on_an_open_page(
    cluster: QuorumCluster, browser: Browser
) -> None:
    safekeeper = cluster.safekeepers[2]
    browser.look(width=DESKTOP)
    browser.open(page_of(safekeeper))
    wait_text(browser, "OK")
    safekeeper.kill()
    wait_text(browser, "This service does not answer. The page shows its state of")
    safekeeper.start()
    gone = "document.getElementById('late').hidden"
    wait_until(lambda: browser.evaluate(gone), TIMEOUT, "the warning to go")
    browser.complaints.clear()  # each refused request


def test_a_token_is_asked_for_once(tmp_path: Path, browser: Browser) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    arguments = ["--http-token-file", str(token)]
    with SafekeeperProcess(1, tmp_path / "safekeeper", arguments=arguments) as safekeeper:
        browser.look(width=PHONE)
        browser.open(page_of(safekeeper))
        browser.complaints.clear()  # the answer was 401
        assert "NO TIMELINE" not in browser.text()
        assert_fits(browser)
        browser.screenshot("sign-in-phone-light")
        sign_in(browser, "guess")
        browser.complaints.clear()
        assert "This is not the token of this HTTP port." in browser.text()
        sign_in(browser, TOKEN)
        wait_text(browser, "NO TIMELINE", "Run sk attach for a primary.")
        assert browser.evaluate("document.cookie") == ""  # no script can read it
        before = browser.loaded
        browser.evaluate("document.querySelector('footer button').click()")
        browser.wait_loaded(before)
        browser.complaints.clear()
        assert "NO TIMELINE" not in browser.text()


def sign_in(browser: Browser, token: str) -> None:
    before = browser.loaded
    browser.evaluate(f"document.getElementById('token').value = '{token}'")
    browser.evaluate("document.querySelector('form button').click()")
    browser.wait_loaded(before)


# ---- sk status --open


def addresses(cluster: QuorumCluster) -> str:
    return ",".join(safekeeper.address for safekeeper in cluster.safekeepers)


def test_sk_status_opens_the_proposers_page(cluster: QuorumCluster, tmp_path: Path) -> None:
    opened, program = tmp_path / "opened", tmp_path / "browser.sh"
    program.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    env = {"BROWSER": f"{program} %s"}
    members = ("--safekeepers", addresses(cluster))
    done = sk("status", *members, "--open", env=env)
    assert (done.returncode, done.stdout) == (0, f"{page_of(cluster)}\n")
    wait_until(lambda: opened.exists() and opened.read_text(), TIMEOUT, "the browser")
    assert opened.read_text() == done.stdout

    cluster.proposer.kill()
    done = sk("status", *members, "--open", env=env)
    assert done.stdout == f"{page_of(cluster.safekeepers[0])}\n"


def test_sk_status_without_a_browser_or_a_page(cluster: QuorumCluster, tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path), "BROWSER": "", "DISPLAY": ""}
    done = sk("status", "--safekeepers", addresses(cluster), "--open", env=empty)
    assert (done.returncode, done.stdout) == (0, f"{page_of(cluster)}\n")
    assert "no browser was found" in done.stderr
    unreachable = sk("status", "--safekeepers", f"127.0.0.1:{free_port()}", "--open")
    assert_refused(unreachable, 1, "no web page can be reached", "HTTP ports")
    both = sk("status", "--safekeepers", addresses(cluster), "--open", "--json")
    assert_wrong_usage(both, "exclude each other")


def test_other_pages_are_as_before(cluster: QuorumCluster) -> None:
    address = cluster.proposer.http_address
    wait_until(lambda: is_healthy(address), TIMEOUT, "/healthz")  # a test before stopped it
    for path, kind in (("/status", "application/json"), ("/metrics", "text/plain"),
                       ("/healthz", "text/plain"), ("/", "text/html")):  # fmt: skip
        with closing(http.client.HTTPConnection(address)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            shown_kind = answer.getheader("Content-Type", "").split(";")[0]
            assert (answer.status, shown_kind) == (200, kind), path
            answer.read()
