"""``devalloc node``: the node plugin as a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.controller.host_inventory import DiscoverFunction, machines_with_disk, with_host_pool
from devalloc.program import Control, Loop, Program, ProgressDisplay
from devalloc.programs import node_parts as on
from devalloc.programs.node_options import check_published, node_settings
from devalloc.programs.options import KUBELET_APIS, NodeOptions
from devalloc.programs.settings import (
    store_path,
)
from devalloc.programs.store_loops import show_published
from devalloc.service_manager import Heartbeat, ServiceManager
from devalloc.settings import (
    BadSetting,
    given_options,
)
from devalloc.store import Store
from devalloc.store.kubernetes import Client
from devalloc.store.kubernetes.store import KubernetesStore
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.agent.settings import OF_PERMIT_SERVER
from devalloc_node.daemon import Publisher, daemon
from devalloc_node.host import lock_folder
from devalloc_node.host.boundary import Host
from devalloc_node.host.lock_folder import PublishMode
from devalloc_node.kube.node_lease import NodeLease
from devalloc_node.kube.watch_selection import OwnObjects
from devalloc_node.node import Node, open_node
from devalloc_node.settings import VERSIONS, KubeletSettings

if TYPE_CHECKING:
    from devalloc_machines.part import MachineSettings

_LEASE_SECONDS = 3.0
"""How long the API server may take to write that this plugin runs, or has ended."""


def node(
    options: NodeOptions,
    client: Client | None,
    display: ProgressDisplay,
    note: Callable[[str], None],
    control: Control,
) -> Program:
    """Bind the devices of this host's claims, and pass them to machines and pods.

    ``client``: of the cluster, if it works for one. ``note``: gets warnings about options. Raises BadSetting,
    CapacityError, NodeError, StoreError, and ValueError where others wrote what cannot be.
    """
    _check(options)
    settings = _settings(options, store_path(options.store), note)
    dry_run = options.plugin.dry_run
    with ExitStack() as stack:
        host = on.make_host(settings, dry_run=dry_run, say=display.say)
        if client is not None and not dry_run:
            way: PublishMode = ("set-aside" if settings.set_aside else "slices") if options.has_slices else "pools"
            place = (settings.socket or settings.state / "node.sock").parent
            stack.enter_context(lock_folder.exclusive_host(place, way, display.say))
        wiring = _Wiring(options, settings, host, client, display, stack)
        plugin, publishing, loops = wiring.slices() if options.has_slices else wiring.pools()
        plugin.control = control
        loops.append(Heartbeat(ServiceManager(), lambda: True, lambda: plugin.rounds).run)
        program = daemon(plugin, publishing, display.say, extra_loops=loops)
        stack.push(program.parts)
        return replace(program, parts=stack.pop_all())


Wired = tuple["Node", "Publisher", list[Loop]]


@dataclass(frozen=True, slots=True)
class _Wiring:
    """Opens the plugin and what it publishes to."""

    options: NodeOptions
    settings: MachineSettings
    host: Host
    client: Client | None
    display: ProgressDisplay
    stack: ExitStack

    def slices(self) -> Wired:
        """For the ResourceClaims of pods."""
        client, driver, name = self.client, self.options.driver_name, self.settings.node_name
        assert client is not None
        self.display.say(f"node {name}, claims of the cluster; Ctrl-C stops")
        source = on.cluster_source(client, driver, name)
        plugin = self.stack.enter_context(open_node(self.settings, self.host, source))
        published = on.cluster_publishing(client, driver, plugin, self._look(plugin))
        return plugin, self.stack.enter_context(published), []

    def pools(self) -> Wired:
        """For the DeviceClaims and VirtualMachines of a store or a cluster."""
        options, settings, client, name = self.options, self.settings, self.client, self.settings.node_name
        dry_run = options.plugin.dry_run
        pools, place, loops = self._store()
        self.stack.enter_context(closing(pools))
        plugin = self.stack.enter_context(open_node(settings, self.host, on.store_source(pools, name)))
        look = self._look(plugin)
        if options.host_capacity and not dry_run:  # without a plugin that runs machines, none must be placed here
            data_dir = place.parent if client is None else settings.state.parent
            config, machines = options.plugin.limits.checked(data_dir), settings.machines
            receives, reserving = machines.migrations.address is not None, partial(machines_with_disk, pools, name)
            look = with_host_pool(
                look, settings.root, name, config, machines.shared_storage, reserving, live_migration=receives
            )
        published = on.store_publishing(
            pools,
            plugin,
            look,
            partial(show_published, self.display),
            place=place,
            owner=lambda: None if client is None else on.node_reference(client, name),
        )
        publishing = self.stack.enter_context(published)
        if not dry_run:  # a dry run neither starts nor ends machines
            asks = client is not None and options.asks_controller
            endpoint = on.cluster_permits(client, options.namespace) if client is not None and asks else None
            loops += on.store_loops(pools, plugin, alone=False, say=self.display.say, endpoint=endpoint)
        return plugin, publishing, loops

    def _store(self) -> tuple[Store, Path, list[Loop]]:
        """Where claims and machines are, the path of locks on it, and the loops that it needs."""
        client, name, namespace = self.client, self.settings.node_name, self.options.namespace
        if client is None:
            path = store_path(self.options.store)
            self.display.say(f"node {name}, claims of store {path}; Ctrl-C stops")
            return SQLiteStore(path), path, []
        self.display.say(f"node {name}, DeviceClaims and VirtualMachines of the cluster; Ctrl-C stops")
        pools = KubernetesStore(client, node=name)
        own = OwnObjects(client, pools, name, namespace)
        own.look()
        loops: list[Loop] = [own.run]
        if not self.options.plugin.dry_run:
            owner = partial(on.node_reference, client, name)
            loops.append(NodeLease(client.within(_LEASE_SECONDS), name, namespace, owner).run)
        return pools, self.settings.state / "pools", loops

    def _look(self, plugin: Node) -> DiscoverFunction:
        if self.client is None or self.options.plugin.dry_run:  # a dry run may run beside the node's real plugin
            return plugin.inventory.discover
        return on.withdraw_other_dialect(self.client, self.options.driver_name, plugin)


def _check(options: NodeOptions) -> None:
    """Raises BadSetting for options that exclude each other."""
    scaling = options.plugin.scaling
    options.inventory.check_node_name(is_cluster=options.is_cluster)
    if not options.is_cluster and options.publish is not None:
        raise BadSetting("--publish", "needs a cluster (--kubeconfig, --in-cluster); a store gets DevicePools")
    for option, is_given in (("--scaling", scaling.enabled), ("--host-capacity", options.host_capacity)):
        if options.has_slices and is_given:
            raise BadSetting(option, "is for VirtualMachines; to serve a cluster's VirtualMachines: --publish pools")
    check_published(options.plugin, host_capacity=options.host_capacity)
    for option in reversed(given_options(scaling)):
        if options.asks_controller and option in OF_PERMIT_SERVER:
            raise BadSetting(option, "has no effect on a cluster, whose controller names the permit server")
    if not options.has_slices and options.allocator != "kubernetes":
        raise BadSetting("--allocator", "is for ResourceClaims: add --kubeconfig or --in-cluster, or leave it out")


def _settings(options: NodeOptions, store: Path, note: Callable[[str], None]) -> MachineSettings:
    """The settings of the plugin. Raises BadSetting."""
    plugin = options.plugin if options.is_cluster else options.plugin.for_store(store)
    kubelet = _kubelet(options) if options.has_slices else None
    settings = node_settings(options.inventory, plugin, options.resync, kubelet, note=note)
    if options.asks_controller and settings.scaling is not None:
        settings = replace(settings, scaling=replace(settings.scaling, serves=False))
    return replace(settings, set_aside=options.allocator == "devalloc", rolling=bool(options.pod_uid))


def _kubelet(options: NodeOptions) -> KubeletSettings:
    left_out = {f"{api}.DRAPlugin" for api in KUBELET_APIS if options.kubelet_api and api not in options.kubelet_api}
    versions = tuple(version for version in VERSIONS if version not in left_out)
    return KubeletSettings(options.kubelet_dir.absolute(), options.driver_name, options.pod_uid or None, versions)
