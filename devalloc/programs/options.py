"""What an administrator gives the programs that have no settings module of their own: it imports nothing that costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from devalloc.controller.settings import MigrationLimits
from devalloc.programs.inventory_options import InventoryOptions
from devalloc.programs.node_options import PluginOptions
from devalloc.programs.settings import (
    BATCH_DEADLINE,
    CEL_CHECK,
    HOST_CAPACITY,
    IN_CLUSTER,
    OTLP_ENDPOINT,
    PAGE,
    PLACEMENT,
    RESYNC,
    STORE,
)
from devalloc.settings import (
    EXISTING_FILE,
    FOLDER,
    OneOf,
    declared,
    group,
    setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Everything on one machine."""

    store: Path | None = declared(STORE)
    inventory: InventoryOptions = group(InventoryOptions)
    no_inventory: bool = setting("Only allocate claims; do not publish this host's devices.", default=False, usual=True)
    resync: float = declared(RESYNC)
    placement: str = declared(PLACEMENT)
    cel_check: str = declared(CEL_CHECK)
    deadline: float = declared(BATCH_DEADLINE)
    with_node: bool | None = setting(
        "Also run the node plugin, which binds devices and runs machines.",
        flag="--node/--no-node",
        unset="if it can run: as root or with options of it, with its packages, on this machine's own devices",
        usual=True,
    )
    page: tuple[str, int] | None = declared(PAGE)
    plugin: PluginOptions = group(PluginOptions)
    migrations: MigrationLimits = group(MigrationLimits)
    host_capacity: bool = declared(HOST_CAPACITY)
    otlp_endpoint: str | None = declared(OTLP_ENDPOINT)


KUBELET_APIS = ("v1", "v1beta1")


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
    in_cluster: bool = declared(IN_CLUSTER)
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
        "Version of DRAPlugin to serve. Repeatable.", type=OneOf(KUBELET_APIS), default=(), unset="all"
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
