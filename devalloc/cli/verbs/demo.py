"""``devalloc demo``: what devalloc does, on a small fleet. It runs the real loops on an embedded store of its own."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from devalloc.api.manifests import load
from devalloc.api.views import format_devices
from devalloc.cli.command import require_packages
from devalloc.cli.example_files import example_folders, is_repository
from devalloc.cli.render.columns import header_and_rows
from devalloc.cli.render.explanation import print_explanation
from devalloc.cli.render.host import print_pools
from devalloc.cli.render.output import Cell, StyledText, print_table, show_spinner, table_lines
from devalloc.cli.terminal import print_heading, print_line, print_row
from devalloc.controller.reconcile.device_claims import DEFAULT_SETTINGS, DeviceClaimAllocator
from devalloc.inventory.discover import discover
from devalloc.machines.schedule.requester import requesters
from devalloc.store.protocol import Store
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests

DATA = Path(__file__).parents[1] / "data"
STORY = "demo.devalloc.io/story"
"""Annotation of the demo's claims and machines: what they ask for, in words."""
IMPOSSIBLE = "router"


def demo() -> int:
    require_packages("ortools", "re2", "devalloc_solver.dialects.device_claims.problem")
    with tempfile.TemporaryDirectory(prefix="devalloc-demo-") as folder:
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
    node = socket.gethostname().lower()
    print_heading(f"This host, {node}, has:")
    with show_spinner("looking at /sys"):
        discovery = discover(Path("/"), node_name=node)
    print_pools([pool.to_manifest() for pool in discovery.pools], wide=False)


def _fleet(store: Store) -> None:
    for name in ("dgx", "edge", "net-server", "vgpu-server"):
        _create(store, DATA / f"fleet-{name}.yaml")
    _create(store, DATA / "classes.yaml")
    print_line()
    print_heading("A small sample fleet, to show more: two recorded machines, and two written by hand:")
    wanted = ("NAME", "NODE", "MODEL", "NUMA", "DEVICES")
    headers, rows = header_and_rows("DevicePool", store.list("DevicePool").objects, wide=False, namespaces=False)
    columns = [headers.index(header) for header in wanted]
    print_table(wanted, [[row[column] for column in columns] for row in rows])


def _claims(store: Store) -> None:
    stories = _create(store, DATA / "claims.yaml") | _create(store, DATA / "machine.yaml")
    with show_spinner("allocating"):
        DeviceClaimAllocator(store, settings=replace(DEFAULT_SETTINGS, requesters=requesters())).round()
    rows: list[list[Cell]] = []
    for claim in store.list("DeviceClaim").objects:
        name, annotations = claim["metadata"]["name"], claim["metadata"]["annotations"]
        entries = claim.get("status", {}).get("allocations", [])
        got = (
            StyledText(format_devices(entries, limit=3), "green")
            if entries
            else StyledText("nothing: see below", "red")
        )
        rows.append([name, stories[name], annotations.get("devalloc.io/allocated-node", ""), got])
    print_line()
    print_heading("What each claim asks for, and what it got:")
    print_table(["CLAIM", "ASKS FOR", "NODE", "GOT"], rows)
    _machines(store, stories)
    answer = solve_manifests(store.list().objects)
    print_line()
    print_explanation(next(claim for claim in answer["claims"] if claim["name"] == IMPOSSIBLE))


def _machines(store: Store, stories: dict[str, str]) -> None:
    rows: list[list[Cell]] = []
    for machine in store.list("VirtualMachine").objects:
        name, status = machine["metadata"]["name"], machine["status"]
        reserved = StyledText(format_devices(status["allocations"]), "green")
        rows.append([name, stories[name], ", ".join(machine["spec"]["claims"]), status["nodeName"], reserved])
    print_line()
    print_heading("A machine is placed together with its claims, and its node starts it with their devices:")
    print_table(["MACHINE", "ASKS FOR", "CLAIMS", "NODE", "RESERVED"], rows)


def _create(store: Store, file: Path) -> dict[str, str]:
    """Create a file's objects in the store; returns the stories by name."""
    stories = {}
    manifests = load([file])
    assert not manifests.problems, manifests.problems
    for document in manifests.documents:
        metadata = document.content["metadata"]
        if document.content["kind"] in ("DeviceClaim", "VirtualMachine"):
            metadata["namespace"] = "default"
            stories[metadata["name"]] = metadata["annotations"].pop(STORY)
        store.create(document.content)
    return stories


def _go_on() -> None:
    print_line()
    print_heading("What to try next:")
    steps = [
        ["devalloc examples", f"list {len(example_folders())} examples to copy"],
        ["devalloc examples whole-gpu | devalloc solve -f -", "allocate claims from manifests"],
        ["devalloc up", "publish this host's devices and allocate claims, until Ctrl-C"],
        ["devalloc apply -f FILE", "meanwhile, in another terminal: add classes and claims"],
        ["devalloc get claims", "show what the claims got"],
        ["devalloc --help", "list all commands"],
    ]
    if is_repository():
        steps.insert(-1, ["make demo-machine", "a GPU in a machine, on an emulated host: a few minutes"])
    if shutil.which("devalloc") is None:
        steps.insert(0, [f"source {sys.prefix}/bin/activate", "first, so that your shell finds devalloc"])
    lines = table_lines(["", ""], steps)[1:]
    if sys.stdout.isatty() and max(map(len, lines)) + 2 > shutil.get_terminal_size().columns:
        lines = [line for command, about in steps for line in (command, f"    {about}")]
    for line in lines:
        print_row(f"  {line}")
