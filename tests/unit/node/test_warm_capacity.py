"""Machines that wait in warm setups count against what machines may have of their host, as all others do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.resources import HostUses
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import spec_of
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import NotEnoughSetups
from devalloc_node.errors import Denied
from devalloc_node.journal.sqlite import open_journal
from tests.support.capacity_fakes import host
from tests.support.deadlines import soon
from tests.support.machines import virtual_machine
from tests.support.toy_setups import BOOT, ToyPart

TEMPLATE = virtual_machine("any", memory={"min": "64Mi", "max": "128Mi"})
WEB = virtual_machine("web", memory={"min": "64Mi", "max": "64Mi"})
ROOM = host(cpu=64, memory="256Mi", ratios={"cpu": "1"})
"""For four of them."""


class Plugin:
    """The parts of one that have to do with room."""

    def __init__(self, folder: Path, toy: ToyPart, template: object = TEMPLATE) -> None:
        self.journal = open_journal(folder / "journal")
        self.pool = Pool(
            WarmConfig(run=folder / "run", namespaces=folder / "netns", machine=template),  # type: ignore[arg-type]
            BOOT,
            parts=[toy],
            admit=lambda machine, spec: self.machines.admitted(machine, spec, soon()),
        )
        config = MachineConfig(state=folder / "state")
        self.machines = MachineLifecycle(config, self.journal, host=ROOM, uses=HostUses(self.pool.uses))

    def admits(self) -> bool:
        try:
            with self.machines.admitted(WEB, spec_of(WEB), soon()):
                return True
        except Denied as error:
            if error.code != "HostFull":
                raise
            return False


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Plugin]:
    made = Plugin(tmp_path, ToyPart())
    with closing(made.journal):
        made.pool.open()
        yield made
        made.pool.close(soon())


def test_as_many_wait_as_the_host_has_room_for_and_no_other_is_admitted_then(plugin: Plugin) -> None:
    assert plugin.admits()
    with pytest.raises(NotEnoughSetups, match=r"does not fit on this host now: insufficient memory") as short:
        plugin.pool.fill(9)  # four at a time
    assert (short.value.short, short.value.retryable) == ("room", True)
    assert plugin.pool.status().ready == 4, "as many as there is room for, also where they are made at the same time"
    assert not plugin.admits()

    taken = plugin.pool.take("platform")
    assert not plugin.admits(), "what its owner lets run takes as much"
    with pytest.raises(NotEnoughSetups):
        plugin.pool.fill(1)
    plugin.pool.give_back(taken.setup.id, soon())
    assert plugin.admits()


def test_a_bare_setup_needs_no_room_for_a_machine(plugin: Plugin) -> None:
    plugin.pool.fill(4)
    assert len({plugin.pool.take("web", bare=True).setup.id for _ in range(5)}) == 5
    assert plugin.pool.status().ready == 0


def test_those_of_an_earlier_plugin_and_of_one_beside_count_too(plugin: Plugin, tmp_path: Path) -> None:
    plugin.pool.fill(4)
    other = Plugin(tmp_path, ToyPart(), None)
    with closing(other.journal):
        assert not other.admits(), "its own pool is not open, for the other one has it"
    for _ in range(4):
        plugin.pool.take("platform")
    plugin.pool.close(soon())
    assert not plugin.admits()


def test_a_setup_without_a_machine_takes_nothing(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, ToyPart(), None)
    with closing(plugin.journal):
        assert plugin.admits(), "also before there is any folder of records"
        plugin.pool.open()
        plugin.pool.fill(9)
        assert plugin.admits()
        plugin.pool.close(soon())
