"""Options of the node plugin, for the verbs that run it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from devalloc.cli.command import BadInput
from devalloc.cli.node_client import DEFAULT_SOCKET as SOCKET
from devalloc.cli.options.common import parse_duration
from devalloc.cli.options.host_capacity import capacity_options
from devalloc.cli.options.scaling import parse_networks, scaling_settings
from devalloc.cli.options.warm import warm_settings, warn_of_setups

if TYPE_CHECKING:
    from devalloc.inventory.capacity import HostCapacity
    from devalloc_node.binding.config import BindingConfig
    from devalloc_node.machine.paths import AllowedFolder, FolderSharing
    from devalloc_node.settings import KubeletSettings, NodeSettings

_BINDING_KINDS = ("gpu", "vgpu", "vf", "nic", "accelerator", "storage")
_MAX_TAP_PATTERN = 64
_FOLDER = click.Path(file_okay=False, path_type=Path)


def state_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--state DIR, passed as ``state: Path | None``."""
    return click.option(
        "--state",
        type=_FOLDER,
        metavar="DIR",
        envvar="DEVALLOC_NODE_STATE",
        help="Folder for the journal, locks and audit log of changes to the host [env: DEVALLOC_NODE_STATE; default: "
        "node beside the store; for the claims of a cluster /var/lib/devalloc/node].",
    )(function)


def machine_dir_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--machine-dir DIR, passed as ``machine_dir: Path | None``."""
    return click.option(
        "--machine-dir",
        type=_FOLDER,
        metavar="DIR",
        help="Folder for the sockets and logs of machines [default: machines beside the socket].",
    )(function)


def state_folders(state: Path | None, socket: Path, machine_dir: Path | None) -> tuple[Path, Path]:
    """The folders of the plugin's state and of the machines' sockets."""
    return (state or _home()).absolute(), (machine_dir or socket.absolute().parent / "machines").absolute()


def _home() -> Path:
    from devalloc.store.paths import default_path

    here = {name: value for name, value in os.environ.items() if name in ("HOME", "XDG_STATE_HOME")}
    return default_path(here).parent / "node"


def node_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of ``node_settings``, passed under the names of its arguments."""
    for option in (
        click.option(
            "--metrics",
            metavar="ADDRESS",
            envvar="DEVALLOC_METRICS",
            help="Serve Prometheus metrics here: 127.0.0.1:9180, [::1]:9180 or unix:PATH [env: DEVALLOC_METRICS; "
            "default: no metrics].",
        ),
        click.option(
            "--grace",
            type=parse_duration,
            default="5m",
            metavar="DURATION",
            help="How long a claim must be gone from the store before the plugin takes back its devices.",
        ),
        click.option(
            "--qmp-folder",
            "qmp_folders",
            multiple=True,
            envvar="DEVALLOC_QMP_FOLDER",
            metavar="DIR",
            help="Allow machines of namespace NS to adopt QMP sockets below DIR/NS; DIR:any: machines of every "
            "namespace may adopt all sockets below DIR. Repeatable [env: DEVALLOC_QMP_FOLDER, separated by blanks; "
            "default: none].",
        ),
        click.option(
            "--image-folder",
            "image_folders",
            multiple=True,
            envvar="DEVALLOC_IMAGE_FOLDER",
            metavar="DIR",
            help="Allow machines of namespace NS to use kernels and disks below DIR/NS; DIR:shared: machines of every "
            "namespace may read everything below DIR; DIR:any: they may also write it. Repeatable [env: "
            "DEVALLOC_IMAGE_FOLDER, separated by blanks; default: none].",
        ),
        click.option(
            "--tap",
            "taps",
            multiple=True,
            envvar="DEVALLOC_TAP",
            metavar="PATTERN",
            help="Allow machines to use TAP interfaces with such names (tap*); NAMESPACE:PATTERN: only machines of one "
            "namespace. Repeatable [env: DEVALLOC_TAP, separated by blanks; default: machines of namespace NS may use "
            "NS.NAME].",
        ),
        click.option(
            "--allow-user-net",
            is_flag=True,
            envvar="DEVALLOC_ALLOW_USER_NET",
            help="Let network cards with backend user connect as this host: to its 127.0.0.1, to metadata services of "
            "clouds, and to everything else that the host can reach. Without it they reach nothing "
            "[env: DEVALLOC_ALLOW_USER_NET].",
        ),
        click.option(
            "--scaling",
            is_flag=True,
            envvar="DEVALLOC_SCALING",
            help="Scale machines with spec.scaling by the load of their guests [env: DEVALLOC_SCALING].",
        ),
        click.option(
            "--permits",
            metavar="URL",
            envvar="DEVALLOC_PERMITS",
            help="Use this permit server [env: DEVALLOC_PERMITS; default: that of the cluster's controller, or without "
            "a cluster a local one at http://127.0.0.1:10299/].",
        ),
        click.option(
            "--permits-port",
            type=click.IntRange(1, 65535),
            metavar="PORT",
            envvar="DEVALLOC_PERMITS_PORT",
            help="Port of the local permit server at 127.0.0.1 [env: DEVALLOC_PERMITS_PORT; default: 10299].",
        ),
        click.option(
            "--permits-dump-port",
            type=click.IntRange(0, 65535),
            metavar="PORT",
            envvar="DEVALLOC_PERMITS_DUMP_PORT",
            help="Show the local permit server's state and metrics at this port of 127.0.0.1, to every process of this "
            "host; 0: nowhere [env: DEVALLOC_PERMITS_DUMP_PORT; default: the state at a socket that only this user can "
            "open, node-permits.sock beside --socket].",
        ),
        click.option(
            "--permits-token-file",
            type=click.Path(dir_okay=False, exists=True, path_type=Path),
            metavar="PATH",
            envvar="DEVALLOC_PERMITS_TOKEN_FILE",
            help="File of the token that the permit server expects. Without it, the local permit server uses a random "
            "token [env: DEVALLOC_PERMITS_TOKEN_FILE].",
        ),
        click.option(
            "--permits-without-token",
            is_flag=True,
            default=None,
            envvar="DEVALLOC_PERMITS_WITHOUT_TOKEN",
            help="Let the local permit server answer every process of this host at 127.0.0.1, for other agents, which "
            "send no token [env: DEVALLOC_PERMITS_WITHOUT_TOKEN].",
        ),
        click.option(
            "--agent-config",
            type=click.Path(dir_okay=False, exists=True, path_type=Path),
            metavar="PATH",
            envvar="DEVALLOC_AGENT_CONFIG",
            help="Compute unit, parameters of goals, and delays of the agent: a JSON file in the format of existing "
            "agents [env: DEVALLOC_AGENT_CONFIG].",
        ),
        click.option(
            "--compute-unit",
            metavar="CPU,MEMORY",
            envvar="DEVALLOC_COMPUTE_UNIT",
            help="Step by which machines grow and shrink [env: DEVALLOC_COMPUTE_UNIT; default: 250m,1Gi].",
        ),
        click.option(
            "--compat",
            type=click.Choice(["v0.12", "v0.31", "newest"]),
            envvar="DEVALLOC_COMPAT",
            help="Which releases of other agents and permit servers to follow if they differ [env: DEVALLOC_COMPAT; "
            "default: newest, but v0.31 for granting permits].",
        ),
        click.option(
            "--guest-network",
            "guest_networks",
            multiple=True,
            metavar="CIDR",
            envvar="DEVALLOC_GUEST_NETWORK",
            help="Network in which guests of scaled machines may have addresses. Repeatable [env: "
            "DEVALLOC_GUEST_NETWORK, separated by blanks; default: only addresses behind a TAP interface of their own "
            "machine].",
        ),
        click.option(
            "--runner-network",
            "runner_networks",
            multiple=True,
            metavar="CIDR",
            help="Allow runners of machines (spec.runner) at this host's addresses in this network. Every controller "
            "in the network can use them, without a password. Repeatable [default: none].",
        ),
        click.option(
            "--dump-port",
            type=click.IntRange(0, 65535),
            metavar="PORT",
            envvar="DEVALLOC_DUMP_PORT",
            help="Show the state of the scaling agent at this port of 127.0.0.1, as JSON, to every process of this "
            "host; 0: nowhere [env: DEVALLOC_DUMP_PORT; default: at a socket that only this user can open, "
            "node-agent.sock beside --socket].",
        ),
        click.option(
            "--warm",
            type=click.IntRange(0),
            metavar="NUMBER",
            help="Number of warm setups to keep ready: network namespaces with a TAP interface and a folder, so that "
            "machines start at once; 0 makes them on demand [default: no warm setups].",
        ),
        click.option(
            "--warm-most",
            type=click.IntRange(1),
            default=256,
            metavar="NUMBER",
            help="Maximum number of warm setups, ready and taken.",
        ),
        click.option(
            "--warm-machine",
            type=click.Path(dir_okay=False, exists=True),
            metavar="FILE",
            help="Keep a paused QEMU in each warm setup: a machine like the VirtualMachine in this file, with a "
            "network card on the TAP interface.",
        ),
        click.option(
            "--warm-vcpus-per-cpu",
            type=click.IntRange(1),
            metavar="NUMBER",
            help="Maximum vCPUs per host CPU, of all taken warm setups [default: no maximum, the least loaded CPUs].",
        ),
        click.option(
            "--enforce-capacity",
            is_flag=True,
            envvar="DEVALLOC_ENFORCE_CAPACITY",
            help="Do not start or grow machines beyond the CPUs and memory that the host may promise, as shown by "
            "`devalloc capacity --host` with the same options [env: DEVALLOC_ENFORCE_CAPACITY].",
        ),
        capacity_options,
        click.option(
            "--qemu", default="qemu-system-x86_64", metavar="PROGRAM", help="The QEMU program that runs machines."
        ),
        click.option(
            "--qemu-path",
            "visible",
            multiple=True,
            type=_FOLDER,
            metavar="DIR",
            envvar="DEVALLOC_QEMU_PATH",
            help="Let QEMU see this folder, too. Repeatable. Otherwise it sees the system's programs and libraries, "
            "its own folder, devices, and the files that its machine names [env: DEVALLOC_QEMU_PATH].",
        ),
        click.option(
            "--machine-users",
            metavar="FIRST-LAST",
            envvar="DEVALLOC_MACHINE_USERS",
            help="User ids of machines, one for each, that nothing else on the host uses; the second half is for "
            "paused machines (--warm-machine). Only for root [env: DEVALLOC_MACHINE_USERS; default: "
            "2146435072-2146437071].",
        ),
        click.option(
            "--accel",
            type=click.Choice(["auto", "kvm", "tcg"]),
            default="auto",
            envvar="DEVALLOC_ACCEL",
            help="Run machines with KVM or emulate them (tcg); auto: with KVM if a small guest boots with it within "
            "10 s [env: DEVALLOC_ACCEL; default: auto].",
        ),
        machine_dir_option,
        click.option(
            "--cdi-dir",
            type=_FOLDER,
            default=Path("/var/run/cdi"),
            metavar="DIR",
            help="Write CDI specs of prepared devices to this folder, for container runtimes.",
        ),
        click.option(
            "--socket",
            type=click.Path(path_type=Path),
            metavar="PATH",
            envvar="DEVALLOC_NODE_SOCKET",
            help="Serve devalloc.node.v1 here, for this user and root only [env: DEVALLOC_NODE_SOCKET; default: "
            f"{SOCKET} for root and the usual store, else node.sock in --state].",
        ),
        state_option,
        click.option(
            "--allow",
            "allowed",
            multiple=True,
            type=click.Choice(_BINDING_KINDS),
            help="Kind of devices that may be taken from the host. Repeatable [default: gpu, vgpu, vf].",
        ),
        click.option("--dry-run", is_flag=True, help="Change nothing on the host: report each change, and refuse it."),
    ):
        function = option(function)
    return function


def binding_config(node: str, options: Mapping[str, Any]) -> BindingConfig:
    """The binding settings from the options."""
    from devalloc_node.binding.config import BindingConfig

    plain = BindingConfig(
        node,
        allow_shared_groups=options["allow_shared_groups"],
        max_vfs=options["max_vfs"],
        adopt=frozenset(options["adopted"]),
    )
    return replace(plain, allowed=frozenset(options["allowed"])) if options["allowed"] else plain


def node_settings(
    *,
    node: str,
    sysfs_root: Path,
    kinds: Sequence[str],
    max_vfs: int | None,
    allow_shared_groups: bool,
    adopted: Sequence[str],
    allowed: Sequence[str],
    state: Path | None,
    socket: Path | None,
    cdi_dir: Path,
    machine_dir: Path | None,
    scaling: bool,
    permits: str | None,
    permits_port: int | None,
    permits_dump_port: int | None,
    permits_token_file: Path | None,
    permits_without_token: bool | None,
    agent_config: Path | None,
    compute_unit: str | None,
    compat: str | None,
    guest_networks: Sequence[str],
    dump_port: int | None,
    runner_networks: Sequence[str],
    warm: int | None,
    warm_most: int,
    warm_machine: str | None,
    warm_vcpus_per_cpu: int | None,
    enforce_capacity: bool,
    limits: dict[str, Any],
    qemu: str,
    accel: Literal["auto", "kvm", "tcg"],
    image_folders: Sequence[str],
    qmp_folders: Sequence[str],
    taps: Sequence[str],
    allow_user_net: bool,
    visible: Sequence[Path],
    machine_users: str | None,
    grace: float,
    metrics: str | None,
    dry_run: bool,
    resync: float,
    kubelet: KubeletSettings | None = None,
) -> NodeSettings:
    """The settings from ``node_options`` and ``inventory_options``. Raises BadInput."""
    from devalloc.cli.options.inventory import inventory_config
    from devalloc_node.machine.paths import MachineConfig
    from devalloc_node.settings import NodeSettings

    if resync <= 0:
        raise BadInput("--resync must be more than 0")
    if metrics is not None:
        from devalloc_node.metrics.registry import check_address

        try:
            check_address(metrics)
        except ValueError as error:
            raise BadInput(f"--metrics: {error}") from None
    root = os.geteuid() == 0
    door = (socket or (SOCKET if root else (state or _home()) / SOCKET.name)).absolute()
    home, run = state_folders(state, door, machine_dir)
    options = {
        "allowed": allowed,
        "allow_shared_groups": allow_shared_groups,
        "max_vfs": max_vfs,
        "adopted": adopted,
    }
    if warm_machine is not None and warm is None:
        raise BadInput("--warm-machine needs --warm, the number of paused machines")
    if warm_vcpus_per_cpu is not None and warm is None:
        raise BadInput("--warm-vcpus-per-cpu needs --warm: it limits the CPUs of warm setups")
    if warm is None and not dry_run:
        warn_of_setups(door.parent)
    sizes = (warm or 0, warm_most, warm_vcpus_per_cpu)
    users, waiting_users = _users(machine_users)
    machines = MachineConfig(
        state=home / "machines",
        run=run,
        binary=qemu,
        accel=accel,
        folders=tuple(_folder("--image-folder", text) for text in image_folders),
        socket_folders=tuple(_folder("--qmp-folder", text) for text in qmp_folders),
        taps=tuple(_tap(text) for text in taps),
        user_net=allow_user_net,
        users=users,
        visible=tuple(folder.absolute() for folder in visible),
        dry_run=dry_run,
    )
    return NodeSettings(
        node,
        binding_config(node, options),
        inventory=inventory_config(kinds, max_vfs, allow_shared_groups, adopted),
        root=sysfs_root,
        state=home,
        socket=door,
        cdi=cdi_dir.absolute(),
        kubelet=kubelet,
        machines=machines,
        capacity=_capacity(sysfs_root, limits, home) if enforce_capacity else None,
        scaling=scaling_settings(
            scaling,
            {
                "--permits": permits,
                "--permits-port": permits_port,
                "--permits-dump-port": permits_dump_port,
                "--permits-token-file": permits_token_file,
                "--permits-without-token": permits_without_token or None,
                "--agent-config": agent_config,
                "--compute-unit": compute_unit,
                "--compat": compat,
                "--guest-network": guest_networks or None,
                "--dump-port": dump_port,
            },
            metrics,
            door,
        ),
        runners=parse_networks("--runner-network", runner_networks),
        warm=None
        if warm is None or dry_run
        else warm_settings(sizes, warm_machine, node, door.parent, machines, waiting_users),
        metrics=metrics,
        resync=resync,
        grace=grace,
    )


def _folder(option: str, text: str) -> AllowedFolder:
    """``DIR``, ``DIR:shared`` or ``DIR:any``. Raises BadInput."""
    from devalloc_node.machine.paths import AllowedFolder

    path, sharing = text, "own"
    if text.endswith((":shared", ":any")):
        path, _, sharing = text.rpartition(":")
    if not path or Path(path).is_file():
        raise BadInput(f"{option} must be a folder such as /var/lib/devalloc/images, not {text!r}")
    if option == "--qmp-folder" and sharing == "shared":
        raise BadInput(
            f"{option} {text}: read-only access is impossible, a connection to a QMP socket can change the machine; "
            f"use {path}:any"
        )
    return AllowedFolder(Path(path).absolute(), cast("FolderSharing", sharing))


def _users(text: str | None) -> tuple[range, range]:
    """User ids of machines, and of paused ones. Raises BadInput if the host already uses some of them."""
    from devalloc_node.machine.paths import USERS
    from devalloc_node.machine.user_ids import owners_among

    both = range(USERS.start, USERS.stop + len(USERS))
    if text is not None:
        first, _, last = text.partition("-")
        if not (first.isdecimal() and last.isdecimal()) or not 0 < int(first) < int(last) < 2**32 - 1:
            raise BadInput(f"--machine-users must be a range such as {both[0]}-{both[-1]}, not {text!r}")
        both = range(int(first), int(last) + 1)
    if os.geteuid() == 0 and (whose := owners_among(both)):
        raise BadInput(
            f"--machine-users {both[0]}-{both[-1]}: {'; '.join(whose)}: other processes of a machine's user could "
            "change its memory and disks; choose an unused range"
        )
    half = len(both) // 2
    return both[:half], both[half:]


def _tap(text: str) -> str:
    only, colon, names = text.rpartition(":")
    if not names or (colon and not only) or "/" in text or len(names) > _MAX_TAP_PATTERN:
        raise BadInput(f"--tap must be a pattern such as vm* or team-a:vm*, not {text!r}")
    return text


def _capacity(root: Path, limits: dict[str, Any], home: Path) -> HostCapacity:
    from devalloc.cli.options.host_capacity import capacity_config, discover_or_fail

    return discover_or_fail(root, capacity_config(limits, home))
