"""What the pool remembers: which setups are ready, who has which, and what is being made and removed."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from devalloc_node.errors import Denied
from devalloc_node.warm.errors import NotTaken, TryAgain
from devalloc_node.warm.records import Record
from devalloc_node.warm.setup import WarmConfig


class Shelf:
    """All of it is under ``mutex``, which a thread may take again that has it; the methods take it themselves.

    Nothing on the host is changed while it is held.
    """

    def __init__(self, config: WarmConfig) -> None:
        self.mutex = threading.Condition()
        self.ready: deque[Record] = deque()
        """Oldest first."""
        self.taken: dict[str, Record] = {}
        self.asked: set[tuple[str, str]] = set()
        """Owners and requests that are being answered."""
        self._changing: set[str] = set()
        """Those of the taken ones that somebody gives back, or changes, just now."""
        self.making = 0
        self.removing: dict[str, Record] = {}
        self.in_hand: set[str] = set()
        """Those of these that somebody removes just now."""
        self.is_open = False
        self.made = self.failures = 0
        self.problem = ""
        self._most = config.most
        self._calls = 0

    # Who works with it.

    def check_open(self) -> None:
        """Raises TryAgain."""
        if not self.is_open:
            raise closed()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Inside, records are written for somebody who asked. Raises TryAgain where it is not open."""
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
    def changing(self, setup: str) -> Iterator[Record]:
        """Inside, one of the taken ones is nobody else's to change. Raises NotTaken, Denied ``SetupBusy``."""
        with self.mutex:
            record = self.taken.get(setup)
            if record is None:
                raise NotTaken(setup)
            self._check_still(setup)
            self._changing.add(setup)
        try:
            yield record
        finally:
            with self.mutex:
                self._changing.discard(setup)

    def _check_still(self, setup: str) -> None:
        if setup in self._changing:
            why = f"setup {setup} is being given back, or changed, by somebody else just now"
            raise Denied("SetupBusy", why, retryable=True)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody makes or removes anything, or writes a record."""
        with self.mutex:
            return not (self._calls or self.making or self.in_hand)

    # What there is.

    @property
    def total(self) -> int:
        with self.mutex:
            return len(self.ready) + len(self.taken) + self.making + len(self.removing)

    def of_request(self, owner: str, request: str) -> Record | None:
        """What an owner has by that name. Raises Denied ``SetupBusy``."""
        with self.mutex:
            found = next((r for r in self.taken.values() if (r.request, r.owner) == (request, owner)), None)
            if found is not None:
                self._check_still(found.id)
            return found

    def loads(self) -> Counter[int]:
        """vCPUs by CPU of the host: counted anew from those who have them, so that none stays counted whose owner has
        gone."""
        with self.mutex:
            return Counter(cpu for record in self.taken.values() for cpu in record.cpus)

    # What becomes of it.

    def discard(self, record: Record) -> Record:
        """It is to be removed."""
        with self.mutex:
            record = self.removing[record.id] = replace(record, state="removing")
        return record

    def begin_making(self, number: int) -> None:
        """Have room for so many. Raises TryAgain."""
        with self.mutex:
            total, most = self.total, self._most
            if total + number > most:
                raise TryAgain(
                    "setups",
                    f"{number} more warm setups would be {total + number}, and {most} may be: {len(self.taken)} are "
                    f"taken, {len(self.ready)} ready, {self.making} being made and {len(self.removing)} being removed",
                )
            self.making += number

    def finish_making(self, record: Record | None) -> None:
        """Of one of these: it is ready; None where there is none, or it is somebody's already."""
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


def closed() -> TryAgain:
    """What is said to who comes too early or too late."""
    return TryAgain("pool", "the pool of warm setups is not open: the node plugin starts, or ends")
