"""Cordon and uncordon devices (T17). Claims keep what they hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from devalloc.api.cordon import ALL_DEVICES, cordon_annotations, cordon_reasons, pool_node
from devalloc.api.meta import CORDONED_NODE
from devalloc.api.problems import closest_match
from devalloc.store import Change, Conflict, Forbidden, Key, KindNotServed, NotFound, Object, Store, StoreError
from devalloc.store.nodes import pools_of


class TargetNotFound(StoreError):
    """No node, pool or device of that name, or several."""


class NoSuchTarget(TargetNotFound, NotFound):
    """No node, pool or device of that name."""


class NoPools(TargetNotFound):
    """The node exists, but a cordon of it cannot be recorded: it has no pools."""


@dataclass(frozen=True, slots=True)
class CordonTarget:
    """What is to be cordoned: a node with all that comes to it, or devices of a pool."""

    node: str | None = None
    pool: str | None = None
    devices: tuple[str | None, ...] = ()
    """None: all of the pool, also those that come to it."""

    def __str__(self) -> str:
        if self.node is not None:
            return f"node {self.node}"
        named = [name for name in self.devices if name is not None]
        return f"device {named[0]} of pool {self.pool}" if named else f"pool {self.pool}"


def find_target(store: Store, word: str) -> CordonTarget:
    """What is meant by ``node/NAME``, ``pool/NAME``, ``POOL/DEVICE`` or a name alone. Raises TargetNotFound."""
    pools = store.list("DevicePool").objects
    kind, _, name = word.rpartition("/")
    targets: list[CordonTarget] = []
    nodes = _nodes(store, pools, name) if kind in ("", "node") else set()
    if name in nodes:
        targets.append(CordonTarget(node=name))
    if kind in ("", "pool", "devicepool"):
        targets += [CordonTarget(pool=name, devices=(None,)) for pool in pools if pool["metadata"]["name"] == name]
    for pool in pools:
        if kind in ("", pool["metadata"]["name"]):
            device = next((each for each in _devices(pool) if each.get("name") == name), None)
            if device is not None:
                targets.append(CordonTarget(pool=pool["metadata"]["name"], devices=tuple(_with_parts(pool, device))))
            elif name != ALL_DEVICES and name in cordon_reasons(pool):  # it is gone, and still cordoned
                targets.append(CordonTarget(pool=pool["metadata"]["name"], devices=(name,)))
    if len(targets) == 1:
        return targets[0]
    if targets:
        raise TargetNotFound(
            f"{word} may be {' or '.join(map(str, targets))}; write node/NAME, pool/NAME or POOL/DEVICE"
        )
    if kind in ("", "node") and publishes_slices(store, name):
        raise TargetNotFound(
            f"node {name} publishes ResourceSlices and no DevicePools: `kubectl cordon {name}` keeps new pods from it, "
            "a DeviceTaintRule from devices of it"
        )
    what, listed = ("node, pool or device", "`devalloc get pools -o wide` lists them all")
    if kind == "node":
        what, word, listed = "node", name, "`devalloc get nodes` lists them"
    raise NoSuchTarget(f"there is no {what} {word}; {_similar_names(pools, nodes, kind, name)}{listed}")


def _nodes(store: Store, pools: Sequence[Object], name: str) -> set[str]:
    """The nodes that exist: those with pools, and, if none of these has this name, those with machines or claims."""
    from devalloc.controller.reconcile.fenced import existing_nodes

    nodes = existing_nodes(pools)
    for kind in ("VirtualMachine", "DeviceClaim") if name not in nodes else ():
        with suppress(Forbidden, KindNotServed):  # some users may cordon, and read no claims
            nodes |= existing_nodes(store.list(kind).objects)
    return nodes


def _similar_names(pools: Sequence[Object], nodes: Collection[str], kind: str, name: str) -> str:
    """What may be meant by a name that nothing has, as the beginning of a sentence."""
    named = {f"pool/{pool['metadata']['name']}" for pool in pools if kind in ("", "pool", "devicepool")}
    parts = {
        f"{pool['metadata']['name']}/{each['name']}"
        for pool in pools
        for each in _devices(pool)
        if kind in ("", pool["metadata"]["name"]) and isinstance(each.get("name"), str)
    }
    words = {word.partition("/")[2]: word for word in sorted(parts) + sorted(named)}
    words |= {node: f"node/{node}" for node in sorted(nodes)}
    near = closest_match(name, words)
    return f"did you mean {words[near]}? " if near is not None else ""


def publishes_slices(store: Store, node: str) -> bool:
    """Whether the node publishes ResourceSlices, as far as these may be read: kube-scheduler gives them to pods,
    whatever is noted on DevicePools."""
    with suppress(StoreError):
        return any(pool_node(each) == node for each in store.list("ResourceSlice").objects)
    return False


def set_cordon(store: Store, target: CordonTarget, why: str | None, *, keep: bool = False) -> bool:
    """Keep it from being allocated, by whom and for what ``why`` says; None: no more. Whether that changed anything.
    ``keep``: what is cordoned already stays so for the reason that it has.

    Raises NoPools for a node without pools, and TargetNotFound if the target has gone meanwhile.
    """

    def annotations(pool: Object) -> Mapping[str, str | None]:
        if target.node is not None:
            before = (pool["metadata"].get("annotations") or {}).get(CORDONED_NODE)
            return {CORDONED_NODE: before if keep and before is not None else why}
        changed = pool
        updated: Mapping[str, str | None] = {}
        for device in target.devices:
            updated = cordon_annotations(changed, device, why, keep=keep)
            noted = {
                k: v for k, v in {**changed["metadata"].get("annotations", {}), **updated}.items() if v is not None
            }
            changed = {**changed, "metadata": {**changed["metadata"], "annotations": noted}}
        return updated

    def meant(pool: Object) -> bool:
        return pool_node(pool) == target.node if target.node is not None else pool["metadata"]["name"] == target.pool

    try:
        return _commit(store, meant, annotations)
    except TargetNotFound as error:
        raise error if target.node is None else NoPools(_no_pools_message(store, target.node)) from None


def _no_pools_message(store: Store, node: str) -> str:
    kubernetes = f"; `kubectl cordon {node}` keeps new pods from it" if publishes_slices(store, node) else ""
    return (
        f"node {node} cannot be cordoned: devalloc records a cordon on the pools of a node, and it has none. Without "
        f"pools, nothing is allocated there; repeat the command if its plugin publishes pools again{kubernetes}"
    )


def is_node_cordoned(store: Store, node: str, objects: Iterable[Object]) -> bool:
    """Whether all pools of a node among objects state that it is cordoned. Reads one of them anew: a list from a cache
    may be older than what others did after they uncordoned the node. Raises StoreError."""
    pools = [one for one in objects if one["kind"] == "DevicePool" and pool_node(one) == node]
    with suppress(NotFound):
        pools[-1:] = [store.get(*Key.of(pool)) for pool in pools[-1:]]
    return bool(pools) and all(CORDONED_NODE in (pool["metadata"].get("annotations") or {}) for pool in pools)


def set_node_note(store: Store, node: str, name: str, note: str | None, *, keep: bool = False) -> bool:
    """Write an annotation on all pools of a node, or remove it; whether that changed anything. ``keep``: if a pool has
    one, it stays, and the others get the same. Raises TargetNotFound for a node without pools."""
    pools = pools_of(store, node)
    before = {text for pool in pools if (text := (pool["metadata"].get("annotations") or {}).get(name)) is not None}
    wanted = min(before) if keep and before else note
    return _commit(store, lambda pool: pool_node(pool) == node, lambda pool: {name: wanted})


def list_cordons(store: Store) -> Iterator[tuple[str, str, str, str]]:
    """Node, pool, device (``*``: all) and why, of all that is cordoned."""
    for pool in store.list("DevicePool").objects:
        for device, why in sorted(cordon_reasons(pool).items()):
            yield pool_node(pool) or "", pool["metadata"]["name"], device, why


def _commit(
    store: Store, meant: Callable[[Object], bool], annotations: Callable[[Object], Mapping[str, str | None]]
) -> bool:
    """Write annotations on all the pools, each by itself, until none is left out: the one that was written first is
    cordoned first."""
    was_changed = False
    while True:
        pools = [pool for pool in store.list("DevicePool").objects if meant(pool)]
        if not pools:
            raise NoSuchTarget("it no longer exists; `devalloc get pools -o wide` lists all pools and devices")
        left = False
        for pool in pools:
            version = pool["metadata"]["resourceVersion"]
            try:
                (done,), _ = store.commit([Change(Key.of(pool), version, pool.get("status"), annotations(pool))])
            except Conflict:
                left = True
            else:
                was_changed |= done["metadata"]["resourceVersion"] != version
        if not left:
            return was_changed


def _with_parts(pool: Object, device: Mapping[str, Any]) -> Sequence[str | None]:
    """A device with what is on it: of a card all, of one of its ports the functions and vGPUs of the port."""
    name, function = device["name"], _attribute(pool, device, "function")
    others = [each for each in _devices(pool) if each.get("name") != name]
    if function == "whole" and not any(_attribute(pool, each, "function") in ("whole", "pf") for each in others):
        return [None]
    if function not in ("whole", "pf"):
        return [name]
    address = _attribute(pool, device, "pciBusID")
    above = ("pfPciBusID", "pciBusID")
    parts = [each for each in others if any(_attribute(pool, each, attribute) == address for attribute in above)]
    return [name, *(each["name"] for each in parts if isinstance(each.get("name"), str))]


def _attribute(pool: Object, device: Mapping[str, Any], name: str) -> str | None:
    for content in (device, pool["spec"]):
        for entry in content.get("attributes", ()):
            if entry.get("name") == name and isinstance(entry.get("stringValue"), str):
                return str(entry["stringValue"])
    return None


def _devices(pool: Object) -> list[dict[str, Any]]:
    spec = pool.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    return [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
