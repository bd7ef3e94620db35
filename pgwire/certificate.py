"""The hash of a server's certificate, for channel binding. Pure.

    SEQUENCE                               Certificate, DER
        SEQUENCE  tbsCertificate
        SEQUENCE  signatureAlgorithm
            OID
            parameters                     of RSASSA-PSS: SEQUENCE { [0] { SEQUENCE { OID, ...
        BIT STRING  signature


`tls-server-end-point` is the hash of the whole certificate, by the hash function of its signature;
SHA-256 replaces MD5 and SHA-1. A signature without a hash function of its own (Ed25519), or one
that is not in the table, has no end point: then channel binding is not offered.

Sources: RFC 5929, section 4.1; Postgres `be_tls_get_certificate_hash`; ITU-T X.690.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import NamedTuple

_SEQUENCE, _OID, _CONTEXT_0 = 0x30, 0x06, 0xA0
_LENGTH_BYTES_MAX = 4
_PEM = re.compile(
    rb"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----([A-Za-z0-9+/=\s]*+)-----END \1-----"
)

_RSA_PSS = "1.2.840.113549.1.1.10"
_HASH_OF_SIGNATURE = {
    "1.2.840.113549.1.1.4": "md5",
    "1.2.840.113549.1.1.5": "sha1",
    "1.2.840.113549.1.1.11": "sha256",
    "1.2.840.113549.1.1.12": "sha384",
    "1.2.840.113549.1.1.13": "sha512",
    "1.2.840.113549.1.1.14": "sha224",
    "1.2.840.10045.4.1": "sha1",  # ECDSA from here on
    "1.2.840.10045.4.3.1": "sha224",
    "1.2.840.10045.4.3.2": "sha256",
    "1.2.840.10045.4.3.3": "sha384",
    "1.2.840.10045.4.3.4": "sha512",
    "1.2.840.10040.4.3": "sha1",  # DSA from here on
    "2.16.840.1.101.3.4.3.1": "sha224",
    "2.16.840.1.101.3.4.3.2": "sha256",
}
_HASHES = {
    "1.3.14.3.2.26": "sha1",
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
    "2.16.840.1.101.3.4.2.4": "sha224",
}
_REPLACED = {"md5": "sha256", "sha1": "sha256"}


def end_point_hash(pem: bytes) -> bytes | None:
    """The hash of the first certificate in a PEM file, which is the one that a server sends.

    Returns None if its signature has none. Raises ValueError if there is no certificate.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("expected a certificate in PEM, got none")
    certificate = _Element.read(base64.b64decode(found[2]), 0, _SEQUENCE)
    name = _signature_hash(certificate)
    if name is None:
        return None
    # A TRUSTED CERTIFICATE has more data behind it, which is not part of the certificate.
    return hashlib.new(_REPLACED.get(name, name), certificate.encoded).digest()


def _signature_hash(certificate: _Element) -> str | None:
    body = certificate.content
    signed = _Element.read(body, 0, _SEQUENCE)
    algorithm = _Element.read(body, len(signed.encoded), _SEQUENCE).content
    oid = _Element.read(algorithm, 0, _OID)
    name = _dotted(oid.content)
    if name != _RSA_PSS:
        return _HASH_OF_SIGNATURE.get(name)
    parameters = _Element.read(algorithm, len(oid.encoded), _SEQUENCE).content
    if parameters[:1] != bytes([_CONTEXT_0]):
        return "sha1"  # the default of RFC 4055
    hash_algorithm = _Element.read(_Element.read(parameters, 0, _CONTEXT_0).content, 0, _SEQUENCE)
    return _HASHES.get(_dotted(_Element.read(hash_algorithm.content, 0, _OID).content))


class _Element(NamedTuple):
    """Tag, length and content, and the content alone."""

    encoded: bytes
    content: bytes

    @classmethod
    def read(cls, data: bytes, at: int, tag: int) -> _Element:
        """Reads the element that begins at `at`. Raises ValueError."""
        if data[at : at + 1] != bytes([tag]) or at + 2 > len(data):
            raise ValueError(f"malformed certificate: expected tag 0x{tag:02X} at offset {at}")
        length, begin = data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= _LENGTH_BYTES_MAX:
                raise ValueError(f"malformed certificate: length of {count} bytes at offset {at}")
            length, begin = int.from_bytes(data[begin : begin + count], "big"), begin + count
        if begin + length > len(data):
            raise ValueError(
                f"malformed certificate: expected {length} bytes at offset {begin}, "
                f"got {max(0, len(data) - begin)}"
            )
        return cls(data[at : begin + length], data[begin : begin + length])


def _dotted(oid: bytes) -> str:
    """`_dotted(b"\\x2a\\x86\\x48") == "1.2.840"`."""
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        return ""
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
