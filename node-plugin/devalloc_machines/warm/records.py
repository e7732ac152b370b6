"""What outlives a plugin that is killed: one small file for each setup, written before the host is changed.

The files lie beside what they tell of and live as long: after a reboot neither is there, or the records name another
boot. So nothing waits for a disk, and a rename is enough for a reader to see the old record or the new one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter

from devalloc.store.errors import is_disk_full
from devalloc_machines.warm.setup import Inode, is_identifier
from devalloc_node.errors import Failed
from devalloc_node.model.network_address import NetworkAddress, from_content

SetupState = Literal["making", "ready", "taken", "removing"]
_SUFFIX = ".json"
_MAX_BYTES = 1 << 16
_SPARE_BYTES = _MAX_BYTES


_Network = Annotated[
    NetworkAddress, BeforeValidator(from_content), PlainSerializer(NetworkAddress.to_content, return_type=dict)
]


@dataclass(frozen=True, slots=True)
class SetupRecord:
    """How far a setup is."""

    id: str
    state: SetupState
    boot: str
    """The kernel's boot id: what another boot made is gone, but for its folder."""
    parts: tuple[str, ...] = ()
    """Those that there may be, in the order in which they are made: written before each is."""
    inode: Inode | None = None
    user: int | None = None
    owner: str = ""
    """Who has taken it."""
    request: str = ""
    """What its owner called the taking, so that it may be repeated."""
    since_ms: Annotated[int, Field(alias="sinceMs")] = 0
    """When it was taken, since 1970 UTC."""
    cpus: tuple[int, ...] = ()
    """Of the host, that its owner's vCPUs are pinned to."""
    nodes: tuple[int, ...] = ()
    """The NUMA nodes of these."""
    cpu_milli: Annotated[int, Field(alias="cpuMilli")] = 0
    """Thousandths of a CPU that the machine in it takes of the host; 0 if there is none, as for the next."""
    memory_bytes: Annotated[int, Field(alias="memoryBytes")] = 0
    network: _Network | None = None
    """Who its guest is in the network of setups: no other setup has the address while this is there."""

    def with_part(self, name: str) -> SetupRecord:
        return replace(self, parts=(*self.parts, name))

    def without_part(self, name: str) -> SetupRecord:
        return replace(self, parts=tuple(part for part in self.parts if part != name))


_ROW = TypeAdapter(SetupRecord)
"""A record as the JSON of its file, whose name is the id of the setup."""
_WRITTEN_ALWAYS = dict.fromkeys(("parts", "owner", "request", "sinceMs"))
"""Fields that each version writes: a file that lacks one cannot say what exists of a setup, so it is not a record."""


class SetupRecords:
    """The records below a folder. Safe for threads, of which one at a time writes the record of a setup."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spare = folder.with_name("spare")

    def make_folder(self) -> None:
        """Raises Failed ``RecordsUnavailable``."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unavailable(self._folder, error) from error
        self.keep_spare()

    def keep_spare(self) -> None:
        """Reserve space to record that a setup is removed, even on a full file system: perhaps its owner filled it,
        and only removing it makes room. Nothing to do if there is none now."""
        with suppress(OSError):
            if not self._spare.exists():
                self._spare.write_bytes(bytes(_SPARE_BYTES))

    def put(self, record: SetupRecord) -> None:
        """Raises Failed ``RecordsUnavailable``."""
        place = self._folder / f"{record.id}{_SUFFIX}"
        try:
            try:
                self._write(record, place)
            except OSError as error:
                if not is_disk_full(error) or record.state != "removing":
                    raise
                self._spare.unlink(missing_ok=True)
                self._write(record, place)
        except OSError as error:
            raise _unavailable(place, error) from error

    def _write(self, record: SetupRecord, place: Path) -> None:
        temporary = self._folder / f".{record.id}.new"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                # All of it: if space runs out, a part of it would be written.
                file.write(_ROW.dump_json(record, by_alias=True, exclude={"id"}))
            os.rename(temporary, place)
        except OSError:
            with suppress(OSError):  # which takes space
                os.unlink(temporary)
            raise

    def drop(self, name: str) -> None:
        """It may be gone already. Raises Failed ``RecordsUnavailable``."""
        try:
            (self._folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(self._folder / name, error) from error

    def all(self) -> tuple[Sequence[SetupRecord], Sequence[str]]:
        """All that can be read, by id, and the ids of those that cannot. Raises Failed ``RecordsUnavailable``."""
        records, bad = [], []
        for name in self._names():
            record = self._read(name)
            if record is None:
                bad.append(name)
            else:
                records.append(record)
        return records, bad

    @property
    def are_kept(self) -> bool:
        """Whether there is a folder of them."""
        return self._folder.is_dir()

    def tidy(self) -> None:
        """Remove the remains of killed writers, while nothing writes; the records themselves are whole."""
        for path in self._folder.glob(".*"):
            with suppress(OSError):
                path.unlink()

    def _names(self) -> list[str]:
        try:
            names = sorted(os.listdir(self._folder))
        except OSError as error:
            raise _unavailable(self._folder, error) from error
        return [of for name in names if name.endswith(_SUFFIX) and is_identifier(of := name.removesuffix(_SUFFIX))]

    def _read(self, name: str) -> SetupRecord | None:
        try:
            descriptor = os.open(self._folder / f"{name}{_SUFFIX}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                content = json.loads(file.read(_MAX_BYTES))
            return _ROW.validate_python({**_WRITTEN_ALWAYS, **content, "id": name})
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None


def _unavailable(where: Path, error: OSError) -> Failed:
    return Failed("RecordsUnavailable", f"cannot store records of warm setups at {where}: {error.strerror or error}")
