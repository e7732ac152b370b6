"""Options of the node plugin, for the verbs that run it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from devalloc.cli.hostcapacity import capacity_options
from devalloc.cli.nodesocket import DEFAULT as SOCKET
from devalloc.cli.options import duration
from devalloc.cli.scalingoptions import networks_of, scaling_settings
from devalloc.cli.verb import BadInput
from devalloc.cli.warmoptions import tell_of_setups, warm_settings

if TYPE_CHECKING:
    from devalloc.inventory.capacity import HostCapacity
    from devalloc_node.binding.config import BindingConfig
    from devalloc_node.machine.config import Folder, Sharing
    from devalloc_node.settings import KubeletSettings, NodeSettings

_OFFERS = ("gpu", "vgpu", "vf", "nic", "accelerator", "storage")
_MAX_TAP_PATTERN = 64
_FOLDER = click.Path(file_okay=False, path_type=Path)


def state_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--state DIR: passed as ``state: Path | None``."""
    return click.option(
        "--state",
        type=_FOLDER,
        metavar="DIR",
        envvar="DEVALLOC_NODE_STATE",
        help="Journal, locks and audit log of what is done to the host [env: DEVALLOC_NODE_STATE; default: node "
        "beside the store; for the claims of a cluster /var/lib/devalloc/node].",
    )(function)


def machine_dir_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--machine-dir DIR: passed as ``machine_dir: Path | None``."""
    return click.option(
        "--machine-dir",
        type=_FOLDER,
        metavar="DIR",
        help="Where machines have their sockets and logs [default: machines beside the socket].",
    )(function)


def places(state: Path | None, socket: Path, machine_dir: Path | None) -> tuple[Path, Path]:
    """The folders of the plugin's state, and of the machines' sockets."""
    return (state or _home()).absolute(), (machine_dir or socket.absolute().parent / "machines").absolute()


def _home() -> Path:
    from devalloc.store.paths import default_path

    here = {name: value for name, value in os.environ.items() if name in ("HOME", "XDG_STATE_HOME")}
    return default_path(here).parent / "node"


def node_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of ``node_settings``, passed by the names of its arguments."""
    for option in (
        click.option(
            "--metrics",
            metavar="ADDRESS",
            envvar="DEVALLOC_METRICS",
            help="Serve Prometheus metrics there: 127.0.0.1:9180, [::1]:9180 or unix:PATH [env: DEVALLOC_METRICS]. "
            "Nowhere by default.",
        ),
        click.option(
            "--grace",
            type=duration,
            default="5m",
            metavar="DURATION",
            help="How long a claim must be gone from the store before what is prepared of it is taken back.",
        ),
        click.option(
            "--qmp-folder",
            "qmp_folders",
            multiple=True,
            envvar="DEVALLOC_QMP_FOLDER",
            metavar="DIR",
            help="Machines of namespace NS may be adopted by QMP sockets below DIR/NS; DIR:any: those of all "
            "namespaces by all sockets below DIR. May be given several times [env: DEVALLOC_QMP_FOLDER, "
            "separated by blanks; default: none].",
        ),
        click.option(
            "--image-folder",
            "image_folders",
            multiple=True,
            envvar="DEVALLOC_IMAGE_FOLDER",
            metavar="DIR",
            help="Machines of namespace NS may use kernels and disks below DIR/NS; DIR:shared: those of all namespaces "
            "may read all below DIR; DIR:any: they may write it too. May be given several times [env: "
            "DEVALLOC_IMAGE_FOLDER, separated by blanks; default: none].",
        ),
        click.option(
            "--tap",
            "taps",
            multiple=True,
            envvar="DEVALLOC_TAP",
            metavar="PATTERN",
            help="Machines may use TAP interfaces with such names (tap*); NAMESPACE:PATTERN: only those of one "
            "namespace. May be given several times. By default those of namespace NS use the ones called NS.NAME "
            "[env: DEVALLOC_TAP, separated by blanks].",
        ),
        click.option(
            "--allow-user-net",
            is_flag=True,
            envvar="DEVALLOC_ALLOW_USER_NET",
            help="Let network cards with backend user make connections in the name of this host: to its 127.0.0.1, to "
            "metadata services of clouds, and wherever else the host can connect to. Without it they reach nothing "
            "[env: DEVALLOC_ALLOW_USER_NET].",
        ),
        click.option(
            "--scaling",
            is_flag=True,
            envvar="DEVALLOC_SCALING",
            help="Let machines whose objects say so (spec.scaling) follow the load of their guests [env: "
            "DEVALLOC_SCALING].",
        ),
        click.option(
            "--permits",
            metavar="URL",
            envvar="DEVALLOC_PERMITS",
            help="Ask this server for permits; without it that of the cluster's controller, or where there is no "
            "cluster one that is run here, at http://127.0.0.1:10299/ [env: DEVALLOC_PERMITS].",
        ),
        click.option(
            "--permits-port",
            type=click.IntRange(1, 65535),
            metavar="PORT",
            envvar="DEVALLOC_PERMITS_PORT",
            help="The port of 127.0.0.1 of the server of permits that is run here [env: DEVALLOC_PERMITS_PORT; "
            "default: 10299].",
        ),
        click.option(
            "--permits-dump-port",
            type=click.IntRange(0, 65535),
            metavar="PORT",
            envvar="DEVALLOC_PERMITS_DUMP_PORT",
            help="Show the ledgers and metrics of that server at this port of 127.0.0.1, to every process of this "
            "host; 0: nowhere. By default the ledgers are at a socket of this user's, node-permits.sock beside "
            "--socket [env: DEVALLOC_PERMITS_DUMP_PORT].",
        ),
        click.option(
            "--permits-token-file",
            type=click.Path(dir_okay=False, exists=True, path_type=Path),
            metavar="PATH",
            envvar="DEVALLOC_PERMITS_TOKEN_FILE",
            help="The token that the server of permits wants. The one that is run here wants one that nobody else "
            "has where nothing is said [env: DEVALLOC_PERMITS_TOKEN_FILE].",
        ),
        click.option(
            "--permits-without-token",
            is_flag=True,
            default=None,
            envvar="DEVALLOC_PERMITS_WITHOUT_TOKEN",
            help="The server of permits that is run here answers every process of this host, at 127.0.0.1: for agents "
            "of others, which send no token [env: DEVALLOC_PERMITS_WITHOUT_TOKEN].",
        ),
        click.option(
            "--agent-config",
            type=click.Path(dir_okay=False, exists=True, path_type=Path),
            metavar="PATH",
            envvar="DEVALLOC_AGENT_CONFIG",
            help="Compute unit, parameters of goals, and waits of the agent: the JSON file that agents in use are "
            "configured with [env: DEVALLOC_AGENT_CONFIG].",
        ),
        click.option(
            "--compute-unit",
            metavar="CPU,MEMORY",
            envvar="DEVALLOC_COMPUTE_UNIT",
            help="What machines that are scaled get more or less of [env: DEVALLOC_COMPUTE_UNIT; default: 250m,1Gi].",
        ),
        click.option(
            "--compat",
            type=click.Choice(["v0.12", "v0.31", "newest"]),
            envvar="DEVALLOC_COMPAT",
            help="Which releases of other agents and servers of permits are followed where they differ [env: "
            "DEVALLOC_COMPAT; default: newest, and v0.31 where permits are given].",
        ),
        click.option(
            "--guest-network",
            "guest_networks",
            multiple=True,
            metavar="CIDR",
            envvar="DEVALLOC_GUEST_NETWORK",
            help="Guests that are scaled may have addresses of this network; may be given several times. Without it "
            "only addresses behind a TAP interface of their own machine [env: DEVALLOC_GUEST_NETWORK, separated by "
            "blanks].",
        ),
        click.option(
            "--runner-network",
            "runner_networks",
            multiple=True,
            metavar="CIDR",
            help="Machines may have runners (spec.runner) at this host's addresses of this network, for controllers in "
            "it, which are asked for nothing; may be given several times. None by default.",
        ),
        click.option(
            "--dump-port",
            type=click.IntRange(0, 65535),
            metavar="PORT",
            envvar="DEVALLOC_DUMP_PORT",
            help="Show what the agent of --scaling knows of its machines at this port of 127.0.0.1, as JSON, to "
            "every process of this host; 0: nowhere. By default at a socket of this user's, node-agent.sock beside "
            "--socket [env: DEVALLOC_DUMP_PORT].",
        ),
        click.option(
            "--warm",
            type=click.IntRange(0),
            metavar="NUMBER",
            help="Keep so many warm setups ready: network namespaces with a TAP interface and a folder, for machines "
            "that are to start at once. Without it there are none; 0 makes them when they are asked for.",
        ),
        click.option(
            "--warm-most",
            type=click.IntRange(1),
            default=256,
            metavar="NUMBER",
            help="Warm setups in all, ready and taken.",
        ),
        click.option(
            "--warm-machine",
            type=click.Path(dir_okay=False, exists=True),
            metavar="FILE",
            help="In each warm setup a QEMU waits, paused: a machine like the VirtualMachine in this file, with a "
            "network card on the TAP interface.",
        ),
        click.option(
            "--warm-vcpus-per-cpu",
            type=click.IntRange(1),
            metavar="NUMBER",
            help="Choose no CPU of the host for more vCPUs than this of those who have warm setups [default: the least "
            "loaded ones, however many they have].",
        ),
        click.option(
            "--enforce-capacity",
            is_flag=True,
            envvar="DEVALLOC_ENFORCE_CAPACITY",
            help="Start no machine, and give none more, beyond the CPUs and memory that the host may promise, as "
            "`devalloc capacity --host` tells them with the same options [env: DEVALLOC_ENFORCE_CAPACITY].",
        ),
        capacity_options,
        click.option("--qemu", default="qemu-system-x86_64", metavar="PROGRAM", help="What runs machines."),
        click.option(
            "--qemu-path",
            "visible",
            multiple=True,
            type=_FOLDER,
            metavar="DIR",
            envvar="DEVALLOC_QEMU_PATH",
            help="QEMU sees this folder too; may be given several times. Else it sees the system's programs and "
            "libraries, the folder that it lies in, devices, and what its machine names [env: DEVALLOC_QEMU_PATH].",
        ),
        click.option(
            "--machine-users",
            metavar="FIRST-LAST",
            envvar="DEVALLOC_MACHINE_USERS",
            help="User ids that machines run as, one each, which nobody else may have; the second half is of machines "
            "that wait (--warm-machine). Only for root [env: DEVALLOC_MACHINE_USERS; default: "
            "2146435072-2146437071].",
        ),
        click.option(
            "--accel",
            type=click.Choice(["auto", "kvm", "tcg"]),
            default="auto",
            envvar="DEVALLOC_ACCEL",
            help="Run machines with KVM or emulate them (tcg); auto: with KVM where a small guest boots with it within "
            "10 s [env: DEVALLOC_ACCEL; default: auto].",
        ),
        machine_dir_option,
        click.option(
            "--cdi-dir",
            type=_FOLDER,
            default=Path("/var/run/cdi"),
            metavar="DIR",
            help="Write CDI specs of prepared devices there, for container runtimes.",
        ),
        click.option(
            "--socket",
            type=click.Path(path_type=Path),
            metavar="PATH",
            envvar="DEVALLOC_NODE_SOCKET",
            help="Serve devalloc.node.v1 there, for this user and root only [env: DEVALLOC_NODE_SOCKET; default: "
            f"{SOCKET} for root and the usual store, else node.sock in --state].",
        ),
        state_option,
        click.option(
            "--allow",
            "allowed",
            multiple=True,
            type=click.Choice(_OFFERS),
            help="Devices of this kind may be taken from the host; repeat for several [default: gpu, vgpu, vf].",
        ),
        click.option(
            "--dry-run", is_flag=True, help="Change nothing on the host: say what would be done, and refuse it."
        ),
    ):
        function = option(function)
    return function


def bindings(node: str, options: Mapping[str, Any]) -> BindingConfig:
    """What the options say about devices that go to machines."""
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
    """The settings for the options of ``node_options`` and ``inventory_options``. Raises BadInput."""
    from devalloc.cli.inventory import settings
    from devalloc_node.machine.config import MachineConfig
    from devalloc_node.settings import NodeSettings

    if resync <= 0:
        raise BadInput("--resync must be more than 0")
    if metrics is not None:
        from devalloc_node.metrics import check_address

        try:
            check_address(metrics)
        except ValueError as error:
            raise BadInput(f"--metrics: {error}") from None
    root = os.geteuid() == 0
    door = (socket or (SOCKET if root else (state or _home()) / SOCKET.name)).absolute()
    home, run = places(state, door, machine_dir)
    options = {
        "allowed": allowed,
        "allow_shared_groups": allow_shared_groups,
        "max_vfs": max_vfs,
        "adopted": adopted,
    }
    if warm_machine is not None and warm is None:
        raise BadInput("--warm-machine needs --warm, which says how many are to wait")
    if warm_vcpus_per_cpu is not None and warm is None:
        raise BadInput("--warm-vcpus-per-cpu needs --warm: CPUs are chosen for those who have warm setups")
    if warm is None and not dry_run:
        tell_of_setups(door.parent)
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
        bindings(node, options),
        inventory=settings(kinds, max_vfs, allow_shared_groups, adopted),
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
        runners=networks_of("--runner-network", runner_networks),
        warm=None
        if warm is None or dry_run
        else warm_settings(sizes, warm_machine, node, door.parent, machines, waiting_users),
        metrics=metrics,
        resync=resync,
        grace=grace,
    )


def _folder(option: str, text: str) -> Folder:
    """``DIR``, ``DIR:shared`` or ``DIR:any``. Raises BadInput."""
    from devalloc_node.machine.config import Folder

    path, sharing = text, "own"
    if text.endswith((":shared", ":any")):
        path, _, sharing = text.rpartition(":")
    if not path or Path(path).is_file():
        raise BadInput(f"{option} must be a folder such as /var/lib/devalloc/images, not {text!r}")
    if option == "--qmp-folder" and sharing == "shared":
        raise BadInput(f"{option} {text}: who connects to a socket also changes the machine; write {path}:any")
    return Folder(Path(path).absolute(), cast("Sharing", sharing))


def _users(text: str | None) -> tuple[range, range]:
    """User ids of machines, and of those that wait. Raises BadInput where somebody else has some of them."""
    from devalloc_node.machine.config import USERS
    from devalloc_node.machine.users import owners_among

    both = range(USERS.start, USERS.stop + len(USERS))
    if text is not None:
        first, _, last = text.partition("-")
        if not (first.isdecimal() and last.isdecimal()) or not 0 < int(first) < int(last) < 2**32 - 1:
            raise BadInput(f"--machine-users must be a range such as {both[0]}-{both[-1]}, not {text!r}")
        both = range(int(first), int(last) + 1)
    if os.geteuid() == 0 and (whose := owners_among(both)):
        raise BadInput(
            f"--machine-users: of {both[0]}-{both[-1]}, {'; '.join(whose)}: who else runs as a machine's user could "
            "change its memory and its disks; choose a range that nobody has"
        )
    half = len(both) // 2
    return both[:half], both[half:]


def _tap(text: str) -> str:
    only, colon, names = text.rpartition(":")
    if not names or (colon and not only) or "/" in text or len(names) > _MAX_TAP_PATTERN:
        raise BadInput(f"--tap must be a pattern such as vm* or team-a:vm*, not {text!r}")
    return text


def _capacity(root: Path, limits: dict[str, Any], home: Path) -> HostCapacity:
    from devalloc.cli.hostcapacity import discovered, settings

    return discovered(root, settings(limits, home))
