"""Options of the node plugin, for the verbs that run it, and the settings that they come to."""

from __future__ import annotations

import ipaddress
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast

from devalloc.controller.settings import DEFAULT_MIGRATION_LIMITS, MigrationLimits
from devalloc.device_kinds import ALLOWABLE, DEFAULT_ALLOWED, allowable
from devalloc.inventory.capacity.config import CapacityConfig, parse_bandwidth, parse_size
from devalloc.plugins import NODE_PARTS, installed
from devalloc.programs.inventory_options import InventoryOptions
from devalloc.programs.settings import DEFAULT_SOCKET as SOCKET
from devalloc.programs.settings import is_default_store, node_state_folder
from devalloc.settings import EXISTING_FILE, FOLDER, BadSetting, OneOf, PathTo, Whole, group, parse_duration, setting
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_node.errors import Denied

if TYPE_CHECKING:
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc.inventory.capacity import HostCapacity
    from devalloc_machines.part import MachineSettings
    from devalloc_machines.qemu.machine_files import AllowedFolder, FirmwareFiles, FolderSharing, MachineConfig
    from devalloc_machines.vms.migrations import MigrationSettings
    from devalloc_machines.warm.addresses import BridgeNetwork, CniNetwork
    from devalloc_machines.warm.setup import WarmConfig
    from devalloc_node.settings import KubeletSettings

log = logging.getLogger(__name__)

Note = Callable[[str], None]
"""Gets warnings about what was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmOptions:
    """Warm setups, which are ready before a machine needs them."""

    warm_vcpus_per_cpu: int | None = setting(
        "Maximum vCPUs per host CPU, of all taken warm setups.",
        type=Whole(1),
        metavar="NUMBER",
        unset="no maximum, the least loaded CPUs",
    )
    warm_machine: Path | None = setting(
        "Keep a paused QEMU in each warm setup: a machine like the VirtualMachine in this file, with a network card on "
        "the TAP interface.",
        type=EXISTING_FILE,
        metavar="FILE",
    )
    warm_most: int = setting(
        "Maximum number of warm setups, ready and taken.", type=Whole(1), default=256, metavar="NUMBER"
    )
    ready: int | None = setting(
        "Number of warm setups to keep ready: network namespaces with a TAP interface and a folder, so that machines "
        "start at once; 0 makes them on demand.",
        flag="--warm",
        type=Whole(0),
        metavar="NUMBER",
        unset="no warm setups",
    )
    warm_network: Literal["bridge", "cni"] | None = setting(
        "Give each warm setup an address in a network: of a bridge that the plugin makes, or by CNI plugins.",
        type=OneOf(["bridge", "cni"]),
        unset="a TAP interface that is connected to nothing",
    )
    warm_bridge: str = setting("The bridge of --warm-network bridge.", default="devalloc0", metavar="NAME")
    warm_subnet: str = setting(
        "Addresses of --warm-network bridge: the first is this host's, the others are for guests.",
        default="10.88.0.0/16",
        metavar="CIDR",
    )
    warm_uplink: Literal["none", "nat", "route"] = setting(
        "What leaves the subnet of --warm-network bridge: nothing; all, with the address of this host (nat); all, with "
        "the guest's own (route).",
        type=OneOf(["none", "nat", "route"]),
        default="none",
    )
    warm_isolated: bool = setting("Guests in the network of warm setups do not reach each other.", default=False)
    warm_reach_host: bool = setting(
        "Guests in the network of warm setups can open connections to this host, not only answer it.", default=False
    )
    warm_nameserver: tuple[str, ...] = setting(
        "A nameserver of guests in the network of warm setups. Repeatable.", default=(), metavar="ADDRESS"
    )
    cni_network: str = setting(
        "The network of --warm-network cni.", default="", metavar="NAME", unset="the first in --cni-conf-dir"
    )
    cni_conf_dir: Path = setting(
        "Folder of the lists of CNI plugins.", type=FOLDER, default=Path("/etc/cni/net.d"), metavar="DIR"
    )
    cni_bin_dir: tuple[Path, ...] = setting(
        "Folder of the CNI plugins. Repeatable.", type=FOLDER, default=(Path("/opt/cni/bin"),), metavar="DIR"
    )
    nft: str = setting(
        "The nft program, which filters what guests of warm setups send.", default="nft", metavar="PROGRAM"
    )


def _warm_network(options: WarmOptions) -> BridgeNetwork | CniNetwork | None:
    """Raises BadSetting."""
    from devalloc_machines.warm.addresses import BridgeNetwork

    for network, flags in (("bridge", _bridge_flags(options)), ("cni", {"--cni-network": bool(options.cni_network)})):
        if options.warm_network != network and (used := [flag for flag, is_used in flags.items() if is_used]):
            raise BadSetting(used[0], f"needs --warm-network {network}")
    if options.warm_network is None:
        return None
    if options.ready is None:
        raise BadSetting("--warm-network", "needs --warm, the number of warm setups to keep ready")
    if shutil.which(options.nft) is None:
        raise BadSetting(
            "--warm-network", f"needs nft, but {options.nft} was not found: install nftables, or set --nft"
        )
    if options.warm_network == "cni":
        return _cni_network(options)
    try:
        subnet = ipaddress.IPv4Network(options.warm_subnet)
    except ValueError as error:
        raise BadSetting("--warm-subnet", f"must be an IPv4 network such as 10.88.0.0/16: {error}") from None
    try:
        servers = tuple(str(ipaddress.IPv4Address(server)) for server in options.warm_nameserver)
    except ValueError as error:
        raise BadSetting("--warm-nameserver", f"must be an IPv4 address: {error}") from None
    try:
        return BridgeNetwork(
            options.warm_bridge,
            subnet,
            options.warm_uplink,
            options.warm_isolated,
            options.warm_reach_host,
            servers,
            options.nft,
        )
    except ValueError as error:
        raise BadSetting("--warm-network", f"bridge: {error}") from None


def _cni_network(options: WarmOptions) -> CniNetwork:
    """Raises BadSetting."""
    from devalloc_machines.warm.addresses import CniNetwork
    from devalloc_machines.warm.cni import load_list

    network = CniNetwork(options.cni_network, options.cni_conf_dir, options.cni_bin_dir)
    try:
        load_list(network)
    except OSError as error:
        raise BadSetting("--warm-network", f"cni: {error.filename}: {error.strerror}") from None
    return network


def _bridge_flags(options: WarmOptions) -> dict[str, bool]:
    """Those that only the built-in network has, and whether they are used."""
    return {
        "--warm-uplink": options.warm_uplink != "none",
        "--warm-isolated": options.warm_isolated,
        "--warm-reach-host": options.warm_reach_host,
        "--warm-nameserver": bool(options.warm_nameserver),
    }


def warm_settings(
    options: WarmOptions, node: str, run: Path, machines: MachineConfig, users: range, note: Note
) -> WarmConfig | None:
    """The settings of the pool of warm setups; None without --warm.

    ``run``: the folder of setups. ``users``: of paused machines, if the plugin is root. Raises BadSetting.
    """
    from devalloc_machines.qemu.machine_files import AllowedFolder
    from devalloc_machines.warm.setup import WarmConfig

    file, most = options.warm_machine, options.warm_most
    network = _warm_network(options)
    if options.ready is None:
        if file is not None:
            raise BadSetting("--warm-machine", "needs --warm, the number of paused machines")
        if options.warm_vcpus_per_cpu is not None:
            raise BadSetting("--warm-vcpus-per-cpu", "needs --warm: it limits the CPUs of warm setups")
    if options.ready is None:
        return None
    if options.ready > most:
        raise BadSetting(
            "--warm", f": cannot keep {options.ready} warm setups ready, because --warm-most allows {most}"
        )
    waiting = None if file is None else _waiting_machine(file, node, note)
    own = users if waiting is not None and os.geteuid() == 0 else None
    return WarmConfig(
        options.ready,
        most,
        run=run,
        users=own,
        machine=waiting,
        # The admin defines the paused machine, so it may use files of every namespace's folder.
        machines=replace(
            machines, users=None, folders=tuple(AllowedFolder(each.path, "any") for each in machines.folders)
        ),
        vcpus_per_cpu=options.warm_vcpus_per_cpu,
        network=network,
        cni_cache=machines.state.parent / "cni",
        nft=options.nft,
    )


def _waiting_machine(file: Path, node: str, note: Note) -> VirtualMachine:
    from devalloc.api.decode import decode
    from devalloc.api.manifests import load
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc_machines.warm.paused_machine import check_template

    manifests = load([str(file)])
    decoded = [decode(each.content) for each in manifests.documents]
    problems = [*manifests.problems]
    for document, one in zip(manifests.documents, decoded, strict=True):
        problems += map(document.place, one.problems)
    for problem in problems:
        note(f"error: {problem}" if problem.is_error else str(problem))
    objects = [each.object for each in decoded if each.object is not None]
    machine = objects[0] if len(objects) == 1 else None
    if not isinstance(machine, VirtualMachine):
        raise BadSetting("--warm-machine", f": {file} must contain one VirtualMachine, and nothing else")
    try:
        check_template(machine)
    except Denied as error:
        raise BadSetting("--warm-machine", f": {error.message}") from None
    for ignored, field, why in (
        (machine.spec.scaling is not None, "scaling", "the machine that adopts it sets that"),
        (not machine.spec.running, "running", "it is paused until its owner runs it"),
        (machine.spec.node_name not in (None, node), "nodeName", f"it is on this node, {node}"),
    ):
        if ignored:
            note(f"--warm-machine {file}: warning: spec.{field}: is ignored: {why}")
    return machine


_MAX_TAP_PATTERN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """How machines run."""

    machine_dir: Path | None = setting(
        "Folder for the sockets and logs of machines.", type=FOLDER, metavar="DIR", unset="machines beside the socket"
    )
    accel: Literal["auto", "kvm", "tcg"] = setting(
        "Run machines with KVM or emulate them (tcg); auto: with KVM if a small guest boots with it within 10 s.",
        type=OneOf(["auto", "kvm", "tcg"]),
        default="auto",
        env="DEVALLOC_ACCEL",
    )
    machine_users: str | None = setting(
        "User ids of machines, one for each, that nothing else on the host uses; the second half is for paused "
        "machines (--warm-machine). Only for root.",
        metavar="FIRST-LAST",
        env="DEVALLOC_MACHINE_USERS",
        unset="2146435072-2146437071",
    )
    qemu_path: tuple[Path, ...] = setting(
        "Let QEMU see this folder, too. Repeatable. Otherwise it sees the system's programs and libraries, its own "
        "folder, devices, and the files that its machine names.",
        type=FOLDER,
        default=(),
        metavar="DIR",
        env="DEVALLOC_QEMU_PATH",
    )
    qemu: str = setting("The QEMU program that runs machines.", default="qemu-system-x86_64", metavar="PROGRAM")
    uefi_firmware: str | None = setting(
        "Firmware of machines with UEFI: the code, and the template of their variables, as raw images.",
        metavar="CODE:VARS",
        env="DEVALLOC_UEFI_FIRMWARE",
        unset="the first that fits in /usr/share/qemu/firmware and /etc/qemu/firmware",
    )
    secure_boot_firmware: str | None = setting(
        "The same for machines with Secure Boot: code that needs SMM, and a template with keys.",
        metavar="CODE:VARS",
        env="DEVALLOC_SECURE_BOOT_FIRMWARE",
        unset="the first that fits in these folders",
    )
    swtpm: str = setting("The program that is the TPM of a machine.", default="swtpm", metavar="PROGRAM")
    machine_memory_overhead: int | None = setting(
        "What QEMU of a machine may take of the host, such as 2GiB, beyond the memory of its guest and the page "
        "tables of guest and devices. The kernel ends a QEMU that takes more than all of these.",
        type=parse_size,
        metavar="SIZE",
        env="DEVALLOC_MACHINE_MEMORY_OVERHEAD",
        unset="1GiB",
    )
    migration_address: str | None = setting(
        "Listen here for machines that move to this node while they run: an address of this node, on ports that the "
        "kernel chooses; other nodes must reach them. Both sides are authenticated and encrypted by TLS. Needs "
        "--host-capacity.",
        metavar="ADDRESS",
        env="DEVALLOC_MIGRATION_ADDRESS",
        unset="it receives no such machines",
    )
    migration_bandwidth: int | None = setting(
        "The highest bandwidth of a machine that leaves this node while it runs, such as 1Gbps (bits, decimal) or "
        "500MB/s (bytes, binary).",
        type=parse_bandwidth,
        metavar="RATE",
        env="DEVALLOC_MIGRATION_BANDWIDTH",
        unset="that of QEMU, 128MB/s",
    )


def _shared_folder(text: str) -> str:
    path = Path(text)
    is_plain = path.is_absolute() and ".." not in path.parts and path.parent != path and text.isprintable()
    if not is_plain or ":" in text:  # what separates folders in the pool
        raise ValueError(f"invalid folder {text!r}: write an absolute path below /, without '..' and ':'")
    return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """What of the host the manifests of machines may use."""

    allow_user_net: bool = setting(
        "Let network cards with backend user connect as this host: to its 127.0.0.1, to metadata services of clouds, "
        "and to everything else that the host can reach. Without it they reach nothing.",
        default=False,
        env="DEVALLOC_ALLOW_USER_NET",
    )
    taps: tuple[str, ...] = setting(
        "Allow machines to use TAP interfaces with such names (tap*); NAMESPACE:PATTERN: only machines of one "
        "namespace. Repeatable.",
        flag="--tap",
        default=(),
        metavar="PATTERN",
        env="DEVALLOC_TAP",
        unset="machines of namespace NS may use NS.NAME",
    )
    image_folders: tuple[str, ...] = setting(
        "Allow machines of namespace NS to use kernels and disks below DIR/NS; DIR:shared: machines of every namespace "
        "may read everything below DIR; DIR:any: they may also write it. Repeatable.",
        flag="--image-folder",
        default=(),
        metavar="DIR",
        env="DEVALLOC_IMAGE_FOLDER",
        unset="none",
        usual=True,
    )
    qmp_folders: tuple[str, ...] = setting(
        "Allow machines of namespace NS to adopt QMP sockets below DIR/NS; DIR:any: machines of every namespace may "
        "adopt all sockets below DIR. Repeatable.",
        flag="--qmp-folder",
        default=(),
        metavar="DIR",
        env="DEVALLOC_QMP_FOLDER",
        unset="none",
    )
    rom_folders: tuple[Path, ...] = setting(
        "Allow classes (`romFile` of a VfioConfig) to use option ROMs below this folder, which all machines can then "
        "read. Repeatable.",
        flag="--rom-folder",
        type=FOLDER,
        default=(),
        metavar="DIR",
        env="DEVALLOC_ROM_FOLDER",
        unset="none",
    )
    shared_storage: tuple[str, ...] = setting(
        "This folder has the same files on every node with the same option (NFS, Ceph, ...): a drained machine whose "
        "disks are below it can start on those nodes. Needs --host-capacity. Repeatable.",
        flag="--shared-storage",
        type=_shared_folder,
        default=(),
        metavar="DIR",
        env="DEVALLOC_SHARED_STORAGE",
        unset="none",
    )


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
    machines: MachineOptions = group(MachineOptions)
    limits: CapacityConfig = group(CapacityConfig)
    enforce_capacity: bool | None = setting(
        "Do not start or grow machines beyond what the host may promise of CPUs, memory, disk, network and disk "
        "bandwidth, as shown by `devalloc capacity --host` with the same options. Machines that run continue to run.",
        flag="--enforce-capacity/--no-enforce-capacity",
        unset="on, for all that is known of the host",
        env="DEVALLOC_ENFORCE_CAPACITY",
    )
    warm: WarmOptions = group(WarmOptions)
    scaling: ScalingSettings = group(ScalingSettings)
    access: AccessOptions = group(AccessOptions)
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
        ("--migration-address", options.machines.migration_address is not None),
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
    from devalloc_machines.qemu.machine_files import MachineConfig
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
    users, waiting_users = _users(options.machines.machine_users)
    machines = MachineConfig(
        state=home / "machines",
        run=run,
        binary=options.machines.qemu,
        accel=options.machines.accel,
        folders=tuple(_folder("--image-folder", text) for text in options.access.image_folders),
        socket_folders=tuple(_folder("--qmp-folder", text) for text in options.access.qmp_folders),
        taps=tuple(_tap(text) for text in options.access.taps),
        user_net=options.access.allow_user_net,
        users=users,
        visible=tuple(folder.absolute() for folder in (*options.machines.qemu_path, *options.access.rom_folders)),
        rom_folders=tuple(folder.absolute() for folder in options.access.rom_folders),
        uefi=_firmware("--uefi-firmware", options.machines.uefi_firmware),
        secure_boot=_firmware("--secure-boot-firmware", options.machines.secure_boot_firmware),
        swtpm=options.machines.swtpm,
    )
    if (overhead := options.machines.machine_memory_overhead) is not None:
        machines = replace(machines, memory_slack=overhead)
    inventory.check_kinds("--allow", options.allow, allowable(inventory.added_kinds))
    bindings = BindingConfig(inventory.node, allowed=options.allowed_kinds(), **inventory.policy)
    root, limits = inventory.sysfs_root, options.limits.checked(home.parent)
    setups = door.parent / "warm"
    scaling = options.scaling.checked(options.metrics, door, note, migrations.timeout)
    warm = warm_settings(options.warm, inventory.node, setups, machines, waiting_users, note)
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
        migrations=_migrations(options.machines),
        runners=scaling.runners,
        shared_storage=tuple(Path(folder) for folder in options.access.shared_storage),
        parts=(warm_part(None if options.dry_run else warm, setups), machines_part, *installed(NODE_PARTS)),
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


def _migrations(options: MachineOptions) -> MigrationSettings:
    """Raises BadSetting."""
    from devalloc_machines.vms.migrations import MigrationSettings

    address = options.migration_address
    if address is not None:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            raise BadSetting("--migration-address", f"must be an address of IPv4 or IPv6, not {address!r}") from None
        if parsed.is_unspecified or parsed.is_multicast:
            raise BadSetting("--migration-address", f"must be one address, which other nodes reach, not {address}")
        address = parsed.compressed
    if options.migration_bandwidth == 0:
        raise BadSetting("--migration-bandwidth", "must be more than 0")
    return MigrationSettings(address, options.migration_bandwidth)


def _firmware(option: str, text: str | None) -> FirmwareFiles | None:
    """``CODE:VARS``. Raises BadSetting."""
    from devalloc_machines.qemu.machine_files import FirmwareFiles

    if text is None:
        return None
    code, colon, variables = text.partition(":")
    if not (colon and code.startswith("/") and variables.startswith("/")) or ":" in variables:
        raise BadSetting(option, f"must be two absolute paths, CODE:VARS, not {text!r}")
    return FirmwareFiles(Path(code), Path(variables))


def _folder(option: str, text: str) -> AllowedFolder:
    """``DIR``, ``DIR:shared`` or ``DIR:any``. Raises BadSetting."""
    from devalloc_machines.qemu.machine_files import AllowedFolder

    path, sharing = text, "own"
    if text.endswith((":shared", ":any")):
        path, _, sharing = text.rpartition(":")
    if not path or Path(path).is_file():
        raise BadSetting(option, f"must be a folder such as /var/lib/devalloc/images, not {text!r}")
    if option == "--qmp-folder" and sharing == "shared":
        raise BadSetting(
            option,
            f"{text}: read-only access is impossible, a connection to a QMP socket can change the machine; "
            f"use {path}:any",
        )
    return AllowedFolder(Path(path).absolute(), cast("FolderSharing", sharing))


def _users(text: str | None) -> tuple[range, range]:
    """User ids of machines, and of paused ones. Raises BadSetting if the host already uses some of them."""
    from devalloc_machines.qemu.machine_files import USERS
    from devalloc_machines.qemu.user_ids import owners_among

    both = range(USERS.start, USERS.stop + len(USERS))
    if text is not None:
        first, _, last = text.partition("-")
        if not (first.isdecimal() and last.isdecimal()) or not 0 < int(first) < int(last) < 2**32 - 1:
            raise BadSetting("--machine-users", f"must be a range such as {both[0]}-{both[-1]}, not {text!r}")
        both = range(int(first), int(last) + 1)
    if os.geteuid() == 0 and (whose := owners_among(both)):
        raise BadSetting(
            "--machine-users",
            f"{both[0]}-{both[-1]}: {'; '.join(whose)}: other processes of a machine's user could "
            "change its memory and disks; choose an unused range",
        )
    half = len(both) // 2
    return both[:half], both[half:]


def _tap(text: str) -> str:
    only, colon, names = text.rpartition(":")
    if not names or (colon and not only) or "/" in text or len(names) > _MAX_TAP_PATTERN:
        raise BadSetting("--tap", f"must be a pattern such as vm* or team-a:vm*, not {text!r}")
    return text
