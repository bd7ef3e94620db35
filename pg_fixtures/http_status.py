"""A client for the HTTP port of our services: /status (JSON) and /healthz."""

from __future__ import annotations

import http.client
import json
from typing import Any

from quorum_wal.pg_fixtures.errors import FixtureError

HTTP_TIMEOUT = 5.0  # seconds; services answer from memory


def http_get(address: str, path: str, timeout: float = HTTP_TIMEOUT) -> tuple[int, str]:
    """Gets http://`address``path`. Returns the status code and the body.

    Raises OSError if there is no answer in time.
    """
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except http.client.HTTPException as error:
        raise ConnectionError(f"no HTTP answer from {address}: {error!r}") from error
    finally:
        connection.close()


def http_get_status(address: str) -> dict[str, Any]:
    """Gets /status. Raises OSError without an answer, FixtureError if it is not a status."""
    code, body = http_get(address, "/status")
    if code != http.HTTPStatus.OK:
        raise FixtureError(f"http://{address}/status answered {code}: {body.strip()}")
    status: dict[str, Any] = json.loads(body)
    return status


def is_healthy(address: str) -> bool:
    """Whether /healthz answers 200."""
    try:
        return http_get(address, "/healthz")[0] == http.HTTPStatus.OK
    except OSError:
        return False
