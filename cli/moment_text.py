"""`MomentText`: a time on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

UNITS = ("seconds", "minutes", "hours", "days")
AGO = re.compile(rf"([0-9]{{1,6}}) ({'|'.join(unit[:-1] for unit in UNITS)})s? ago", re.ASCII)


class MomentText(click.ParamType[datetime]):
    """`2026-11-21T10:15:00+00:00`, or `10 minutes ago`."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        if ago := AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{f"{ago[2]}s": int(ago[1])})
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f'"{text}" is not a time; expected 2026-11-21T10:15:00+00:00 or "10 minutes ago"',
                param,
                ctx,
            )
        if moment.tzinfo is None:
            self.fail(f'"{text}" needs its offset from UTC, as in {text}+00:00', param, ctx)
        return moment
