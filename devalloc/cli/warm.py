"""``devalloc warm``: the warm setups of this node, through the node plugin's socket."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from devalloc.cli.nodesocket import socket_option, timeout_option
from devalloc.cli.options import output_option
from devalloc.cli.output import note
from devalloc.cli.verb import verb


@click.group("warm")
def warm() -> None:
    """Warm setups of this node: network namespaces with a TAP interface and a folder, made before they are needed.

    The node plugin keeps them ready with `devalloc node --warm NUMBER`. Platforms take them by gRPC
    (devalloc.node.v1.WarmPool), people by these commands.
    """


@verb("list")
@output_option("table", "json", "yaml")
@socket_option
@timeout_option
def list_setups(output: str, socket: Path, timeout: float) -> int:
    """How many setups there are, and who has which.

    \b
    devalloc warm list
    """
    from devalloc.cli.nodesocket import connected_to_pool, content
    from devalloc.cli.output import dump, table
    from devalloc_node.pb.warm_pb2 import GetPoolRequest

    with connected_to_pool(socket) as pool:
        status = pool.GetPool(GetPoolRequest(), timeout=timeout)
    if output != "table":
        dump(content(status), output)
        return 0
    click.echo(
        f"{status.idle} ready of {status.target} wanted, {len(status.taken)} taken, {status.making} being made, "
        f"{status.removing} being removed; {status.most} at most"
    )
    if status.taken:
        rows = [
            [
                each.setup.id,
                each.owner,
                datetime.fromtimestamp(each.taken_ms / 1000, UTC).isoformat(timespec="seconds"),
                ",".join(map(str, each.setup.cpus)),
                each.setup.folder,
            ]
            for each in status.taken
        ]
        table(["SETUP", "OWNER", "SINCE", "CPUS", "FOLDER"], rows)
    if status.problem:
        note(f"warning: {status.problem}")
    return 0


@verb("take")
@click.argument("owner", metavar="OWNER")
@click.option("--request", default="", metavar="NAME", help="With the same name again the answer is the same setup.")
@click.option("--vcpus", type=click.IntRange(0), default=0, help="Choose so many CPUs of the host, the least loaded.")
@click.option("--one-numa-node", is_flag=True, help="These CPUs must be on one NUMA node.")
@output_option("table", "json", "yaml")
@socket_option
@timeout_option
def take(owner: str, request: str, vcpus: int, one_numa_node: bool, output: str, socket: Path, timeout: float) -> int:
    """Take a setup, which is OWNER's until it is returned.

    \b
    devalloc warm take web-7 --vcpus 2
    """
    from devalloc.cli.nodesocket import connected_to_pool, content, failure
    from devalloc.cli.output import dump
    from devalloc_node.pb.warm_pb2 import TakeSetupRequest

    asked = TakeSetupRequest(owner=owner, request=request, vcpus=vcpus, one_numa_node=one_numa_node)
    with connected_to_pool(socket) as pool:
        reply = pool.TakeSetup(asked, timeout=timeout)
    if why := failure(reply.result):
        note(f"error: no setup for {owner}: {why}")
        return 1
    if output != "table":
        dump(content(reply.setup), output)
        return 0
    setup = reply.setup
    for name, value in (
        ("setup", setup.id),
        ("namespace", setup.namespace_path),
        ("tap", setup.tap),
        ("mac", setup.mac),
        ("folder", setup.folder),
        ("cpus", ",".join(map(str, setup.cpus))),
        ("numa nodes", ",".join(map(str, setup.numa_nodes))),
        ("qmp socket", setup.qmp_socket),
    ):
        if value:
            click.echo(f"{name + ':':<12}{value}")
    return 0


@verb("return")
@click.argument("setup", metavar="SETUP")
@socket_option
@timeout_option
def give_back(setup: str, socket: Path, timeout: float) -> int:
    """Return a setup once no process lives in it any more, which is waited for; it is removed then.

    \b
    devalloc warm return warm-4f2b9c3d5e6a7b8c9d0e --timeout 5s
    """
    from devalloc.cli.nodesocket import connected_to_pool, said
    from devalloc_node.pb.warm_pb2 import ReturnSetupRequest

    with connected_to_pool(socket) as pool:
        reply = pool.ReturnSetup(ReturnSetupRequest(id=setup), timeout=timeout)
    return said(setup, "returned", reply.result)


for _verb in (list_setups, take, give_back):
    warm.add_command(_verb)
