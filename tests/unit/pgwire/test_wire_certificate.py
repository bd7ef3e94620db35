"""The hash of a certificate: the function, and the bytes. libpq's own is compared in
tests/integration/test_channel_binding.py. And when it ends, as openssl says."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from quorum_wal.pgwire.certificate import end_point_hash, end_time

OIDS = {  # DER of the numbers
    "1.2.840.113549.1.1.4": "2a864886f70d010104",
    "1.2.840.113549.1.1.5": "2a864886f70d010105",
    "1.2.840.113549.1.1.10": "2a864886f70d01010a",
    "1.2.840.113549.1.1.11": "2a864886f70d01010b",
    "1.2.840.113549.1.1.13": "2a864886f70d01010d",
    "1.2.840.10045.4.3.3": "2a8648ce3d040303",
    "1.3.101.112": "2b6570",
    "2.16.840.1.101.3.4.2.2": "608648016503040202",
}


def element(tag: int, *content: bytes) -> bytes:
    body = b"".join(content)
    size = len(body)
    length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + body


def oid(name: str) -> bytes:
    return element(6, bytes.fromhex(OIDS[name]))


def signed(name: str, parameters: bytes = b"\5\0") -> bytes:
    """A minimal certificate."""
    algorithm = element(0x30, oid(name), parameters)
    return element(0x30, element(0x30, bytes(300)), algorithm, element(3, bytes(70)))


def pem(der: bytes, what: str = "CERTIFICATE") -> bytes:
    text = base64.encodebytes(der)
    return f"-----BEGIN {what}-----\n".encode() + text + f"-----END {what}-----\n".encode()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("1.2.840.113549.1.1.4", "sha256"),  # MD5
        ("1.2.840.113549.1.1.5", "sha256"),  # SHA-1
        ("1.2.840.113549.1.1.11", "sha256"),
        ("1.2.840.113549.1.1.13", "sha512"),
        ("1.2.840.10045.4.3.3", "sha384"),
    ],
)
def test_the_hash_is_that_of_the_signature(name: str, function: str) -> None:
    der = signed(name)
    assert end_point_hash(pem(der)) == hashlib.new(function, der).digest()


def test_a_signature_without_a_hash_has_no_end_point() -> None:
    assert end_point_hash(pem(signed("1.3.101.112", b""))) is None


def test_rsa_pss_names_its_hash_in_parameters() -> None:
    sha384 = element(0xA0, element(0x30, oid("2.16.840.1.101.3.4.2.2"), b"\5\0"))
    for parameters, function in ((element(0x30, sha384), "sha384"), (element(0x30), "sha256")):
        der = signed("1.2.840.113549.1.1.10", parameters)
        assert end_point_hash(pem(der)) == hashlib.new(function, der).digest()


def test_the_first_certificate_of_a_file_counts() -> None:
    first, second = signed("1.2.840.113549.1.1.11"), signed("1.2.840.113549.1.1.13")
    file = b"Bag Attributes: x\n" + pem(b"key", "PRIVATE KEY") + pem(first) + pem(second)
    assert end_point_hash(file) == hashlib.sha256(first).digest()
    trusted = pem(first + element(0x30, b"rejected uses"), "TRUSTED CERTIFICATE")
    assert end_point_hash(trusted) == hashlib.sha256(first).digest()


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b"", "expected a certificate in PEM, got none"),
        (pem(b"key", "PRIVATE KEY"), "expected a certificate in PEM, got none"),
        (pem(signed("1.2.840.113549.1.1.11"))[:-20], "expected a certificate in PEM, got none"),
        (pem(b""), "expected tag 0x30 at offset 0"),
        (pem(signed("1.2.840.113549.1.1.11")[:99]), "expected 391 bytes at offset 4, got 95"),
        (pem(b"\x30\x80\0\0"), "length of 0 bytes"),
        (pem(b"\x30\x85\0\0\0\0\1\0"), "length of 5 bytes"),
        (pem(element(0x30, element(0x30), element(4))), "expected tag 0x30 at offset 2"),
        (pem(element(0x30, element(0x30))), "expected tag 0x30 at offset 2"),
    ],
)
def test_an_invalid_certificate(file: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        end_point_hash(file)


# ---- the end


def dated(*times: bytes, version: bytes = element(0xA0, element(2, b"\2"))) -> bytes:
    """A certificate up to its times."""
    before = (version, element(2, b"\1"), element(0x30, b"\5\0"), element(0x30))
    return element(0x30, element(0x30, *before, element(0x30, *times), element(0x30)))


def utc(text: str) -> bytes:
    return element(0x17, text.encode())


def general(text: str) -> bytes:
    return element(0x18, text.encode())


BEGIN = utc("200101000000Z")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (utc("270131235959Z"), datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC)),
        (utc("491231235959Z"), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (utc("500101000000Z"), datetime(1950, 1, 1, tzinfo=UTC)),
        (general("20500101000000Z"), datetime(2050, 1, 1, tzinfo=UTC)),
        (general("99991231235959Z"), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_the_end_of_a_certificate(end: bytes, expected: datetime) -> None:
    assert end_time(pem(dated(BEGIN, end))) == int(expected.timestamp())
    first_version = dated(general("20200101000000Z"), end, version=b"")
    assert end_time(pem(first_version)) == int(expected.timestamp())


def test_the_first_certificate_to_end_counts() -> None:
    """One of the authorities between may end before the server's own."""
    ends = [utc("300101000000Z"), utc("270101000000Z"), utc("280101000000Z")]
    file = b"".join(pem(dated(BEGIN, end)) for end in ends)
    assert end_time(file) == int(datetime(2027, 1, 1, tzinfo=UTC).timestamp())


@pytest.mark.parametrize("days", ["3", "36500"])
def test_the_end_is_that_of_openssl(tmp_path: Path, days: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, file = tmp_path / "key.pem", tmp_path / "cert.pem"
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-keyout", key, "-out", file, "-subj", "/CN=x", "-days", days]
    subprocess.run(["openssl", "req", "-x509", *new, *names], check=True, capture_output=True)
    shown = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", file],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    text = shown.stdout.removeprefix("notAfter=").strip()
    end = datetime.strptime(text, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    assert end_time(file.read_bytes()) == int(end.timestamp())


@pytest.mark.parametrize(
    ("der", "why"),
    [
        (dated(), "expected tag 0x17 at offset 0"),
        (dated(BEGIN), "expected tag 0x17 at offset 15"),
        (dated(BEGIN, element(2, b"1")), "expected tag 0x17 at offset 15"),
        (dated(BEGIN, utc("2701312359Z")), "expected a time in UTC"),
        (dated(BEGIN, general("270131235959Z")), "expected a time in UTC"),
        (dated(BEGIN, utc("270131235959+0100")), "expected a time in UTC"),
        (dated(BEGIN, utc("271331235959Z")), "month must be in"),
        (element(0x30, element(0x30)), "expected tag 0x02 at offset 0"),
    ],
)
def test_a_certificate_without_an_end(der: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        end_time(pem(der))
