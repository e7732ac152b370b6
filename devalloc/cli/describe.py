"""``devalloc describe``: all about an object, for people."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli import suggestions
from devalloc.cli.names import fetched, keys_of, kind_of, shown
from devalloc.cli.options import namespace_option
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import BadInput, verb
from devalloc.store.errors import Forbidden
from devalloc.store.key import Key

if TYPE_CHECKING:
    from devalloc.store import Store

Object = dict[str, Any]

DEADLINE = 10.0
"""Seconds to find out why a claim holds nothing."""


@verb("describe")
@click.argument(
    "what", nargs=-1, required=True, metavar="KIND NAME... | KIND/NAME...", shell_complete=suggestions.objects
)
@namespace_option
@place_options
def describe(what: tuple[str, ...], namespace: str, place: Place) -> int:
    """Show all about objects: a claim with its devices, a pool with who uses what.

    \b
    devalloc describe dclaim/train
    devalloc describe pool node-a-l40s
    """
    from devalloc.cli.place import opened_as_allowed

    with opened_as_allowed(place, namespace) as objects:
        if len(what) == 1 and "/" not in what[0] and (same := _named(objects, what[0])):
            raise BadInput(f"{what[0]} is not a kind; did you mean {' or '.join(same)}?")
        keys = keys_of(what, namespace, store=objects)
        if not keys:
            kind_of(what[0], objects)  # one that there is not is the mistake
            raise BadInput(f"which {what[0]}? Name it, such as {what[0]}/NAME; `devalloc get {what[0]}` lists them")
        for i, key in enumerate(keys):
            if i:
                click.echo()
            _describe(objects, fetched(objects, key))
    return 0


def _named(store: Store, name: str) -> list[str]:
    """Objects of that name, if it is no kind: as KIND/NAME."""
    try:
        kind_of(name, store)
    except BadInput:
        keys = [Key.of(obj) for obj in store.list().objects if obj["metadata"]["name"] == name]
        return list(dict.fromkeys(map(shown, keys)))[:3]
    return []


def _describe(store: Store, obj: Object) -> None:
    from devalloc.api.kinds import KINDS
    from devalloc.cli.columns import age
    from devalloc.controller.foreign import is_foreign, why
    from devalloc_solver.dialects import group_of

    metadata = obj["metadata"]
    facts = [("Name", metadata["name"]), ("Namespace", metadata.get("namespace", "")), ("Kind", obj["kind"])]
    facts += [("API version", obj["apiVersion"])] if Key.of(obj).kind not in KINDS else []
    facts += [("Created", f"{metadata.get('creationTimestamp', '')} ({age(obj)} ago)")]
    facts += [("Deleting since", metadata.get("deletionTimestamp", ""))]
    facts += [("Finalizers", ", ".join(metadata.get("finalizers", [])))]
    match Key.of(obj).kind if _is_readable(obj) else None:
        case "DeviceClaim":
            _facts(facts + _claim_facts(obj) + [("Machines", ", ".join(_machines_of(store, obj)))])
            _claim(store, obj)
        case "VirtualMachine":
            _facts(facts + _machine_facts(obj))
            _as_yaml("Spec", obj["spec"])
            _as_yaml("Status", obj.get("status"))
        case "DevicePool":
            _facts([*facts, ("Node", obj["spec"].get("nodeName") or "(network)"), ("Driver", obj["spec"]["driver"])])
            _pool(store, obj)
        case _:
            if is_foreign(obj):
                facts += [("Not allocated" if obj["kind"].endswith("Claim") else "Left aside", why(group_of(obj)))]
            _facts(facts)
            _as_yaml("Spec", obj.get("spec"))
            _as_yaml("Status", obj.get("status"))


def _is_readable(obj: Object) -> bool:
    """False for what another program wrote and the API does not have."""
    from devalloc.api.decode import decode

    return decode(obj).object is not None


def _facts(facts: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in facts) + 2
    for name, text in facts:
        if text:
            click.echo(f"{name + ':':{width}}{text}")


def _as_yaml(title: str, content: object) -> None:
    from devalloc.cli.output import dump, heading

    if content:
        click.echo()
        heading(title)
        dump(content, "yaml")


def _claim_facts(claim: Object) -> list[tuple[str, str]]:
    from devalloc.api import meta
    from devalloc.api.inwords import claim_state

    annotations = claim["metadata"].get("annotations", {})
    return [
        ("State", claim_state(claim)),
        ("Node", annotations.get(meta.ALLOCATED_NODE, "")),
        ("Prepared on", annotations.get(meta.PREPARED_ON, "")),
        ("Used by", ", ".join(map(str, claim.get("status", {}).get("podNames", [])))),
        ("Pinned to", annotations.get(meta.NODE, "")),
        ("Group", annotations.get(meta.GROUP, "")),
        ("Priority", annotations.get(meta.PRIORITY, "")),
        ("Reason", annotations.get(meta.REASON, "")),
        ("Message", annotations.get(meta.MESSAGE, "")),
    ]


def _machines_of(store: Store, claim: Object) -> list[str]:
    """The machines that name a claim, with where they are: it is placed with the first one."""
    from devalloc.api.inwords import machine_node

    name, namespace = claim["metadata"]["name"], claim["metadata"].get("namespace", "default")
    return [
        f"{machine['metadata']['name']} (on {node})" if (node := machine_node(machine)) else machine["metadata"]["name"]
        for machine in filter(_is_readable, store.list("VirtualMachine").objects)
        if name in machine["spec"].get("claims", ()) and machine["metadata"].get("namespace", "default") == namespace
    ]


def _machine_facts(machine: Object) -> list[tuple[str, str]]:
    from devalloc.api.inwords import machine_node, machine_phase

    status = machine.get("status", {})
    return [
        ("Phase", machine_phase(machine)),
        ("Node", machine_node(machine)),
        ("Reason", status.get("reason", "")),
        ("Message", status.get("message", "")),
    ]


def _claim(store: Store, claim: Object) -> None:
    from devalloc.cli.inventory import effective
    from devalloc.cli.output import heading, table

    _as_yaml("Spec", claim["spec"])
    status = claim.get("status", {})
    entries = status.get("allocations", [])
    if not entries:
        _why_not(store, claim)
        return
    pools: dict[str, Object] = {}
    with suppress(Forbidden):  # tenants see what their claims hold, and not what there is
        pools = {pool["metadata"]["name"]: pool for pool in filter(_is_readable, store.list("DevicePool").objects)}
    rows = []
    for entry in entries:
        pool = pools.get(entry["devicePoolName"], {"metadata": {}, "spec": {}})
        device = next((d for d in pool["spec"].get("devices", []) if d["name"] == entry["deviceName"]), None)
        amounts = ", ".join(f"{amount['name']} {amount['allocation']}" for amount in entry.get("allocations", []))
        facts = [effective(pool, device, name) if device else "" for name in ("model", "profile", "pciBusID", "numa")]
        rows.append([entry["devicePoolName"], entry["deviceName"], amounts or "whole", *facts])
    click.echo()
    heading("Devices")
    table(["POOL", "DEVICE", "AMOUNT", "MODEL", "PROFILE", "PCI BUS ID", "NUMA"], rows)
    _as_yaml("Conditions", status.get("conditions"))
    _as_yaml("Device statuses", status.get("deviceStatuses"))
    _as_yaml("Configs of classes", status.get("classConfigs"))
    _as_yaml("Configs of the claim", status.get("claimConfigs"))


def _why_not(store: Store, claim: Object) -> None:
    """Why a claim holds nothing, as things stand now: in the store, and not in its last answer."""
    from devalloc.api import meta
    from devalloc.cli.contents import decided_on
    from devalloc.cli.explanation import show
    from devalloc.cli.place import no_controller
    from devalloc.controller.placing import solve_with_machines
    from devalloc.controller.snapshot import as_seen
    from devalloc.store.sqlite import SQLiteStore

    name, namespace = claim["metadata"]["name"], claim["metadata"].get("namespace", "default")
    if meta.REASON not in claim["metadata"].get("annotations", {}) and (silence := no_controller(store)):
        click.echo(f"\n{silence}")
    try:
        is_cluster = not isinstance(store, SQLiteStore)
        objects, admin, _ = decided_on(store, is_cluster=is_cluster)
        seen = as_seen(objects, with_nodes=is_cluster)
        answers = solve_with_machines(seen, deadline=DEADLINE, admin_namespaces=admin)["claims"]
    except Forbidden:  # of what there is: the controller has told what counts
        noted = claim["metadata"].get("annotations", {})
        _facts([("Reason", noted.get(meta.REASON, "")), ("Message", noted.get(meta.MESSAGE, ""))])
        return
    found = next((one for one in answers if (one["namespace"], one["name"]) == (namespace, name)), None)
    click.echo()
    if found is None:
        click.echo(f"Why it holds nothing: devalloc explain {name} -n {namespace}")
    else:
        show(found, only_would=found["allocated"])


def _pool(store: Store, pool: Object) -> None:
    from devalloc.cli.inventory import effective
    from devalloc.cli.output import heading, table

    users: dict[str, list[str]] = {}
    for owner in filter(_is_readable, store.list(["DeviceClaim", "VirtualMachine"]).objects):
        for entry in owner.get("status", {}).get("allocations", []):
            if entry["devicePoolName"] == pool["metadata"]["name"]:
                amounts = ", ".join(f"{part['name']} {part['allocation']}" for part in entry.get("allocations", []))
                who = f"{owner['metadata'].get('namespace', 'default')}/{owner['metadata']['name']}"
                who = who if owner["kind"] == "DeviceClaim" else f"machine {who}"
                users.setdefault(entry["deviceName"], []).append(f"{who} ({amounts})" if amounts else who)
    spec = pool["spec"]
    _as_yaml("Attributes", {entry["name"]: _value(entry) for entry in spec.get("attributes", [])})
    if spec.get("resources"):
        click.echo()
        heading("Resources that the devices draw on together")
        table(
            ["RESOURCE", "CAPACITY", "BLOCK"],
            [[entry["name"], str(entry["capacity"]), str(entry.get("blockSize", 1))] for entry in spec["resources"]],
        )
    click.echo()
    heading("Devices")
    rows = []
    for device in spec.get("devices", []):
        draws = ", ".join(f"{name} {amount}" for name, amount in device.get("requests", {}).items())
        state = effective(pool, device, "devalloc.io/unavailable") or ", ".join(users.get(device["name"], []))
        what = effective(pool, device, "profile") or effective(pool, device, "function")
        shares = ", ".join(f"{entry['name']} {entry['capacity']}" for entry in device.get("resources", []))
        rows.append([device["name"], what, draws, shares, state])
    table(["DEVICE", "WHAT", "DRAWS ON THE POOL", "SHARES", "USED BY"], rows)


def _value(attribute: Object) -> object:
    return next(value for key, value in attribute.items() if key != "name")
