"""``devalloc scale``: the CPUs and memory of a machine, or the number of machines of a set."""

from __future__ import annotations

from typing import Any

from devalloc.api.decode import decode
from devalloc.api.quantity import Quantity
from devalloc.api.views import MachineView, as_mapping
from devalloc.cli.command import BadInput, CommandFailed, ending_on_sigterm
from devalloc.cli.object_names import format_key, keys_of
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.target import open_target
from devalloc.cli.terminal import print_line
from devalloc.cli.verbs.power import MACHINE, REPLICA_SET, change_object
from devalloc.cli.waiting import report_missing, wait_until
from devalloc.store import Store
from devalloc.store.errors import Key

Object = dict[str, Any]
DEFAULT_SECONDS = 60.0


def scale(
    name: str,
    cpu: str | None,
    memory: str | None,
    replicas: int | None,
    timeout: float | None,
    no_wait: bool,
    namespace: str,
    place: StoreTarget,
) -> int:
    with open_target(place.within(namespace)) as store, ending_on_sigterm():
        (key,) = keys_of([name], namespace, default="virtualmachines", store=store)
        if key.kind == REPLICA_SET:
            if cpu is not None or memory is not None or replicas is None:
                raise BadInput("a set has a number of machines: give --replicas, without --cpu and --memory")
            change_object(store, key, lambda obj: {**obj, "spec": {**obj["spec"], "replicas": replicas}})
            return _finish_set(store, key, replicas, timeout, no_wait)
        if key.kind != MACHINE:
            raise BadInput(f"only machines and sets of machines scale, not a {key.kind}")
        if replicas is not None or (cpu is None and memory is None):
            raise BadInput("a machine has CPUs and memory: give --cpu, --memory or both, without --replicas")
        wanted = {what: amount for what, amount in (("cpu", cpu), ("memory", memory)) if amount is not None}
        changed = change_object(store, key, lambda obj: _with_amounts(obj, wanted))
        return _finish_machine(store, key, changed, wanted, timeout, no_wait)


def _with_amounts(obj: Object, wanted: dict[str, str]) -> Object:
    """The object with other amounts. Raises CommandFailed if it cannot have them."""
    spec, name = dict(obj["spec"]), f"vm/{obj['metadata']['name']}"
    if spec.get("scaling") is not None:
        raise CommandFailed(
            f"the load of {name} decides how much it has (spec.scaling): change its min and max instead"
        )
    for what, amount in wanted.items():
        spec[what] = {**as_mapping(spec.get(what)), "use": amount}
    new = {**obj, "spec": spec}
    before = {problem.path for problem in decode(obj).problems}
    for problem in decode(new).problems:
        if problem.is_error and problem.path not in before:
            bounds = as_mapping(spec.get(problem.path.split(".")[1] if "." in problem.path else ""))
            limits = f" (min {bounds.get('min')}, max {bounds.get('max')})" if bounds else ""
            more = f"; change it, then `devalloc restart {name}`" if "above max" in problem.message else ""
            raise CommandFailed(f"{name}: {problem.path} {problem.message}{limits}{more}")
    return new


def _finish_machine(
    store: Store, key: Key, changed: Object, wanted: dict[str, str], timeout: float | None, no_wait: bool
) -> int:
    amounts_text = ", ".join(
        f"{amount} CPU{'' if amount == '1' else 's'}" if what == "cpu" else f"{amount} of memory"
        for what, amount in wanted.items()
    )
    if no_wait or changed["spec"].get("running") is False:
        when = "" if no_wait else " when it is started"
        print_line(f"{format_key(key)}: to have {amounts_text}{when}")
        return 0
    amounts = {"cpus" if what == "cpu" else what: Quantity.parse(amount) for what, amount in wanted.items()}

    def has_them(obj: Object) -> bool:
        observed = as_mapping(MachineView(obj).status.get("observed"))
        return all(name in observed and Quantity.parse(str(observed[name])) == each for name, each in amounts.items())

    seconds = DEFAULT_SECONDS if timeout is None else timeout
    missing = wait_until(store, [key], "scaled", seconds, test=has_them, gives_up=timeout is None)
    if not missing:
        print_line(f"{format_key(key)} has {amounts_text}")
    return report_missing(store, "scaled", missing, seconds)


def _finish_set(store: Store, key: Key, replicas: int, timeout: float | None, no_wait: bool) -> int:
    if no_wait:
        print_line(f"{format_key(key)}: to have {replicas} machines")
        return 0
    seconds = DEFAULT_SECONDS if timeout is None else timeout
    missing = wait_until(store, [key], "ready", seconds)
    if not missing:
        print_line(f"{format_key(key)} has {replicas} ready machine{'' if replicas == 1 else 's'}")
    return report_missing(store, "ready", missing, seconds)
