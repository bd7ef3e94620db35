"""The server at the address of a lock may not be etcd."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from threading import Thread

import pytest

from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.locks.etcd_lock import EtcdLock


class Imposter(http.server.BaseHTTPRequestHandler):
    """Answers every request with `body`."""

    body = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Imposter) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"etcd://127.0.0.1:{server.server_port}/x"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b'{"ID": null}', b"<html>", b"\xff", b'{"ID": {}}']
)
def test_other_answers_are_one_sentence(
    url: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Imposter, "body", body)
    with pytest.raises(Unreachable, match="does not answer like etcd"):
        EtcdLock(url, 10).acquire("me")


def test_no_answer(url: str) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        EtcdLock("etcd://127.0.0.1:1/x", 10).acquire("me")
