"""`sk generations serve` as a process: tokens, TLS, bad input, kill -9; and its clients."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import trustme
from sk_command import assert_refused, assert_wrong_usage, sk, sk_json

from quorum_wal.generations.client import GenerationClient
from quorum_wal.generations.errors import (
    GenerationError,
    GenerationRefused,
    GenerationServiceUnavailable,
)
from quorum_wal.generations.messages import TenantGeneration
from quorum_wal.generations.operations import embedded_generations
from quorum_wal.generations.routes import VALIDATE_TENANTS_MAX
from quorum_wal.pg_fixtures.generations import GenerationProcess
from quorum_wal.pg_fixtures.http_status import http_get, http_get_status

TIMEOUT = 60.0
NODE_TOKEN, ADMIN_TOKEN = "node-" + "n" * 20, "admin-" + "a" * 20
TENANT = "0123456789abcdef" * 2
SUFFIX = "0000090004000007"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenerationProcess]:
    """A service without tokens, on loopback."""
    folder = tmp_path_factory.mktemp("generations")
    with GenerationProcess(
        str(folder / "generations.db"), log_path=folder / "service.log"
    ) as process:
        yield process


def post(address: str, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    """The status, and the JSON of the answer."""
    sent = {"Content-Type": "application/json", "Connection": "close", **headers}
    with closing(http.client.HTTPConnection(address, timeout=TIMEOUT)) as connection:
        connection.request("POST", path, body, sent)
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(response.read())


# ---- bad input


@pytest.mark.parametrize(
    ("path", "body", "code", "text"),
    [
        ("/v1/attach", b"", 400, "invalid request"),
        ("/v1/attach", b"{", 400, "invalid request"),
        ("/v1/attach", b"[" * 100_000, 400, "invalid request"),
        ("/v1/attach", b'{"tenant": "\xff"}', 400, "invalid request"),
        ("/v1/attach", b'{"tenant": 7, "node_id": 1}', 400, "Expected `str`, got `int`"),
        ("/v1/attach", b'{"tenant": "x", "node_id": true}', 400, "Expected `int`, got `bool`"),
        ("/v1/attach", b'{"tenant": "x", "node_id": 1}', 400, "invalid tenant 'x'"),
        ("/v1/attach", b'{"tenant": "x", "node_id": 1e400}', 400, "invalid request"),
        ("/v1/attach", b'{"tenant": "x", "node_id": 1, "dry_run": true}', 400, "dry_run"),
        ("/v1/validate", b'{"node_id": 1, "node_generation": 1}', 400, "tenants"),
        ("/v1/register/node", b'{"node_id": 65536, "incarnation": "x"}', 400, "0 to 65535"),
        ("/v1/advance", b'{"tenant": "x", "suffix": "7"}', 400, "invalid suffix"),
        ("/v1/timeline/create", b'{"tenant": "x"}', 400, "timeline"),
        ("/v1/nothing", b"{}", 404, "Not Found"),
        ("/v1/attach", b"x" * (1 << 21), 413, "1048576"),
    ],
)
def test_bad_input_is_one_line(
    service: GenerationProcess, path: str, body: bytes, code: int, text: str
) -> None:
    status, answer = post(service.address, path, body)
    assert status == code
    assert answer.keys() == {"error", "hint"}
    assert text in answer["error"]
    assert "\n" not in answer["error"]
    assert "Traceback" not in service.log_text()


def test_refusals_have_a_code_and_a_hint(service: GenerationProcess) -> None:
    tenant = token_hex(16)
    body = json.dumps({"tenant": tenant, "node_id": 1}).encode()
    assert post(service.address, "/v1/attach", body)[0] == 200
    status, answer = post(service.address, "/v1/attach", body.replace(b": 1}", b": 2}"))
    assert status == 409
    assert answer == {
        "error": f"tenant {tenant} is attached to node 1",
        "hint": "Use sk generations move, or sk generations fence.",
    }
    text = post(service.address, "/v1/attach", body, **{"Content-Type": "text/plain"})
    assert text[0] == 415


def test_a_client_validates_many_tenants_in_parts(service: GenerationProcess) -> None:
    client = GenerationClient(service.url)
    tenant = token_hex(16)
    generation = client.register_node(77, "x").node_generation
    client.attach(tenant, 77)
    asked = [TenantGeneration(f"{n:032x}", 1) for n in range(VALIDATE_TENANTS_MAX + 1)]
    answer = client.validate(77, generation, [*asked, TenantGeneration(tenant, 1)])
    assert [each.tenant for each in answer.tenants if each.is_valid] == [tenant]
    assert len(answer.tenants) == len(asked) + 1
    question = {"node_id": 77, "node_generation": 1, "tenants": []}
    listed = [{"tenant": each.tenant, "attachment_generation": 1} for each in asked]
    body = json.dumps({**question, "tenants": listed}).encode()
    status, refused = post(service.address, "/v1/validate", body)
    assert (status, f"at most {VALIDATE_TENANTS_MAX}" in refused["error"]) == (400, True)


def test_its_pages(service: GenerationProcess) -> None:
    GenerationClient(service.url).register_node(5, "a pod")
    assert http_get(service.address, "/healthz") == (200, "ok\n")
    page = http_get_status(service.address)
    assert {node["node_id"] for node in page["generations"]["nodes"]} >= {5}
    code, metrics = http_get(service.address, "/metrics")
    assert code == 200
    assert 'sk_generations_requests_total{operation="register/node",outcome="done"}' in metrics
    assert "sk_generations_database_up 1.0" in metrics


# ---- stop and restart


def test_a_killed_service_continues_with_its_numbers(tmp_path: Path) -> None:
    database = str(tmp_path / "generations.db")
    with GenerationProcess(database, log_path=tmp_path / "service.log") as process:
        client = GenerationClient(process.url)
        client.attach(TENANT, 3)
        assert client.register_node(3, "x").node_generation == 1
        process.kill()
        with pytest.raises(GenerationServiceUnavailable, match="Connection refused") as lost:
            client.validate(3, 1, [TenantGeneration(TENANT, 1)])
        assert "Start the service" in lost.value.hint
        process.start()
        process.wait_ready()
        assert client.validate(3, 1, [TenantGeneration(TENANT, 1)]).is_valid(TENANT, 1)
        assert client.register_node(3, "x").node_generation == 2
        assert process.terminate() == 0
    with closing(embedded_generations(database)) as embedded:
        assert embedded.register_node(3, "x").node_generation == 3


def test_a_lost_database_is_reported(tmp_path: Path) -> None:
    database = tmp_path / "generations.db"
    with GenerationProcess(str(database), log_path=tmp_path / "service.log") as process:
        database.unlink()
        code, line = http_get(process.address, "/healthz")
        assert (code, "was replaced" in line) == (503, True)
        assert "was replaced" in http_get_status(process.address)["error"]
        with pytest.raises(GenerationServiceUnavailable, match="was replaced"):
            GenerationClient(process.url).register_node(3, "x")
        with pytest.raises(GenerationServiceUnavailable, match="was replaced"):
            GenerationClient(process.url).status()
        metrics = http_get(process.address, "/metrics")[1]
        assert "sk_generations_database_up 0.0" in metrics


# ---- permissions


class Files:
    """The files of a secured service."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        self.ca, self.certificate = folder / "ca.pem", folder / "certificate.pem"
        self.key, self.node, self.admin = folder / "key.pem", folder / "node", folder / "admin"
        for secret in (self.key, self.node, self.admin):
            secret.touch(mode=0o600)
        authority.cert_pem.write_to_path(str(self.ca))
        certificate.private_key_pem.write_to_path(str(self.key))
        chain = (blob.bytes() for blob in certificate.cert_chain_pems)
        self.certificate.write_bytes(b"".join(chain))
        self.node.write_text(NODE_TOKEN)
        self.admin.write_text(ADMIN_TOKEN)

    @property
    def tokens(self) -> list[str]:
        tokens = ("--node-token-file", self.node, "--admin-token-file", self.admin)
        return [str(word) for word in tokens]

    @property
    def arguments(self) -> list[str]:
        tls = ("--tls-cert", self.certificate, "--tls-key", self.key)
        return [*map(str, tls), *self.tokens]


class SecuredProcess(GenerationProcess):
    def __init__(self, folder: Path) -> None:
        self.files = Files(folder)
        super().__init__(
            str(folder / "generations.db"),
            log_path=folder / "service.log",
            arguments=self.files.arguments,
        )

    @property
    def url(self) -> str:
        return f"https://{self.address}"

    def wait_ready(self, timeout: float = TIMEOUT) -> None:
        self.wait_until(self._is_ready, timeout, "/healthz to answer 200")

    def _is_ready(self) -> bool:
        context = ssl.create_default_context(cafile=self.files.ca)
        connection = http.client.HTTPSConnection(self.address, timeout=5, context=context)
        with closing(connection):
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == 200
            except OSError:
                return False


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredProcess]:
    with SecuredProcess(tmp_path_factory.mktemp("secured")) as process:
        yield process


def client_of(secured: SecuredProcess, token_file: Path | None) -> GenerationClient:
    return GenerationClient(secured.url, token_file=token_file, ca_file=secured.files.ca)


def test_the_rights_of_nodes_and_administrators(secured: SecuredProcess, tmp_path: Path) -> None:
    admin, node = client_of(secured, secured.files.admin), client_of(secured, secured.files.node)
    admin.attach(TENANT, 3)
    assert node.register_node(3, "x").attachments[0].tenant == TENANT
    assert node.validate(3, 1, [TenantGeneration(TENANT, 1)]).is_valid(TENANT, 1)
    node.create_timeline(TENANT, token_hex(16))
    assert node.status().tenants[0].tenant == TENANT
    assert admin.register_node(4, "x").node_generation == 1
    for ask in (
        lambda: node.attach(TENANT, 3),
        lambda: node.move(TENANT, 4),
        lambda: node.detach(TENANT, 3),
        lambda: node.fence_tenant(TENANT),
    ):
        with pytest.raises(GenerationRefused, match="does not accept the token"):
            ask()
    guess = tmp_path / "guess"
    guess.write_text("g" * 20)
    for token_file, text in ((None, "requires a token"), (guess, "does not accept the token")):
        stranger = client_of(secured, token_file)
        with pytest.raises(GenerationRefused, match=text):
            stranger.register_node(3, "x")
        with pytest.raises(GenerationRefused, match=text):
            stranger.status()
    assert node.status().tenants[0].attachment_generation == 1
    assert NODE_TOKEN not in secured.log_text()


def test_the_client_verifies_the_service(secured: SecuredProcess) -> None:
    """A client that does not trust its authority sends nothing, and a token is never sent in clear
    text to another machine."""
    stranger = GenerationClient(secured.url, token_file=secured.files.node)
    with pytest.raises(GenerationServiceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        stranger.register_node(3, "x")
    plain = GenerationClient(secured.url.replace("https", "http"))
    with pytest.raises(GenerationServiceUnavailable, match="is unavailable"):
        plain.register_node(3, "x")
    with pytest.raises(GenerationError, match="not be sent in clear text"):
        GenerationClient("http://sk.example:7670", token_file=secured.files.node)


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ((), "--tls-cert and --node-token-file and --admin-token-file"),
        (("--node-token-file", "--admin-token-file"), "--tls-cert"),
        (("--node-token-file",), "--tls-cert and --admin-token-file"),
    ],
)
def test_an_open_port_is_refused(tmp_path: Path, given: tuple[str, ...], lacks: str) -> None:
    database = tmp_path / "generations.db"
    options = [word for option in given for word in (option, tmp_path / "token")]
    done = sk("generations", "serve", "--database", database, "--listen", "0.0.0.0:1", *options)
    assert_refused(done, 2, f"without {lacks}", "--insecure")
    assert not database.exists()


def test_errors_at_the_start(tmp_path: Path, service: GenerationProcess) -> None:
    serve = ("generations", "serve", "--database", tmp_path / "generations.db")
    done = sk(*serve, "--listen", service.address)
    assert_refused(done, 1, "Address already in use", "Choose another --listen")
    open_token = tmp_path / "token"
    open_token.write_text(NODE_TOKEN)
    open_token.chmod(0o644)
    done = sk(*serve, "--node-token-file", open_token)
    assert_refused(done, 1, "has group or world access", "mode 0600")
    done = sk("generations", "serve", "--database", "mysql://u:secret@h/d")
    assert_wrong_usage(done, "expected the path of a file, or postgresql://...")
    assert "secret" not in done.stderr
    done = sk("generations", "serve", "--database", tmp_path / "no folder" / "g.db")
    assert_refused(done, 1, "No such file or directory")


# ---- the commands


@pytest.mark.parametrize("asks", ["service", "database"])
def test_the_commands_ask_a_service_or_its_database(
    service: GenerationProcess, tmp_path: Path, asks: str
) -> None:
    database = tmp_path / "generations.db"
    embedded_generations(str(database)).close()
    target = ("--service", service.url) if asks == "service" else ("--database", database)
    tenant = token_hex(16)

    def states(name: str, *arguments: object) -> tuple[int, dict[int, str]]:
        state = sk_json("generations", name, tenant, *arguments, *target)
        places = {a["node_id"]: a["mode"] for a in state["attachments"]}
        return state["attachment_generation"], places

    assert states("attach", "--node", 3) == (1, {3: "single"})
    assert states("move", "--node", 4, "--multi") == (2, {3: "stale", 4: "multi"})
    assert states("detach", "--node", 3) == (2, {4: "single"})
    assert states("advance", SUFFIX) == (10, {4: "single"})
    assert states("fence") == (11, {4: "stale"})
    assert states("fence", "--node", 3) == (12, {3: "single", 4: "stale"})
    assert states("advance", "00000D0004000008", "--own") == (13, {3: "stale", 4: "single"})
    status = sk_json("generations", "status", *target)
    assert tenant in {each["tenant"] for each in status["tenants"]}
    text = sk("generations", "status", *target).stdout
    assert f"{tenant}  13          node 3, stale since 12; node 4, single" in text
    done = sk("generations", "move", tenant, "--node", 4, *target)
    assert_refused(done, 1, "is already attached to node 4")


def test_wrong_usage(tmp_path: Path) -> None:
    attach = ("generations", "attach")
    assert_wrong_usage(sk(*attach, "no-id", "--node", 3), "expected 32 hex digits")
    assert_wrong_usage(sk(*attach, TENANT, "--node", 65536), "is not in the range 0<=x<=65535")
    assert_wrong_usage(sk("generations", "advance", TENANT, "7"), "16 hex digits in upper case")
    both = ("--database", tmp_path / "g.db", "--service", "http://h")
    assert_wrong_usage(sk("generations", "status", *both), "--database excludes --service")
    done = sk("generations", "status", "--database", tmp_path / "none.db")
    assert_refused(
        done, 1, "No such file or directory", "Create the database with sk generations serve"
    )
    done = sk("generations", "status", "--service", "http://127.0.0.1:1")
    assert_refused(done, 4, "Connection refused", "Start the service")
    done = sk("generations", "status", "--service", "ftp://h")
    assert_refused(done, 1, "expected a service URL")
    done = sk("generations", "status", "--token-file", tmp_path / "none")
    assert_refused(done, 1, "No such file or directory")
