"""Safekeepers and proposers are replaced while clients commit; their data remains."""

from __future__ import annotations

import struct

import crc32c
from container_cluster import DATA_DIR, ContainerCluster
from container_images import NEWER_VERSION, VERSION, Images
from reckoning import TIMEOUT, assert_nothing_lost

from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.safekeeper.control_state import FORMAT_VERSION

LABEL = "org.opencontainers.image.version"
VERSION_OFFSET = 4  # of the control file: magic, then the format's version
NEWER_FORMAT = 99


def test_a_rolling_restart_fails_no_commit(cluster: ContainerCluster, ledger: Ledger) -> None:
    """In good order, one after the other, each when all others follow."""
    for safekeeper in cluster.safekeepers:
        assert safekeeper.terminate(TIMEOUT) == 0
        ledger.wait_for_progress(20, TIMEOUT)
        safekeeper.start()
        safekeeper.wait_ready()
        cluster.wait_connected(3)
    assert_nothing_lost(cluster, ledger)
    assert ledger.errors == ledger.unknown == 0


def test_a_rolling_upgrade_fails_no_commit(
    cluster: ContainerCluster, ledger: Ledger, images: Images
) -> None:
    """New containers of a newer image on the volumes of the old ones; the proposer is the last
    one."""
    ledger.wait_for_progress(50, TIMEOUT)
    for service in (*cluster.safekeepers, cluster.proposer):
        before = service.container.id
        assert service.container.image.labels[LABEL] == VERSION
        assert service.terminate(TIMEOUT) == 0
        service.replace(images.newer)
        assert service.container.id != before
        assert service.container.image.labels[LABEL] == NEWER_VERSION
        cluster.start()
        ledger.wait_for_progress(20, TIMEOUT)
        cluster.wait_connected(3)
    assert_nothing_lost(cluster, ledger)
    assert ledger.errors == ledger.unknown == 0


def test_a_control_file_of_a_newer_release_is_refused(
    cluster: ContainerCluster, ledger: Ledger
) -> None:
    """As after a downgrade: that member reports it and does not vote; the others continue."""
    safekeeper = cluster.safekeepers[0]
    timeline = safekeeper.timeline()
    assert timeline is not None
    path = f"{DATA_DIR}/timelines/{timeline['tenant_id']}.{timeline['timeline_id']}/control"
    safekeeper.kill()
    ours = safekeeper.copy_of(path).read_bytes()
    assert struct.unpack_from("!I", ours, VERSION_OFFSET) == (FORMAT_VERSION,)
    safekeeper.write_file(path, of_newer_format(ours))
    safekeeper.start()
    wait_until(lambda: health(safekeeper)[0] == 503, TIMEOUT, "/healthz to say that it is damaged")
    # The engine writes a container's log with a delay.
    for said in (
        f"has format version {NEWER_FORMAT}, expected {FORMAT_VERSION}",
        "Another release wrote it",
    ):
        wait_until(lambda said=said: said in safekeeper.log_tail(), TIMEOUT, f"log: {said}")
    ledger.wait_for_progress(20, TIMEOUT)
    assert cluster.proposer.status()["quorum"]["connected"] == 2

    safekeeper.kill()
    safekeeper.write_file(path, ours)
    safekeeper.start()
    assert_nothing_lost(cluster, ledger)


def of_newer_format(control_file: bytes) -> bytes:
    """With a correct checksum, so that only the version is wrong."""
    body = bytearray(control_file[:-4])
    struct.pack_into("!I", body, VERSION_OFFSET, NEWER_FORMAT)
    return bytes(body) + struct.pack("!I", crc32c.crc32c(bytes(body)))


def health(safekeeper: object) -> tuple[int, str]:
    try:
        return http_get(safekeeper.http_address, "/healthz")
    except OSError:
        return 0, ""
