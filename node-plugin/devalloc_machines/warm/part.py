"""The pool of warm setups as a part of a node.

| metric | labels | what |
|---|---|---|
| ``devalloc_node_warm_setups`` | state | warm setups: ready, taken, making, removing |
| ``devalloc_node_warm_setups_made_total`` | | warm setups made since the plugin runs |
| ``devalloc_node_warm_setup_failures_total`` | | warm setups that could not be made or removed |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from devalloc.inventory.capacity.machines import MachineUsage
from devalloc.inventory.device_users import visibility_problem
from devalloc_machines.part import MachineHomes, machines_of
from devalloc_machines.qemu import resources
from devalloc_machines.warm.pool import Pool, PoolBackground, WarmSandboxes, is_served
from devalloc_machines.warm.records import SetupRecords
from devalloc_machines.warm.service import WarmService
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import PoolStatus
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.metrics.registry import gauges
from devalloc_node.node import Node
from devalloc_node.parts import Loop, MakePart
from devalloc_node.service.server import ExclusiveEndpoint, Service

log = logging.getLogger(__name__)

ADMIT_SECONDS = 10.0
"""How long a machine that is to wait may take to have its turn among those that are started."""
CLOSE_SECONDS = 5.0
"""How long the warm setups that are being made just then are waited for at the end."""


def warm_part(config: WarmConfig | None, run: Path) -> MakePart:
    """The part, for ``NodeSettings.parts``. ``config``: None for a node that keeps no warm setups; ``run``: the folder
    in which an earlier run may have left some."""

    def make(node: Node) -> MachineHomes:
        return NoWarmSetups(node, run) if config is None else WarmSetups(node, config)

    return make


class WarmSetups(MachineHomes):
    """Of a node that keeps some."""

    def __init__(self, node: Node, config: WarmConfig) -> None:
        self._node = node
        self.pool = Pool(
            replace(config, machines=replace(config.machines, devices=node.devices)),
            node.boot_id(),
            blind=lambda: visibility_problem(node.host.tree()),
            admit=lambda machine, spec: machines_of(node).machines.admitted(
                machine, spec, Deadline.after(ADMIT_SECONDS)
            ),
            exclusive=lambda: resources.exclusive_cpus(machines_of(node).machines.records),
        )
        self.homes: WarmSandboxes = WarmSandboxes(self.pool)
        self.lent = config.paused.run

    def uses(self) -> Iterable[MachineUsage]:
        return self.pool.uses()

    def endpoints(self) -> Mapping[str, Callable[[], ExclusiveEndpoint]]:
        return {f"warm setups in {self.pool.config.run}": self._open}

    def services(self) -> Sequence[Service]:
        return [WarmService(self.pool, self._node.metrics).service()]

    def loops(self) -> Sequence[Loop]:
        return [
            PoolBackground(self.pool, sweep=lambda: self.homes.sweep(machines_of(self._node).machines.lives_in)).keep
        ]

    def metrics(self) -> Iterable[Metric]:
        return pool_metrics(self.pool.status())

    def _open(self) -> ExclusiveEndpoint:
        self.pool.open()
        return ExclusiveEndpoint(f"warm setups in {self.pool.config.run}", self._close)

    def _close(self) -> None:
        left = self.pool.close(Deadline.after(CLOSE_SECONDS))
        if left.removing or left.making:
            log.warning("%d warm setups remain; the next start removes them", left.removing + left.making)


def pool_metrics(status: PoolStatus) -> Iterator[Metric]:
    """Count what is in the pool."""
    by_state = {
        "ready": status.ready,
        "taken": len(status.taken),
        "making": status.making,
        "removing": status.removing,
    }
    yield gauges("devalloc_node_warm_setups", "Warm setups.", "state", by_state)
    for name, what, value in (
        ("devalloc_node_warm_setups_made", "Warm setups created since the plugin started.", status.made),
        ("devalloc_node_warm_setup_failures", "Warm setups that could not be created or removed.", status.failures),
    ):
        yield CounterMetricFamily(name, what, value=value)


class NoWarmSetups(MachineHomes):
    """Of a node that keeps none: its service says so."""

    def __init__(self, node: Node, run: Path) -> None:
        self._node, self._run = node, run

    def services(self) -> Sequence[Service]:
        return [WarmService(None, self._node.metrics).service()]

    def warnings(self) -> Iterable[str]:
        """Warn of setups that outlive the plugin that made them: without --warm nothing manages them."""
        records, left = SetupRecords(self._run / "records"), 0
        with suppress(OSError, NodeError):  # they belong to another user, who alone can manage them
            if records.are_kept and not is_served(self._run):
                left = sum(map(len, records.all()))
        if left and not self._node.settings.dry_run:
            yield (
                f"warning: {left} warm setups of another run are in {self._run}; they cannot be taken or returned "
                "without --warm; --warm 0 keeps those that are taken and removes the others"
            )
