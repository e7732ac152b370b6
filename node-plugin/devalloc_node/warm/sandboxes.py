"""Use warm setups as sandboxes of this node's own machines: each run of a machine owns one until it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.machine.spec import MachineSandbox, MachineSpec, whole_cpus
from devalloc_node.warm.errors import NotEnoughSetups, SetupNotTaken
from devalloc_node.warm.pool import Pool
from devalloc_node.warm.setup import TakenSetup

log = logging.getLogger(__name__)

OWNER = "machine/"
"""The prefix of owners that are machines of this node, before their key; no other owner has it."""
_QUIET_SECONDS = 2.0
"""How long whatever else lives in the setup of a machine that has ended may take to leave."""


class WarmSandboxes:
    """Safe for threads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def give(self, spec: MachineSpec, run: str) -> MachineSandbox:
        """A setup, with the CPUs that it was given where it is to be pinned. Raises NotEnoughSetups, Denied, Failed."""
        owner = f"{OWNER}{spec.key}"
        for left in self._of(owner):
            if left.request != run:  # of a start that was cut off
                self._give_back(left)
        vcpus = whole_cpus(spec.cpus.most) if spec.pinned else 0
        taken = self._pool.take(owner, run, vcpus=vcpus, node=spec.numa_node, bare=True)
        self._pool.end_waiting(taken.setup.id)
        return MachineSandbox(taken.setup.namespace, () if taken.pin is None else taken.pin.cpus)

    def take_back(self, key: str) -> None:
        for taken in self._of(f"{OWNER}{key}"):
            self._give_back(taken)

    def check_lent(self, spec: MachineSpec) -> None:
        """One that waits in a setup may be adopted by who has taken that."""
        socket = Path(spec.adopt or "/").resolve()  # links that lead there are followed when it is adopted
        if self._pool.config.paused.run.resolve() not in socket.parents:
            return
        qmps = (taken.setup.qmp for taken in self._pool.taken())
        if not any(qmp is not None and qmp.resolve() == socket for qmp in qmps):
            raise Denied(
                "SetupNotTaken",
                f"{socket} belongs to a warm setup that is not taken: take one (`devalloc warm take`) and adopt its "
                "machine",
            )

    def sweep(self, lives_in: Callable[[str, str], bool]) -> None:
        """Take back what a plugin that was killed, or was just starting, did not. ``lives_in``: whether a setup that
        one run of a machine was given is its still."""
        for taken in self._pool.taken():
            if taken.owner.startswith(OWNER) and not lives_in(taken.owner.removeprefix(OWNER), taken.request):
                with suppress(NodeError):  # still in use
                    self._pool.give_back(taken.setup.id, Deadline.after(0))

    def _of(self, owner: str) -> list[TakenSetup]:
        return [taken for taken in self._pool.taken() if taken.owner == owner]

    def _give_back(self, taken: TakenSetup) -> None:
        """What cannot be given back now is with the next sweep."""
        try:
            with suppress(SetupNotTaken, NotEnoughSetups):  # another call was faster, or the pool is not open yet
                self._pool.give_back(taken.setup.id, Deadline.after(_QUIET_SECONDS))
        except NodeError as error:
            log.warning("cannot give back the setup of %s, which has ended, yet: %s", taken.owner, error)
