"""Wire the node plugin to what it runs on: the embedded store's claims, or a cluster's."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from devalloc.controller.host_inventory import HostInventory, InventorySource
from devalloc.controller.pool_publisher import PublishLock, PublishResult, StillNamed, withdraw_previous_name
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.device_users import visibility_problem
from devalloc.inventory.discover import Discovery
from devalloc.inventory.watch import UdevSource
from devalloc.program import Loop
from devalloc.programs.permit_endpoint import published_endpoint
from devalloc.store import NotFound, Store, StoreError, StoreLocked
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client, path_segment
from devalloc.store.nodes import fence_statement, has_nodes
from devalloc_machines.agent.permit_client import ClusterEndpoint, PermitEndpoint
from devalloc_machines.part import MachineSettings, MachineSource, machines_of
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.vms import LoopSettings, MachineControls, MigrationLoop, VirtualMachineLoop
from devalloc_machines.vms.fencing import has_machine, settle, settle_previous_name
from devalloc_machines.vms.status import permitted_on
from devalloc_neon.informant_client import informant_channel
from devalloc_node.claims.journal_content import grant_of
from devalloc_node.claims.store_grants import KIND, StoreGrants
from devalloc_node.daemon import Publisher, when_settled
from devalloc_node.errors import Denied, Failed
from devalloc_node.health.conditions import ClaimConditions
from devalloc_node.host.boundary import DryRun, Host
from devalloc_node.host.files import Files
from devalloc_node.host.linux import LinuxHost
from devalloc_node.kube.claim_status import ResourceClaimStatuses
from devalloc_node.kube.grants import CLAIMS, ResourceClaimGrants
from devalloc_node.kube.label_change import OF_POOLS, OF_SLICES, POOLS, DialectMigration, warn_of_previous_name
from devalloc_node.kube.publisher import SLICES, NodeSlices, PoolNames
from devalloc_node.node import RENAME_ADVICE, ClaimSource, Node
from devalloc_node.operations.change_feed import machine_change

Say = Callable[[str], None]
_REJOIN_ADVICE = "Register this host as Node {node} again. If that Node will not come back, "
_FENCE_ADVICE = (
    f"{_REJOIN_ADVICE}restart this host, so that none of these machines runs, then take them away from that Node "
    "(`devalloc fence node/{node}`) or delete them"
)
_DELETE_ADVICE = f"{_REJOIN_ADVICE}delete these claims and their pods"
"""``rename_advice`` of nodes of a cluster, whose plugins cannot choose their names."""


def make_host(settings: MachineSettings, *, dry_run: bool, say: Say) -> Host:
    """This machine, or in a dry run one that only reports changes. Reports what the plugin will not be able to do."""
    host = LinuxHost(Files(settings.written), settings.root, settings.bindings.device_kinds)
    if os.geteuid() != 0:
        say("not root: the kernel will refuse to bind, create and reset devices; start it as root to prepare claims")
    if (blind := visibility_problem(host.tree())) is not None:
        say(f"not all users of a device are visible, so vGPUs are not taken away: {blind}")
    machines = settings.machines
    if machines.binary != MachineConfig().binary and shutil.which(machines.binary) is None:
        say(f"there is no program {machines.binary} (--qemu); machines cannot start until it exists")
    named = [("--image-folder", folder.path) for folder in machines.folders]
    named += [("--qmp-folder", folder.path) for folder in machines.socket_folders]
    named += [("--rom-folder", folder) for folder in machines.rom_folders]
    named += [("--shared-storage", Path(folder)) for folder in machines.shared_storage]
    for option, path in named:
        if not path.is_dir():
            say(f"there is no folder {path} ({option})")
    address = machines.migrations.address
    if address is not None and not _has_address(address):
        say(
            f"no interface of this host has the address {address} (--migration-address), so machines that run cannot "
            "move here; use an address of this host"
        )
    return DryRun(host, say) if dry_run else host


def _has_address(address: str) -> bool:
    """Whether a program of this host can listen on the address."""
    family, kind, protocol, _, place = socket.getaddrinfo(
        address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    try:
        with socket.socket(family, kind, protocol) as listener:
            listener.bind(place)
    except OSError as error:  # EAFNOSUPPORT: the kernel has no IPv6
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def store_source(store: Store, node_name: str) -> ClaimSource:
    """The DeviceClaims of a store, for the plugin."""

    def uid_of(namespace: str, name: str) -> str | None:
        try:
            return str(store.get(KIND, namespace, name)["metadata"]["uid"])
        except NotFound:
            return None
        except StoreError as error:
            raise Failed("StoreUnavailable", f"cannot read claim {namespace}/{name}: {error}") from error

    grants = StoreGrants(store, node_name)
    statement = partial(fence_statement, store, node_name)
    return MachineSource(
        KIND,
        grants,
        uid_of,
        ClaimConditions(store, node_name).update,
        permitted=partial(permitted_on, store, node_name),
        settle=lambda operations: settle(store, operations, statement),
        has_machine=partial(has_machine, store),
        settle_previous_name=partial(settle_previous_name, store),
        rename_advice=_FENCE_ADVICE if has_nodes(store) else RENAME_ADVICE,
    )


@contextmanager
def store_publishing(
    store: Store,
    node: Node,
    look: Callable[[DeviceRecords], Discovery],
    on_published: Callable[[PublishResult], None],
    *,
    place: Path,
    owner: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> Iterator[Publisher]:
    """Publish what ``look`` finds on the node as DevicePools of the store. ``place``: a path beside which the locks are
    that processes of this host use to take turns. ``owner``: an owner reference for the pools. Raises Denied
    (``NodeServed``) if the plugin of this node runs already."""
    settings = node.settings
    if is_cluster := isinstance(store, KubernetesStore):
        withdraw = partial(warn_of_previous_name, store.client, POOLS)
    else:
        withdraw = partial(_withdraw_pools, store, place, settings.node_name, on_published)
    try:  # a dry run runs no machines, and may run beside the real plugin
        turn = PublishLock(place, settings.node_name, is_plugin=not settings.dry_run, is_shared=is_cluster)
    except StoreLocked as error:
        raise Denied("NodeServed", str(error)) from error
    with closing(turn), closing(UdevSource()) as events:
        inventory = InventorySource(settings.node_name, look, standalone=False)
        host = HostInventory(
            store,
            inventory,
            events,
            turn,
            resync=settings.resync,
            on_published=on_published,
            on_failed=node.metrics.publish_failed,
            owner=owner,
        )
        yield Publisher((host.watch, host.repair), host.rescan, withdraw)


def _withdraw_pools(
    store: Store, place: Path, name: str, on_published: Callable[[PublishResult], None], previous: str
) -> None:
    """Delete the pools of this node's previous name. Raises Denied where they are in use, and Failed."""
    try:
        withdrawn = withdraw_previous_name(store, place, name, previous)
    except StillNamed as error:
        raise Denied("NodeRenamed", str(error)) from error
    except StoreError as error:
        raise Failed("StoreUnavailable", f"cannot withdraw the pools of node {previous}: {error}") from error
    if withdrawn:
        on_published(PublishResult(deleted=withdrawn))


def node_reference(client: Client, node_name: str) -> Mapping[str, Any] | None:
    """An owner reference to the Node, so that its objects are deleted with it; None if there is no Node."""
    try:
        uid = client.get(f"/api/v1/nodes/{path_segment(node_name)}")["metadata"]["uid"]
    except ApiError as error:
        if not error.is_not_found:
            logging.getLogger(__name__).warning("cannot read node %s: %s", node_name, error)
        return None
    except (KeyError, TypeError):
        return None
    return {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": str(uid)}


def cluster_permits(client: Client, namespace: str) -> PermitEndpoint:
    """The permit server of a cluster's controller: a ConfigMap of its namespace has the address; requests carry this
    node's token for the API server."""
    return ClusterEndpoint(published_endpoint(client, namespace))


def store_machines(
    store: Store, node: Node, not_ours: threading.Event | None = None, endpoint: PermitEndpoint | None = None
) -> list[Loop]:
    """The loops that run and scale machines according to the store's VirtualMachines.

    ``not_ours``: set while another process listens on the port of our own permit server. It may have other accounts,
    so the agent does not ask it.
    """
    part = machines_of(node)
    operations, scaling, runner_networks = part.operations, part.settings.scaling, part.settings.runners
    settings = LoopSettings(resync=node.settings.resync, grace=node.settings.grace)
    scalers = None
    if scaling is not None:
        from devalloc_machines.agent.agent_thread import AgentThread, ChannelFactory

        may_ask, protocols = (lambda: not_ours is None or not not_ours.is_set()), {"informant": informant_channel}
        scalers = AgentThread(
            ChannelFactory(operations, scaling, may_ask, endpoint, protocols),
            changed=lambda key: node.notifier.beat(machine_change(key)),
            registry=node.metrics.registry,
        )
        operations.report = scalers.report
    runners = None
    if runner_networks:
        from devalloc_neon.cpu_time_server import RunnerServers

        runners = RunnerServers(
            operations, runner_networks, changed=lambda key: node.notifier.beat(machine_change(key))
        )
    controls = MachineControls(scalers, runners, part.guest_reports)
    part.requests.control(controls)
    machines = VirtualMachineLoop(
        store,
        operations,
        node.notifier,
        settings=settings,
        removed=node.metrics.removed,
        controls=controls,
    )
    node.rounds.append(lambda: machines.worker.began)
    migrations = MigrationLoop(
        store,
        operations,
        part.machines,
        node.notifier,
        replace(part.settings.machines.migrations, sys=node.settings.root / "sys"),
        resync=node.settings.resync,
        grace=node.settings.grace,
    )
    changing = [partial(when_settled, node, loop) for loop in (machines.run, migrations.run)]
    return [*changing, *(each.run for each in (scalers, runners) if each is not None)]


def cluster_source(client: Client, driver: str, node_name: str) -> ClaimSource:
    """The ResourceClaims of a cluster, for the plugin."""

    def uid_of(namespace: str, name: str) -> str | None:
        try:
            return str(client.get(CLAIMS.format(path_segment(namespace), path_segment(name)))["metadata"]["uid"])
        except ApiError as error:
            if error.is_not_found:
                return None
            raise Failed("ApiUnavailable", f"cannot read ResourceClaim {namespace}/{name}: {error}") from None
        except (KeyError, TypeError):
            raise Failed("ApiUnavailable", f"ResourceClaim {namespace}/{name} has no UID in the answer") from None

    statuses, grants = ResourceClaimStatuses(client, driver), ResourceClaimGrants(client, driver, node_name)
    return ClaimSource("ResourceClaim", grants, uid_of, statuses.update, rename_advice=_DELETE_ADVICE)


def withdraw_other_dialect(client: Client, driver: str, node: Node) -> Callable[[DeviceRecords], Discovery]:
    """A look at the node's devices that first withdraws what the node published in the other dialect (T1)."""

    def recorded() -> Mapping[str, str]:
        others = [record for record in node.journal.claims() if record.kind != node.source.kind]
        grants = [grant_of(record.ref, record.grant) for record in others]
        return {
            device.pool: f"{grant.kind} {grant.ref}" for grant in grants for device in grant.devices if not device.admin
        }

    dialect = OF_POOLS if node.source.kind == "ResourceClaim" else OF_SLICES
    return DialectMigration(client, dialect, node.settings.node_name, driver, node.inventory.discover, recorded).look


@contextmanager
def cluster_publishing(
    client: Client, driver: str, node: Node, look: Callable[[DeviceRecords], Discovery]
) -> Iterator[Publisher]:
    """Publish what ``look`` finds on the node as ResourceSlices of the cluster."""
    name, resync = node.settings.node_name, node.settings.resync
    with closing(UdevSource()) as events:
        slices = NodeSlices(
            client,
            driver,
            name,
            lambda: look(DeviceRecords()),
            events,
            resync=resync,
            failed=node.metrics.publish_failed,
            names=PoolNames(
                node.settings.set_aside,
                lambda: {device.pool for claim in node.claims.prepared() for device in claim.devices},
            ),
        )
        yield Publisher(slices.loops, slices.rescan, partial(warn_of_previous_name, client, SLICES))


def store_loops(
    store: Store, node: Node, *, alone: bool, say: Say, endpoint: PermitEndpoint | None = None
) -> list[Loop]:
    """All loops of the plugin for the VirtualMachines of a store. ``alone``: no other process runs such loops on the
    store; ``endpoint``: the permit server that replaces the one of the settings."""
    from devalloc.programs.node_permits import store_permits

    not_ours = threading.Event()
    loops = store_machines(store, node, not_ours, endpoint)
    scaling = machines_of(node).settings.scaling
    if scaling is not None and scaling.serves:
        loops.append(store_permits(store, node, not_ours, alone=alone, say=say))
    return loops
