"""The readiness probes of a manifest, asked once: exec, httpGet, tcpSocket."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any


def answers(
    probe: dict[str, Any],
    ports: Sequence[dict[str, Any]],
    ip: str,
    run: Callable[..., tuple[int, str]],
) -> bool:
    """Whether it succeeds. `run` runs a command in the container."""
    if "exec" in probe:
        return run(*probe["exec"]["command"])[0] == 0
    action = probe.get("httpGet") or probe["tcpSocket"]
    (port,) = (each["containerPort"] for each in ports if each["name"] == action["port"])
    try:
        if "tcpSocket" in probe:
            socket.create_connection((ip, port), probe["timeoutSeconds"]).close()
            return True
        return get(ip, port, action["path"], action["scheme"], probe["timeoutSeconds"])
    except OSError:
        return False


def get(ip: str, port: int, path: str, scheme: str, timeout: float) -> bool:
    """As a kubelet: the certificate is not verified, and 200 to 399 is a success."""
    assert scheme == "HTTPS"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(ip, port, timeout=timeout, context=context)
    try:
        connection.request("GET", path)
        return 200 <= connection.getresponse().status < 400
    except http.client.HTTPException:
        return False
    finally:
        connection.close()
