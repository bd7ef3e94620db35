"""--via, --via-sites and --peer-conninfo: their values, and the values that are refused."""

from __future__ import annotations

import click
import pytest

from quorum_wal.cli.chain_options import NOT_FOR_PEERS, PeerConninfo, Via, chain_rule
from quorum_wal.walproposer.chain_rule import NO_CHAINS, ChainRule


@pytest.mark.parametrize("text", ["4", "4=", "=2", "4=2=1", "4=4", "0=1", "a=2", "4=" + "9" * 5000])
def test_via_names_two_members(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Via().convert(text, None, None)


def test_via_is_a_member_and_its_source() -> None:
    assert Via().convert("4=2", None, None) == (4, 2)
    assert chain_rule([(4, 2), (5, 2)], "", via_sites=False) == ChainRule({4: 2, 5: 2})
    assert chain_rule([], "a", via_sites=True) == ChainRule({}, "a", True)
    assert chain_rule([], "", via_sites=False) == NO_CHAINS


@pytest.mark.parametrize(
    ("via", "why"),
    [([(4, 2), (4, 3)], "twice"), ([(4, 2), (2, 1)], "a chain has one link")],
)
def test_a_rule_that_contradicts_itself_is_refused(via: list[tuple[int, int]], why: str) -> None:
    with pytest.raises(click.UsageError, match=why):
        chain_rule(via, "", via_sites=False)


def test_sites_need_our_own() -> None:
    with pytest.raises(click.UsageError, match="--site"):
        chain_rule([], "", via_sites=True)


def test_how_to_connect_to_a_source_names_no_source() -> None:
    """A hostaddr would send every chain to one host, regardless of the source of the leader."""
    conninfo = "user=chain passfile=/etc/sk/pass sslmode=verify-full"
    assert PeerConninfo().convert(conninfo, None, None) == conninfo
    assert PeerConninfo().convert("", None, None) == ""
    for name in NOT_FOR_PEERS:
        with pytest.raises(click.BadParameter, match=f"{name} is not allowed") as e:
            PeerConninfo().convert(f"user=chain password=secret {name}=7", None, None)
        assert "secret" not in str(e.value)
