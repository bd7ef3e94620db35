"""The commands of docs/kubernetes.md that create the Secrets."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kubernetes_manifests import create_secrets


def test_the_commands_of_the_page_make_the_secrets(tmp_path: Path) -> None:
    """With certificates for the names that the manifests connect to."""
    secrets = create_secrets(tmp_path)
    assert set(secrets) == {"safekeeper", "proposer", "walproposer", "postgres"}
    assert all(content for keys in secrets.values() for content in keys.values())
    assert secrets["safekeeper"]["users"].startswith(b"primary1:proposer:SCRAM-SHA-256$")
    for name, hosts in (
        ("safekeeper", [f"safekeeper-{n}.safekeeper" for n in (1, 2, 3)]),
        ("proposer", ["postgres", "pg-proposer"]),
    ):
        for host in hosts:
            verify = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", host]
            subprocess.run([*verify, f"{name}.crt"], cwd=tmp_path, capture_output=True, check=True)
