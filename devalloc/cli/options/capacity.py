"""Options of a host's capacity for machines, and the pool in which a host publishes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.settings import EXISTING_FOLDER, Setting, declared, setting

if TYPE_CHECKING:
    from devalloc.api.pool import DevicePool
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc.inventory import DeviceRecords, Discovery
    from devalloc.inventory.capacity import CapacityConfig, HostCapacity

DiscoverFunction = Callable[["DeviceRecords"], "Discovery"]
HOST_CAPACITY = Setting(
    "Also publish the CPUs, memory and bandwidth that this host offers to VirtualMachines: devalloc then places "
    "machines by them, and starts none that does not fit.",
    flag="--host-capacity",
    default=False,
    env="DEVALLOC_HOST_CAPACITY",
    usual=True,
)


def amount_parser(parse: str) -> Callable[[str], Any]:
    """A function that reads an option with one of the grammars of amounts."""

    def read(text: str) -> Any:
        from devalloc.inventory import capacity

        try:
            return getattr(capacity, parse)(text)
        except capacity.AmountError as error:
            raise ValueError(str(error)) from None

    return read


def _fraction(text: str) -> Any:
    """A ratio between 0 and 1. 0 means the default, as in the program whose settings these are."""
    part = amount_parser("parse_ratio")(text)
    if not 0 <= part <= 1:
        raise ValueError(f"invalid part of the disk {text}: write 0.2 for a fifth, at most 1")
    return part


def _ratio(what: str, usual: int, env: str) -> Setting:
    return Setting(
        f"How many times devalloc may promise the host's {what} to machines.",
        type=amount_parser("parse_ratio"),
        metavar="RATIO",
        env=env,
        unset=str(usual),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """How much of the host devalloc promises to machines."""

    oversub_cpu: Fraction | None = declared(_ratio("CPUs", 4, "DEVALLOC_OVERSUB_CPU"))
    oversub_memory: Fraction | None = declared(_ratio("memory", 1, "DEVALLOC_OVERSUB_MEMORY"))
    oversub_disk: Fraction | None = declared(_ratio("disk", 1, "DEVALLOC_OVERSUB_DISK"))
    oversub_network: Fraction | None = declared(_ratio("bandwidth", 2, "DEVALLOC_OVERSUB_NETWORK"))
    oversub_disk_io: Fraction | None = declared(_ratio("disk bandwidth", 2, "DEVALLOC_OVERSUB_DISK_IO"))
    for_others: str | None = setting(
        "Of the CPUs and memory that devalloc may promise, those that placement leaves free: room for machines that "
        "others start, such as NeonVM's. Permits may give it.",
        flag="--room-for-others",
        metavar="CPU,MEMORY",
        env="DEVALLOC_ROOM_FOR_OTHERS",
        unset="0,0",
    )
    disk_limit: int | None = setting(
        "Disk for machines, such as 500GB (1GB is 2^30 bytes).",
        type=amount_parser("parse_size"),
        metavar="SIZE",
        env="DEVALLOC_DISK_LIMIT",
        unset="all of the data folder's file system",
    )
    network_limit: int | None = setting(
        "Bandwidth for machines, such as 10Gbps (bits, decimal) or 125MB/s (bytes, binary).",
        type=amount_parser("parse_bandwidth"),
        metavar="RATE",
        env="DEVALLOC_NETWORK_LIMIT",
        unset="the speed of the uplink",
    )
    disk_io_limit: int | None = setting(
        "Bandwidth of the disks, such as 500MB/s.",
        type=amount_parser("parse_bandwidth"),
        metavar="RATE",
        env="DEVALLOC_DISK_IO_LIMIT",
        unset="10^9 bytes per second",
    )
    uplink: str | None = setting(
        "Interface through which machines reach the network.",
        metavar="INTERFACE",
        env="DEVALLOC_UPLINK",
        unset="the one of the first IPv4 default route",
    )
    data_dir: Path | None = setting(
        "Folder of machines' disks and images. What is below images, oci-cache and volumes in it counts.",
        type=EXISTING_FOLDER,
        metavar="DIR",
        env="DEVALLOC_DATA_DIR",
        unset="the store's folder",
    )
    max_image_storage: Fraction | None = setting(
        "Part of the disk that images and their cache may use, at most 1: no more of them may be pulled then.",
        type=_fraction,
        metavar="FRACTION",
        env="DEVALLOC_MAX_IMAGE_STORAGE",
        unset="0.2",
    )

    @property
    def room_for_others(self) -> tuple[int, int]:
        """Thousandths of a CPU, and bytes. Raises BadInput."""
        from devalloc.cli.options.permits import amounts

        if self.for_others is None:
            return 0, 0
        room = amounts("--room-for-others", self.for_others, "8,32Gi")
        return room.cpu, room.memory

    def config(self, data_dir: Path | None) -> CapacityConfig:
        """The capacity's settings; ``data_dir`` is used if the options name none. Raises BadInput."""
        from devalloc.inventory.capacity import CapacityConfig
        from devalloc.inventory.capacity.config import DEFAULT_RATIOS

        ratios = {name: ratio for name in DEFAULT_RATIOS if (ratio := getattr(self, f"oversub_{name}")) is not None}
        for name, ratio in ratios.items():
            if ratio <= 0:
                raise BadInput(f"--oversub-{name.replace('_', '-')} must be more than 0, not {ratio}")
        limits = {
            "disk": self.disk_limit,
            "network": self.network_limit,
            "disk_io": self.disk_io_limit,
            "uplink": self.uplink,
            "image_fraction": self.max_image_storage,
        }
        given: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
        return CapacityConfig(ratios=ratios, data_dir=self.data_dir or data_dir, **given)


def discover_or_fail(root: Path, config: CapacityConfig) -> HostCapacity:
    """The host's capacity. Raises CommandFailed."""
    from devalloc.inventory.capacity import CapacityError, discover_capacity

    try:
        return discover_capacity(root, config)
    except CapacityError as error:
        raise CommandFailed(str(error)) from None


def with_host_pool(
    look: DiscoverFunction,
    root: Path,
    node_name: str,
    data_dir: Path,
    limits: CapacityOptions,
    shared_storage: Sequence[str] = (),
    machines: Callable[[], Iterable[VirtualMachine]] = tuple,
    *,
    live_migration: bool = False,
) -> DiscoverFunction:
    """Extend ``look`` to find the host's pool, too. ``data_dir``: the data folder if the options name none.
    ``shared_storage``: folders that are the same on all nodes that name them. ``machines``: those of this node, whose
    reservations of disk count against the pool; raises StoreError. ``live_migration``: whether the node receives
    machines that move to it while they run.

    If the host's capacity cannot be read any more, the last known pool stays: without a pool the host would admit
    anything. Raises CommandFailed if it cannot be read at the start.
    """
    from devalloc.api.problems import Problem
    from devalloc.inventory.capacity import CapacityError, discover_capacity, host_pool
    from devalloc.inventory.capacity.status import DiskUsageSources, UsageUnknown, stored_bytes
    from devalloc.inventory.capacity.stored import reserved_in_stores, stores_of
    from devalloc.store import StoreError

    config = limits.config(data_dir if data_dir.is_dir() else None)
    for_others = limits.room_for_others
    stores: DiskUsageSources | None = None
    stored = 0

    def pool() -> tuple[DevicePool, list[Problem]]:
        nonlocal stores, stored
        capacity = discover_capacity(root, config)
        problems = [*capacity.problems]
        stores = stores or stores_of(capacity)
        try:
            if stores is not None:
                stored = max(0, stored_bytes(stores) - sum(reserved_in_stores(capacity, each) for each in machines()))
        except (UsageUnknown, StoreError) as error:  # the last count stands
            problems.append(Problem(str(error), path="disk", source="capacity", severity="warning"))
        published = host_pool(
            capacity, node_name, stored, shared_storage, live_migration=live_migration, for_others=for_others
        )
        return published, problems

    try:
        last, _ = pool()
    except CapacityError as error:
        raise CommandFailed(f"--host-capacity: {error}") from error

    def look_with_host(records: DeviceRecords) -> Discovery:
        nonlocal last
        devices = look(records)
        try:
            last, problems = pool()
        except CapacityError as error:
            problems = [Problem(str(error), source="capacity", severity="warning")]
        return replace(devices, pools=[*devices.pools, last], problems=[*devices.problems, *problems])

    return look_with_host
