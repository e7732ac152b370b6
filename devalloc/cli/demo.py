"""``devalloc demo``: the main job in one screen, on the real loops with an embedded store of its own."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.output import Cell, Styled, heading, lines, table, working
from devalloc.cli.verb import need, verb

if TYPE_CHECKING:
    from devalloc.store.protocol import Store

DATA = Path(__file__).parent / "data"
STORY = "demo.devalloc.io/story"
"""Annotation on the demo's claims: what the claim asks for, in words."""
IMPOSSIBLE = "router"

Object = dict[str, Any]


@verb("demo")
def demo() -> int:
    """Show the main job in one screen, in a few seconds. Changes nothing on this machine and needs no special rights.

    It looks at this host's devices, allocates claims on a small recorded fleet, explains one that cannot work, and says
    how to go on.
    """
    need("ortools", "re2", "devalloc_solver.stages")
    with tempfile.TemporaryDirectory(prefix="devalloc-demo-") as folder:
        from devalloc.store.sqlite import SQLiteStore

        _this_host()
        store = SQLiteStore(Path(folder) / "demo.db")
        try:
            _fleet(store)
            _claims(store)
        finally:
            store.close()
    _go_on()
    return 0


def _this_host() -> None:
    from devalloc.cli.inventory import show_pools
    from devalloc.inventory import discover

    node = socket.gethostname().lower()
    heading(f"This host, {node}, has:")
    with working("looking at /sys"):
        found = discover(Path("/"), node_name=node)
    show_pools([pool.to_manifest() for pool in found.pools], wide=False)


def _fleet(store: Store) -> None:
    from devalloc.cli.columns import header_and_rows

    for name in ("dgx", "edge", "net-server", "vgpu-server"):
        _create(store, DATA / f"fleet-{name}.yaml")
    _create(store, DATA / "classes.yaml")
    click.echo()
    heading("To show more than that, a small fleet: two recorded machines, and two written by hand:")
    wanted = ("NAME", "NODE", "MODEL", "NUMA", "DEVICES")
    headers, rows = header_and_rows("DevicePool", store.list("DevicePool").objects, wide=False, namespaces=False)
    columns = [headers.index(header) for header in wanted]
    table(wanted, [[row[column] for column in columns] for row in rows])


def _claims(store: Store) -> None:
    from devalloc.api.inwords import devices_text
    from devalloc.cli.explanation import show
    from devalloc.controller.allocate import Allocator
    from devalloc_solver import solve_manifests

    stories = _create(store, DATA / "claims.yaml")
    with working("allocating"):
        Allocator(store).round()
    rows: list[list[Cell]] = []
    for claim in store.list("DeviceClaim").objects:
        name, annotations = claim["metadata"]["name"], claim["metadata"]["annotations"]
        entries = claim.get("status", {}).get("allocations", [])
        got = Styled(devices_text(entries, limit=3), "green") if entries else Styled("nothing: see below", "red")
        rows.append([name, stories[name], annotations.get("devalloc.io/allocated-node", ""), got])
    click.echo()
    heading("What each claim asks for, and what the allocator gave it:")
    table(["CLAIM", "ASKS FOR", "NODE", "GOT"], rows)
    answer = solve_manifests(store.list().objects)
    click.echo()
    show(next(claim for claim in answer["claims"] if claim["name"] == IMPOSSIBLE))


def _create(store: Store, file: Path) -> dict[str, str]:
    """Put a file's objects into the store; returns the stories by name."""
    from devalloc.api.manifests import load

    stories = {}
    manifests = load([file])
    assert not manifests.problems, manifests.problems
    for document in manifests.documents:
        metadata = document.content["metadata"]
        if document.content["kind"] == "DeviceClaim":
            metadata["namespace"] = "default"
            stories[metadata["name"]] = metadata["annotations"].pop(STORY)
        store.create(document.content)
    return stories


def _go_on() -> None:
    click.echo()
    heading("How to go on:")
    steps = [
        ["devalloc solve -f examples/whole-gpu", "the same for manifests; examples/ has a dozen to copy"],
        ["devalloc up", "publish this host's devices and answer claims, until Ctrl-C"],
        ["devalloc apply -f FILE", "meanwhile, in another terminal: add classes and claims, then"],
        ["devalloc get claims", "see what they got"],
        ["devalloc --help", "all verbs"],
    ]
    if shutil.which("devalloc") is None:
        steps.insert(0, [f"source {sys.prefix}/bin/activate", "first, so that your shell finds it"])
    for line in lines(["", ""], steps)[1:]:
        click.echo(f"  {line}")
