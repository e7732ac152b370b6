"""The permit server of a node without a cluster: on loopback, for the machines of this host."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from devalloc.inventory.capacity import discover_capacity
from devalloc.machines.permits import Host, PermitServer, PermitServices, Settings
from devalloc.machines.permits import Host as Limits
from devalloc.machines.permits.doors import ServerAddresses
from devalloc.machines.permits.hosts import FrozenHosts
from devalloc.machines.permits.leadership import new_holder, permits_lease
from devalloc.machines.permits.metrics import TYPE
from devalloc.machines.permits.store_migrator import MovableMachines, StoreMigrator
from devalloc.program import Loop
from devalloc.scaling.resources import Resources
from devalloc.store import Store, Unavailable
from devalloc.worker import until_set
from devalloc_machines.agent.agent import page_served
from devalloc_machines.part import machines_of
from devalloc_neon.billing import billing
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.net.http import JSON, HttpRequest, HttpResponse
from devalloc_node.node import Node

Say = Callable[[str], None]
CAPACITY_CACHE_SECONDS = 10.0
"""Seconds for which the host's capacity is cached."""
MACHINE_START_SECONDS = 5.0
"""Seconds that a permit waits for a machine that is starting."""


def frozen_hosts(node: Node) -> FrozenHosts:
    """This host's capacity, and the usage of machines without a VirtualMachine; inside, no machine can start."""
    part = machines_of(node)
    limit, looked = Resources(0, 0), -CAPACITY_CACHE_SECONDS

    @contextmanager
    def still() -> Iterator[dict[str, Host]]:
        nonlocal limit, looked
        if time.monotonic() - looked > CAPACITY_CACHE_SECONDS:
            capacity = discover_capacity(node.settings.root, part.settings.limits)
            limit, looked = Resources(capacity.cpu.effective_limit, capacity.memory.effective_limit), time.monotonic()
        try:
            with part.machines.still(part.operations.without_object, Deadline.after(MACHINE_START_SECONDS)) as uses:
                found_here = [(use.id.partition("/"), Resources(use.cpu, use.memory)) for use in uses]
                others = {(key[0], key[2]): amount for key, amount in found_here}
                yield {node.settings.node_name: Host(limit, others)}
        except NodeError as error:
            raise Unavailable(str(error)) from error

    return still


def store_permits(store: Store, node: Node, not_ours: threading.Event, *, alone: bool, say: Say) -> Loop:
    """The permit server for the machines of this node, on loopback only.

    If another process uses the port, it waits and retries, because the rest of the plugin does not need it;
    ``not_ours`` is set meanwhile.
    """
    still = frozen_hosts(node)

    def hosts() -> Mapping[str, Limits]:
        with still() as by_node:
            return by_node

    name, scaling = node.settings.node_name, machines_of(node).settings.scaling
    assert scaling is not None
    dump = scaling.permits_dump
    settings = Settings(
        port=scaling.permits_port,
        dump_port=dump if isinstance(dump, int) else None,
        token=scaling.token,
        shown_to_all=scaling.has_own_token,
        migration_seconds=scaling.migration_seconds,
        **vars(scaling.arithmetic),
    )

    def ready(at: ServerAddresses) -> None:
        not_ours.clear()
        say("permit server at http://{}:{}/".format(*at.requests))

    def waiting(text: str) -> None:
        not_ours.clear()  # the holder of the lease may take the port, too
        say(text)

    def unheard(error: OSError) -> None:
        if not not_ours.is_set():
            why = os.strerror(error.errno or 0)
            say(
                "WARNING: no permits, so machines cannot grow: the permit server cannot listen on port "
                f"{settings.port} of {settings.host}: {why}; stop the program that uses the port, or choose "
                "another one with --permits-port; devalloc keeps trying"
            )
        not_ours.set()

    server = PermitServer(
        PermitServices(
            store=store,
            hosts=hosts,
            frozen=still,
            settings=settings,
            leadership=permits_lease(store, new_holder(), node=name, alone=alone),
            node=name,
            migrator=StoreMigrator(store),
            movable=partial(MovableMachines, store),
            accounts=billing(store),
            ready=ready,
            unheard=unheard,
            waiting=waiting,
        )
    )

    def run(stop: threading.Event) -> None:
        with _serve_ledgers(server, dump if isinstance(dump, Path) else None, stop):
            server.run(stop)

    return run


@contextmanager
def _serve_ledgers(server: PermitServer, at: Path | None, stop: threading.Event) -> Iterator[None]:
    """While inside, until ``stop`` is set, serve state and metrics at a unix socket that only this user can open."""

    async def respond(request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(405, b"GET it")
        show, kind = (server.metrics.text, TYPE) if request.path == "/metrics" else (server.shown, JSON)
        text = await server.seen(show)
        return (
            HttpResponse(503, b"no permits are given here just now") if text is None else HttpResponse(200, text, kind)
        )

    async def until_stopped() -> None:
        async with page_served(respond, at, "the ledgers of permits", "--permits-dump-port"):
            await until_set(stop)

    if at is None:
        yield
        return
    thread = threading.Thread(target=lambda: asyncio.run(until_stopped()), name="permits-ledgers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
