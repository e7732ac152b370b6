"""Setups that are to be removed, and whether anybody lives in one: then nothing of it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from devalloc_node.errors import Denied, NodeError
from devalloc_node.warm.build import Builder
from devalloc_node.warm.occupants import occupants
from devalloc_node.warm.records import Record
from devalloc_node.warm.shelf import Shelf

log = logging.getLogger(__name__)


class Clearing:
    """Safe for threads."""

    def __init__(self, shelf: Shelf, builder: Builder, workers: int) -> None:
        self._shelf = shelf
        self._builder = builder
        self._workers = workers

    def occupants(self, records: Sequence[Record], *, asking: bool = False) -> Mapping[str, Sequence[str]]:
        """Who lives in them, by id, but for machines that wait there. ``asking``: these may have been used since, and
        are asked whether they were. Raises Failed (``ProcessesUnseen``)."""
        waiting = {}
        for record in records:
            process = self._builder.process_of(record)
            if process is not None and (not asking or self._builder.is_unused(record)):
                waiting[record.id] = process
        return occupants([self._builder.setup_of(record) for record in records], waiting)

    def remove_all(self) -> None:
        """Try those that are to be removed, several at a time. Raises Failed (``ProcessesUnseen``)."""
        with self._shelf.mutex:
            records = list(self._shelf.removing.values())
        if not records:
            return
        lived_in = self.occupants(records)
        with ThreadPoolExecutor(min(self._workers, len(records)), thread_name_prefix="warm") as workers:
            list(workers.map(lambda record: self.remove(record, lived_in), records))

    def remove(self, record: Record, lived_in: Mapping[str, Sequence[str]]) -> None:
        """What cannot be removed now is tried again. ``lived_in``: who lives where."""
        shelf = self._shelf
        with shelf.mutex:
            if record.id in shelf.in_hand or record.id not in shelf.removing:
                return
            shelf.in_hand.add(record.id)
        try:
            if who := lived_in.get(record.id):
                raise Denied("SetupInUse", f"setup {record.id} is not removed, for it is used by {', '.join(who)}")
            self._builder.remove(record)
        except NodeError as error:
            log.warning("%s", error)
            shelf.failed(error)
        else:
            with shelf.mutex:
                shelf.removing.pop(record.id, None)
        finally:
            with shelf.mutex:
                shelf.in_hand.discard(record.id)
                shelf.mutex.notify_all()
