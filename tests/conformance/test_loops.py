"""Loops that go on until they are stopped are `Worker`, `repeat` or `Watcher`; each that is not is in a table here.

Such a loop is a ``while`` whose condition asks whether something was stopped, or a ``while True`` that asks it inside.
What waits in an event loop is cancelled instead, and is none of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("devalloc", "node-plugin", "solver")
MECHANISM = {
    "devalloc/store/watcher.py: Watcher.run",
    "devalloc/worker.py: Worker.run",
    "devalloc/worker.py: repeat",
}
BY_HAND = {
    "devalloc/controller/leader/election.py: LeaderElection._take_over": "any error but one of the store ends it",
    "devalloc/controller/leader/election.py: LeaderElection._wait": "stops by a queue, which signal handlers may use",
    "devalloc/controller/leader/election.py: LeaderElection.run": "the same, and the lease has a clock of its own",
    "devalloc/controller/reconcile/loop.py: ReconcileLoop._run": "the one loop of all that allocates",
    "devalloc/controller/reconcile/loop.py: ReconcileLoop.wait_for_change": "its wait: for the store, or for a search",
    "devalloc/inventory/watch.py: InventoryWatcher.run": "waits for events of the kernel, until they are over",
    "devalloc/program.py: run": "messages to the process, also from signal handlers",
    "devalloc/store/fencing.py: fence_objects": "until nothing is left that the last leader could write",
    "devalloc/store/kubernetes/client.py: ConnectionCutter.run": "waits for the first of two events",
    "devalloc/store/kubernetes/reflector.py: Reflector._run": "what watchers watch: the API server's own watches",
    "devalloc/store/kubernetes/store.py: KubernetesStore.watch": "what watchers watch",
    "devalloc/store/sqlite.py: SQLiteStore.watch": "what watchers watch",
    "node-plugin/devalloc_machines/agent/agent.py: WakeableRounds.run": "in an event loop",
}
"""Why they are loops of their own."""
MOST = 13
_ASKS = ("is_set", "wait")
_STOPS = ("stop", "over", "closed", "closing")


def _is_stop(node: ast.AST) -> bool:
    """Whether it asks for a stop: an event, a message, or a function that does."""
    if isinstance(node, ast.Constant):
        return node.value == "stop"
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr not in _ASKS:
        return node.func.attr.endswith("is_stopped")
    event = node.func.value
    name = event.id if isinstance(event, ast.Name) else event.attr if isinstance(event, ast.Attribute) else ""
    return name.lstrip("_").startswith(_STOPS)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below it, without those of functions in it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own(child)


def _loops(node: ast.AST, names: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of the functions with such a loop."""
    for child in ast.iter_child_nodes(node):
        is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(child, ast.While):
            is_endless = isinstance(child.test, ast.Constant)
            if any(map(_is_stop, _own(child if is_endless else child.test))):
                yield ".".join(names)
        yield from _loops(child, (*names, child.name) if is_named else names)  # type: ignore[attr-defined]


def product_loops() -> set[str]:
    return {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in _loops(ast.parse(path.read_text()))
    }


def test_each_loop_is_the_mechanism_or_has_a_reason() -> None:
    """A new one: use `Worker` for keys, `repeat` for what is done now and then, `Watcher` for objects of a store."""
    assert product_loops() == BY_HAND.keys() | MECHANISM
    assert len(BY_HAND) <= MOST


def test_a_loop_by_hand_is_seen() -> None:
    source = """
class Watch:
    def run(self, stop):
        while not stop.wait(1.0):
            pass

    def later(self):
        def work():
            while True:
                if self._stopped.is_set():
                    return
        while True:
            work()
        while self.left > 0 and not over.is_set():
            pass
"""
    assert sorted(_loops(ast.parse(source))) == ["Watch.later", "Watch.later.work", "Watch.run"]
