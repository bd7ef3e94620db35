"""From a view to HTML, by the templates beside this file. Pure but for reading those once.

Law: the templates alone hold markup, and Jinja escapes every value that it puts into one. Nothing
in this folder marks a text as safe; `tests/unit/telemetry/test_page_rendering.py` checks it.

Imported when the first browser asks, not before: Jinja takes as long as many commits.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from quorum_wal.telemetry.page.page_view import PageView, event_tone
from quorum_wal.telemetry.page.picture import tall, wide

TEMPLATES = __file__.rpartition("/")[0] + "/templates"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(event_tone=event_tone, wide=wide, tall=tall)
    return environment


def render_page(view: PageView, *, nonce: str, address: str, has_session: bool) -> str:
    """The whole document. `nonce` is that of the response's Content-Security-Policy; `address`: of
    the part that changes, which the script asks for again; `has_session`: there is a way out."""
    return _environment().get_template("page.html").render(
        view=view, nonce=nonce, address=address, has_session=has_session
    )  # fmt: skip


def render_body(view: PageView) -> str:
    """The part that changes."""
    return _environment().get_template("body.html").render(view=view)


def render_sign_in(*, nonce: str, problem: str) -> str:
    """The form that asks for the token; `problem` says why it is asked again, or ""."""
    return _environment().get_template("sign_in.html").render(nonce=nonce, problem=problem)
