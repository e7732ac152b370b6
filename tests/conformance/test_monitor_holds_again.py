"""A claim lets its GPU go, whatever became of `nvidia-persistenced` or of the GPU while the claim had it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devalloc_machines.part import MachineSettings
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.deadline import Deadline
from tests.conformance.test_node_and_kubelet import GPU, GPU_FUNCTIONS, Bed
from tests.support.fake_tree import memory_folder


class MonitoredBed(Bed):
    """A host whose GPU the daemon holds, which may be asked to let it go."""

    def settings(self, pod_uid: str | None = None) -> MachineSettings:
        settings = super().settings(pod_uid)
        config = BindingConfig(self.name, release_from=frozenset({"nvidia-persistenced"}))
        object.__setattr__(settings, "bindings", config)
        return settings


@pytest.fixture
def bed() -> Iterator[MonitoredBed]:
    with memory_folder() as folder:
        bed = MonitoredBed(Path(folder))
        bed.host.persistenced(GPU_FUNCTIONS[0])
        yield bed


def pull(bed: Bed) -> None:
    for address in GPU_FUNCTIONS:
        bed.host.remove_function(address)


def bind_another_driver(bed: Bed) -> None:
    bed.host.load_driver("nouveau")
    for address in GPU_FUNCTIONS:
        bed.host.unbind("vfio-pci", address)
    bed.host.set_override(GPU_FUNCTIONS[0], "nouveau")
    bed.host.probe(GPU_FUNCTIONS[0])


def end_the_daemon(bed: Bed) -> None:
    pid, _ = bed.host.held_by_daemon.pop(GPU_FUNCTIONS[0])
    bed.host.daemon_runs = False
    bed.host.end_process(pid)


def restart_the_daemon(bed: Bed) -> None:
    """It looks for GPUs once, when it starts, and this one is a claim's then."""
    bed.host.held_by_daemon.clear()


CHANGES: dict[str, tuple[Callable[[Bed], None], str | None]] = {
    "nothing changed": (lambda bed: None, "nvidia"),
    "the GPU was pulled": (pull, None),
    "another driver has the GPU": (bind_another_driver, "nouveau"),
    "the daemon has ended": (end_the_daemon, "nvidia"),
    "the daemon was restarted": (restart_the_daemon, "nvidia"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_claim_is_unprepared_though_the_daemon_cannot_hold_its_gpu_again(bed: Bed, change: str) -> None:
    act, driver = CHANGES[change]
    ref = bed.grants.add("training", GPU)
    with bed.opened() as node:
        node.claims.prepare(ref, Deadline.after(20), kind="ResourceClaim")
        assert bed.driver(GPU_FUNCTIONS[0]) == "vfio-pci"
        act(bed)
        node.claims.unprepare(ref, Deadline.after(20), kind="ResourceClaim")
        assert not node.journal.claims()
    function = bed.host.functions.get(GPU_FUNCTIONS[0])
    assert (None if function is None else function.driver) == driver
    if change == "nothing changed":
        assert bed.host.snapshot() == bed.before
        assert bed.host.answer("persistence", GPU_FUNCTIONS[0])
