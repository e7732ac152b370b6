"""Run bindings as the engine does, without a journal: prepare a device, undo it, count the steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from devalloc_node.binding.binding import BindingConfig
from devalloc_node.binding.registry import Bindings, step_kinds
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.step import PreparedDevice, Step
from tests.support.fake_host import Boundary, FakeHost, LocalHost

NODE = "node-a"


def pool_of(device: str) -> str:
    """The pool that a device of a card without VFs elsewhere is in."""
    return f"{NODE}-{'-'.join(device.split('-')[:3])}"


@dataclass
class BindingRunner:
    """Prepares devices on a host, and keeps the steps of each as the journal would."""

    host: Boundary
    config: BindingConfig
    done: dict[str, list[Step]] = field(default_factory=dict)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def on(cls, host: FakeHost | Boundary, **settings: Any) -> BindingRunner:
        boundary = LocalHost(host, settings.get("device_kinds", ())) if isinstance(host, FakeHost) else host
        return cls(boundary, BindingConfig(NODE, **settings))

    @property
    def bindings(self) -> Bindings:
        return Bindings(self.host, self.config)

    def prepare(self, device: str, pool: str | None = None, owner: str = "uid-1", **grant: Any) -> PreparedDevice:
        """Prepare a device for a claim of its own; what failed is taken back before the error is raised."""
        granted = GrantedDevice(requests=(), pool=pool_of(device) if pool is None else pool, device=device, **grant)
        binding = self.bindings.choose(granted)
        keys = binding.keys(granted, owner, self.held)
        taken = sorted(set(keys) & set(self.held))
        assert not taken, f"{device} would hold what others hold: {taken}"
        self.done[device], self.keys[device] = [], keys
        steps = binding.prepare(granted, keys, Deadline.after(5))
        kinds = step_kinds(self.host)
        try:
            step = next(steps)
            while True:
                self.done[device].append(step)
                kinds[step.kind].apply(step.target, step.after, Deadline.after(5))
                step = steps.send(None)
        except StopIteration as end:
            prepared: PreparedDevice = end.value
            return prepared
        except (NodeError, OSError):
            self.unprepare(device)
            raise

    def unprepare(self, device: str) -> None:
        """Undo its steps, the last first; shared ones only when no other device of this hand has them."""
        kinds = step_kinds(self.host)
        steps = self.done[device]
        while steps:
            step = steps[-1]
            others = [name for name in self.done if name != device and self._shares(name, step)]
            if others:
                self._pass_on(others[0], step)
            else:
                kinds[step.kind].apply(step.target, step.before, Deadline.after(0.05))
            steps.pop()
        del self.done[device], self.keys[device]

    @property
    def held(self) -> Collection[str]:
        return {key for keys in self.keys.values() for key in keys}

    def kinds_of(self, device: str) -> list[str]:
        return [step.kind for step in self.done[device]]

    def _shares(self, name: str, step: Step) -> bool:
        return step.shared is not None and any(_same(step, other) for other in self.done[name])

    def _pass_on(self, name: str, step: Step) -> None:
        """What was there before stays known for as long as a claim has it."""
        self.done[name] = [step if _same(step, other) else other for other in self.done[name]]


def _same(step: Step, other: Step) -> bool:
    return (step.shared, step.kind, step.target) == (other.shared, other.kind, other.target)


def config(kind: str, **spec: Any) -> Mapping[str, Any]:
    """A configuration object."""
    return {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "c", "namespace": "d"},
        "spec": spec,
    }


def pci_location(address: str) -> dict[str, str | int]:
    """What a prepared function tells of where it is, on hosts with one node and one root."""
    attributes = {"pciBusID": address, "numaNode": 0, "pcieRoot": "pci0000:00"}
    return {f"resource.kubernetes.io/{name}": value for name, value in attributes.items()}


def refusal(host: FakeHost, device: str, **settings: Any) -> str:
    """The code with which a device is refused; whatever refuses has not changed the host."""
    before = host.snapshot()
    with pytest.raises(NodeError) as caught:
        BindingRunner.on(host, **settings).prepare(device)
    assert host.snapshot() == before
    return caught.value.code
