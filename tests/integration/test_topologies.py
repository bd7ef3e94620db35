"""Members over sites, in network namespaces with delays: a loss of each of the three layouts.

`python -m benchmarks topologies` plays all losses, and measures commits (docs/topologies.md).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.layout import FAR_COPY, THREE_ZONES, TWO_SITES, Layout
from benchmarks.losses import ROWS, Ending, Play, drill, lose, part_primary
from benchmarks.sites import OUTSIDE, PROBE_PORT, Sites, open_sites
from pg_fixtures.plugin import skip_if_unavailable
from pg_server.binaries import PostgresBinaries

SEGMENT_BYTES = 1 << 20
DELAYS = {("a", "b"): 5.0, ("a", "c"): 20.0, ("b", "c"): 10.0}
CONNECT_SECONDS = 0.2  # five times the longest round trip; a SYN is sent again after 1 s


@pytest.mark.parametrize(
    ("layout", "play", "ending"),
    [
        pytest.param(THREE_ZONES, lose("a"), Ending.PROMOTION, id="zone-of-primary-lost"),
        pytest.param(TWO_SITES, part_primary, Ending.PROMOTION, id="site-of-primary-parted"),
        pytest.param(FAR_COPY, lose("near"), Ending.RETURN, id="site-with-the-quorum-lost"),
    ],
)
def test_nothing_acknowledged_is_lost(
    layout: Layout,
    play: Play,
    ending: Ending,
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path: Path,
) -> None:
    template = initdb_template(pg_binaries, SEGMENT_BYTES)
    with (
        skip_if_unavailable(),
        drill(layout, tmp_path / "drill", pg_binaries, template) as played,
    ):
        sample = play(played)
    assert sample.ending is ending
    assert sample.report.ok, sample.report
    assert sample.report.found == sample.report.acknowledged > 2 * ROWS


def test_a_network_of_sites_is_parted_and_mended(tmp_path: Path) -> None:
    """Its delays it checks itself, when it is made."""
    with skip_if_unavailable(), open_sites(("a", "b", "c"), DELAYS, tmp_path) as sites:
        ends = (*sites.names, OUTSIDE)
        everywhere = {(one, other) for one in ends for other in sites.names if one != other}
        assert reached(sites) == everywhere
        sites.part("a")
        assert everywhere - reached(sites) == {("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")}
        sites.cut_off("b")
        assert reached(sites) == {(OUTSIDE, "a"), (OUTSIDE, "c")}
        sites.mend()
        assert reached(sites) == everywhere


def reached(sites: Sites) -> set[tuple[str, str]]:
    """Who gets an answer, a refusal, from which site."""
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
    raise AssertionError(f"somebody listens at {site}")
