"""``devalloc node``: the node plugin, in the foreground."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from devalloc.cli.command import BadInput, CommandFailed, verb
from devalloc.cli.options.common import inventory_options, parse_duration, store_option
from devalloc.cli.options.host_pool_option import DiscoverFunction, host_pool_options
from devalloc.cli.options.node import node_options
from devalloc.cli.render.progress import open_display, show_published

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc_node.daemon import Loop
    from devalloc_node.host.plugin_lock import PublishMode
    from devalloc_node.node import Node
    from devalloc_node.settings import KubeletSettings

_APIS = ("v1", "v1beta1")


@verb("node")
@store_option
@inventory_options
@node_options
@host_pool_options
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    envvar="DEVALLOC_KUBECONFIG",
    help="Work for this cluster instead of a store [env: DEVALLOC_KUBECONFIG].",
)
@click.option("--in-cluster", is_flag=True, help="Work for this pod's cluster, with the pod's service account.")
@click.option(
    "--publish",
    "dialect",
    type=click.Choice(["slices", "pools"]),
    envvar="DEVALLOC_PUBLISH",
    help="How to publish this node's devices to a cluster: as ResourceSlices, for the ResourceClaims of pods (the "
    "default), or as DevicePools, for DeviceClaims and VirtualMachines; never both [env: DEVALLOC_PUBLISH].",
)
@click.option(
    "--kubelet-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/lib/kubelet"),
    metavar="DIR",
    help="The kubelet's --root-dir.",
)
@click.option(
    "--kubelet-api",
    "apis",
    multiple=True,
    type=click.Choice(_APIS),
    help="Version of DRAPlugin to serve. Repeatable [default: all].",
)
@click.option(
    "--driver-name", default="devalloc.io", metavar="NAME", help="The driver name, device.driver in DeviceClasses."
)
@click.option(
    "--allocator",
    type=click.Choice(("kubernetes", "devalloc")),
    default="kubernetes",
    envvar="DEVALLOC_ALLOCATOR",
    help="Which program allocates this node's devices in a cluster: kube-scheduler, or devalloc's controller for "
    "claims with the label devalloc.io/allocator: devalloc [env: DEVALLOC_ALLOCATOR].",
)
@click.option(
    "--pod-uid",
    metavar="UID",
    envvar="POD_UID",
    help="UID of this pod, so that the old and the new pod of a rolling update can serve side by side [env: POD_UID].",
)
@click.option(
    "--namespace",
    default="devalloc-system",
    metavar="NAME",
    envvar="POD_NAMESPACE",
    help="Namespace in which the cluster's controller publishes the address of its permit server [env: POD_NAMESPACE].",
)
@click.option(
    "--resync",
    type=parse_duration,
    default="60s",
    metavar="DURATION",
    help="Check the devices and all claims this often, even without events.",
)
def node(
    store: Path | None,
    node_name: str | None,
    kubeconfig: Path | None,
    in_cluster: bool,
    kubelet_dir: Path,
    apis: tuple[str, ...],
    driver_name: str,
    dialect: Literal["slices", "pools"] | None,
    pod_uid: str | None,
    namespace: str,
    allocator: str,
    dry_run: bool,
    host_capacity: bool,
    **options: Any,
) -> int:
    """Bind the devices of this host's claims and pass them to machines and pods, until Ctrl-C or SIGTERM.

    Without a cluster it publishes DevicePools to the store and serves the store's DeviceClaims. With --kubeconfig or
    --in-cluster it serves the ResourceClaims of pods, or with --publish pools the DeviceClaims and VirtualMachines of
    the cluster. Prepared claims and machines stay as they are when it ends; you can kill it at any moment and start it
    again. SIGHUP makes it check devices and claims at once. Exit code 0 after a clean stop.
    """
    import socket

    from devalloc.cli import node_wiring as on
    from devalloc.cli.cluster_access import connect_cluster
    from devalloc.cli.options.host_pool_option import with_host_pool
    from devalloc.cli.options.node import node_settings
    from devalloc.cli.storage import is_default_store, node_state_folder, store_path
    from devalloc.controller.standalone import handling_signals
    from devalloc.store.kubernetes.store import KubernetesStore
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_node.daemon import run_daemon
    from devalloc_node.errors import NodeError
    from devalloc_node.host import plugin_lock
    from devalloc_node.kube.own_objects import OwnObjects
    from devalloc_node.model.names import is_subdomain
    from devalloc_node.node import open_node

    name = node_name or socket.gethostname().lower()
    client = connect_cluster(kubeconfig) if kubeconfig is not None or in_cluster else None
    if client is not None and not is_subdomain(name):
        raise BadInput(
            f"--node-name: {name!r} is not a valid name of a node; use the name that the node has in the cluster"
        )
    if client is None and dialect is not None:
        raise BadInput("--publish needs a cluster (--kubeconfig, --in-cluster); a store gets DevicePools")
    slices = client is not None and dialect != "pools"
    if slices and options["scaling"]:
        raise BadInput("--scaling is for VirtualMachines; to serve a cluster's VirtualMachines: --publish pools")
    if slices and host_capacity:
        raise BadInput("--host-capacity is for VirtualMachines; to serve a cluster's VirtualMachines: --publish pools")
    of_controller = client is not None and options["scaling"] and options["permits"] is None
    if of_controller:
        for option in ("permits_port", "permits_dump_port", "permits_token_file", "permits_without_token"):
            if options[option] is not None:
                flag = f"--{option.replace('_', '-')}"
                raise BadInput(f"{flag} has no effect on a cluster, whose controller names the permit server")
    if not slices and allocator != "kubernetes":
        raise BadInput("--allocator is for ResourceClaims: add --kubeconfig or --in-cluster, or leave it out")
    kubelet = _kubelet(kubelet_dir, driver_name, pod_uid, apis) if slices else None
    path = store_path(store)
    if client is None:
        options["state"] = node_state_folder(options["state"], path)
        if options["socket"] is None and not is_default_store(path):
            options["socket"] = options["state"] / "node.sock"  # as with `devalloc up`
    settings = node_settings(node=name, dry_run=dry_run, kubelet=kubelet, **options)
    settings = replace(settings, set_aside=allocator == "devalloc", rolling=bool(pod_uid))
    if of_controller and settings.scaling is not None:
        settings = replace(settings, scaling=replace(settings.scaling, server=None))
    endpoint = on.cluster_permits(client, namespace) if client is not None and of_controller else None
    extra_loops: list[Loop] = []

    def found_by(plugin: Node) -> DiscoverFunction:
        if client is None or dry_run:  # a dry run may run beside the node's real plugin
            return plugin.inventory.discover
        return on.withdraw_other_dialect(client, driver_name, plugin)

    with open_display() as display, on.abandon_hung_threads(display.say), ExitStack() as stack:
        host = on.make_host(settings, dry_run=dry_run, say=display.say)
        try:
            if client is not None and not dry_run:
                way: PublishMode = ("set-aside" if settings.set_aside else "slices") if slices else "pools"
                place = (settings.socket or settings.state / "node.sock").parent
                stack.enter_context(plugin_lock.exclusive_host(place, way, display.say))
            if client is not None and slices:
                display.say(f"node {name}, claims of the cluster; Ctrl-C stops")
                plugin = stack.enter_context(open_node(settings, host, on.cluster_source(client, driver_name, name)))
                publishing = stack.enter_context(on.cluster_publishing(client, driver_name, plugin, found_by(plugin)))
            else:
                pools: Store
                if client is None:
                    display.say(f"node {name}, claims of store {path}; Ctrl-C stops")
                    pools, place = SQLiteStore(path), path
                else:
                    display.say(f"node {name}, DeviceClaims and VirtualMachines of the cluster; Ctrl-C stops")
                    pools, place = KubernetesStore(client, node=name), settings.state / "pools"
                    own = OwnObjects(client, pools, name, namespace)
                    own.look()
                    extra_loops.append(own.run)
                stack.enter_context(closing(pools))
                plugin = stack.enter_context(open_node(settings, host, on.store_source(pools, name)))
                look = found_by(plugin)
                if host_capacity and not dry_run:  # without a plugin that runs machines, none must be placed here
                    look = with_host_pool(look, settings.root, name, place, options["limits"])
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
                    extra_loops += on.store_loops(
                        pools, plugin, options["limits"], alone=False, say=display.say, endpoint=endpoint
                    )
            with handling_signals(plugin):
                run_daemon(plugin, publishing, display.say, extra_loops=extra_loops)
        except NodeError as error:
            wrong = error.code.endswith(("Invalid", "TooLong"))
            raise (BadInput if wrong else CommandFailed)(error.message) from error
        except ValueError as error:
            raise BadInput(str(error)) from error
        display.say("stopped; prepared claims stay prepared")
    return 0


def _kubelet(folder: Path, driver: str, pod_uid: str | None, apis: tuple[str, ...]) -> KubeletSettings:
    from devalloc_node.service import kubelet, resource_health
    from devalloc_node.settings import KubeletSettings

    wanted = [version for version in kubelet.VERSIONS if version.partition(".")[0] in (apis or _APIS)]
    return KubeletSettings(folder.absolute(), driver, pod_uid or None, (*wanted, *resource_health.VERSIONS))
