"""``devalloc node``: the node plugin, in the foreground."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from devalloc.cli.display import displayed, say_published
from devalloc.cli.hostpool import Look, host_pool_options
from devalloc.cli.nodeoptions import node_options
from devalloc.cli.options import duration, inventory_options, store_option
from devalloc.cli.verb import BadInput, Failed, verb

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc_node.node import Node
    from devalloc_node.seat import Way
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
@click.option("--in-cluster", is_flag=True, help="As --kubeconfig, with the service account of the pod this runs in.")
@click.option(
    "--publish",
    "dialect",
    type=click.Choice(["slices", "pools"]),
    envvar="DEVALLOC_PUBLISH",
    help="What this node's devices are in a cluster: ResourceSlices, for the ResourceClaims of pods (the default), or "
    "DevicePools, for DeviceClaims and VirtualMachines; never both [env: DEVALLOC_PUBLISH].",
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
    help="Versions of DRAPlugin to serve; may be given several times. All by default.",
)
@click.option(
    "--driver-name", default="devalloc.io", metavar="NAME", help="What DeviceClasses select as device.driver."
)
@click.option(
    "--allocator",
    type=click.Choice(("kubernetes", "devalloc")),
    default="kubernetes",
    envvar="DEVALLOC_ALLOCATOR",
    help="Who gives out the devices of this node in a cluster: kube-scheduler, or devalloc's controller to claims with "
    "the label devalloc.io/allocator: devalloc [env: DEVALLOC_ALLOCATOR].",
)
@click.option(
    "--pod-uid",
    metavar="UID",
    envvar="POD_UID",
    help="UID of the pod this runs in: the old and the new pod of a rolling update then serve side by side "
    "[env: POD_UID].",
)
@click.option(
    "--namespace",
    default="devalloc-system",
    metavar="NAME",
    envvar="POD_NAMESPACE",
    help="Where the cluster's controller is, which says there where machines that are scaled get permits [env: "
    "POD_NAMESPACE].",
)
@click.option(
    "--resync",
    type=duration,
    default="60s",
    metavar="DURATION",
    help="Look at the devices and at all claims this often, even when no event says that something changed.",
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
    """Bind the devices of this host's claims and hand them to machines and pods, until Ctrl-C (SIGTERM does the same).

    Without a cluster it serves the DeviceClaims of the store and publishes DevicePools to it; with --kubeconfig or
    --in-cluster the ResourceClaims of pods, or with --publish pools the DeviceClaims and VirtualMachines of the
    cluster. What is prepared, and machines, stay as they are when it ends; it may be killed at any moment and started
    again. SIGHUP makes it look at devices and claims now. Exit code 0 after a clean stop.
    """
    import socket

    from devalloc.cli import nodesources as on
    from devalloc.cli.clusters import connect
    from devalloc.cli.hostpool import with_host_pool
    from devalloc.cli.nodeoptions import node_settings
    from devalloc.cli.storage import is_default, node_state, store_path
    from devalloc.controller.up import signals
    from devalloc.store.kubernetes.store import KubernetesStore
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_node import seat
    from devalloc_node.daemon import run
    from devalloc_node.errors import NodeError
    from devalloc_node.names import is_subdomain
    from devalloc_node.node import opened

    name = node_name or socket.gethostname().lower()
    client = connect(kubeconfig) if kubeconfig is not None or in_cluster else None
    if client is not None and not is_subdomain(name):
        raise BadInput(f"--node-name: a node of a cluster cannot be called {name!r}; say what it is called there")
    if client is None and dialect is not None:
        raise BadInput("--publish is for a cluster: name it (--kubeconfig, --in-cluster); to a store go DevicePools")
    slices = client is not None and dialect != "pools"
    if slices and options["scaling"]:
        raise BadInput("--scaling is for VirtualMachines; to serve those of a cluster: --publish pools")
    if slices and host_capacity:
        raise BadInput("--host-capacity is for VirtualMachines; to serve those of a cluster: --publish pools")
    of_controller = client is not None and options["scaling"] and options["permits"] is None
    if of_controller:
        for option in ("permits_port", "permits_dump_port", "permits_token_file", "permits_without_token"):
            if options[option] is not None:
                told = f"--{option.replace('_', '-')}"
                raise BadInput(f"{told} is of no use on a cluster, whose controller says where permits are given")
    if not slices and allocator != "kubernetes":
        raise BadInput("--allocator is for ResourceClaims: give --kubeconfig or --in-cluster, or leave it out")
    kubelet = _kubelet(kubelet_dir, driver_name, pod_uid, apis) if slices else None
    path = store_path(store)
    if client is None:
        options["state"] = node_state(options["state"], path)
        if options["socket"] is None and not is_default(path):
            options["socket"] = options["state"] / "node.sock"  # as `devalloc up` has it
    settings = node_settings(node=name, dry_run=dry_run, kubelet=kubelet, **options)
    settings = replace(settings, set_aside=allocator == "devalloc", rolling=bool(pod_uid))
    if of_controller and settings.scaling is not None:
        settings = replace(settings, scaling=replace(settings.scaling, server=None))
    whom = on.cluster_permits(client, namespace) if client is not None and of_controller else None
    beside = []

    def found_by(plugin: Node) -> Look:
        if client is None or dry_run:  # which may be one beside a plugin that serves the node
            return plugin.survey.discover
        return on.not_both(client, driver_name, plugin)

    with displayed() as display, on.cutting_off(display.say), ExitStack() as stack:
        host = on.host_of(settings, dry_run=dry_run, say=display.say)
        try:
            if client is not None and not dry_run:
                way: Way = ("set-aside" if settings.set_aside else "slices") if slices else "pools"
                place = (settings.socket or settings.state / "node.sock").parent
                stack.enter_context(seat.taken(place, way, display.say))
            if client is not None and slices:
                display.say(f"node {name}, claims of the cluster; Ctrl-C stops")
                plugin = stack.enter_context(opened(settings, host, on.cluster_source(client, driver_name, name)))
                publishing = stack.enter_context(on.cluster_publishing(client, driver_name, plugin, found_by(plugin)))
            else:
                pools: Store
                if client is None:
                    display.say(f"node {name}, claims of store {path}; Ctrl-C stops")
                    pools, place = SQLiteStore(path), path
                else:
                    display.say(f"node {name}, DeviceClaims and VirtualMachines of the cluster; Ctrl-C stops")
                    pools, place = KubernetesStore(client, node=name), settings.state / "pools"
                stack.enter_context(closing(pools))
                plugin = stack.enter_context(opened(settings, host, on.store_source(pools, name)))
                look = found_by(plugin)
                if host_capacity and not dry_run:  # where no machine is run none is to be placed
                    look = with_host_pool(look, settings.root, name, place, options["limits"])
                publishing = stack.enter_context(
                    on.store_publishing(
                        pools,
                        plugin,
                        look,
                        lambda done: say_published(display, done),
                        place=place,
                        owner=lambda: None if client is None else on.node_reference(client, name),
                    )
                )
                if not dry_run:  # nothing is started in one, and nothing ended either
                    beside += on.store_loops(pools, plugin, options["limits"], alone=False, say=display.say, whom=whom)
            with signals(plugin):
                run(plugin, publishing, display.say, beside=beside)
        except NodeError as error:
            wrong = error.code.endswith(("Invalid", "TooLong"))
            raise (BadInput if wrong else Failed)(error.message) from error
        except ValueError as error:
            raise BadInput(str(error)) from error
        display.say("stopped; what is prepared stays so")
    return 0


def _kubelet(folder: Path, driver: str, pod_uid: str | None, apis: tuple[str, ...]) -> KubeletSettings:
    from devalloc_node.service import kubelet, resourcehealth
    from devalloc_node.settings import KubeletSettings

    wanted = [version for version in kubelet.VERSIONS if version.partition(".")[0] in (apis or _APIS)]
    return KubeletSettings(folder.absolute(), driver, pod_uid or None, (*wanted, *resourcehealth.VERSIONS))
