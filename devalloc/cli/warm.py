"""``devalloc warm``: the warm setups of this node, through the node plugin's socket."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from devalloc.cli.nodesocket import socket_option, timeout_option
from devalloc.cli.options import namespace_option, output_option
from devalloc.cli.output import note
from devalloc.cli.verb import BadInput, Verbs, verb

MOST_VCPUS = 1 << 16
"""As many as the node plugin takes."""


@click.group("warm", cls=Verbs)
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
    from devalloc.cli.columns import elapsed
    from devalloc.cli.nodesocket import connected_to_pool, content
    from devalloc.cli.output import dump, table
    from devalloc_node.pb.warm_pb2 import GetPoolRequest

    with connected_to_pool(socket) as pool:
        status = pool.GetPool(GetPoolRequest(), timeout=timeout)
    if output != "table":
        dump(content(status), output)
        return 0
    click.echo(
        f"{status.ready} ready of {status.target} wanted, {len(status.taken)} taken, {status.making} being made, "
        f"{status.removing} being removed; {status.most} at most"
    )
    if status.taken:
        rows = [
            [
                each.setup.id,
                each.owner,
                elapsed(datetime.fromtimestamp(each.taken_ms / 1000, UTC)),
                ",".join(map(str, each.setup.cpus)),
                each.setup.folder,
            ]
            for each in status.taken
        ]
        table(["SETUP", "OWNER", "AGE", "CPUS", "FOLDER"], rows)
    if status.problem:
        note(f"warning: {status.problem}")
    return 0


@verb("take")
@click.argument("owner", metavar="OWNER")
@click.option("--request", default="", metavar="NAME", help="With the same name again the answer is the same setup.")
@click.option(
    "--vcpus", type=click.IntRange(0, MOST_VCPUS), default=0, help="Choose so many CPUs of the host, the least loaded."
)
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


@verb("replica")
@click.option("-f", "--file", required=True, metavar="FILE", help="A function's deployment, as YAML or JSON.")
@click.option("--replicas", type=click.IntRange(0), help="How many, within the bounds that its labels say.")
@click.option("--requests", type=click.IntRange(0), help="As many as serve so many requests at the same time.")
@click.option("--node", default="", metavar="NODE", help="The node that is to run them.")
@namespace_option
@output_option("json", "yaml", default="yaml")
def replica(file: str, replicas: int | None, requests: int | None, node: str, namespace: str, output: str) -> int:
    """Print the VirtualMachines that are the replicas of a function, each in a warm setup, for `devalloc apply`.

    FILE has `service`, `image`, `labels` and `envVars`, as OpenFaaS has them. How many there are is the least that the
    labels say, unless --replicas or --requests says more.

    \b
    devalloc warm replica -f resize.yaml --requests 23 | devalloc apply -f -
    """
    from devalloc.cli.functions import read_function
    from devalloc.cli.output import dump_objects
    from devalloc_node.errors import Denied
    from devalloc_node.warm.replicas import number_of, replicas_of
    from devalloc_node.warm.requests import replica_request

    if replicas is not None and requests is not None:
        raise BadInput("say --replicas or --requests, not both")
    function = read_function(file)
    try:
        request = replica_request(function.labels, function.environment, function.image)
        number = number_of(request, replicas=replicas, requests=requests)
        found = replicas_of(request, function.name, number, namespace=namespace, node=node)
    except Denied as error:
        raise BadInput(f"{file}: {error.message}") from None
    served = number * request.environments
    for text in (*function.notes, *found.notes):
        note(f"note: {text}")
    if requests is not None and requests > served:
        note(f"note: {number} replicas of {request.environments} execution environments serve {served} requests at the "
             f"same time; {requests - served} of {requests} wait")  # fmt: skip
    if not found.manifests:
        note("note: no replicas are wanted; say --replicas or --requests")
    dump_objects(found.manifests, output)
    return 0


for _verb in (list_setups, take, give_back, replica):
    warm.add_command(_verb)
