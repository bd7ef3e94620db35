"""The config file: the permitted contents, and the error for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from quorum_wal.cli.main import cli


def defaults_of(path: Path) -> dict[str, Any]:
    """The defaults that `sk --config path` passes to its commands."""
    context = cli.make_context("sk", ["--config", str(path), "status"])
    return dict(context.default_map or {})


def test_tables_and_options_may_be_spelled_as_flags_or_with_underscores(tmp_path: Path) -> None:
    config = tmp_path / "sk.toml"
    config.write_text(
        'log-level = "debug"\n'
        '[safekeeper.run]\nid = 1\ndata-dir = "/d"\nuser_file = "/a"\n'
        '[attach]\nsafekeepers = ["a:1", "b:2"]\nconfigure = true\n'
        "[timeline.list]\njson = true\n[elect]\ntimeout = 2.5\n"
    )
    assert defaults_of(config) == {
        "log_level": "debug",
        "safekeeper": {"run": {"id": "1", "data_dir": "/d", "user_file": "/a"}},
        "attach": {"safekeepers": "a:1,b:2", "configure": True},
        "timeline": {"list": {"json": True}},
        "elect": {"timeout": "2.5"},
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[status]\nsafekeeper = 'x'", 'unknown key "status.safekeeper"'),
        ("[safekeeper.run]\nidd = 1", 'unknown key "safekeeper.run.idd"'),
        ("[safekeeper]\nid = 1", 'unknown key "safekeeper.id"'),
        ("[statuss]", 'unknown key "statuss"'),
        ("config = 'x'", 'unknown key "config"'),
        ("status = 1", '"status" is a command, expected a table'),
        ("[attach]\nconfigure = 'yes'", '"attach.configure" must be true or false'),
        ("[attach]\nslot = {a = 1}", '"attach.slot" must be a string or a number'),
        ("[attach]\nslot = true", '"attach.slot" must be a string or a number'),
        ("[attach]\nsafekeepers = [1]", '"attach.safekeepers" must be a string or a number'),
        ("log-level = 'loud'", "'loud' is not one of"),
        ("= 1", "could not read config file"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    config = tmp_path / "sk.toml"
    config.write_text(text)
    with pytest.raises(click.UsageError) as error:
        defaults_of(config)
    assert sentence in error.value.format_message()


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="No such file"):
        defaults_of(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(click.UsageError, match="could not read config file"):
        defaults_of(tmp_path / "binary")
