"""Options: what each type takes, and that no mistake in one ends in more than a sentence."""

from __future__ import annotations

from typing import Any

import click
import pytest

from quorum_wal.cli.main import cli
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

SECRET = "s3cret-word"
TIMELINE = "0" * 31 + "1"


def parsed(*words: str) -> dict[str, Any]:
    """The parameters that the command named by the first words would be called with."""
    command: click.Command = cli
    context = click.Context(cli, info_name="sk")
    arguments = list(words)
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments.pop(0))
        assert found is not None
        command = found
        context = click.Context(command, parent=context)
    return command.make_context("sk", arguments).params


def test_addresses() -> None:
    given = parsed("status", "--safekeepers", "sk1, sk2:6000 ,[::1]:7000")["safekeepers"]
    assert given == (
        SafekeeperAddress("sk1", 5454),
        SafekeeperAddress("sk2", 6000),
        SafekeeperAddress("::1", 7000),
    )
    run = parsed("safekeeper", "run", "--id", "1", "--data-dir", "d", "--http", "[::]:80")
    assert run["http"] == ("::", 80)


def test_members_are_named_by_id_and_newcomers_by_address() -> None:
    known = ("--safekeepers", "sk1")
    added = parsed("member", "add", *known, "sk4", "[::1]:7000")
    assert added["address"] == (SafekeeperAddress("sk4", 5454), SafekeeperAddress("::1", 7000))
    replaced = parsed("member", "replace", *known, "3", "sk4:6000")
    assert replaced["safekeeper_id"] == 3
    assert replaced["address"] == SafekeeperAddress("sk4", 6000)
    assert parsed("member", "remove", *known, "1", "2")["safekeeper_id"] == (1, 2)


def test_a_timeline_without_a_tenant_belongs_to_the_tenant_of_zeros() -> None:
    wanted = TimelineId(bytes(16), bytes.fromhex(TIMELINE))
    for name in (TIMELINE, f"{'0' * 32}/{TIMELINE}"):
        assert parsed("elect", "--safekeepers", "a", "--timeline", name)["timeline"] == wanted


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("status",), "Missing option '--safekeepers'"),
        (("member", "add", "--safekeepers", "a", "b:99999"), "invalid safekeeper address"),
        (("member", "remove", "--safekeepers", "a", "0"), "0 is not in the range"),
        (("status", "--safekeepers", "a:99999"), "invalid safekeeper address"),
        (("status", "--safekeepers", ""), "invalid safekeeper address"),
        (("status", "--safekeepers", "a:1,a:1"), "an address is given twice"),
        (("elect", "--safekeepers", "a", "--timeline", "xyz"), "expected 32 hex digits"),
        (("elect", "--safekeepers", "a", "--timeout", "0"), "0.0 is not in the range"),
        (("safekeeper", "run", "--id", "0", "--data-dir", "x"), "0 is not in the range"),
        (("safekeeper", "run", "--id", "1", "--data-dir", "x", "--http", "80"), "HOST:PORT"),
        (("attach", "--safekeepers", "a", "--primary", "host"), "not a libpq connection string"),
        (("demo", "--pg-major", "12"), "12 is not in the range"),
    ],
)
def test_wrong_usage_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(click.UsageError) as error:
        parsed(*words)
    assert sentence in error.value.format_message()


@pytest.mark.parametrize(
    "dsn", [f"host=x password=a {SECRET}", f"postgresql://u:{SECRET}@[x", f"passwort={SECRET}"]
)
def test_nothing_of_an_invalid_dsn_is_printed(dsn: str) -> None:
    with pytest.raises(click.UsageError, match="not a libpq connection string") as error:
        parsed("check", "--primary", dsn, "--safekeepers", "a")
    assert SECRET not in error.value.format_message()


@pytest.mark.parametrize("number", ["nan", "inf", "1e999", "-1"])
def test_an_unusable_number_is_refused(number: str) -> None:
    """nan passes every range check; no timeout can be nan, infinite or negative."""
    run = ("safekeeper", "run", "--id", "1", "--data-dir", "d")
    for words in (
        (*run, "--idle-timeout", number),
        (*run, "--scrub-rate", number),
        ("elect", "--safekeepers", "sk1", "--timeout", number),
        ("attach", "--primary", "", "--safekeepers", "sk1", "--lock-ttl", number),
    ):
        with pytest.raises(click.UsageError, match=r"not a finite number|in the range"):
            parsed(*words)
