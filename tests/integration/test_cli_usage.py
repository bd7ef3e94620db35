"""The command line: precedence of the three sources of options, the config file, wrong usage,
help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sk_command import assert_refused, assert_wrong_usage, sk

from quorum_wal.cli.reference import reference

ROOT = Path(__file__).parent.parent.parent
NOBODY = "127.0.0.1:1"  # refuses every connection
SECRET = "s3cret-word"


def asked(*arguments: object, **variables: str) -> list[str]:
    """The addresses that `sk status` queried."""
    done = sk(*arguments, "--json", env=variables)
    assert done.returncode == 4, done.stderr
    return [report["address"] for report in json.loads(done.stdout)["safekeepers"]]


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "sk.toml"
    config.write_text('[status]\nsafekeepers = ["127.0.0.1:3", "127.0.0.1:4"]\n')
    variable = {"SK_STATUS_SAFEKEEPERS": "127.0.0.1:2"}
    file = ("--config", config)
    assert asked(*file, "status", "--safekeepers", NOBODY, **variable) == [NOBODY]
    assert asked(*file, "status", **variable) == ["127.0.0.1:2"]
    assert asked(*file, "status") == ["127.0.0.1:3", "127.0.0.1:4"]
    assert asked("status", SK_CONFIG=str(config)) == ["127.0.0.1:3", "127.0.0.1:4"]


def test_a_variable_of_all_commands_yields_to_that_of_the_command(tmp_path: Path) -> None:
    shared = {"SK_SAFEKEEPERS": "127.0.0.1:2"}
    assert asked("status", **shared) == ["127.0.0.1:2"]
    assert asked("status", **shared, SK_STATUS_SAFEKEEPERS="127.0.0.1:3") == ["127.0.0.1:3"]
    assert asked("status", "--safekeepers", NOBODY, **shared) == [NOBODY]
    dsns = "host=127.0.0.1 port=1 user=a\nhost=127.0.0.1 port=2"
    done = sk("status", "--json", env={**shared, "SK_PRIMARY": dsns})
    primaries = json.loads(done.stdout)["primaries"]
    assert [each["dsn"] for each in primaries] == [
        "user=a host=127.0.0.1 port=1",
        "host=127.0.0.1 port=2",
    ]
    missing = {**shared, "SK_HTTP_TOKEN_FILE": str(tmp_path / "none")}
    assert_refused(sk("status", env=missing), 1, "could not read the HTTP token")


def test_status_waits_as_long_as_it_was_told(tmp_path: Path) -> None:
    done = sk("status", "--safekeepers", NOBODY, "--wait", "1.5")
    assert done.returncode == 4
    assert "UNKNOWN: no safekeeper answers" in done.stdout
    watch = sk("status", "--safekeepers", NOBODY, "--watch", "--wait", "1")
    assert_wrong_usage(watch, "--wait is not for --watch and --open")


def test_the_file_sets_options_of_sk_itself_and_of_nested_commands(tmp_path: Path) -> None:
    config = tmp_path / "sk.toml"
    config.write_text(
        f'log-format = "json"\n[safekeeper.run]\nid = 7\ndata_dir = "{tmp_path}/sk"\n'
        f'tls-cert = "{tmp_path}/none"\ntls-key = "{tmp_path}/none"\n'
    )
    done = sk("--config", config, "safekeeper", "run")
    assert_refused(done, 1, "could not load the TLS certificate")
    assert json.loads((tmp_path / "sk/safekeeper.json").read_text())["safekeeper_id"] == 7


def test_wrong_usage_is_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "sk.toml"
    config.write_text("[status]\nsafekeeper = 'x'")
    assert_wrong_usage(sk("--config", config, "status"), 'unknown key "status.safekeeper"')
    assert_wrong_usage(sk("nonsense"), "No such command 'nonsense'")
    assert_wrong_usage(sk("status", "--safekeepers", "a:99999"), "invalid safekeeper address")
    watch = sk("status", "--safekeepers", NOBODY, "--watch", "--json")
    assert_wrong_usage(watch, "exclude each other")
    run = ("safekeeper", "run", "--id", "1", "--data-dir", tmp_path / "sk", "--tls-key", config)
    assert_wrong_usage(sk(*run), "give both --tls-cert and --tls-key")
    assert list(tmp_path.iterdir()) == [config]


def test_a_password_is_never_printed() -> None:
    dsn = f"host=127.0.0.1 port=1 user=u password={SECRET} sslpassword={SECRET}"
    conninfo = ("--safekeeper-conninfo", f"user=u password={SECRET}")
    members = ("--safekeepers", NOBODY)
    for command in (
        ("check", "--primary", dsn, *members, *conninfo),
        ("attach", "--primary", dsn, *members, *conninfo, "--http", "127.0.0.1:0"),
        ("detach", "--primary", dsn),
        ("status", *members, *conninfo),
    ):
        done = sk(*command)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert SECRET not in done.stdout + done.stderr


def test_a_path_that_is_too_long() -> None:
    """No option has a test of its own for it."""
    long = "x" * 300
    done = sk("page", "check", "--archive", "/nonexistent", long)
    assert_refused(done, 1, f'could not use "{long}": File name too long')


def test_the_manual_is_current() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert page == reference(), "run: python -m quorum_wal.cli.reference > docs/cli.md"


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).with_name("sk")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sk, version ")
