"""``devalloc wait``: wait for a state of claims or machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import BadInput, parse_duration, verb
from devalloc.cli.object_names import format_key, keys_of
from devalloc.cli.options.common import namespace_option
from devalloc.cli.render.output import show_spinner
from devalloc.cli.shell_completion import complete_claims
from devalloc.cli.target import (
    StoreTarget,
    open_target,
    target_options,
)
from devalloc.cli.terminal import print_line

if TYPE_CHECKING:
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


_OPPOSITES = {"allocated=false": "released"}
"""Conditions that are not true, and the state of an object then."""


class _State(click.Choice[str]):
    """A state, also in kubectl's form: delete, condition=Allocated, condition=Allocated=false,
    jsonpath={.status.phase}=Running."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str):
            for prefix in ("condition=", "jsonpath={.status.phase}="):
                if value.startswith(prefix):
                    value = value.removeprefix(prefix).lower().removesuffix("=true")
            value = _OPPOSITES.get(value, value)
            value = "deleted" if value == "delete" else value
        return super().convert(value, param, ctx)


@verb("wait")
@click.argument("names", nargs=-1, required=True, metavar="NAME... | KIND/NAME...", shell_complete=complete_claims)
@click.option(
    "--for",
    "state",
    type=_State(["allocated", "released", "running", "paused", "stopped", "ready", "succeeded", "failed", "deleted"]),
    help="State to wait for [default: allocated for claims, running for machines, ready (all replicas) for sets of "
    "machines, succeeded for migrations].",
)
@click.option("--timeout", type=parse_duration, default="30s", metavar="DURATION", help="Maximum time to wait.")
@namespace_option
@target_options
def wait(names: tuple[str, ...], state: str | None, timeout: float, namespace: str, place: StoreTarget) -> int:
    """Wait until claims are allocated, released (hold nothing) or deleted, machines running, paused or stopped, all
    replicas of a set ready, migrations succeeded or failed.

    A machine is ready when it runs and its guest, if it reports (spec.guestReports), says so; a claim when it is
    allocated. kubectl's --for=condition=NAME works, too, and --for=condition=Allocated=false for released.

    Exit code 3 when the time is up and a claim or machine has a reason why not, 1 if it has no answer yet. At once for
    an object that is deleted meanwhile, for a machine that cannot start as it is, and for a migration that is over and
    has not the state.

    \b
    devalloc wait train --for=allocated --timeout 1m
    devalloc wait vm/web
    devalloc wait claim/train --for=delete
    """
    from devalloc.cli.waiting import check_can_happen, report_missing, wait_until

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
