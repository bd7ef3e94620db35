"""Members in several sites, in network namespaces with delays: one loss for each of three layouts.

`python -m benchmarks topologies` simulates all losses, and measures commits (docs/topologies.md).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.layout import FAR_COPY, THREE_ZONES, TWO_SITES, Layout
from benchmarks.losses import ROWS, Ending, Scenario, drill, lose, separate_primary
from benchmarks.sites import OUTSIDE, PROBE_PORT, Sites, open_sites
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_server.binaries import PostgresBinaries

SEGMENT_BYTES = 1 << 20
DELAYS = {("a", "b"): 5.0, ("a", "c"): 20.0, ("b", "c"): 10.0}
CONNECT_SECONDS = 0.2  # five times the longest round trip; TCP repeats a SYN after 1 s


@pytest.mark.parametrize(
    ("layout", "scenario", "ending"),
    [
        pytest.param(THREE_ZONES, lose("a"), Ending.PROMOTION, id="zone-of-primary-lost"),
        pytest.param(TWO_SITES, separate_primary, Ending.PROMOTION, id="site-of-primary-cut"),
        pytest.param(FAR_COPY, lose("near"), Ending.RETURN, id="site-with-the-quorum-lost"),
    ],
)
def test_nothing_acknowledged_is_lost(
    layout: Layout,
    scenario: Scenario,
    ending: Ending,
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path: Path,
) -> None:
    template = initdb_template(pg_binaries, SEGMENT_BYTES)
    with (
        skip_if_unavailable(),
        drill(layout, tmp_path / "drill", pg_binaries, template) as prepared,
    ):
        sample = scenario(prepared)
    assert sample.ending is ending
    assert sample.report.ok, sample.report
    assert sample.report.found == sample.report.acknowledged > 2 * ROWS


def test_sites_are_separated_and_reconnected(tmp_path: Path) -> None:
    """The network checks its own delays when it is created."""
    with skip_if_unavailable(), open_sites(("a", "b", "c"), DELAYS, tmp_path) as sites:
        ends = (*sites.names, OUTSIDE)
        everywhere = {(one, other) for one in ends for other in sites.names if one != other}
        assert reached(sites) == everywhere
        sites.separate("a")
        assert everywhere - reached(sites) == {("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")}
        sites.cut_off("b")
        assert reached(sites) == {(OUTSIDE, "a"), (OUTSIDE, "c")}
        sites.repair()
        assert reached(sites) == everywhere


def reached(sites: Sites) -> set[tuple[str, str]]:
    """(source, destination) of all refused connections; a refusal is an answer."""
    found = set()
    for one in (*sites.names, OUTSIDE):
        with sites.at(one):
            found |= {
                (one, other) for other in sites.names if other != one and answers(sites, other)
            }
    return found


def answers(sites: Sites, site: str) -> bool:
    with socket.socket() as client:
        client.settimeout(CONNECT_SECONDS)
        try:
            client.connect((sites.address(site), PROBE_PORT))
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False
    raise AssertionError(f"a process listens at {site}")
