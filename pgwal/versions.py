"""The differences in the WAL of Postgres 13 to 18: one table for all decoders.

Everything else (page and record headers, flags of a page, block headers) is the same in all of
them.

    major   page magic   custom rmgrs   top-level xid   bimg_info: apply, compressed with
    13      0xD106       no             no              0x04, 0x02 pglz
    14      0xD10D       no             yes             0x04, 0x02 pglz
    15      0xD110       yes            yes             0x02, 0x04 pglz 0x08 lz4 0x10 zstd
    16      0xD113       yes            yes             as 15
    17      0xD116       yes            yes             as 15
    18      0xD118       yes            yes             as 15

The overwritten contrecord (`XLP_FIRST_IS_OVERWRITE_CONTRECORD`) came with 13.5 and 14.1; older
minor versions never set the bit. Sources: Postgres `access/xlog_internal.h`, `access/xlogrecord.h`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum_wal.pgwal.errors import UnsupportedVersionError


@dataclass(frozen=True, slots=True)
class WalVersion:
    """The WAL format of one Postgres major version."""

    major: int
    page_magic: int
    has_custom_rmgrs: bool
    has_toplevel_xid: bool
    #: Bit of `bimg_info`: the page image must be restored during replay.
    image_apply: int
    #: Bits of `bimg_info` -> the compression method of the page image.
    image_compression: dict[int, str]


_PGLZ_ONLY = {0x02: "pglz"}
_THREE_METHODS = {0x04: "pglz", 0x08: "lz4", 0x10: "zstd"}

_VERSIONS = {
    version.major: version
    for version in (
        WalVersion(13, 0xD106, False, False, 0x04, _PGLZ_ONLY),
        WalVersion(14, 0xD10D, False, True, 0x04, _PGLZ_ONLY),
        WalVersion(15, 0xD110, True, True, 0x02, _THREE_METHODS),
        WalVersion(16, 0xD113, True, True, 0x02, _THREE_METHODS),
        WalVersion(17, 0xD116, True, True, 0x02, _THREE_METHODS),
        WalVersion(18, 0xD118, True, True, 0x02, _THREE_METHODS),
    )
}

SUPPORTED_MAJORS = tuple(_VERSIONS)


def wal_version(major: int) -> WalVersion:
    """The format of `major` (13 to 18). Raises UnsupportedVersionError."""
    try:
        return _VERSIONS[major]
    except KeyError:
        raise UnsupportedVersionError(
            f"unsupported Postgres major version {major}: "
            f"expected {SUPPORTED_MAJORS[0]} to {SUPPORTED_MAJORS[-1]}"
        ) from None
