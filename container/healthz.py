"""The image's health check: exits with 0 when /healthz of this container's service answers 200.

It asks on loopback, at the ports that the image's environment names for safekeepers and proposers,
whichever is open, with or without TLS; else it prints why not. Standard library only.
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
    sys.exit(f"nobody listens on the ports of {', '.join(HTTP_VARIABLES)}")


def ask(port: int) -> tuple[int, str]:
    """GET /healthz: the status code and the body. Raises OSError."""
    try:
        return get(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS))
    except ConnectionRefusedError:
        raise
    except (http.client.HTTPException, OSError):  # it speaks TLS
        # Nobody is trusted with anything here: the certificate need not name 127.0.0.1.
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
