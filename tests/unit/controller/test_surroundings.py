"""What rounds read beside claims is read anew where it has changed, and is what a first look would find."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from devalloc.api.cordon import apply_all_cordons, is_node, unknown_nodes
from devalloc.api.fencing import fence_statements
from devalloc.controller.reconcile import surroundings as surroundings_module
from devalloc.controller.reconcile.snapshot import order_of_key
from devalloc.controller.reconcile.stored_claims import is_foreign
from devalloc.controller.reconcile.surroundings import Surroundings
from devalloc.store import Key
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool

Object = dict[str, Any]
ASKING = frozenset({"DeviceClaim", "VirtualMachine", "VirtualMachineMigration"})
FENCED, CORDONED = "devalloc.io/fenced-node", "devalloc.io/cordoned"


def node(name: str, **spec: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}


def noted(obj: Object, **notes: str) -> Object:
    annotations = {f"devalloc.io/{name.replace('_', '-')}": text for name, text in notes.items()}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def named(*objects: Object) -> dict[Key, Object]:
    return {Key.of(obj): obj for obj in objects}


def drawn(chance: random.Random) -> Object:
    name = chance.choice("abc")
    what = chance.choice(["pool", "pool", "node", "class", "quota", "foreign", "claim"])
    if what == "pool":
        pool = gpu_pool(name, devices=chance.randint(1, 3), node=chance.choice(["n1", "n2", "n3"]))
        notes: list[dict[str, str]] = [{}, {}, {"cordoned": json.dumps({"*": "repair"})}, {"fenced_node": "an admin"}]
        return noted(pool, **chance.choice(notes))
    if what == "node":
        taint = {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}
        return node(chance.choice(["n1", "n2"]), **chance.choice([{}, {"unschedulable": True}, taint]))
    if what == "quota":
        return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name, "namespace": "t"}, "spec": {}}
    if what == "foreign":
        return {"apiVersion": "other.io/v1", "kind": "DeviceClaim", "metadata": {"name": name, "namespace": "t"}}
    return gpu_class(name) if what == "class" else gpu_claim(name)


def found_at_once(objects: dict[Key, Object]) -> tuple[Any, ...]:
    """What a look at all objects finds."""
    others = [obj for key, obj in sorted(objects.items(), key=lambda item: order_of_key(item[0]))
              if key.kind not in ASKING]  # fmt: skip
    own = [obj for obj in others if not is_foreign(obj)]
    return (
        [obj for obj in apply_all_cordons(own) if not is_node(obj)],
        {Key.of(obj) for obj in others if is_foreign(obj)},
        bool(fence_statements(others)),
        any(obj["kind"] == "ResourceQuota" for obj in others),
        unknown_nodes(others),
        sum(obj["kind"] == "DevicePool" for obj in own),
    )


@pytest.mark.parametrize("seed", range(20))
def test_after_each_change_all_is_as_at_a_first_look(seed: int) -> None:
    chance, around = random.Random(seed), Surroundings(ASKING)
    objects: dict[Key, Object] = {}
    for _ in range(40):
        changed = {Key.of(obj) for obj in (drawn(chance) for _ in range(chance.randint(0, 3)))}
        for key in changed:
            objects.pop(key, None)
        fresh = named(*(drawn(chance) for _ in range(chance.randint(0, 3))))
        objects = {**objects, **fresh}
        around.update(objects, changed | fresh.keys())
        assert found_at_once(objects) == (
            [*around.documents],
            {*map(Key.of, around.foreign)},
            around.has_fences,
            around.has_quotas,
            around.unknown_nodes,
            around.pools,
        )


def test_only_pools_that_changed_or_whose_node_did_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    apply = surroundings_module.apply_cordons

    def noting(pool: Object, why: str | None) -> Object:
        read.append(pool["metadata"]["name"])
        return apply(pool, why)

    monkeypatch.setattr(surroundings_module, "apply_cordons", noting)
    around = Surroundings(ASKING)
    objects = named(*(gpu_pool(f"p{number}", node=f"n{number}") for number in range(9)), node("n1"), gpu_class())
    around.update(objects, objects.keys())
    assert len(read) == 9
    for change, expected in (
        (gpu_pool("p3", devices=1, node="n3"), ["p3"]),
        (node("n1", unschedulable=True), ["p1"]),
        ({**node("n1", unschedulable=True), "status": {"capacity": {}}}, []),
        (gpu_claim("a"), []),
    ):
        read.clear()
        objects = {**objects, **named(change)}
        around.update(objects, named(change))
        assert read == expected
