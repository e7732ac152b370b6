"""Who held which devices of resource.k8s.io, at each version of each claim, as a watch reports it."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from devalloc.api.quantity import Quantity
from devalloc.store.kubernetes import ApiError, Client
from tests.support.kube_api import Cluster

Device = tuple[str, str, str]
"""Driver, pool and device."""


class DeviceOwners:
    """Judge of each state of the claims: a device has one owner, shares fit their device, draws fit the counters."""

    def __init__(self, slices: Iterable[dict[str, Any]] = ()) -> None:
        """``slices``: specs of ResourceSlices whose shared devices and counters are judged as well."""
        self.now: dict[str, set[str]] = {}
        """By namespace and name of a claim: pool and device."""
        self.twice: list[str] = []
        """What was wrong, each once."""
        self.seen = 0
        self.granted: Counter[bool] = Counter()
        """Allocations that were seen to come: of labelled claims, and of others."""
        self.ever: set[str] = set()
        """Claims that had devices at some time."""
        self._results: dict[str, list[dict[str, Any]]] = {}
        self._capacity: dict[Device, dict[str, int]] = {}
        self._draws: dict[Device, dict[tuple[str, str, str, str], int]] = {}
        self._totals: dict[tuple[str, str, str, str], int] = {}
        for spec in slices:
            self._learn(spec)

    def _learn(self, spec: dict[str, Any]) -> None:
        driver, pool = spec["driver"], spec["pool"]["name"]
        for group in spec.get("sharedCounters", ()):
            for name, content in group["counters"].items():
                self._totals[driver, pool, group["name"], name] = Quantity.parse(content["value"]).nano
        for device in spec.get("devices", ()):
            at = driver, pool, device["name"]
            amounts = {name: Quantity.parse(one["value"]).nano for name, one in device.get("capacity", {}).items()}
            if device.get("allowMultipleAllocations"):
                self._capacity[at] = amounts
            self._draws[at] = {
                (driver, pool, one["counterSet"], name): Quantity.parse(content["value"]).nano
                for one in device.get("consumesCounters", ())
                for name, content in one["counters"].items()
            }

    def tell(self, event: dict[str, Any]) -> None:
        claim = event["object"]
        name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        held = (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ())
        results = [each for each in held if not each.get("adminAccess")] if event["type"] != "DELETED" else []
        if results and not self._results.get(name):
            labels = claim["metadata"].get("labels") or {}
            self.ever.add(name)
            self.granted[labels.get("devalloc.io/allocator") == "devalloc"] += 1
        self._results[name] = results
        self.now[name] = {f"{each['pool']}/{each['device']}" for each in results}
        self.seen += 1
        if results:
            self._judge({_device(each) for each in results})

    def _judge(self, devices: set[Device]) -> None:
        holders: dict[Device, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        for name, results in self._results.items():
            for each in results:
                holders[_device(each)].append((name, each))
        for device in devices:
            held = holders[device]
            whole = [name for name, each in held if not each.get("shareID")]
            if len(held) > 1 and whole:
                self._note(f"{'/'.join(device)}: {' and '.join(sorted(name for name, _ in held))}")
            taken: Counter[str] = Counter()
            for _, each in held:
                for key, amount in (each.get("consumedCapacity") or {}).items():
                    taken[key] += Quantity.parse(amount).nano
            for key, nano in self._capacity.get(device, {}).items():
                if taken[key] > nano:
                    self._note(f"{'/'.join(device)}: more {key} than there is: {sorted(name for name, _ in held)}")
        drawn: Counter[tuple[str, str, str, str]] = Counter()
        for device in holders:
            for counter, nano in self._draws.get(device, {}).items():
                drawn[counter] += nano
        for counter, nano in drawn.items():
            if nano > self._totals.get(counter, 0):
                self._note(f"{'/'.join(counter)}: more than there is")

    def _note(self, text: str) -> None:
        if text not in self.twice:
            self.twice.append(text)


def _device(result: dict[str, Any]) -> Device:
    return result["driver"], result["pool"], result["device"]


@contextmanager
def watched(cluster: Cluster, path: str, slices: Iterable[dict[str, Any]] = ()) -> Iterator[DeviceOwners]:
    """Watch the claims at a path, such as those of a namespace."""
    client = Client.connect(cluster.kubeconfig("admin"))
    owners, stop = DeviceOwners(slices), threading.Event()
    listed = client.get(path)
    for item in listed["items"]:
        owners.tell({"type": "ADDED", "object": item})

    def run() -> None:
        version = listed["metadata"]["resourceVersion"]
        while not stop.is_set():
            try:
                for event in client.watch(path, {}, version, stop):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        owners.tell(event)
            except ApiError as error:
                if error.is_gone:
                    owners.twice.append(f"the watch missed something: {error}")
                    return
                stop.wait(0.2)  # the API server is away: resumes from where it was

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield owners
    finally:
        stop.set()
        thread.join(60)
