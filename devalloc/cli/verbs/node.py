"""``devalloc node``: the node plugin, in the foreground."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from devalloc.cli.command import BadInput, CommandFailed, verb
from devalloc.cli.options.common import settings_options, tracing
from devalloc.cli.options.inventory import InventoryOptions
from devalloc.cli.options.node import PluginOptions, check_published
from devalloc.cli.options.scaling import OF_PERMIT_SERVER
from devalloc.cli.render.output import open_display, show_published
from devalloc.cli.storage import is_default_store, node_state_folder, store_path
from devalloc.programs.settings import HOST_CAPACITY, OTLP_ENDPOINT, RESYNC, STORE
from devalloc.settings import EXISTING_FILE, FOLDER, OneOf, declared, given_options, group, setting
from devalloc_node.errors import NodeError

if TYPE_CHECKING:
    from devalloc.controller.host_inventory import DiscoverFunction
    from devalloc.store import Store
    from devalloc_node.host.lock_folder import PublishMode
    from devalloc_node.machines import MachineSettings
    from devalloc_node.node import Node
    from devalloc_node.parts import Loop
    from devalloc_node.settings import KubeletSettings

_APIS = ("v1", "v1beta1")
_LEASE_SECONDS = 3.0
"""How long the API server may take to write that this plugin runs, or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The node plugin as a process of its own, for a store or a cluster."""

    store: Path | None = declared(STORE)
    inventory: InventoryOptions = group(InventoryOptions)
    plugin: PluginOptions = group(PluginOptions)
    host_capacity: bool = declared(HOST_CAPACITY)
    otlp_endpoint: str | None = declared(OTLP_ENDPOINT)
    kubeconfig: Path | None = setting(
        "Work for this cluster instead of a store.",
        type=EXISTING_FILE,
        metavar="PATH",
        env="DEVALLOC_KUBECONFIG",
        usual=True,
    )
    in_cluster: bool = setting(
        "Work for this pod's cluster, with the pod's service account.", default=False, usual=True
    )
    publish: Literal["slices", "pools"] | None = setting(
        "How to publish this node's devices to a cluster: as ResourceSlices, for the ResourceClaims of pods (the "
        "default), or as DevicePools, for DeviceClaims and VirtualMachines; never both.",
        type=OneOf(["slices", "pools"]),
        env="DEVALLOC_PUBLISH",
    )
    kubelet_dir: Path = setting(
        "The kubelet's --root-dir.", type=FOLDER, default=Path("/var/lib/kubelet"), metavar="DIR"
    )
    kubelet_api: tuple[str, ...] = setting(
        "Version of DRAPlugin to serve. Repeatable.", type=OneOf(_APIS), default=(), unset="all"
    )
    driver_name: str = setting(
        "The driver name, device.driver in DeviceClasses.", default="devalloc.io", metavar="NAME"
    )
    allocator: Literal["kubernetes", "devalloc"] = setting(
        "Which program allocates this node's devices in a cluster: kube-scheduler, or devalloc's controller for claims "
        "with the label devalloc.io/allocator: devalloc.",
        type=OneOf(["kubernetes", "devalloc"]),
        default="kubernetes",
        env="DEVALLOC_ALLOCATOR",
    )
    pod_uid: str | None = setting(
        "UID of this pod, so that the old and the new pod of a rolling update can serve side by side.",
        metavar="UID",
        env="POD_UID",
    )
    namespace: str = setting(
        "Namespace in which the cluster's controller publishes the address of its permit server.",
        default="devalloc-system",
        metavar="NAME",
        env="POD_NAMESPACE",
    )
    resync: float = declared(RESYNC)

    @property
    def is_cluster(self) -> bool:
        return self.kubeconfig is not None or self.in_cluster

    @property
    def has_slices(self) -> bool:
        """Whether it serves the ResourceClaims of pods."""
        return self.is_cluster and self.publish != "pools"

    @property
    def asks_controller(self) -> bool:
        """Whether the cluster's controller names the permit server."""
        return self.is_cluster and self.plugin.scaling.enabled and self.plugin.scaling.permits is None


@verb("node")
@settings_options(NodeOptions, "options")
def node(options: NodeOptions) -> int:
    """Bind the devices of this host's claims and pass them to machines and pods, until Ctrl-C or SIGTERM.

    Without a cluster it publishes DevicePools to the store and serves the store's DeviceClaims. With --kubeconfig or
    --in-cluster it serves the ResourceClaims of pods, or with --publish pools the DeviceClaims and VirtualMachines of
    the cluster. Prepared claims and machines stay as they are when it ends; you can kill it at any moment and start it
    again. SIGHUP makes it check devices and claims at once. Exit code 0 after a clean stop.
    """
    from devalloc.cli import node_wiring as on
    from devalloc.cli.node_machines import machines_with_disk
    from devalloc.cli.target import connect_cluster
    from devalloc.controller.host_inventory import with_host_pool
    from devalloc.controller.standalone import handling_signals
    from devalloc.service_manager import Heartbeat, ServiceManager
    from devalloc.store.kubernetes.store import KubernetesStore
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_node.daemon import run_daemon
    from devalloc_node.host import lock_folder
    from devalloc_node.kube.node_lease import NodeLease
    from devalloc_node.kube.watch_selection import OwnObjects
    from devalloc_node.node import open_node

    name, path = options.inventory.node, store_path(options.store)
    client = connect_cluster(options.kubeconfig) if options.is_cluster else None
    _check(options)
    settings = _settings(options, path)
    slices, dry_run, shared = options.has_slices, options.plugin.dry_run, options.plugin.access.shared_storage
    endpoint = on.cluster_permits(client, options.namespace) if client is not None and options.asks_controller else None
    extra_loops: list[Loop] = []

    def found_by(plugin: Node) -> DiscoverFunction:
        if client is None or dry_run:  # a dry run may run beside the node's real plugin
            return plugin.inventory.discover
        return on.withdraw_other_dialect(client, options.driver_name, plugin)

    with open_display() as display, on.abandon_hung_threads(display.say), ExitStack() as stack:
        stack.enter_context(tracing(options.otlp_endpoint, "devalloc-node", name))
        host = on.make_host(settings, dry_run=dry_run, say=display.say)
        try:
            if client is not None and not dry_run:
                way: PublishMode = ("set-aside" if settings.set_aside else "slices") if slices else "pools"
                place = (settings.socket or settings.state / "node.sock").parent
                stack.enter_context(lock_folder.exclusive_host(place, way, display.say))
            if client is not None and slices:
                display.say(f"node {name}, claims of the cluster; Ctrl-C stops")
                plugin = stack.enter_context(
                    open_node(settings, host, on.cluster_source(client, options.driver_name, name))
                )
                publishing = stack.enter_context(
                    on.cluster_publishing(client, options.driver_name, plugin, found_by(plugin))
                )
            else:
                pools: Store
                if client is None:
                    display.say(f"node {name}, claims of store {path}; Ctrl-C stops")
                    pools, place = SQLiteStore(path), path
                else:
                    display.say(f"node {name}, DeviceClaims and VirtualMachines of the cluster; Ctrl-C stops")
                    pools, place = KubernetesStore(client, node=name), settings.state / "pools"
                    own = OwnObjects(client, pools, name, options.namespace)
                    own.look()
                    extra_loops.append(own.run)
                    if not dry_run:
                        owner = partial(on.node_reference, client, name)
                        extra_loops.append(NodeLease(client.within(_LEASE_SECONDS), name, options.namespace, owner).run)
                stack.enter_context(closing(pools))
                plugin = stack.enter_context(open_node(settings, host, on.store_source(pools, name)))
                look = found_by(plugin)
                if (
                    options.host_capacity and not dry_run
                ):  # without a plugin that runs machines, none must be placed here
                    data_dir = path.parent if client is None else settings.state.parent
                    reserving = partial(machines_with_disk, pools, name)
                    receives, config = settings.migrations.address is not None, options.plugin.limits.checked(data_dir)
                    look = with_host_pool(look, settings.root, name, config, shared, reserving, live_migration=receives)
                publishing = stack.enter_context(
                    on.store_publishing(
                        pools,
                        plugin,
                        look,
                        lambda done: show_published(display, done),
                        place=place,
                        owner=lambda: None if client is None else on.node_reference(client, name),
                    )
                )
                if not dry_run:  # a dry run neither starts nor ends machines
                    extra_loops += on.store_loops(pools, plugin, alone=False, say=display.say, endpoint=endpoint)
            extra_loops.append(Heartbeat(ServiceManager(), lambda: True, lambda: plugin.rounds).run)
            with handling_signals(plugin):
                run_daemon(plugin, publishing, display.say, extra_loops=extra_loops)
        except NodeError as error:
            wrong = error.code.endswith(("Invalid", "TooLong"))
            raise (BadInput if wrong else CommandFailed)(error.message) from error
        except ValueError as error:
            raise BadInput(str(error)) from error
        display.say("stopped; prepared claims stay prepared, and machines run on")
    return 0


def _check(options: NodeOptions) -> None:
    """Raises BadInput for options that exclude each other."""
    scaling = options.plugin.scaling
    options.inventory.check_node_name(is_cluster=options.is_cluster)
    if not options.is_cluster and options.publish is not None:
        raise BadInput("--publish needs a cluster (--kubeconfig, --in-cluster); a store gets DevicePools")
    for option, is_given in (("--scaling", scaling.enabled), ("--host-capacity", options.host_capacity)):
        if options.has_slices and is_given:
            raise BadInput(f"{option} is for VirtualMachines; to serve a cluster's VirtualMachines: --publish pools")
    check_published(options.plugin, host_capacity=options.host_capacity)
    for option in reversed(given_options(scaling)):
        if options.asks_controller and option in OF_PERMIT_SERVER:
            raise BadInput(f"{option} has no effect on a cluster, whose controller names the permit server")
    if not options.has_slices and options.allocator != "kubernetes":
        raise BadInput("--allocator is for ResourceClaims: add --kubeconfig or --in-cluster, or leave it out")


def _settings(options: NodeOptions, store: Path) -> MachineSettings:
    """The settings of the plugin. Raises BadInput."""
    from devalloc.cli.options.node import node_settings

    plugin = options.plugin
    if not options.is_cluster:
        state = node_state_folder(plugin.state, store)
        # As with `devalloc up`.
        door = plugin.socket or (None if is_default_store(store) else state / "node.sock")
        plugin = replace(plugin, state=state, socket=door)
    kubelet = _kubelet(options) if options.has_slices else None
    settings = node_settings(options.inventory, plugin, options.resync, kubelet)
    if options.asks_controller and settings.scaling is not None:
        settings = replace(settings, scaling=replace(settings.scaling, server=None))
    return replace(settings, set_aside=options.allocator == "devalloc", rolling=bool(options.pod_uid))


def _kubelet(options: NodeOptions) -> KubeletSettings:
    from devalloc_node.settings import VERSIONS, KubeletSettings

    left_out = {f"{api}.DRAPlugin" for api in _APIS if options.kubelet_api and api not in options.kubelet_api}
    versions = tuple(version for version in VERSIONS if version not in left_out)
    return KubeletSettings(options.kubelet_dir.absolute(), options.driver_name, options.pod_uid or None, versions)
