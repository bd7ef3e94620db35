"""A certificate that ends: what a metric, the log and clients say, and the entry of the runbook."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from psycopg import pq
from runbook_page import read_entries
from test_who_may_connect import TOKEN, Folder, Keeper, gauge, https_get

from quorum_wal.telemetry.certificate_metrics import GAUGE


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    with Keeper(Folder(tmp_path)) as keeper:
        yield keeper


def test_a_certificate_that_ends(keeper: Keeper) -> None:
    folder = keeper.folder
    (show,), (ask,) = read_entries()["SkCertificateEnds"].blocks
    now = datetime.now(UTC).replace(microsecond=0)
    soon, past, late = now + timedelta(days=3), now - timedelta(hours=1), now + timedelta(days=90)

    folder.write_certificate(folder.authority, soon)
    assert end_in_metrics(keeper) == soon.timestamp()
    assert "certificate ends soon" in keeper.log_text()
    assert certificate_until(keeper) == soon
    shown = in_shell(show, CERTIFICATE=str(folder.path / "cert.pem"))
    assert shown == f"notAfter={soon:%b %e %H:%M:%S %Y} GMT\n"

    with closing(keeper.connect("watcher")) as connection:
        folder.write_certificate(folder.authority, past)
        assert "certificate verify failed" in keeper.refusal("watcher")
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
            https_get(keeper, "/metrics", TOKEN)
        assert "certificate has ended" in keeper.log_text()
        result = connection.pgconn.exec_(b"LIST_TIMELINES")
        assert result.status == pq.ExecStatus.TUPLES_OK

    folder.write_certificate(folder.authority, late)
    assert keeper.refusal("watcher") == ""
    assert end_in_metrics(keeper) == late.timestamp()
    assert keeper.log_text().count("certificate ends soon") == 1
    curl_settings = f'header = "Authorization: Bearer {TOKEN}"\ncacert = {folder.path}/ca.pem\n'
    (folder.path / ".curlrc").write_text(curl_settings)
    asked = in_shell(ask, HOME=str(folder.path), HTTP=f"https://{keeper.http_address}")
    assert gauge(asked, GAUGE) == late.timestamp()


def certificate_until(keeper: Keeper) -> datetime:
    status = json.loads(https_get(keeper, "/status", TOKEN)[1])
    return datetime.fromisoformat(status["certificate_until"])


def in_shell(command: str, **variables: str) -> str:
    return subprocess.run(
        ["bash", "-c", command], env={**os.environ, **variables},
        check=True, stdout=subprocess.PIPE, text=True,
    ).stdout  # fmt: skip


def end_in_metrics(keeper: Keeper) -> float:
    return gauge(https_get(keeper, "/metrics", TOKEN)[1], GAUGE)
