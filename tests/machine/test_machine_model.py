"""The model of a machine that the virtual world has does what the machine layer does on a real QEMU: what it refuses,
with which code, and what is read back after each command, whether the guest obeys or is not there yet.

A random walk of commands, given to both. CPUs leave last: none may come to an emulated machine after that.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest

from devalloc_machines.qemu import confinement
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError, Unknown
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machine_model import MIB, MachineModel
from tests.support.machines import config, ended, plugin, short_folder, view, virtual_machine

KEY = "default/m"
LEAST, MOST, CPUS = 512 * MIB, 2048 * MIB, 4
Command = tuple[str, int]


@pytest.fixture
def settings(micro: Image, sriov: Image) -> Iterator[MachineConfig]:
    """QEMU 10, out of which emulated CPUs can be taken, with the small guest."""
    with short_folder() as folder:
        made = config(
            micro,
            folder,
            folders=(AllowedFolder(micro.folder, "any"), AllowedFolder(folder, "any")),
            binary=str(sriov.qemu),
        )
        with ended(made):
            yield made


class Modelled:
    """The model, and its clock."""

    def __init__(self, bounds_time: bool) -> None:
        self.now = 0.0
        self.model = MachineModel(
            lambda: self.now, LEAST, MOST - LEAST, 1, CPUS, rate=0, bounds_time=bounds_time, emulated=True
        )

    def scale(self, what: str, amount: int, patience: float) -> None:
        for seconds in self.model.command(what, amount, patience):
            self.now += seconds

    def seen(self) -> dict[str, int]:
        return {**self.model.seen(), "told": self.model.target}


def drawn(rng: random.Random, what: str) -> int:
    """An amount of all kinds: within and beyond the bounds, whole and not."""
    if what == "cpu":
        return rng.choice([0, 500, 999, 1000, 1500, 2000, 3000, 4000, 4001, 250])
    if what == "vcpus":
        return rng.choice([0, 1, 2, 3, 4, 5])
    even = rng.randrange(LEAST // MIB, MOST // MIB + 1, 128) * MIB
    return rng.choice([even, even, even + 1, even + MIB, MOST, LEAST, LEAST - 2 * MIB, MOST + 2 * MIB])


def walk(rng: random.Random, length: int, kinds: tuple[str, ...]) -> list[Command]:
    return [(what := rng.choice(kinds), drawn(rng, what)) for _ in range(length)]


def raised(cpus: int, commands: list[Command]) -> list[Command]:
    """Without those by which CPUs leave, where there are so many."""
    remaining = []
    for what, amount in commands:
        if what == "vcpus" and 1 <= amount < cpus:
            continue
        cpus = amount if what == "vcpus" and amount <= CPUS and amount else cpus
        remaining.append((what, amount))
    return remaining


def code_of(error: NodeError | None) -> tuple[str, bool] | None:
    return None if error is None else (error.code, error.retryable)


def test_a_random_walk_of_commands_is_the_same_for_both(settings: MachineConfig, micro: Image) -> None:
    rng = random.Random(10)
    with plugin(settings) as machines:
        machines.start(virtual_machine("m", micro), soon())
        seen = view(machines)
        modelled = Modelled(confinement.group_of(machines.config.cgroups, seen.pid) is not None)
        outcomes: set[tuple[str, bool] | None] = set()

        def both(what: str, amount: int, patience: float = 30.0) -> None:
            errors: list[NodeError | None] = [None, None]
            try:
                machines.scale(KEY, what, amount, Deadline.after(patience))
            except NodeError as error:
                errors[0] = error
            try:
                modelled.scale(what, amount, patience)
            except NodeError as error:
                errors[1] = error
            assert code_of(errors[0]) == code_of(errors[1]), (what, amount, errors)
            outcomes.add(code_of(errors[0]))
            assert read_back() == modelled.seen(), (what, amount)

        def read_back() -> dict[str, int | None]:
            now = view(machines)
            has = {"cpu_milli": now.observed.cpu_milli, "vcpus": now.observed.vcpus}
            return {**has, "memory_bytes": now.observed.memory_bytes, "told": now.applied.memory_bytes}

        # No guest runs yet: none takes memory.
        for what, amount in [*walk(rng, 4, ("cpu",)), ("memory", 1024 * MIB), ("memory", MOST + MIB)]:
            both(what, amount, 1.5)
        assert ("GuestRefused", True) in outcomes

        machines.resume(KEY, soon())
        with Guest(machines.config.folder(machines.record_for(KEY).spec.id) / "agent") as guest:
            modelled.model.rate = 1024 * MIB
            for what, amount in [*raised(1, walk(rng, 16, ("memory", "cpu", "vcpus"))), ("vcpus", CPUS)]:
                both(what, amount)
            count = modelled.model.vcpus
            guest.until(f"[ $(cat /sys/devices/system/cpu/online) = 0-{count - 1} ]")

            # Who hears nothing of QEMU has changed nothing, and cannot tell.
            before = read_back()
            os.kill(seen.pid, signal.SIGSTOP)
            try:
                with pytest.raises(Unknown):
                    machines.scale(KEY, "memory", MOST if modelled.model.memory < MOST else LEAST, soon(1))
            finally:
                os.kill(seen.pid, signal.SIGCONT)
            machines.scale(KEY, "memory", modelled.model.memory, soon())
            assert read_back() == before

            # CPUs leave, and then no others may come.
            for what, amount in [("vcpus", 2), *walk(rng, 3, ("memory", "cpu")), ("vcpus", 3), ("vcpus", 1)]:
                both(what, amount)
        assert {code and code[0] for code in outcomes} >= {None, "OutOfBounds", "GuestRefused", "CpusEmulated"}
