"""``devalloc warm``: this node's warm setups, through the node plugin's socket."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.cli.node_client import (
    connect_warm_pool,
    failure_message,
    message_content,
    print_result,
)
from devalloc.cli.render.cells import format_elapsed
from devalloc.cli.render.output import print_content, print_table
from devalloc.cli.terminal import print_line, print_note
from devalloc_node.pb.warm_pb2 import GetPoolRequest, ReturnSetupRequest, TakeSetupRequest

if TYPE_CHECKING:
    pass


def list_setups(output: str, socket: Path, timeout: float) -> int:
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


def take(owner: str, request: str, vcpus: int, one_numa_node: bool, output: str, socket: Path, timeout: float) -> int:
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


def give_back(setup: str, socket: Path, timeout: float) -> int:
    with connect_warm_pool(socket) as pool:
        reply = pool.ReturnSetup(ReturnSetupRequest(id=setup), timeout=timeout)
    return print_result(setup, "returned", reply.result)
