"""A server's certificate: its hash, for channel binding, and its end. Pure.

    SEQUENCE                               Certificate, DER
        SEQUENCE  tbsCertificate
            [0]                            version; version 1 has none
            INTEGER                        serial number
            SEQUENCE, SEQUENCE             signature algorithm, issuer
            SEQUENCE
                UTCTime or GeneralizedTime notBefore: 270131235959Z or 20500131235959Z
                UTCTime or GeneralizedTime notAfter
            ...
        SEQUENCE  signatureAlgorithm
            OID
            parameters                     of RSASSA-PSS: SEQUENCE { [0] { SEQUENCE { OID, ...
        BIT STRING  signature


`tls-server-end-point` is the hash of the whole certificate, by the hash function of its signature;
SHA-256 replaces MD5 and SHA-1. A signature without a hash function of its own (Ed25519), or one
that is not in the table, has no end point: then channel binding is not offered.

Sources: RFC 5929, section 4.1; RFC 5280, section 4.1; Postgres `be_tls_get_certificate_hash`; ITU-T
X.690.
"""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime
from typing import NamedTuple

_SEQUENCE, _INTEGER, _OID, _CONTEXT_0 = 0x30, 0x02, 0x06, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_YEAR_DIGITS = {_UTC_TIME: 2, _GENERALIZED_TIME: 4}
#: A year of two digits from here on is of the 20th century.
_FIRST_SHORT_YEAR = 50
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
    certificate = _certificates(pem)[0]
    name = _signature_hash(certificate)
    if name is None:
        return None
    # A TRUSTED CERTIFICATE has more data behind it, which is not part of the certificate.
    return hashlib.new(_REPLACED.get(name, name), certificate.encoded).digest()


def end_time(pem: bytes) -> int:
    """When the first of the certificates in a PEM file ends: seconds since 1970.

    Raises ValueError if there is no certificate, or it has no such time.
    """
    return min(map(_end_time, _certificates(pem)))


def _certificates(pem: bytes) -> list[_Element]:
    """At least one. Raises ValueError."""
    found = [_Element.read(base64.b64decode(each[2]), 0, _SEQUENCE) for each in _PEM.finditer(pem)]
    if not found:
        raise ValueError("expected a certificate in PEM, got none")
    return found


def _end_time(certificate: _Element) -> int:
    signed = _Element.read(certificate.content, 0, _SEQUENCE).content
    at = 0
    if signed[:1] == bytes([_CONTEXT_0]):
        at = len(_Element.read(signed, 0, _CONTEXT_0).encoded)
    for tag in (_INTEGER, _SEQUENCE, _SEQUENCE):
        at += len(_Element.read(signed, at, tag).encoded)
    times = _Element.read(signed, at, _SEQUENCE).content
    at = len(_Element.read(times, 0, _time_tag(times, 0)).encoded)
    tag = _time_tag(times, at)
    return _unix_time(_Element.read(times, at, tag).content, _YEAR_DIGITS[tag])


def _time_tag(data: bytes, at: int) -> int:
    """The tag at this offset, if it is that of a time; else one that is not there."""
    tag = data[at] if at < len(data) else 0
    return tag if tag in _YEAR_DIGITS else _UTC_TIME


def _unix_time(text: bytes, year_digits: int) -> int:
    if not re.fullmatch(rb"[0-9]{%d}Z" % (year_digits + 10), text):
        raise ValueError(f"malformed certificate: expected a time in UTC, got {text!r}")
    year = int(text[:year_digits])
    if year_digits == 2:
        year += 1900 if year >= _FIRST_SHORT_YEAR else 2000
    places = range(year_digits, year_digits + 10, 2)
    month, day, hour, minute, second = (int(text[place : place + 2]) for place in places)
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())


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
