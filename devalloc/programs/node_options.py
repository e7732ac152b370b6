"""Options of the node plugin, for the verbs that run it, and the settings that they come to."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from devalloc.controller.settings import DEFAULT_MIGRATION_LIMITS, MigrationLimits
from devalloc.device_kinds import ALLOWABLE, DEFAULT_ALLOWED, allowable
from devalloc.inventory.capacity.config import CapacityConfig
from devalloc.plugins import NODE_PARTS, installed
from devalloc.programs.inventory_options import InventoryOptions
from devalloc.programs.settings import DEFAULT_SOCKET as SOCKET
from devalloc.programs.settings import is_default_store, node_state_folder
from devalloc.settings import (
    FOLDER,
    BadSetting,
    OneOf,
    PathTo,
    group,
    parse_duration,
    setting,
    values_of,
)
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.qemu.settings import ALL_USERS, AccessConfig, MachineConfig
from devalloc_machines.warm.settings import WarmConfig

if TYPE_CHECKING:
    from devalloc.inventory.capacity import HostCapacity
    from devalloc_machines.part import MachineSettings
    from devalloc_node.settings import KubeletSettings

log = logging.getLogger(__name__)

Note = Callable[[str], None]
"""Gets warnings about what was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """The node plugin: which devices it may take, and where its files and sockets are."""

    dry_run: bool = setting("Change nothing on the host: report each change, and refuse it.", default=False, usual=True)
    allow: tuple[str, ...] = setting(
        "Kind of devices that may be taken from the host. Repeatable.",
        type=OneOf(ALLOWABLE, is_open=True),
        default=(),
        unset=", ".join(DEFAULT_ALLOWED),
        usual=True,
    )
    state: Path | None = setting(
        "Folder for the journal, locks and audit log of changes to the host.",
        type=FOLDER,
        metavar="DIR",
        env="DEVALLOC_NODE_STATE",
        unset="node beside the store; for the claims of a cluster /var/lib/devalloc/node",
    )
    socket: Path | None = setting(
        "Serve devalloc.node.v1 here, for this user and root only.",
        type=PathTo(),
        metavar="PATH",
        env="DEVALLOC_NODE_SOCKET",
        unset=f"{SOCKET} for root and the usual store, else node.sock in --state",
    )
    cdi_dir: Path = setting(
        "Write CDI specs of prepared devices to this folder, for container runtimes.",
        type=FOLDER,
        default=Path("/var/run/cdi"),
        metavar="DIR",
    )
    machines: MachineConfig = group(MachineConfig)
    limits: CapacityConfig = group(CapacityConfig)
    enforce_capacity: bool | None = setting(
        "Do not start or grow machines beyond what the host may promise of CPUs, memory, disk, network and disk "
        "bandwidth, as shown by `devalloc capacity --host` with the same options. Machines that run continue to run.",
        flag="--enforce-capacity/--no-enforce-capacity",
        unset="on, for all that is known of the host",
        env="DEVALLOC_ENFORCE_CAPACITY",
    )
    warm: WarmConfig = group(WarmConfig)
    scaling: ScalingSettings = group(ScalingSettings)
    access: AccessConfig = group(AccessConfig)
    grace: float = setting(
        "How long a claim must be gone from the store before the plugin takes back its devices.",
        type=parse_duration,
        default="5m",
        metavar="DURATION",
    )
    metrics: str | None = setting(
        "Serve Prometheus metrics here: 127.0.0.1:9180, [::1]:9180 or unix:PATH.",
        metavar="ADDRESS",
        env="DEVALLOC_METRICS",
        unset="no metrics",
    )

    def allowed_kinds(self) -> frozenset[str]:
        """Kinds of devices that may be taken from the host."""
        return frozenset(self.allow or DEFAULT_ALLOWED)

    def for_store(self, store: Path) -> Self:
        """With the state folder and the socket that the plugin of a store has where none are set."""
        state = node_state_folder(self.state, store)
        # With another store than the usual one, another plugin may run at the usual place.
        door = self.socket or (None if is_default_store(store) else state / SOCKET.name)
        return replace(self, state=state, socket=door)


def check_published(options: PluginOptions, *, host_capacity: bool) -> None:
    """Refuse what only adds to what a host publishes for machines, if it publishes nothing. Raises BadSetting."""
    published = (
        ("--shared-storage", bool(options.access.shared_storage)),
        ("--migration-address", options.machines.migrations.address is not None),
    )
    for option, is_given in published:
        if is_given and not host_capacity:
            raise BadSetting(option, "needs --host-capacity, with which this host publishes what it has for machines")


def state_folders(state: Path | None, socket: Path, machine_dir: Path | None) -> tuple[Path, Path]:
    """The folders of the plugin's state and of the machines' sockets."""
    return (state or _home()).absolute(), (machine_dir or socket.absolute().parent / "machines").absolute()


def _home() -> Path:
    from devalloc.store.paths import default_path

    here = {name: value for name, value in os.environ.items() if name in ("HOME", "XDG_STATE_HOME")}
    return default_path(here).parent / "node"


def node_settings(
    inventory: InventoryOptions,
    options: PluginOptions,
    resync: float,
    kubelet: KubeletSettings | None = None,
    migrations: MigrationLimits = DEFAULT_MIGRATION_LIMITS,
    note: Note = log.warning,
) -> MachineSettings:
    """Return the node plugin's settings. ``resync``: seconds between looks. ``migrations``: those of the controller.
    ``note``: gets warnings. Raises BadSetting, CapacityError."""
    from devalloc_machines.part import MachineSettings, machines_part
    from devalloc_machines.qemu.user_ids import owners_among
    from devalloc_machines.warm.part import warm_part
    from devalloc_node.binding.binding import BindingConfig

    if options.metrics is not None:
        from devalloc_node.metrics.registry import check_address

        try:
            check_address(options.metrics)
        except ValueError as error:
            raise BadSetting("--metrics", f": {error}") from None
    door = (options.socket or (SOCKET if os.geteuid() == 0 else (options.state or _home()) / SOCKET.name)).absolute()
    home, run = state_folders(options.state, door, options.machines.machine_dir)
    machines = replace(options.machines, **values_of(options.access)).on_host(home / "machines", run)
    if os.geteuid() == 0 and (whose := owners_among(both := options.machines.machine_users or ALL_USERS)):
        raise BadSetting(
            "--machine-users",
            f"{both[0]}-{both[-1]}: {'; '.join(whose)}: other processes of a machine's user could "
            "change its memory and disks; choose an unused range",
        )
    inventory.check_kinds("--allow", options.allow, allowable(inventory.added_kinds))
    bindings = BindingConfig(inventory.node, allowed=options.allowed_kinds(), **inventory.policy)
    root, limits = inventory.sysfs_root, options.limits.checked(home.parent)
    setups = door.parent / "warm"
    scaling = options.scaling.checked(options.metrics, door, note, migrations.timeout)
    warm = options.warm.checked(inventory.node, setups, machines, note)
    return MachineSettings(
        inventory.node,
        bindings,
        inventory=inventory.config,
        root=root,
        state=home,
        socket=door,
        cdi=options.cdi_dir.absolute(),
        kubelet=kubelet,
        machines=machines,
        limits=limits,
        capacity=_capacity(options, root, limits),
        scaling=scaling if scaling.enabled else None,
        runners=scaling.runners,
        parts=(
            warm_part(None if options.dry_run or warm.target is None else warm, setups),
            machines_part,
            *installed(NODE_PARTS),
        ),
        dry_run=options.dry_run,
        metrics=options.metrics,
        resync=resync,
        grace=options.grace,
    )


def _capacity(options: PluginOptions, root: Path, config: CapacityConfig) -> HostCapacity | None:
    """What machines may use of the host; None: without limit. Raises CapacityError if a limit that was asked for
    is not known."""
    from devalloc.inventory.capacity import discover_capacity, read_capacity

    if options.enforce_capacity is False:
        return None
    return discover_capacity(root, config) if options.enforce_capacity else read_capacity(root, config)
