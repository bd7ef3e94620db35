"""A real Prometheus and its promtool, with our alert rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import pytest
import yaml

from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import ServiceProcess

ROOT = Path(__file__).parents[2]
RULES = ROOT / "monitoring/alerts.yml"
READY_TIMEOUT = 60.0
#: Variables of the dashboard. Grafana replaces them in each query to Prometheus.
VARIABLES = {"$__rate_interval": "1m", "$proposer": ".*", "$timeline": ".*"}

Rule = dict[str, Any]


def program(name: str) -> str:
    """The path of a program of Debian's package. Without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    return found


def promtool(*words: str | Path) -> None:
    """Run promtool. If it does not accept the input, the test fails."""
    done = subprocess.run([program("promtool"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def without_variables(expr: str) -> str:
    """A query of the dashboard, with all variables replaced: for all proposers and timelines."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


def rules_by_name() -> dict[str, Rule]:
    """Our alert rules."""
    groups = yaml.load(RULES.read_text(), yaml.CSafeLoader)["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


class PrometheusServer(ServiceProcess):
    """A context manager; ready inside the block. It scrapes and evaluates each second.

    `targets` are addresses by job. `change` is applied to each rule before it is loaded.
    """

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], change: Callable[[Rule], Rule]
    ) -> None:
        folder.mkdir()
        self.address = f"127.0.0.1:{free_port()}"
        rules = [change(rule) for rule in rules_by_name().values()]
        (folder / "alerts.yml").write_text(
            yaml.safe_dump({"groups": [{"name": "sk", "rules": rules}]})
        )
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_configuration(targets)))
        super().__init__(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
                "--log.level=warn",
            ],
            name="prometheus",
            log_path=folder / "prometheus.log",
            env={"GOMAXPROCS": "1", "TZ": os.environ.get("TZ", "UTC")},
        )

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_until(self._is_ready, READY_TIMEOUT, "/-/ready to answer 200")
        except BaseException:
            self.kill()
            raise
        return self

    def _is_ready(self) -> bool:
        try:
            return http_get(self.address, "/-/ready")[0] == 200
        except OSError:
            return False

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The present series. If Prometheus refuses the query, the test fails."""
        code, body = http_get(self.address, f"/api/v1/query?{urlencode({'query': expr})}")
        assert code == 200, f"{expr}: {body}"
        result: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return result

    def firing(self) -> dict[str, dict[str, str]]:
        """The annotations of the alerts that fire, by name."""
        _, body = http_get(self.address, "/api/v1/alerts")
        return {
            alert["labels"]["alertname"]: alert["annotations"]
            for alert in json.loads(body)["data"]["alerts"]
            if alert["state"] == "firing"
        }

    def wait_firing(self, names: set[str], timeout: float) -> dict[str, dict[str, str]]:
        """Return when at least these fire."""
        return self.wait_until(
            lambda: found if names <= (found := self.firing()).keys() else None,
            timeout,
            f"{', '.join(sorted(names))} to fire",
        )

    def wait_ended(self, names: set[str], timeout: float) -> None:
        """Return when none of these fires."""
        self.wait_until(
            lambda: not names & self.firing().keys(), timeout, f"{', '.join(sorted(names))} to end"
        )


def _configuration(targets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    every = {name: "1s" for name in ("scrape_interval", "scrape_timeout", "evaluation_interval")}
    jobs = [
        {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
        for job, addresses in targets.items()
    ]
    return {"global": every, "rule_files": ["alerts.yml"], "scrape_configs": jobs}
