"""``devalloc vm``, ``console`` and ``logs``: machines on this node, through the node plugin's socket."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from devalloc.cli.command import VerbGroup, WholeNumber, parse_duration, runs, verb
from devalloc.cli.options.common import (
    all_namespaces_option,
    files_option,
    namespace_option,
    option_of,
    output_option,
    passed_as,
    settings_options,
)
from devalloc.cli.options.places import force_option, grace_option, plugin_options, socket_option
from devalloc.programs.node_options import PluginOptions
from devalloc.settings import setting


@verb("attach")
@click.argument("machine", metavar="MACHINE")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@namespace_option
@plugin_options
@runs("devalloc.cli.verbs.vm_devices")
def attach() -> None:
    """Plug the devices of claims into a running machine: for each claim all of its devices, or none.

    \b
    devalloc vm attach web train
    """


@verb("detach")
@click.argument("machine", metavar="MACHINE")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@force_option
@namespace_option
@plugin_options
@runs("devalloc.cli.verbs.vm_devices")
def detach() -> None:
    """Unplug the devices of claims from a machine. The claims stay prepared until `devalloc vm unprepare`.

    \b
    devalloc vm detach web train
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The disk or network card to plug in."""

    disk: Path | None = setting("A disk: an image or block device.", type=click.Path(path_type=Path), metavar="PATH")
    format: str | None = setting("Format of the image; it is never guessed.", type=click.Choice(["raw", "qcow2"]))
    read_only: bool = setting("Do not let the guest write to the disk.", default=False)
    nvme: bool = setting("Use an NVMe controller instead of virtio.", default=False)
    tap: str | None = setting("A network card on this existing TAP interface.", metavar="INTERFACE")
    user_net: bool = setting("A network card on the host's own sockets.", default=False)
    mac: str | None = setting("The network card's MAC address.")


@verb("plug")
@click.argument("machine", metavar="MACHINE")
@click.argument("name", metavar="NAME")
@settings_options(DeviceOptions, "device")
@namespace_option
@plugin_options
@runs("devalloc.cli.verbs.vm_devices")
def plug() -> None:
    """Plug a disk or a network card into a running machine, until it is unplugged or the machine ends.

    The guest sees NAME as the serial number of a disk. For devices of claims, use `devalloc vm attach`.

    \b
    devalloc vm plug web data --disk /images/data.qcow2 --format qcow2
    devalloc vm plug web lan --tap tap0
    """


@verb("unplug")
@click.argument("machine", metavar="MACHINE")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@plugin_options
@runs("devalloc.cli.verbs.vm_devices")
def unplug() -> None:
    """Unplug what `devalloc vm plug` plugged in. The guest must release it within --timeout.

    \b
    devalloc vm unplug web data
    """


@verb("unprepare")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@click.option("--uid", default="", metavar="UID", help="UID of the claim, if several prepared claims have this name.")
@force_option
@namespace_option
@plugin_options
@runs("devalloc.cli.verbs.vm_devices")
def unprepare() -> None:
    """Return the devices of claims to this host in their original state. The claims stay allocated.

    Unplugs them from their machine first.

    \b
    devalloc vm unprepare train && devalloc release train
    """


@verb("power-down")
@option_of(PluginOptions, "state")
@option_of(PluginOptions, "machine_dir")
@socket_option
@click.option(
    "--timeout", type=parse_duration, default="90s", metavar="DURATION", help="Time limit for all guests together."
)
@runs("devalloc.cli.verbs.vm_power_down")
def power_down() -> None:
    """Ask the guests of all machines to power down, because the host does. Exit code 1 if one does not.

    The node plugin must not run, because it would start them again. When the host comes back, the machines start again
    by their restart policies. Adopted machines are left alone.

    \b
    devalloc vm power-down --timeout 2m
    """


@verb("top")
@namespace_option
@all_namespaces_option
@click.option("-w", "--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    type=parse_duration,
    default="1s",
    metavar="DURATION",
    help="How long to measure CPU usage; with --watch also how often.",
)
@output_option("table", "wide", "json", "yaml")
@socket_option
@runs("devalloc.cli.verbs.vm_top")
def top() -> None:
    """Show CPU and memory of machines: wanted, permitted, set, actual, and as the guest sees them.

    LOAD and USED are the load and memory usage that the guest of a scaled machine reports. CPU (percent of one core)
    and RSS are what its QEMU uses of the host; "-" if they cannot be read. REASON: why the machine does not have what
    it wants.

    \b
    devalloc vm top -A --watch
    devalloc vm top -o wide
    """


@click.group(
    "vm",
    cls=VerbGroup,
    other_words={"run": "create", "ls": "list", "describe": "get", "rm": "delete"},
    advice={
        "start": "start a machine with `devalloc start vm/NAME`, or `vm create` one from a manifest",
        **{
            name: f"write `devalloc {name} vm/NAME`"
            for name in ("restart", "pause", "resume", "migrate", "console", "logs")
        },
    },
)
def vm() -> None:
    """Start, adopt, scale and stop machines on this node, and plug devices of claims into them.

    These commands use the node plugin (`devalloc node`) on this machine. To change machines that have a VirtualMachine
    object in the store, use `devalloc apply`.
    """


@verb("list")
@namespace_option
@all_namespaces_option
@output_option()
@plugin_options
@runs("devalloc.cli.verbs.vm")
def list_machines() -> None:
    """List the plugin's machines. VCPUS and MEMORY show what QEMU reports, and what is wanted.

    \b
    devalloc vm list -A -o wide
    """


@verb("get")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@output_option()
@plugin_options
@runs("devalloc.cli.verbs.vm")
def get() -> None:
    """Show machines by name. Exit code 1 if one of them does not exist.

    \b
    devalloc vm get web -o yaml
    """


@verb("create")
@files_option(required=True, help="A file with VirtualMachines, a folder, or - for stdin. Repeatable.")
@namespace_option
@plugin_options
@runs("devalloc.cli.verbs.vm_create")
def create() -> None:
    """Start the machines of manifests, or adopt those with spec.adopt, with all devices of their claims or not at all.

    The claims must be allocated on this node. The command writes nothing to the store: the node plugin keeps the
    machines, and restarts them by their restartPolicy. For machines that follow their manifests, use `devalloc apply`.

    \b
    devalloc vm create -f vm.yaml
    """


@dataclass(frozen=True, slots=True)
class MachineBounds:
    """Between what amounts a machine is scaled, as a user writes them."""

    cpu: str
    memory: str
    slot_size: str | None


@verb("adopt")
@click.argument("name", metavar="NAME")
@click.option("--qmp-socket", type=click.Path(path_type=Path), required=True, help="The socket of QEMU's monitor.")
@click.option("--cpu", "cpu", required=True, metavar="MIN..MAX", help="Bounds of its cores, such as 1..4 or 500m..2.")
@click.option("--memory", required=True, metavar="MIN..MAX", help="Bounds of its memory, such as 512Mi..2Gi.")
@click.option("--slot-size", metavar="BYTES", help="Add memory in DIMMs of this size [default: with virtio-mem].")
@click.option("--claim", "claims", multiple=True, metavar="NAME", help="Plug in this claim's devices; repeatable.")
@namespace_option
@plugin_options
@passed_as("bounds", MachineBounds)
@runs("devalloc.cli.verbs.vm")
def adopt() -> None:
    """Let the plugin manage a QEMU that already runs.

    \b
    devalloc vm adopt web --qmp-socket /run/vms/web.qmp --cpu 1..4 --memory 512Mi..2Gi
    """


@verb("stop")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@grace_option
@force_option
@namespace_option
@plugin_options
@runs("devalloc.cli.verbs.vm")
def stop() -> None:
    """Ask guests to power down, and wait. Machines keep their claims until `devalloc vm delete`.

    \b
    devalloc vm stop web --grace 1m --force
    """


@verb("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@grace_option
@force_option
@namespace_option
@plugin_options
@runs("devalloc.cli.verbs.vm")
def delete() -> None:
    """Stop machines and release their claims' devices. An adopted machine keeps running, without the devices.

    \b
    devalloc vm delete web
    """


@verb("scale")
@click.argument("name", metavar="NAME")
@click.option("--vcpus", type=WholeNumber(1, 1024), metavar="NUMBER", help="How many CPUs its guest sees.")
@click.option("--cpu", metavar="CORES", help="Maximum CPU time of all vCPUs together, such as 1500m; 0 for no limit.")
@click.option("--memory", metavar="BYTES", help="How much memory it has, such as 2Gi.")
@namespace_option
@output_option("table", "json", "yaml")
@plugin_options
@runs("devalloc.cli.verbs.vm")
def scale() -> None:
    """Change a running machine's CPU and memory, within its bounds. Prints what it has afterwards.

    \b
    devalloc vm scale web --vcpus 4 --memory 2Gi
    """


@verb("watch")
@namespace_option
@all_namespaces_option
@output_option("table", "wide", "json", "yaml")
@socket_option
@runs("devalloc.cli.verbs.vm")
def watch() -> None:
    """Show the machines, then every change, until Ctrl-C.

    \b
    devalloc vm watch -A
    """


for _verb in (
    *(list_machines, get, create, adopt, stop, delete, scale, top, watch, power_down),
    *(attach, detach, plug, unplug, unprepare),
):
    vm.add_command(_verb)


_NO_CLUSTER = dict.fromkeys(
    ("--kubeconfig", "--context"),
    "it uses the socket of the node plugin: on the machine's node, or in its pod: "
    "kubectl -n devalloc-system exec -it POD -- devalloc {} vm/NAME",
)


def _advice(name: str) -> dict[str, str]:
    """What to do instead of options that these verbs do not have."""
    return {option: text.format(name) for option, text in _NO_CLUSTER.items()}


@verb("console", advice=_advice("console"))
@click.argument("name", metavar="vm/NAME")
@namespace_option
@socket_option
@runs("devalloc.cli.verbs.console")
def console() -> None:
    """Open the console of a machine: its guest's first serial port, ttyS0. Ctrl-] ends it.

    All else that you type goes to the guest, Ctrl-C too. What the guest writes goes to your terminal as it is; for
    guests that you do not trust use `devalloc logs`. A serial port has no size: in the guest, `stty rows 40 cols 120`.

    Run it on the machine's node: it uses the socket of the node plugin there. Without a terminal, it sends its input
    and ends when the guest is silent.

    \b
    devalloc console vm/web
    printf 'root\\nuname -r\\n' | devalloc console vm/web
    """


@verb("logs", advice=_advice("logs"))
@click.argument("name", metavar="vm/NAME")
@click.option("-f", "--follow", is_flag=True, help="Then show what is written, until Ctrl-C.")
@click.option("--tail", type=WholeNumber(1), metavar="LINES", help="Only its last lines.")
@click.option("--qemu", is_flag=True, help="The log of its QEMU, instead of the guest's console.")
@click.option("-p", "--previous", is_flag=True, help="With --qemu: the log of the run before.")
@namespace_option
@socket_option
@runs("devalloc.cli.verbs.console")
def logs() -> None:
    """Show what a machine's guest has written on its console, of all its runs; with --qemu, what its QEMU has written.

    The logs stay until the machine is deleted; the node plugin empties one that is longer than 8 MiB. Run it on the
    machine's node. On a terminal, control characters are escaped.

    \b
    devalloc logs vm/web --tail 50
    devalloc logs vm/web -f
    devalloc logs vm/web --qemu
    """
