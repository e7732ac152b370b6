"""Which worker runs which tests of the tiers that need a machine: a module at a time, and both tiers side by side.

Machines that are emulated compute, and clusters wait: together they take little longer than the longer one alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

LONGEST_FIRST: dict[str, tuple[str, ...]] = {
    "they run the plugin as users do": (
        *("machine/test_guest_scaling.py", "machine/test_guest_partitions.py", "machine/test_vm_objects.py"),
        "machine/test_machine_rates.py",
    ),
    "they share a host, in which the last one has a daemon run": (
        *("machine/test_power_cut.py", "machine/test_sriov_bindings.py", "machine/test_sriov_host.py"),
    ),
    "their machines have one name, and so one cgroup": (
        *("machine/test_machine_scaling.py", "machine/test_machine_survival.py"),
        *("machine/test_machine_owners.py", "machine/test_machine_model.py"),
    ),
    "it kills all the time": ("machine/test_crash.py",),
    "they have a plugin for each test": ("machine/test_warm_objects.py", "machine/test_warm_network_objects.py"),
    "they share the node, for there is one": (
        *("cluster/test_kubelet.py", "cluster/test_upstream.py", "cluster/test_images.py"),
        "cluster/test_adoption_pods.py",
    ),
    "it kills an API server of its own": ("cluster/test_controllers.py",),
    "it has a cluster of its own": ("cluster/test_install.py",),
    "it keeps two API servers and a scheduler busy": ("cluster/test_adoption_race.py",),
}
"""Modules that one worker runs one after the other, and why; in this order, the others after them. What is begun last
is to be short, so that no worker is left with nothing to do.

(Marks for `--dist loadgroup` would say the same, but are not seen with pytest 9.2.)
"""
SLOW = (
    *("cluster/test_examples_installed.py", "cluster/test_dev_cluster.py", "cluster/test_see.py"),
    *("machine/test_migration.py", "machine/test_firmware.py", "machine/test_moves_of_firmware.py"),
    *("machine/test_guest_numa.py", "machine/test_cloned_disks.py", "machine/test_large_bars.py"),
    *("machine/test_huge_pages.py", "machine/test_live_migration.py", "machine/test_drain.py"),
)
"""Modules that any worker runs after those, and before all others."""
TIERS = ("tests/machine/", "tests/cluster/")
SECONDS = 900
"""For one of their tests: some start a cluster or boot a host for those after them, beside three other workers."""
_GROUPS = {module: why for why, modules in LONGEST_FIRST.items() for module in modules}
_ORDER = {module: number for number, module in enumerate((*_GROUPS, *SLOW))}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    has_limit = config.getoption("timeout", None) is not None  # long forms give --timeout 0
    for item in items:
        if item.nodeid.startswith(TIERS) and item.get_closest_marker("timeout") is None and not has_limit:
            item.add_marker(pytest.mark.timeout(SECONDS))
    items.sort(key=lambda item: _ORDER.get(_module(item.nodeid), len(_ORDER)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    config.option.loadscopereorder = False  # in the order of ``LONGEST_FIRST``
    return ByModule(config, log)


class ByModule(LoadScopeScheduling):
    """Each worker keeps to one tier as long as there is any of it: its tests share a cluster, and the machines of two
    workers keep two CPUs busy, not four."""

    def _split_scope(self, nodeid: str) -> str:
        module = _module(nodeid)
        return f"{module.partition('/')[0]}: {_GROUPS.get(module, module)}"

    def _assign_work_unit(self, node: Any) -> None:
        tiers = list(dict.fromkeys(_tier(self._split_scope(nodeid)) for nodeid in self.collection or ()))
        own = tiers[int(node.gateway.id.removeprefix("gw")) % len(tiers)]
        scope = next((scope for scope in self.workqueue if _tier(scope) == own), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """The test that ended its worker is reported and over: it hung, and would for as long in the next worker."""
        units = self.assigned_work[node].values()
        ended = next(((unit, test) for unit in units for test, is_over in unit.items() if not is_over), None)
        if ended is not None:
            unit, test = ended
            unit[test] = True
        super().remove_node(node)
        return None if ended is None else ended[1]


def _module(nodeid: str) -> str:
    """Such as "machine/test_crash.py"."""
    return nodeid.partition("::")[0].removeprefix("tests/")


def _tier(scope: str) -> str:
    return scope.partition(":")[0]
