"""Options of a safekeeper with many timelines: limits of tenants, sleep, metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from quorum_wal.cli.parameters import ByteSize, FiniteRange
from quorum_wal.safekeeper.metrics import SERIES_TIMELINES_MAX
from quorum_wal.safekeeper.sleep import IDLE_SECONDS
from quorum_wal.safekeeper.tenant_limits import TenantLimits


@dataclass(frozen=True, slots=True)
class ManyOptions:
    """The values of these options."""

    tenant_limits: TenantLimits
    idle_seconds: float
    metrics_timelines_max: int


def many_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Passes all options as one parameter `many`."""

    @wraps(function)
    def gathered(
        *args: Any,
        tenant_timelines_max: int,
        tenant_connections_max: int,
        tenant_wal_max: int,
        idle_timeout: float,
        metrics_timelines_max: int,
        **others: Any,
    ) -> Any:
        limits = TenantLimits(tenant_timelines_max, tenant_connections_max, tenant_wal_max)
        many = ManyOptions(limits, idle_timeout, metrics_timelines_max)
        return function(*args, many=many, **others)

    decorated: Callable[..., Any] = gathered
    for option in reversed(_options()):
        decorated = option(decorated)
    return decorated


def _options() -> list[Callable[..., Any]]:
    return [
        click.option(
            "--tenant-timelines-max",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            metavar="N",
            help="Timelines of one tenant; 0: no limit.",
        ),
        click.option(
            "--tenant-connections-max",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            metavar="N",
            help="Connections of one tenant, counted apart for proposers and for all others; 0: no "
            "limit.",
        ),
        click.option(
            "--tenant-wal-max",
            type=ByteSize(),
            default="0",
            show_default=True,
            help="WAL of one tenant on this disk. At the limit its timelines accept no more WAL; "
            "0: no limit.",
        ),
        click.option(
            "--idle-timeout",
            type=FiniteRange(0),
            default=IDLE_SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="A timeline sleeps when it was not used for this long; a connection wakes it.",
        ),
        click.option(
            "--metrics-timelines-max",
            type=click.IntRange(0),
            default=SERIES_TIMELINES_MAX,
            show_default=True,
            metavar="N",
            help="Number of timelines with their own metrics: first those with a problem, then "
            "those that are awake.",
        ),
    ]
