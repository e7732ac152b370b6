"""The pool's state: ready setups, owners, and setups being created or removed."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from devalloc_machines.warm.records import SetupRecord
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import NotEnoughSetups, SetupNotTaken
from devalloc_node.errors import Denied


class PoolState:
    """All of it is under ``mutex``, which a thread may take again that has it; the methods take it themselves.

    Nothing on the host is changed while it is held.
    """

    def __init__(self, config: WarmConfig) -> None:
        self.mutex = threading.Condition()
        self.ready: deque[SetupRecord] = deque()
        """Oldest first."""
        self.taken: dict[str, SetupRecord] = {}
        self.pending: set[tuple[str, str]] = set()
        """Owners and requests that are being answered."""
        self._changing: set[str] = set()
        """Those of the taken ones that are being given back or changed."""
        self.making = 0
        self.removing: dict[str, SetupRecord] = {}
        self.in_hand: set[str] = set()
        """Those of these that are being removed."""
        self.is_open = False
        self.made = self.failures = 0
        self.problem = ""
        self._most = config.most
        self._calls = 0

    # Who works with it.

    def check_open(self) -> None:
        """Raises NotEnoughSetups."""
        if not self.is_open:
            raise pool_closed_error()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Inside, records are written for a caller. Raises NotEnoughSetups if the pool is not open."""
        with self.mutex:
            self.check_open()
            self._calls += 1
        try:
            yield
        finally:
            with self.mutex:
                self._calls -= 1
                self.mutex.notify_all()

    @contextmanager
    def changing(self, setup: str) -> Iterator[SetupRecord]:
        """Inside, no other call changes this taken setup. Raises SetupNotTaken, Denied ``SetupBusy``."""
        with self.mutex:
            record = self.taken.get(setup)
            if record is None:
                raise SetupNotTaken(setup)
            self._check_still(setup)
            self._changing.add(setup)
        try:
            yield record
        finally:
            with self.mutex:
                self._changing.discard(setup)

    def _check_still(self, setup: str) -> None:
        if setup in self._changing:
            why = f"another call is giving back or changing setup {setup}"
            raise Denied("SetupBusy", why)

    @property
    def is_quiet(self) -> bool:
        """Whether no call makes or removes anything, or writes a record."""
        with self.mutex:
            return not (self._calls or self.making or self.in_hand)

    # What there is.

    @property
    def total(self) -> int:
        with self.mutex:
            return len(self.ready) + len(self.taken) + self.making + len(self.removing)

    def of_request(self, owner: str, request: str) -> SetupRecord | None:
        """What an owner has by that name. Raises Denied ``SetupBusy``."""
        with self.mutex:
            record = next((r for r in self.taken.values() if (r.request, r.owner) == (request, owner)), None)
            if record is not None:
                self._check_still(record.id)
            return record

    def loads(self) -> Counter[int]:
        """vCPUs by CPU of the host: counted anew from those who have them, so that none stays counted whose owner has
        gone."""
        with self.mutex:
            return Counter(cpu for record in self.taken.values() for cpu in record.cpus)

    # What becomes of it.

    def discard(self, record: SetupRecord) -> SetupRecord:
        """It is to be removed."""
        with self.mutex:
            record = self.removing[record.id] = replace(record, state="removing")
        return record

    def begin_making(self, number: int) -> None:
        """Have room for so many. Raises NotEnoughSetups."""
        with self.mutex:
            total, most = self.total, self._most
            if total + number > most:
                raise NotEnoughSetups(
                    "setups",
                    f"{number} more warm {'setup' if number == 1 else 'setups'} would make {total + number}, but the "
                    f"maximum is {most}: "
                    f"{len(self.taken)} are taken, {len(self.ready)} ready, {self.making} being created and "
                    f"{len(self.removing)} being removed",
                )
            self.making += number

    def finish_making(self, record: SetupRecord | None) -> None:
        """A setup that is ready; None if there is none, or if it has an owner already."""
        with self.mutex:
            self.making -= 1
            if record is not None:
                self.ready.append(record)
            self.mutex.notify_all()

    def failed(self, error: BaseException) -> None:
        """Something could not be made or removed."""
        with self.mutex:
            self.failures += 1
            self.problem = str(error)


def pool_closed_error() -> NotEnoughSetups:
    """What is said to who comes too early or too late."""
    return NotEnoughSetups("pool", "the warm pool is not open: the node plugin is starting or ending")
