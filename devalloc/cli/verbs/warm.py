"""``devalloc warm``: this node's warm setups, through the node plugin's socket."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
from click.core import ParameterSource

from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.cli.command import BadInput, VerbGroup, verb
from devalloc.cli.machine_requests import read_function
from devalloc.cli.node_client import (
    connect_warm_pool,
    failure_message,
    message_content,
    print_result,
    socket_option,
    timeout_option,
)
from devalloc.cli.options.common import namespace_option, output_option, store_option
from devalloc.cli.render.cells import format_elapsed
from devalloc.cli.render.output import print_content, print_objects, print_table
from devalloc.cli.storage import open_embedded_store
from devalloc.cli.terminal import print_line, print_note
from devalloc_node.errors import Denied
from devalloc_node.pb.warm_pb2 import GetPoolRequest, ReturnSetupRequest, TakeSetupRequest

if TYPE_CHECKING:
    from devalloc_machines.qemu.spec import CloneMode
    from devalloc_machines.warm.function_replicas import ReplicaRequest

MIB = 1 << 20
MAX_VCPUS = 1 << 16
"""The node plugin's maximum."""


@click.group("warm", cls=VerbGroup)
def warm() -> None:
    """Use warm setups: network namespaces with a TAP interface and a folder, created before a machine needs them.

    `devalloc node --warm NUMBER` keeps that many ready. Platforms take them with gRPC (devalloc.node.v1.WarmPool),
    people with these commands.
    """


@verb("list")
@output_option("table", "json", "yaml")
@socket_option
@timeout_option
def list_setups(output: str, socket: Path, timeout: float) -> int:
    """Show how many setups there are, and the owners of those that are taken.

    \b
    devalloc warm list
    """
    with connect_warm_pool(socket) as pool:
        status = pool.GetPool(GetPoolRequest(), timeout=timeout)
    if output != "table":
        print_content(message_content(status), output)
        return 0
    print_line(
        f"{status.ready} ready of {status.target} wanted, {len(status.taken)} taken, {status.making} being made, "
        f"{status.removing} being removed; {status.most} at most"
    )
    if status.taken:
        has_network = any(each.setup.address for each in status.taken)
        rows = [
            [
                each.setup.id,
                each.owner,
                format_elapsed(datetime.fromtimestamp(each.taken_ms / 1000, UTC)),
                ",".join(map(str, each.setup.cpus)),
                *([each.setup.address.partition("/")[0]] if has_network else []),
                each.setup.folder,
            ]
            for each in status.taken
        ]
        print_table(["SETUP", "OWNER", "AGE", "CPUS", *(["ADDRESS"] if has_network else []), "FOLDER"], rows)
    if status.problem:
        print_note(f"warning: {status.problem}")
    return 0


@verb("take")
@click.argument("owner", metavar="OWNER")
@click.option(
    "--request", default="", metavar="NAME", help="Name of this request; repeating it returns the same setup."
)
@click.option(
    "--vcpus",
    type=click.IntRange(0, MAX_VCPUS),
    default=0,
    help="Number of host CPUs to choose, the least loaded ones.",
)
@click.option("--one-numa-node", is_flag=True, help="Choose all CPUs from one NUMA node.")
@output_option("table", "json", "yaml")
@socket_option
@timeout_option
def take(owner: str, request: str, vcpus: int, one_numa_node: bool, output: str, socket: Path, timeout: float) -> int:
    """Take a setup. It belongs to OWNER until it is returned.

    \b
    devalloc warm take web-7 --vcpus 2
    """
    take_request = TakeSetupRequest(owner=owner, request=request, vcpus=vcpus, one_numa_node=one_numa_node)
    with connect_warm_pool(socket) as pool:
        reply = pool.TakeSetup(take_request, timeout=timeout)
    if why := failure_message(reply.result):
        print_note(f"error: no setup for {owner}: {why}")
        return 1
    if output != "table":
        print_content(message_content(reply.setup), output)
        return 0
    setup = reply.setup
    for name, value in (
        ("setup", setup.id),
        ("namespace", setup.namespace_path),
        ("tap", setup.tap),
        ("mac", setup.mac),
        ("address", setup.address),
        ("gateway", setup.gateway),
        ("nameservers", ",".join(setup.nameservers)),
        ("folder", setup.folder),
        ("cpus", ",".join(map(str, setup.cpus))),
        ("numa nodes", ",".join(map(str, setup.numa_nodes))),
        ("qmp socket", setup.qmp_socket),
    ):
        if value:
            print_line(f"{name + ':':<13}{value}")
    return 0


@verb("return")
@click.argument("setup", metavar="SETUP")
@socket_option
@timeout_option
def give_back(setup: str, socket: Path, timeout: float) -> int:
    """Wait until no process runs in a setup any more, then return it; the plugin removes it.

    \b
    devalloc warm return warm-4f2b9c3d5e6a7b8c9d0e --timeout 5s
    """
    with connect_warm_pool(socket) as pool:
        reply = pool.ReturnSetup(ReturnSetupRequest(id=setup), timeout=timeout)
    return print_result(setup, "returned", reply.result)


class ReplicaOptions(TypedDict):
    """What replicas are to be like."""

    replicas: int | None
    requests: int | None
    clone: CloneMode
    disk: str | None
    node: str
    guest_reports: bool


@verb("replica")
@click.option("-f", "--file", required=True, metavar="FILE", help="A function's deployment, as YAML or JSON.")
@click.option("--replicas", type=click.IntRange(0), help="Number of replicas, within the bounds of its labels.")
@click.option(
    "--requests", type=click.IntRange(0), help="As many replicas as serve this number of concurrent requests."
)
@click.option(
    "--clone",
    type=click.Choice(["overlay", "copy"]),
    default="overlay",
    show_default=True,
    help="Without an initrd: how each replica gets a disk of its own from the image.",
)
@click.option(
    "--disk",
    metavar="SIZE",
    help="Without an initrd: the most that a replica's disk can take. By default, what the image needs, if it can be "
    "read here.",
)
@click.option("--node", default="", metavar="NODE", help="The node that runs them.")
@click.option(
    "--guest-reports",
    is_flag=True,
    help="A replica is ready when its guest reports so on its second serial port, and not as soon as it runs.",
)
@click.option("--apply", "applies", is_flag=True, help="Create or update the set in the store, instead of printing it.")
@namespace_option
@output_option("json", "yaml", default="yaml")
@store_option
def replica(
    file: str, applies: bool, namespace: str, output: str, store: Path | None, **options: Unpack[ReplicaOptions]
) -> int:
    """Print the VirtualMachineReplicaSet of a function, each replica in a warm setup, or create it with --apply.

    FILE contains `service`, `image`, `labels` and `envVars`, as in OpenFaaS. The number of replicas is the minimum of
    the labels, unless --replicas or --requests is higher.

    \b
    devalloc warm replica -f resize.yaml --requests 23 --apply
    devalloc warm replica -f resize.yaml --disk 2Gi | kubectl apply -f -
    """
    from devalloc_machines.warm.function_replicas import OwnDisk, number_of, replica_request, replicas_of

    requests, clone = options["requests"], options["clone"]
    if options["replicas"] is not None and requests is not None:
        raise BadInput("give --replicas or --requests, not both")
    function = read_function(file)
    wrong = [*function.problems]
    try:
        request = replica_request(function.labels, function.environment, function.image)
    except Denied as error:
        wrong.append(error.message)
    if wrong:
        raise BadInput("; ".join(f"{file}: {each}" for each in wrong))
    try:
        number = number_of(request, replicas=options["replicas"], requests=requests)
        own = OwnDisk(clone, _disk_bytes(request, clone, options["disk"]))
        planned = replicas_of(
            request,
            function.name,
            number,
            own,
            namespace=namespace,
            node=options["node"],
            guest_reports=options["guest_reports"],
        )
    except Denied as error:
        raise BadInput(f"{file}: {error.message}") from None
    served = number * request.environments
    for text in (*function.notes, *planned.notes):
        print_note(f"note: {text}")
    if requests is not None and requests > served:
        print_note(f"note: {number} replicas of {request.environments} execution environments serve {served} requests "
             f"at the same time; {requests - served} of {requests} wait")  # fmt: skip
    if not number:
        print_note("note: the number of replicas is 0; use --replicas or --requests")
    if not applies:
        print_objects([planned.manifest], output)
        return 0
    from devalloc.cli.verbs.apply import apply_object

    with open_embedded_store(store, create=True) as objects:
        refusal, outcome = apply_object(objects, planned.manifest, dry_run=False)
    if refusal:
        print_note(f"error: {refusal}")
        return 1
    print_line(f"virtualmachinereplicaset/{function.name} {outcome}")
    return 0


def _disk_bytes(request: ReplicaRequest, clone: CloneMode, disk: str | None) -> int:
    """What the disk of a replica can take: as said, or what its image needs. Raises BadInput, Denied."""
    from devalloc_machines.qemu.cloned_disks import most_bytes
    from devalloc_machines.warm.function_replicas import image_disk

    if request.initrd:
        source_of = click.get_current_context().get_parameter_source
        for name in ("disk", "clone"):
            if source_of(name) is not ParameterSource.DEFAULT:
                raise BadInput(
                    f"--{name} has no effect: with an initrd (label INITRD_PATH) all replicas read the image, and none "
                    f"has a disk of its own; leave out --{name}, or remove the label"
                )
        return 0
    if disk is not None:
        try:
            amount = Quantity.parse(disk)
        except QuantityError as error:
            raise BadInput(f"--disk: {error}") from None
        return -(-amount.nano // NANO)
    try:
        size = most_bytes(image_disk(request, clone), Path(request.image))
    except OSError as error:
        raise BadInput(
            f"cannot read the image {request.image} here: {error.strerror}; name the most that a replica's disk can "
            "take with --disk, such as --disk 2Gi"
        ) from None
    return -(-size // MIB) * MIB


for _verb in (list_setups, take, give_back, replica):
    warm.add_command(_verb)
