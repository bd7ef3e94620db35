"""Reads the body of a request. A client that leaves or sends nonsense is not an error of ours, for
which aiohttp would write a traceback to the log: strangers could fill a disk.
"""

from __future__ import annotations

from aiohttp import web


async def read_body(request: web.Request) -> bytes:
    """Raises HTTPBadRequest if the client leaves before the end or the encoding is wrong, and
    HTTPRequestEntityTooLarge."""
    try:
        return await request.read()
    except (web.RequestPayloadError, ConnectionError) as error:
        raise web.HTTPBadRequest(text="the body of the request is invalid\n") from error
