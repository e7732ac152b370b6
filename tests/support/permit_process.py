"""A server of permits in a process of its own.

python -m tests.support.permit_process STORE CPU MEMORY [NODE [--replaces]]
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import closing, nullcontext
from pathlib import Path

from devalloc.machines.permits import PermitServer, Settings
from devalloc.machines.permits.doors import ServerAddresses
from devalloc.machines.permits.leadership import new_holder, permits_lease
from devalloc.machines.permits.server import PermitServices
from devalloc.scaling.resources import Resources
from devalloc.store.paths import hold_store
from devalloc.store.sqlite import SQLiteStore
from tests.support.permit_bench import NODE, node_of


def main(path: Path, limit: Resources, node: str = NODE, replaces: str = "") -> None:
    """Serve until SIGTERM; says at which port. ``replaces``: another one that stands still, and may go on."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())

    def ready(addresses: ServerAddresses) -> None:
        print(addresses.requests[1], flush=True)

    with nullcontext() if replaces else hold_store(path), closing(SQLiteStore(path)) as store:
        settings = Settings(port=0, dump_port=None)
        right = permits_lease(store, new_holder(), alone=True)
        hosts = node_of(limit, node)
        services = PermitServices(store=store, hosts=hosts, settings=settings, leadership=right, ready=ready)
        PermitServer(services).run(stop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Resources(int(sys.argv[2]), int(sys.argv[3])), *sys.argv[4:6])
