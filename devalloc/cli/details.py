"""All details of an object, as ``devalloc describe`` prints them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from devalloc.api import meta
from devalloc.api.decode import decode
from devalloc.api.kinds import API_KINDS
from devalloc.api.machine_location import LIVE_MIGRATABLE
from devalloc.api.machine_reservation import booked_entries
from devalloc.api.moved_claims import booked_devices, moved_claims_among, moved_devices
from devalloc.api.pool import unavailability
from devalloc.api.views import (
    ClaimView,
    MachineView,
    MigrationView,
    amount_text,
    claim_state,
    format_devices,
    machine_node,
    machine_phase,
    machine_reason,
)
from devalloc.cli.render.cells import ago, progress_text
from devalloc.cli.render.explanation import print_explanation
from devalloc.cli.render.host import attribute_texts
from devalloc.cli.render.output import print_content, print_table
from devalloc.cli.solver_input import objects_for_solver
from devalloc.cli.target import missing_controller_note
from devalloc.cli.terminal import print_heading, print_line
from devalloc.controller.reconcile.stored_claims import ignored_reason, is_left_aside, solver_documents
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc.store import Store
from devalloc.store.errors import Forbidden, Key
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver.dialects.api_groups import api_group_of

Object = dict[str, Any]


DEADLINE = 10.0
"""Time limit for finding out why a claim has no devices, in seconds."""


def print_details(store: Store, obj: Object) -> None:
    metadata = obj["metadata"]
    facts = [("Name", metadata["name"]), ("Namespace", metadata.get("namespace", "")), ("Kind", obj["kind"])]
    facts += [("API version", obj["apiVersion"])] if Key.of(obj).kind not in API_KINDS else []
    facts += [("Created", _since_text(re.sub(r"\.\d+(?=Z$)", "", str(metadata.get("creationTimestamp", "")))))]
    facts += [("Deleting since", metadata.get("deletionTimestamp", ""))]
    facts += [("Finalizers", ", ".join(metadata.get("finalizers", [])))]
    match Key.of(obj).kind if _is_readable(obj) else None:
        case "DeviceClaim":
            _print_facts(facts + _claim_facts(obj) + [("Machines", ", ".join(_machines_of(store, obj)))])
            _claim(store, obj)
        case "VirtualMachine":
            _print_facts(facts + _machine_facts(obj))
            _print_yaml("Spec", obj["spec"])
            _print_yaml("Status", obj.get("status"))
        case "VirtualMachineMigration":
            _print_facts(facts + _migration_facts(obj))
            _print_yaml("Spec", obj["spec"])
            _print_yaml("Status", obj.get("status"))
        case "DevicePool":
            _print_facts(
                [*facts, ("Node", obj["spec"].get("nodeName") or "(network)"), ("Driver", obj["spec"]["driver"])]
            )
            _pool(store, obj)
        case _:
            if reason := ClaimView(obj).reason:
                facts += [("Not allocated", f"{reason}: {ClaimView(obj).message}")]
            elif is_left_aside(obj):
                facts += [
                    (
                        "Not allocated" if obj["kind"].endswith("Claim") else "Left aside",
                        ignored_reason(api_group_of(obj)),
                    )
                ]
            _print_facts(facts)
            _print_yaml("Spec", obj.get("spec"))
            _print_yaml("Status", obj.get("status"))


def _is_readable(obj: Object) -> bool:
    """False for an object of another program that does not match the API."""
    return decode(obj).object is not None


def _print_facts(facts: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in facts) + 2
    for name, text in facts:
        if text:
            print_line(f"{name + ':':{width}}{text}", hang=width)


def _print_yaml(title: str, content: object) -> None:
    if content:
        print_line()
        print_heading(title)
        print_content(content, "yaml")


def _claim_facts(claim: Object) -> list[tuple[str, str]]:
    annotations = claim["metadata"].get("annotations", {})
    return [
        ("State", claim_state(claim)),
        ("Node", annotations.get(meta.ALLOCATED_NODE, "")),
        ("Prepared on", annotations.get(meta.PREPARED_ON, "")),
        ("Used by", ", ".join(map(str, claim.get("status", {}).get("podNames", [])))),
        ("Pinned to", annotations.get(meta.NODE, "")),
        ("Group", annotations.get(meta.GROUP, "")),
        ("Priority", annotations.get(meta.PRIORITY, "")),
        ("Reason", ClaimView(claim).reason),
        ("Message", ClaimView(claim).message),
    ]


def _machines_of(store: Store, claim: Object) -> list[str]:
    """The machines that name a claim, with their nodes. The claim is placed together with the first one."""
    name, namespace = claim["metadata"]["name"], claim["metadata"].get("namespace", "default")
    return [
        f"{machine['metadata']['name']} (on {node})" if (node := machine_node(machine)) else machine["metadata"]["name"]
        for machine in filter(_is_readable, store.list("VirtualMachine").objects)
        if name in machine["spec"].get("claims", ()) and machine["metadata"].get("namespace", "default") == namespace
    ]


def _machine_facts(machine: Object) -> list[tuple[str, str]]:
    status = machine.get("status", {})
    reason, message = machine_reason(machine)
    moving = MachineView(machine).migration_state
    target = f"node {moving.get('targetNode')} (migration {moving.get('migrationName')})" if moving else ""
    return [
        ("Phase", machine_phase(machine)),
        ("Node", machine_node(machine)),
        ("Moving to", target),
        ("Devices there", _coming_text(machine)),
        ("Can move", _movable_text(machine)),
        ("Started", _since_text(str(status.get("startTime") or ""))),
        ("Restarts", str(status.get("restarts") or "")),
        ("Last end", _end_text(status.get("lastEnd"))),
        ("Reason", reason),
        ("Message", message),
    ]


def _since_text(moment: str) -> str:
    """A moment, and how long ago that was; empty without one."""
    age = ago(moment)
    return f"{moment} ({age} ago)" if age else moment


def _end_text(end: object) -> str:
    """How a machine ended without a request; empty if it never did."""
    if not isinstance(end, dict):
        return ""
    how = [f"signal {end['signal']}"] if end.get("signal") else []
    how += [f"exit code {end['exitCode']}"] if "exitCode" in end else []
    words = [_since_text(str(end.get("time") or "")), *how, str(end.get("message") or "")]
    return ": ".join(filter(None, words))


def _coming_text(machine: Object) -> str:
    """The devices that its claims get on the node to which it moves, or has moved."""
    coming = (*booked_devices(machine), *moved_devices(machine))
    return "; ".join(f"{one.claim[1]}: {format_devices(one.allocations)}" for one in coming)


def _movable_text(machine: Object) -> str:
    """What its node says of whether QEMU can move it while it runs; empty if the node does not say it."""
    condition = MachineView(machine).condition(LIVE_MIGRATABLE)
    if condition.get("status") == "False":
        return f"no: {condition.get('message') or condition.get('reason') or 'its node does not say why'}"
    return "while it runs" if condition.get("status") == "True" else ""


def _migration_facts(migration: Object) -> list[tuple[str, str]]:
    status = migration.get("status", {})
    return [
        ("Machine", migration["spec"]["vmName"]),
        ("Phase", MigrationView(migration).phase),
        ("From node", status.get("sourceNode", "")),
        ("To node", status.get("targetNode") or migration["spec"].get("targetNode", "")),
        ("Progress", progress_text(migration)),
        ("Reason", status.get("reason", "")),
        ("Message", status.get("message", "")),
    ]


def _claim(store: Store, claim: Object) -> None:
    _print_yaml("Spec", claim["spec"])
    status = claim.get("status", {})
    entries = status.get("allocations", [])
    if not entries:
        _print_reason(store, claim)
        return
    pools: dict[str, Object] = {}
    with suppress(Forbidden):  # tenants can see the devices of their claims, but not the pools
        pools = {pool["metadata"]["name"]: pool for pool in filter(_is_readable, store.list("DevicePool").objects)}
    rows = []
    for entry in entries:
        pool = pools.get(entry["devicePoolName"], {"metadata": {}, "spec": {}})
        device = next((d for d in pool["spec"].get("devices", []) if d["name"] == entry["deviceName"]), None)
        amounts = ", ".join(f"{amount['name']} {amount['allocation']}" for amount in entry.get("allocations", []))
        own = attribute_texts(pool, device or {})
        facts = [own[name] if device else "" for name in ("model", "profile", "pciBusID", "numa")]
        rows.append([entry["devicePoolName"], entry["deviceName"], amounts or "whole", *facts])
    print_line()
    print_heading("Devices")
    print_table(["POOL", "DEVICE", "AMOUNT", "MODEL", "PROFILE", "PCI BUS ID", "NUMA"], rows)
    _print_yaml("Conditions", status.get("conditions"))
    _print_yaml("Device statuses", status.get("deviceStatuses"))
    _print_yaml("Configs of classes", status.get("classConfigs"))
    _print_yaml("Configs of the claim", status.get("claimConfigs"))


def _print_reason(store: Store, claim: Object) -> None:
    """Show why a claim has no devices, judging by the store as it is now rather than by the claim's last answer."""
    name, namespace = claim["metadata"]["name"], claim["metadata"].get("namespace", "default")
    if not ClaimView(claim).reason and (silence := missing_controller_note(store)):
        print_line()
        print_line(silence)
    try:
        is_cluster = not isinstance(store, SQLiteStore)
        objects, admin, _ = objects_for_solver(store, is_cluster=is_cluster)
        seen = solver_documents(objects, with_nodes=is_cluster)
        answers = solve_with_machines(seen, deadline=DEADLINE, admin_namespaces=admin)["claims"]
    except Forbidden:  # to read pools: the controller's message already says what matters
        _print_facts([("Reason", ClaimView(claim).reason), ("Message", ClaimView(claim).message)])
        return
    answer = next((one for one in answers if (one["namespace"], one["name"]) == (namespace, name)), None)
    print_line()
    if answer is None:
        print_line(f"To see why it has no devices: devalloc explain {name} -n {namespace}")
    else:
        print_explanation(answer, only_would=answer["allocated"], is_cluster=is_cluster)


def _pool(store: Store, pool: Object) -> None:
    users: dict[str, list[str]] = {}
    owners = [*filter(_is_readable, store.list(["DeviceClaim", "VirtualMachine"]).objects)]
    for owner in moved_claims_among(owners):
        for entry in owner["status"]["allocations"]:
            if entry["devicePoolName"] == pool["metadata"]["name"]:
                name = f"{owner['metadata']['namespace']}/{owner['metadata']['name']}"
                users.setdefault(entry["deviceName"], []).append(f"{name} (moving here)")
    for owner in owners:
        coming = [(entry, ", moving here") for entry in booked_entries(owner)]
        for entry, state in [(entry, "") for entry in owner.get("status", {}).get("allocations", [])] + coming:
            if entry["devicePoolName"] == pool["metadata"]["name"]:
                amounts = ", ".join(
                    amount_text(part["name"], part["allocation"]) for part in entry.get("allocations", [])
                )
                who = f"{owner['metadata'].get('namespace', 'default')}/{owner['metadata']['name']}"
                who = who if owner["kind"] == "DeviceClaim" else f"machine {who}"
                users.setdefault(entry["deviceName"], []).append(f"{who} ({amounts}{state})" if amounts else who)
    spec = pool["spec"]
    _print_yaml("Attributes", {entry["name"]: _value(entry) for entry in spec.get("attributes", [])})
    if spec.get("resources"):
        print_line()
        print_heading("Resources that the devices share")
        print_table(
            ["RESOURCE", "CAPACITY", "BLOCK"],
            [[entry["name"], str(entry["capacity"]), str(entry.get("blockSize", 1))] for entry in spec["resources"]],
        )
    print_line()
    print_heading("Devices")
    rows = []
    for device in spec.get("devices", []):
        draws = ", ".join(f"{name} {amount}" for name, amount in device.get("requests", {}).items())
        own = attribute_texts(pool, device)
        state = unavailability(own) or ", ".join(users.get(device["name"], []))
        what = own["profile"] or own["function"]
        shares = ", ".join(amount_text(entry["name"], entry["capacity"]) for entry in device.get("resources", []))
        rows.append([device["name"], what, draws, shares, state])
    print_table(["DEVICE", "WHAT", "DRAWS ON THE POOL", "SHARES", "USED BY"], rows)


def _value(attribute: Object) -> object:
    return next(value for key, value in attribute.items() if key != "name")
