"""``devalloc wait``: wait for a state of claims or machines."""

from __future__ import annotations

from devalloc.cli.command import BadInput
from devalloc.cli.object_names import format_key, keys_of
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.output import show_spinner
from devalloc.cli.target import open_target
from devalloc.cli.terminal import print_line
from devalloc.cli.waiting import check_can_happen, report_missing, wait_until
from devalloc.store.errors import Key

WAIT_STATES = {
    "DeviceClaim": ("allocated", "ready", "released", "deleted"),
    "ResourceClaim": ("allocated", "deleted"),
    "VirtualMachine": ("running", "ready", "paused", "stopped", "deleted"),
    "VirtualMachineReplicaSet": ("ready", "deleted"),
    "VirtualMachineMigration": ("succeeded", "failed", "deleted"),
}
"""The states of each kind, with the default first. ``ready`` is the condition Ready: a claim is ready when it is
allocated, a machine when it runs and its guest, if it reports, says so, and a set when all of its replicas are."""


def wait(names: tuple[str, ...], state: str | None, timeout: float, namespace: str, place: StoreTarget) -> int:
    with open_target(place.within(namespace)) as objects:
        keys = keys_of(names, namespace, default="claims", store=objects)
        for key in keys:
            if key.kind not in WAIT_STATES and state != "deleted":
                check_can_happen(objects, key)
        state = _state(keys, state)
        if state != "deleted":
            for key in keys:
                check_can_happen(objects, key)
        with show_spinner(f"waiting for {', '.join(format_key(key) for key in keys)}"):
            missing = wait_until(objects, keys, state, timeout)
        for key in keys:
            if key not in missing:
                print_line(f"{format_key(key)} {state}")
        return report_missing(objects, state, missing, timeout)


def _state(keys: list[Key], requested: str | None) -> str:
    """The state to wait for; all of the objects must have it. Raises BadInput."""
    state = requested
    for key in keys:
        states = WAIT_STATES.get(key.kind, ("deleted",))
        if state is None and key.kind not in WAIT_STATES:
            raise BadInput(f"{format_key(key)}: a {key.kind} has no state to wait for, except --for=deleted")
        state = state or states[0]
        if state not in states:
            raise BadInput(f"a {key.kind} is never {state}; wait --for={'|'.join(states)}")
    return state or "allocated"
