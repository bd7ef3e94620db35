"""The units and config files of packaging/, and the page that describes them, fit together."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from quorum_wal.cli.config_file import read_config
from quorum_wal.cli.main import cli

ROOT = Path(__file__).parents[3]
UNITS = sorted(ROOT.glob("packaging/systemd/*.service"))
CONFIGS = sorted(ROOT.glob("packaging/config/*.toml"))
PAGE = (ROOT / "docs/integrations.md").read_text().partition("\n## A sidecar")[0]

_EXAMPLE = re.compile(r"^# (?=[a-z-]+ = )", re.MULTILINE)


def settings_of(unit: Path) -> dict[str, str]:
    """Key -> value, of keys that a unit has once; continued lines are joined."""
    lines = unit.read_text().replace("\\\n", " ").splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]\w*=", line))


def read_examples(config: Path, folder: Path) -> dict[str, object]:
    """The file with every example in use. Raises click.UsageError for an unknown option."""
    file = folder / config.name
    file.write_text(_EXAMPLE.sub("", config.read_text()))
    return read_config(file, cli, click.Context(cli))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_sk_knows_each_setting(config: Path, tmp_path: Path) -> None:
    assert len(_EXAMPLE.findall(config.read_text())) >= 4
    assert read_examples(config, tmp_path)


def test_a_setting_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text("[attach]\n# no-such-option = 1\n")
    with pytest.raises(click.UsageError, match="no-such-option"):
        read_examples(config, tmp_path)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_the_command_of_its_config_file(unit: Path, tmp_path: Path) -> None:
    settings = settings_of(unit)
    program, option, path, *words = shlex.split(settings["ExecStart"])
    assert (program, option) == ("/usr/bin/sk", "--config")
    config = ROOT / "packaging/config" / Path(path).name
    assert path == f"/etc/quorum-wal/{config.name}"
    defaults: object = read_examples(config, tmp_path)
    for name in [word for word in words if not word.startswith("--")]:
        assert isinstance(defaults, dict)
        defaults = defaults[name]
    if "ExecReload" in settings:
        command = settings["ExecStart"].split()
        assert settings["ExecReload"].split()[-len(command) :] == command


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_writes_where_its_config_file_says(unit: Path) -> None:
    folder = settings_of(unit).get("StateDirectory")
    config = (ROOT / "packaging/config" / f"{unit.stem.removeprefix('sk-')}.toml").read_text()
    assert folder is None or f'= "/var/lib/{folder}' in config


def test_the_page_has_the_units() -> None:
    rows = re.findall(r"^\| `(sk-[a-z]+)` \| `([a-z]+)` \| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == [unit.stem for unit in UNITS]
    for name, account, config in rows:
        settings = settings_of(ROOT / f"packaging/systemd/{name}.service")
        assert settings["User"] == account
        assert config in settings["ExecStart"]


def test_the_page_quotes_the_unit_of_the_proposer() -> None:
    quoted = PAGE.partition("The unit of the proposer contains:\n\n")[2].partition("\n\n")[0]
    lines = [line.removeprefix("    ") for line in quoted.splitlines()]
    assert len(lines) >= 8
    unit = (ROOT / "packaging/systemd/sk-proposer.service").read_text().splitlines()
    assert [line for line in lines if line not in unit] == []
