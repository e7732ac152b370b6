"""``devalloc up``: everything on this machine, in the foreground."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.display import Display, displayed
from devalloc.cli.nodeoptions import node_options
from devalloc.cli.options import duration, inventory_options, placement_option, store_option
from devalloc.cli.verb import Failed, verb

if TYPE_CHECKING:
    from devalloc.controller.allocate import Round
    from devalloc.controller.publish import Published
    from devalloc.controller.up import Inventory, Up
    from devalloc_node.daemon import Node
    from devalloc_node.settings import NodeSettings


@verb("up")
@store_option
@inventory_options
@node_options
@click.option("--no-inventory", is_flag=True, help="Answer claims only; publish and bind nothing of this host.")
@click.option("--no-node", is_flag=True, help="Without the node plugin: publish and answer claims, bind nothing.")
@click.option(
    "--resync",
    type=duration,
    default="60s",
    metavar="DURATION",
    help="Look at the devices and at all claims this often, even when no event says that something changed.",
)
@placement_option
@click.option(
    "--deadline",
    type=duration,
    default="10s",
    metavar="DURATION",
    help="How long the solver may think about one batch of claims; then the best answer so far counts.",
)
def up(
    store: Path | None,
    node_name: str | None,
    no_inventory: bool,
    no_node: bool,
    placement: str,
    deadline: float,
    dry_run: bool,
    **options: Any,
) -> int:
    """Publish this host's devices, answer claims, and bind what they got, until Ctrl-C (SIGTERM does the same).

    Only one `devalloc up` runs on a store. It may be killed at any moment and started again; what is prepared, and
    machines, stay as they are. SIGHUP makes it look at devices and claims now. Exit code 0 after a clean stop.
    """
    import socket
    from importlib.util import find_spec

    from devalloc.cli.nodeoptions import node_settings
    from devalloc.cli.nodesources import cutting_off
    from devalloc.cli.storage import store_path
    from devalloc.controller.allocate import AllocateSettings
    from devalloc.controller.up import Up, signals

    path = store_path(store)
    settings = node_settings(node=node_name or socket.gethostname().lower(), dry_run=dry_run, **options)
    with displayed() as display, cutting_off(display.say), ExitStack() as stack:
        display.say(f"node {settings.node_name}, store {path}; Ctrl-C stops")
        plugin = None
        if find_spec("grpc") is None and not no_node:
            display.say("without the node plugin, which is not installed: pip install 'devalloc[node]'")
            no_node = True
        if not (no_inventory or no_node):
            plugin = stack.enter_context(_plugin(settings, path, dry_run, display))
        loops = Up(
            path,
            None if no_inventory else _inventory(settings, plugin),
            settings=AllocateSettings(placement=placement, deadline=deadline, resync=settings.resync),
            resync=settings.resync,
            on_round=lambda done: _answered(display, done),
            on_published=lambda done: _published(display, done),
        )
        with _beside(plugin, loops, path, display.say), signals(_Both(loops, plugin)):
            loops.run()
        display.say("stopped" if plugin is None else "stopped; what is prepared stays so")
    return 0


@dataclass(frozen=True)
class _Both:
    """The loops and the plugin, for signals."""

    loops: Up
    plugin: Node | None

    def stop(self) -> None:
        self.loops.stop()

    def rescan(self) -> None:
        (self.plugin or self.loops).rescan()


@contextmanager
def _plugin(settings: NodeSettings, path: Path, dry_run: bool, display: Display) -> Iterator[Node]:
    from devalloc.cli.nodesources import host_of, store_source
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_node.daemon import opened

    host = host_of(settings, dry_run=dry_run, say=display.say)
    with closing(SQLiteStore(path)) as store, opened(settings, host, store_source(store, settings.node_name)) as node:
        yield node


def _inventory(settings: NodeSettings, plugin: Node | None) -> Inventory:
    from devalloc.controller.up import Inventory
    from devalloc.inventory import Discovery, Known, discover

    if plugin is not None:
        return Inventory(settings.node_name, plugin.discover, first=True)

    def look(known: Known) -> Discovery:
        return discover(settings.root, node_name=settings.node_name, config=settings.inventory.knowing(known))

    return Inventory(settings.node_name, look)


@contextmanager
def _beside(plugin: Node | None, loops: Up, path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """While inside, the plugin runs in a thread of its own. When one of the two ends, so does the other."""
    if plugin is None:
        yield
        return
    from devalloc.cli.nodesources import store_machines
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_node.daemon import Publishing
    from devalloc_node.errors import NodeError

    failures: list[BaseException] = []

    def run(store: SQLiteStore) -> None:
        try:
            plugin.run(Publishing((), loops.rescan), say, beside=[store_machines(store, plugin)])
        except BaseException as error:
            failures.append(error)
        finally:
            loops.stop()

    with closing(SQLiteStore(path)) as store:
        thread = threading.Thread(target=run, args=(store,), name="node")
        thread.start()
        try:
            yield
        finally:
            plugin.stop()
            thread.join()
    for error in failures:
        raise Failed(error.message) if isinstance(error, NodeError) else error


def _published(display: Display, done: Published) -> None:
    if done.created or done.updated or done.deleted or done.refused:
        display.say(f"pools: {done}")


def _answered(display: Display, done: Round) -> None:
    for key in done.granted:
        display.say(f"{key} allocated")
    display.state(
        f"pools {done.pools}, devices {done.devices} ({done.available} available), "
        f"claims {done.claims} ({done.allocated} allocated, {done.waiting} waiting)"
    )
