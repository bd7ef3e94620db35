"""The health check of the image: exits with 0 if /healthz of the container's service returns 200.

Tries the ports that the environment of the image names for safekeepers and proposers, on loopback,
with or without TLS, and uses the first open one. On failure, prints the reason. Imports only the
standard library.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

HTTP_VARIABLES = ("SK_SAFEKEEPER_RUN_HTTP", "SK_ATTACH_HTTP", "SK_PROMOTE_HTTP")
TIMEOUT_SECONDS = 2.0


def main() -> None:
    addresses = [os.environ[name] for name in HTTP_VARIABLES if name in os.environ]
    for port in dict.fromkeys(int(address.rpartition(":")[2]) for address in addresses):
        try:
            status, text = ask(port)
        except ConnectionRefusedError:
            continue
        print(text.strip())
        sys.exit(status != http.HTTPStatus.OK)
    sys.exit(f"no process listens on the ports of {', '.join(HTTP_VARIABLES)}")


def ask(port: int) -> tuple[int, str]:
    """GET /healthz: the status code and the body. Raises OSError."""
    try:
        return get(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS))
    except ConnectionRefusedError:
        raise
    except (http.client.HTTPException, OSError):  # the port has TLS
        # No secret is sent, so the certificate is not verified: it need not name 127.0.0.1.
        context = ssl._create_unverified_context()
        return get(
            http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS, context=context)
        )


def get(connection: http.client.HTTPConnection) -> tuple[int, str]:
    connection.request("GET", "/healthz", headers={"Connection": "close"})
    response = connection.getresponse()
    return response.status, response.read().decode(errors="replace")


if __name__ == "__main__":
    main()
