"""Warm setups without a host: their only part is there or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from devalloc.inventory.capacity.cpus import CpuTopology, NumaNode, parse_cpu_list
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import Setup, SetupPart
from tests.support.deadlines import soon

BOOT = "boot-1"


@dataclass
class ToyPart(SetupPart):
    """A part that is there or not."""

    there: list[str] = field(default_factory=list)
    making: Callable[[Setup], None] = lambda setup: None
    removing: Callable[[Setup], None] = lambda setup: None
    name: str = "toy"

    def make(self, setup: Setup) -> Setup:
        self.making(setup)
        self.there.append(setup.id)
        return setup

    def remove(self, setup: Setup) -> None:
        self.removing(setup)
        if setup.id in self.there:
            self.there.remove(setup.id)

    def lives(self, setup: Setup) -> bool:
        return setup.id in self.there


@contextmanager
def opened(folder: Path, toy: ToyPart, boot: str = BOOT, **more: object) -> Iterator[Pool]:
    """A pool on a host of four CPUs on two NUMA nodes."""
    config = WarmConfig(run=folder / "run", namespaces=folder / "netns", **more)  # type: ignore[arg-type]
    pool = Pool(config, boot, parts=[toy], cpus=lambda: host({0: "0-1", 1: "2-3"}))
    pool.open()
    try:
        yield pool
    finally:
        pool.close(soon())


def host(nodes: dict[int, str], usable: str | None = None) -> CpuTopology:
    """CPUs by cpulists of NUMA nodes."""
    lists = {node: parse_cpu_list(text) or frozenset() for node, text in nodes.items()}
    every = (parse_cpu_list(usable) if usable is not None else None) or frozenset[int]().union(*lists.values())
    return CpuTopology(len(every), every, frozenset(), tuple(NumaNode(node, cpus, 0) for node, cpus in lists.items()))
