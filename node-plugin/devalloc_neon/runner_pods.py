"""Write ``status.runnerPod`` of VirtualMachines from the pods that run them.

A permit server of another program, and Neon's agents, know a machine by the pod that runs it. Such a pod names its
machine in a label and has the machine's amounts in an annotation. A VirtualMachine gets the name of the newest pod of
its namespace that names it and is on its node, if it has the label ``autoscaling.neon.tech/enabled: "true"``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from devalloc.api.views import MachineView, ObjectView, as_mapping
from devalloc.scaling.permits.ledger import MachineKey
from devalloc.scaling.resources import LABEL_SCALING
from devalloc.store import (
    REFUSALS,
    Change,
    Conflict,
    Event,
    EventType,
    Key,
    NotFound,
    Object,
    Store,
    Unavailable,
)
from devalloc.store.kubernetes.resources import ApiResource
from devalloc.store.watcher import Listed, Watcher
from devalloc_neon.vm_info import LABEL_NAME, from_pod

log = logging.getLogger(__name__)

KIND = "VirtualMachine"
RUNNER_PODS = ApiResource(
    "Pod",
    "",
    "v1",
    "pods",
    True,
    True,
    labels=LABEL_NAME,
    only=(
        ("metadata",),
        ("spec", "nodeName"),
        ("spec", "resources"),
        ("spec", "containers", "resources"),
        ("status", "phase"),
    ),
)
"""Pods with the label that names their machine."""
POD = RUNNER_PODS.store_kind
MAX_ATTEMPTS = 10
"""How often a write is based on a newer object because others write it, too."""


def has_ended(pod: Object) -> bool:
    """Whether none of its containers runs any more, or will."""
    return as_mapping(pod.get("status")).get("phase") in ("Succeeded", "Failed")


class RunnerPods:
    """``run`` in a thread of a process that leads."""

    def __init__(self, store: Store) -> None:
        """``store``: has VirtualMachines and ``RUNNER_PODS``."""
        self._store = store
        self._pods: dict[MachineKey, dict[str, Object]] = {}
        """The pods of each machine, by their names."""
        self._machine_of: dict[MachineKey, MachineKey] = {}
        """The machine of each of these pods, by the pod's namespace and name."""
        self._machines: dict[MachineKey, Object] = {}

    def run(self, stop: threading.Event) -> None:
        """Write what changes, until ``stop`` is set."""
        Watcher(self._store, (KIND, POD), self.heard, "cannot write which pods run machines").run(stop)

    def heard(self, change: Listed | Event) -> None:
        """Write what follows from machines and pods that changed. Raises StoreError."""
        if isinstance(change, Event):
            self.write(self._note(change.object, is_gone=change.type is EventType.DELETED))
            return
        self._pods, self._machine_of, self._machines = {}, {}, {}
        self.write(sorted({key for obj in change.objects for key in self._note(obj, is_gone=False)}))

    def _note(self, obj: Object, *, is_gone: bool) -> list[MachineKey]:
        """The machines that it concerns."""
        if obj["kind"] == KIND:
            key = MachineView(obj).key
            if is_gone:
                self._machines.pop(key, None)
            else:
                self._machines[key] = obj
            return [key]
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        # The label of a pod can change, so all that it ran may be concerned.
        before = []
        if (machine := self._machine_of.pop((namespace, name), None)) is not None:
            before.append(machine)
            del self._pods[machine][name]
            if not self._pods[machine]:
                del self._pods[machine]
        read = from_pod(obj)
        if is_gone or read.value is None:
            if not is_gone:
                log.info("pod %s/%s runs no machine that can be read: %s", namespace, name, read.problems[0])
            return before
        key = namespace, read.value.name
        self._pods.setdefault(key, {})[name] = obj
        self._machine_of[namespace, name] = key
        return list(dict.fromkeys((*before, key)))

    def write(self, keys: Iterable[MachineKey]) -> None:
        """Have these machines name their pods. Raises StoreError."""
        for key in keys:
            try:
                self._write(key)
            except REFUSALS as error:
                log.warning("cannot write which pod runs %s/%s: %s", *key, error)

    def _write(self, key: MachineKey) -> None:
        """Raises StoreError."""
        for _ in range(MAX_ATTEMPTS):
            machine = self._machines.get(key)
            pod = None if machine is None else runner_pod(machine, self._pods.get(key, {}).values())
            if machine is None or pod is None:
                return
            status = as_mapping(machine.get("status"))
            if status.get("runnerPod", "") == pod:
                return
            others = {name: value for name, value in status.items() if name != "runnerPod"}
            changed = {**others, "runnerPod": pod} if pod else others
            try:
                # Not ``replace_status``: a commit is refused once another process leads.
                change = Change(Key.of(machine), machine["metadata"]["resourceVersion"], changed)
                self._machines[key] = self._store.commit([change]).objects[0]
                return
            except Conflict:
                try:
                    self._machines[key] = self._store.get(KIND, *key)
                except NotFound:
                    return
        raise Unavailable(f"VirtualMachine {key[0]}/{key[1]} keeps changing")


def runner_pod(machine: Object, pods: Iterable[Object]) -> str | None:
    """The name of the pod that runs a machine; empty without one; None if the machine's owner did not ask for it."""
    labels = as_mapping(machine["metadata"].get("labels"))
    if labels.get(LABEL_SCALING) != "true":
        return None
    node = MachineView(machine).node
    live = [
        pod
        for pod in pods
        if node is not None
        and as_mapping(pod.get("spec")).get("nodeName") == node
        and not has_ended(pod)
        and not ObjectView(pod).is_deleting
    ]
    newest = max(
        live, key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]), default=None
    )
    return "" if newest is None else str(newest["metadata"]["name"])
