"""What the node plugin is run on: the embedded store's claims, or a cluster's."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from devalloc.controller.permits import Host as Limits
    from devalloc.controller.permits import PermitServer
    from devalloc.controller.permits.hosts import Still
    from devalloc.controller.publish import Published
    from devalloc.inventory import Discovery, Known
    from devalloc.store import Store
    from devalloc.store.kubernetes.client import Client
    from devalloc_node.agent.whom import Whom
    from devalloc_node.daemon import Loop, Publishing
    from devalloc_node.host.boundary import Host
    from devalloc_node.node import Node, Source
    from devalloc_node.settings import NodeSettings

Say = Callable[[str], None]
LIMIT_SECONDS = 10.0
"""How long what the host has is taken for unchanged."""
STILL_SECONDS = 5.0
"""How long a permit waits for a machine that begins."""
LISTEN_SECONDS, MOST_LISTEN_SECONDS = 5.0, 60.0
"""The pause after the server of permits could not have its port, twice as long after each further one; the longest."""


@contextmanager
def cutting_off(say: Say) -> Iterator[None]:
    """At the end, leave threads that began inside and hang (a guest that does not power down, a kernel that does not
    answer) a second, then end the process without them: the journal has what they did, and the next start finishes it.
    """
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 1.0
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                say("cut off what was under way; the next start finishes it")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)


def host_of(settings: NodeSettings, *, dry_run: bool, say: Say) -> Host:
    """This machine, or in a dry run one that only tells what it would do. Says what the plugin cannot do as it runs."""
    from devalloc.inventory.sight import blind_spot
    from devalloc_node.host.dryrun import DryRun
    from devalloc_node.host.files import Files
    from devalloc_node.host.linux import LinuxHost
    from devalloc_node.machine.config import MachineConfig

    host = LinuxHost(Files(settings.written), settings.root)
    if os.geteuid() != 0:
        say("not root: the kernel will refuse to bind, create and reset devices; start it as root to prepare claims")
    if (blind := blind_spot(host.tree())) is not None:
        say(f"who uses a device cannot be seen in full, so vGPUs are not taken away: {blind}")
    machines = settings.machines
    if machines.binary != MachineConfig().binary and shutil.which(machines.binary) is None:
        say(f"there is no program {machines.binary} (--qemu); machines are not started until there is")
    for option, folders in (("image", machines.folders), ("qmp", machines.socket_folders)):
        for folder in folders:
            if not folder.path.is_dir():
                say(f"there is no folder {folder.path} (--{option}-folder)")
    return DryRun(host, say) if dry_run else host


def store_source(store: Store, node_name: str) -> Source:
    """The DeviceClaims of a store."""
    from devalloc.store import NotFound, StoreError
    from devalloc_node.claims.store_grants import KIND, StoreGrants
    from devalloc_node.errors import Failed
    from devalloc_node.node import Source
    from devalloc_node.statuses import ClaimStatuses
    from devalloc_node.vms.objects import permitted_on

    def uid_of(namespace: str, name: str) -> str | None:
        try:
            return str(store.get(KIND, namespace, name)["metadata"]["uid"])
        except NotFound:
            return None
        except StoreError as error:
            raise Failed("StoreUnavailable", f"claim {namespace}/{name} cannot be looked up: {error}") from error

    grants = StoreGrants(store, node_name)
    return Source(KIND, grants, uid_of, ClaimStatuses(store, node_name).update, partial(permitted_on, store, node_name))


@contextmanager
def store_publishing(
    store: Store,
    node: Node,
    look: Callable[[Known], Discovery],
    on_published: Callable[[Published], None],
    *,
    place: Path,
    owner: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> Iterator[Publishing]:
    """What ``look`` finds on the node as DevicePools of the store. ``place``: a path beside which the locks lie by
    which processes of this host take turns. ``owner``: an owner reference for the pools."""
    from devalloc.controller.host import Host, Inventory
    from devalloc.controller.turn import Turn
    from devalloc.inventory.events import UdevSource
    from devalloc_node.daemon import Publishing

    settings = node.settings
    turn = Turn(place, settings.node_name, first=True)
    with closing(turn), closing(UdevSource()) as events:
        inventory = Inventory(settings.node_name, look, first=True)
        host = Host(
            store,
            inventory,
            events,
            turn,
            resync=settings.resync,
            on_published=on_published,
            on_failed=node.metrics.publish_failed,
            owner=owner,
        )
        yield Publishing((host.watch, host.repair), host.rescan)


def node_reference(client: Client, node_name: str) -> Mapping[str, Any] | None:
    """A cluster's Node as an owner, so that what it owns goes when it is deleted; None where there is none."""
    import logging

    from devalloc.store.kubernetes.apierror import ApiError
    from devalloc.store.kubernetes.client import segment

    try:
        uid = client.get(f"/api/v1/nodes/{segment(node_name)}")["metadata"]["uid"]
    except ApiError as error:
        if not error.is_not_found:
            logging.getLogger(__name__).warning("the node %s cannot be read: %s", node_name, error)
        return None
    except (KeyError, TypeError):
        return None
    return {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": str(uid)}


def cluster_permits(client: Client, namespace: str) -> Whom:
    """The server of permits of a cluster's controller, as a ConfigMap of its namespace says; asked with the token that
    this node has for the API server."""
    from devalloc.scaling.permits.place import NAME, Place, place_of
    from devalloc.store.kubernetes import ApiError
    from devalloc.store.kubernetes.client import segment
    from devalloc_node.agent.whom import OfCluster
    from devalloc_node.errors import Failed

    def read() -> tuple[Place, str]:
        path = f"/api/v1/namespaces/{segment(namespace)}/configmaps/{NAME}"
        where = f"where permits are given is not known: ConfigMap {namespace}/{NAME}"
        try:
            place, token = place_of(client.get(path)), client.token()
        except ApiError as error:
            hint = "; devalloc controller --permits writes it" if error.is_not_found else ""
            raise Failed("Unreachable", f"{where}: {error}{hint}") from None
        except ValueError as error:
            raise Failed("Unreachable", f"{where}: {error}") from None
        if token is None:
            raise Failed("Unreachable", "permits are asked for with the node's token, and the kubeconfig has none")
        return place, token

    return OfCluster(read)


def store_loops(
    store: Store, node: Node, limits: dict[str, Any], *, alone: bool, say: Say, whom: Whom | None = None
) -> list[Loop]:
    """All that the plugin does for the VirtualMachines of a store. ``limits``: what the host may promise; ``alone``: no
    other process runs such loops on the store; ``whom``: who is asked for permits instead of whom the settings tell."""
    not_ours = threading.Event()
    loops = store_machines(store, node, not_ours, whom)
    scaling = node.settings.scaling
    if scaling is not None and scaling.server is not None:
        loops.append(store_permits(store, node, limits, not_ours, alone=alone, say=say))
    return loops


def store_machines(
    store: Store, node: Node, not_ours: threading.Event | None = None, whom: Whom | None = None
) -> list[Loop]:
    """The loops that run machines as the store's VirtualMachines say, and scale those that are to be.

    ``not_ours``: whether somebody else listens where our own server of permits should. He may have another ledger, so
    that nobody is asked meanwhile.
    """
    from devalloc_node.service.watching import machine_change
    from devalloc_node.vms import Settings, VirtualMachines

    settings = Settings(resync=node.settings.resync, grace=node.settings.grace)
    scalers = None
    if node.settings.scaling is not None:
        from devalloc_node.agent.scalers import Scalers

        scalers = Scalers(
            node.platform,
            node.settings.scaling,
            changed=lambda key: node.pulse.beat(machine_change(key)),
            registry=node.metrics.registry,
            may_ask=lambda: not_ours is None or not not_ours.is_set(),
            whom=whom,
        )
        node.platform.report = scalers.report
    runners = None
    if node.settings.runners:
        from devalloc_node.agent.runners import Runners

        runners = Runners(
            node.platform, node.settings.runners, changed=lambda key: node.pulse.beat(machine_change(key))
        )
    machines = VirtualMachines(
        store,
        node.platform,
        node.pulse,
        settings=settings,
        removed=node.metrics.removed,
        scaling=scalers,
        runners=runners,
    )
    return [machines.run, *(each.run for each in (scalers, runners) if each is not None)]


def as_they_are(node: Node, limits: dict[str, Any]) -> Still:
    """What this host has for machines, and what those take that no VirtualMachine speaks for; inside none begins."""
    from devalloc.cli.hostcapacity import discovered, settings
    from devalloc.controller.permits import Host
    from devalloc.scaling.resources import Resources
    from devalloc.store import Unavailable
    from devalloc_node.deadline import Deadline
    from devalloc_node.errors import NodeError

    limit, looked = Resources(0, 0), -LIMIT_SECONDS

    @contextmanager
    def still() -> Iterator[dict[str, Host]]:
        nonlocal limit, looked
        if time.monotonic() - looked > LIMIT_SECONDS:
            found = discovered(node.settings.root, settings(limits, node.settings.state))
            limit, looked = Resources(found.cpu.effective_limit, found.memory.effective_limit), time.monotonic()
        try:
            with node.machines.still(node.platform.without_object, Deadline.after(STILL_SECONDS)) as uses:
                found_here = [(use.id.partition("/"), Resources(use.cpu, use.memory)) for use in uses]
                others = {(key[0], key[2]): amount for key, amount in found_here}
                yield {node.settings.node_name: Host(limit, others)}
        except NodeError as error:
            raise Unavailable(str(error)) from error

    return still


def store_permits(
    store: Store, node: Node, limits: dict[str, Any], not_ours: threading.Event, *, alone: bool, say: Say
) -> Loop:
    """The server of permits for the machines of this node, on loopback only.

    A port that somebody else has is waited for, for whatever else goes on here does not need it; ``not_ours`` is set
    meanwhile.
    """
    from devalloc.controller.permits import PermitServer, Settings
    from devalloc.controller.permits.server import Addresses

    still = as_they_are(node, limits)

    def hosts() -> Mapping[str, Limits]:
        with still() as found:
            return found

    scaling = node.settings.scaling
    assert scaling is not None
    assert scaling.server is not None
    dump = scaling.server.dump
    settings = Settings(
        port=scaling.server.requests,
        dump_port=dump if isinstance(dump, int) else None,
        token=scaling.token,
        shown_to_all=scaling.has_own_token,
        era=scaling.compat or Settings.era,
        unit=scaling.unit,
    )
    pause = LISTEN_SECONDS

    def ready(at: Addresses) -> None:
        nonlocal pause
        pause = LISTEN_SECONDS
        not_ours.clear()
        say("permits are given at http://{}:{}/".format(*at.requests))

    def waiting(text: str) -> None:
        not_ours.clear()  # who has the lease may have the port as well
        say(text)

    server = PermitServer(
        store,
        hosts,
        settings,
        node=node.settings.node_name,
        alone=alone,
        still=still,
        on_ready=ready,
        on_waiting=waiting,
    )

    def run(stop: threading.Event) -> None:
        with _ledgers_shown(server, dump if isinstance(dump, Path) else None, stop):
            serve(stop)

    def serve(stop: threading.Event) -> None:
        nonlocal pause
        while not stop.is_set():
            try:
                server.run(stop)
            except OSError as error:
                if not not_ours.is_set():
                    why = os.strerror(error.errno or 0)
                    say(
                        "WARNING: no permits are given, so that machines that are scaled get no more: the server of "
                        f"permits cannot have port {settings.port} of {settings.host}: {why}; end who has it, or "
                        "choose another with --permits-port; it is tried again"
                    )
                not_ours.set()
                stop.wait(pause)
                pause = min(2 * pause, MOST_LISTEN_SECONDS)

    return run


@contextmanager
def _ledgers_shown(server: PermitServer, at: Path | None, stop: threading.Event) -> Iterator[None]:
    """While inside, and until ``stop`` is set, the ledgers and metrics can be had at a unix socket of this user's."""
    from devalloc.controller.permits.metrics import TYPE
    from devalloc_node.agent.dumping import shown
    from devalloc_node.plainhttp import JSON, Request, Response

    async def respond(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"GET it")
        show, kind = (server.metrics.text, TYPE) if request.path == "/metrics" else (server.shown, JSON)
        text = await server.seen(show)
        return Response(503, b"no permits are given here just now") if text is None else Response(200, text, kind)

    async def until_stopped() -> None:
        async with shown(respond, at, "the ledgers of permits", "--permits-dump-port"):
            while not stop.is_set():
                await asyncio.sleep(0.1)

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


def cluster_source(client: Client, driver: str, node_name: str) -> Source:
    """The ResourceClaims of a cluster."""
    from devalloc.store.kubernetes.apierror import ApiError
    from devalloc.store.kubernetes.client import segment
    from devalloc_node.errors import Failed
    from devalloc_node.kube.claim_status import ResourceClaimStatuses
    from devalloc_node.kube.grants import CLAIMS, ResourceClaimGrants
    from devalloc_node.node import Source

    def uid_of(namespace: str, name: str) -> str | None:
        try:
            return str(client.get(CLAIMS.format(segment(namespace), segment(name)))["metadata"]["uid"])
        except ApiError as error:
            if error.is_not_found:
                return None
            raise Failed("ApiUnavailable", f"ResourceClaim {namespace}/{name} cannot be read: {error}") from None
        except (KeyError, TypeError):
            raise Failed("ApiUnavailable", f"ResourceClaim {namespace}/{name} has no UID in the answer") from None

    statuses = ResourceClaimStatuses(client, driver)
    return Source("ResourceClaim", ResourceClaimGrants(client, driver, node_name), uid_of, statuses.update)


def not_both(client: Client, driver: str, node: Node) -> Callable[[Known], Discovery]:
    """A look at the node's devices, before which what it published to the cluster in the other dialect is taken back
    (T1)."""
    from devalloc_node.claims.content import grant_of
    from devalloc_node.kube.former import OF_POOLS, OF_SLICES, Former

    def recorded() -> Mapping[str, str]:
        others = [record for record in node.journal.claims() if record.kind != node.source.kind]
        grants = [grant_of(record.ref, record.grant) for record in others]
        return {
            device.pool: f"{grant.kind} {grant.ref}" for grant in grants for device in grant.devices if not device.admin
        }

    dialect = OF_POOLS if node.source.kind == "ResourceClaim" else OF_SLICES
    return Former(client, dialect, node.settings.node_name, driver, node.survey.discover, recorded).look


@contextmanager
def cluster_publishing(
    client: Client, driver: str, node: Node, look: Callable[[Known], Discovery]
) -> Iterator[Publishing]:
    """What ``look`` finds on the node as ResourceSlices of the cluster."""
    from devalloc.inventory import Known
    from devalloc.inventory.events import UdevSource
    from devalloc_node.daemon import Publishing
    from devalloc_node.kube.node_slices import NodeSlices

    name, resync = node.settings.node_name, node.settings.resync
    with closing(UdevSource()) as events:
        slices = NodeSlices(
            client,
            driver,
            name,
            lambda: look(Known()),
            events,
            resync=resync,
            failed=node.metrics.publish_failed,
            aside=node.settings.set_aside,
            held=lambda: {device.pool for claim in node.claims.prepared() for device in claim.devices},
        )
        yield Publishing(slices.loops, slices.rescan)
