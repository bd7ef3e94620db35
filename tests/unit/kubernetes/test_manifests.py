"""The manifests of packaging/kubernetes/: they fit the published schemas, and fit together."""

from __future__ import annotations

import copy
import re
from typing import Any

import click
import jsonschema
import kubernetes_validate
import pytest
from click.testing import CliRunner
from kubernetes_manifests import (
    REFERENCE,
    ROOT,
    Container,
    Manifest,
    containers_of,
    image_environment,
    read_manifests,
)

from quorum_wal.cli.main import cli
from quorum_wal.cli.output import ExitCode

MANIFESTS = read_manifests()
PODS = [manifest for manifest in MANIFESTS if manifest.pod]
CONTAINERS = [container for manifest in PODS for container in containers_of(manifest)]
OURS = [container for container in CONTAINERS if container.is_ours]
PAGE = (ROOT / "docs/kubernetes.md").read_text()
#: The oldest version that the page names, and the newest that the package has.
VERSIONS = ["1.33", kubernetes_validate.latest_version().removesuffix(".0")]
CLUSTER_API = "postgresql.cnpg.io/v1"
#: Objects of the operator.
OPERATOR_SECRETS = {"pg-ca"}
OPERATOR_HOSTS = {"pg-rw"}

manifests = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each.name)
pods = pytest.mark.parametrize("manifest", PODS, ids=lambda each: each.name)
ours = pytest.mark.parametrize("container", OURS, ids=lambda each: each.name)


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """The schema of an object that has no other fields."""
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
NAMES = {"type": "array", "items": TEXT}
#: The fields that we use of the operator's CustomResourceDefinition, which no package has. Source:
#: CloudNativePG 1.30, config/crd/bases/postgresql.cnpg.io_clusters.yaml.
CLUSTER = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": CLUSTER_API},
    kind={"const": "Cluster"},
    metadata={"type": "object"},
    spec=closed(
        ["instances"],
        instances={"type": "integer", "minimum": 1},
        storage=closed([], size=TEXT, storageClass=TEXT),
        managed=closed(
            [],
            roles={
                "type": "array",
                "items": closed(
                    ["name"],
                    name=TEXT,
                    login=FLAG,
                    replication=FLAG,
                    inRoles=NAMES,
                    passwordSecret=closed(["name"], name=TEXT),
                ),
            },
        ),
        postgresql=closed(
            [],
            pg_hba=NAMES,
            synchronous=closed(
                ["method", "number"],
                method={"enum": ["any", "first"]},
                number={"type": "integer", "minimum": 1},
                maxStandbyNamesFromCluster={"type": "integer", "minimum": 0},
                standbyNamesPre=NAMES,
                dataDurability={"enum": ["required", "preferred"]},
            ),
        ),
    ),
)


def validate(manifest: dict[str, Any], version: str) -> None:
    """Raises jsonschema.ValidationError, also for a field that is not in the schema."""
    if manifest["apiVersion"] == CLUSTER_API:
        jsonschema.validate(manifest, CLUSTER)
    else:
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


@manifests
@pytest.mark.parametrize("version", VERSIONS)
def test_it_fits_the_schema(manifest: Manifest, version: str) -> None:
    validate(manifest.object, version)


@manifests
def test_a_field_that_does_not_exist_is_noticed(manifest: Manifest) -> None:
    wrong = copy.deepcopy(manifest.object)
    wrong.setdefault("spec", {})["replica"] = 3
    if "spec" not in manifest.object:
        wrong["replica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        validate(wrong, VERSIONS[0])


def test_the_page_names_the_oldest_version() -> None:
    assert f"Kubernetes {VERSIONS[0]} or newer" in PAGE


# ---- what the schemas do not say


@pods
def test_an_object_selects_its_pods(manifest: Manifest) -> None:
    assert manifest.pod is not None
    labels = manifest.pod["metadata"]["labels"]
    selector = manifest.object["spec"].get("selector", {}).get("matchLabels", labels)
    assert selector == labels


@manifests
def test_a_service_or_a_budget_selects_pods(manifest: Manifest) -> None:
    selector = manifest.object.get("spec", {}).get("selector")
    if manifest.object["kind"] not in ("Service", "PodDisruptionBudget"):
        return
    wanted = selector.get("matchLabels", selector)
    assert wanted in [pod.pod["metadata"]["labels"] for pod in PODS if pod.pod]


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda each: each.name)
def test_mounts_and_probes_name_what_exists(container: Container) -> None:
    assert container.manifest.pod is not None
    claims = container.manifest.object["spec"].get("volumeClaimTemplates", [])
    volumes = {each["name"] for each in container.manifest.pod["spec"].get("volumes", [])}
    volumes |= {claim["metadata"]["name"] for claim in claims}
    assert {mount["name"] for mount in container.spec.get("volumeMounts", [])} <= volumes
    ports = {port["name"] for port in container.spec.get("ports", [])}
    for probe in ("readinessProbe", "livenessProbe"):
        for action in ("httpGet", "tcpSocket"):
            asked = container.spec.get(probe, {}).get(action)
            assert asked is None or asked["port"] in ports


def used_secrets(manifest: Manifest) -> set[tuple[str, str]]:
    """Names and keys, of volumes and variables."""
    assert manifest.pod is not None
    found = set()
    for volume in manifest.pod["spec"].get("volumes", []):
        secret = volume.get("secret", {})
        found |= {(secret["secretName"], item["key"]) for item in secret.get("items", [])}
    for container in containers_of(manifest):
        for entry in container.spec.get("env", []):
            key = entry.get("valueFrom", {}).get("secretKeyRef")
            found |= {(key["name"], key["key"])} if key else set()
        # A whole Secret is mounted there.
        words = " ".join(container.spec.get("args", []))
        names = [
            volume["secret"]["secretName"]
            for volume in manifest.pod["spec"].get("volumes", [])
            if "items" not in volume.get("secret", {"items": []})
        ]
        found |= {(name, key) for name in names for key in re.findall(r"/etc/sk/(\S+)", words)}
    return {(name, key) for name, key in found if name not in OPERATOR_SECRETS}


def documented_secrets() -> set[tuple[str, str]]:
    """Names and keys, of the commands of the page."""
    text = PAGE.replace("\\\n", " ")
    return {
        (name, key)
        for name, rest in re.findall(r"kubectl create secret generic (\S+) (.*)", text)
        for key in re.findall(r"--from-(?:literal|file)=([\w.-]+)", rest)
    }


@pods
def test_the_page_creates_each_secret_that_is_used(manifest: Manifest) -> None:
    assert used_secrets(manifest) <= documented_secrets()


def test_each_key_of_the_page_is_used() -> None:
    used = set().union(*map(used_secrets, PODS)) | {("walproposer", "username")}
    assert documented_secrets() <= used


def test_hosts_of_the_arguments_exist() -> None:
    (members,) = {
        argument.removeprefix("--safekeepers=")
        for container in OURS
        for argument in container.arguments
        if argument.startswith("--safekeepers=")
    }
    (keepers,) = (pod.object for pod in PODS if pod.object["metadata"]["name"] == "safekeeper")
    first = keepers["spec"]["ordinals"]["start"]
    names = [f"safekeeper-{first + n}" for n in range(keepers["spec"]["replicas"])]
    service = keepers["spec"]["serviceName"]
    assert members.split(",") == [f"{name}.{service}:5454" for name in names]
    text = " ".join(argument for container in OURS for argument in container.arguments)
    hosts = set(re.findall(r"\bhost=(\S+)", text))
    assert hosts == {"127.0.0.1", *OPERATOR_HOSTS}
    (cluster,) = (m.object for m in MANIFESTS if m.object["apiVersion"] == CLUSTER_API)
    name = cluster["metadata"]["name"]
    assert {f"{name}-rw"} == OPERATOR_HOSTS
    assert {f"{name}-ca"} == OPERATOR_SECRETS


@pods
def test_a_pod_is_restricted(manifest: Manifest) -> None:
    """As the profile "restricted" of the Pod Security Standards requires."""
    assert manifest.pod is not None
    spec = manifest.pod["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec["automountServiceAccountToken"]
    for container in containers_of(manifest):
        context = container.spec["securityContext"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context.get("readOnlyRootFilesystem") or not container.is_ours


# ---- the arguments of our containers


def test_all_of_our_containers_have_one_image() -> None:
    assert len({container.spec["image"] for container in OURS}) == 1


@ours
def test_sk_accepts_the_arguments(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, variables and the form of their values; nothing is run."""
    secrets = {f"{name}/{key}": "0123456789abcdef" for name, key in documented_secrets()}
    environment = container.environment(secrets)
    for name, value in {**image_environment(), **environment}.items():
        monkeypatch.setenv(name, value)
    words = container.arguments
    assert [word for word in words if REFERENCE.search(word)] == []
    command: click.Command = cli
    context = click.Context(cli, info_name="sk", auto_envvar_prefix="SK")
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    with command.make_context(name, words, parent=context.parent) as parsed:
        known = [f"{parsed.auto_envvar_prefix}_{each.name}".upper() for each in command.params]
    assert {variable for variable in environment if variable.startswith("SK_")} <= set(known)


@ours
def test_sk_refuses_another_option(container: Container) -> None:
    """This proves that the test above would detect an error."""
    done = CliRunner().invoke(cli, [*container.arguments, "--no-such-option"])
    assert done.exit_code == ExitCode.USAGE
    assert "--no-such-option" in done.output
