"""A process that only registers: `python registering_process.py DATABASE NODE TENANT`.

Writes one line for each number after the service has answered: "node 7", "tenant 3". Runs until it
is killed.
"""

from __future__ import annotations

import sys

from quorum_wal.generations.operations import embedded_generations


def main(database: str, node_id: int, tenant: str) -> None:
    service = embedded_generations(database)
    while True:
        generation = service.register_node(node_id, "a process").node_generation
        print("node", generation, flush=True)
        print("tenant", service.fence_tenant(tenant, node_id).attachment_generation, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
