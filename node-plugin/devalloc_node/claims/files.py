"""The files that go with prepared claims: which there are, where they lie, whether any is left, and how one is written.

Steps of kind ``file`` put one there. A value is its text; None means no file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devalloc_node.claims.cdi import Rendered, claim_spec
from devalloc_node.claims.container_metadata import metadata_files
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.host.files import Files
from devalloc_node.journal.protocol import Journal, JournalReader
from devalloc_node.model.grant import Grant
from devalloc_node.model.prepared import PreparedDevice
from devalloc_node.model.step import Value

MAX_BYTES = 2**20
"""Far more than any of them has."""
_FOLDERS = "files/folders"


@dataclass(frozen=True, slots=True)
class ClaimFiles:
    """CDI specs in ``cdi``, metadata files below ``data``, both named after ``driver``."""

    driver: str
    cdi: Path
    data: Path
    journal: JournalReader

    def spec(self, grant: Grant, devices: Sequence[PreparedDevice]) -> Rendered:
        """The CDI spec. Raises Denied."""
        return claim_spec(grant.ref, devices, driver=self.driver, folder=str(self.cdi))

    def metadata(self, grant: Grant, devices: Sequence[PreparedDevice]) -> Rendered:
        """The metadata files. Raises Denied; ``ClaimNameHeld`` while another claim of that name has its own there."""
        # Their folder is named after the claim, not after its UID. A claim is in the journal before it renders,
        # so two at once see each other.
        for other in (record.ref for record in self.journal.claims()):
            if other != grant.ref and str(other) == str(grant.ref):
                raise Denied(
                    "ClaimNameHeld",
                    f"another claim {other} (uid {other.uid}) is still prepared, and its files have the same names",
                    retryable=True,
                )
        return metadata_files(grant, devices, driver=self.driver, data=str(self.data), folder=str(self.cdi))

    def remains(self, uid: str) -> Sequence[str]:
        """CDI specs of a claim that are there, by their paths. Raises Failed."""
        try:
            names = sorted(path.name for path in self.cdi.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise Failed("HostUnreadable", f"cannot list {self.cdi}: {error.strerror}") from error
        starts = (f"{self.driver}_claim_{uid}.", f"{self.driver}_metadata_{uid}_")
        return [str(self.cdi / name) for name in names if name.startswith(starts)]


def folders_ever(journal: Journal, now: Sequence[str]) -> tuple[str, ...]:
    """All folders that files of claims may be in: those that are written to now, and, as the journal remembers, those
    that were when the plugin was told others. Raises Failed."""
    remembered: list[str] = json.loads(journal.setting(_FOLDERS) or "[]")
    every = sorted({*remembered, *now})
    if every != remembered:
        journal.set(_FOLDERS, json.dumps(every))
    return tuple(every)


@dataclass(frozen=True, slots=True)
class FileKind:
    """Writes and removes files below the folders that the host's boundary allows."""

    host: Host
    earlier: tuple[str, ...] = ()
    """Folders that it allowed once (``folders_ever``): what was written there is removed from there, or repeated."""

    def read(self, target: str) -> Value:
        try:
            descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(MAX_BYTES + 1)
            return content.decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise Failed("FileUnreadable", f"cannot read {target}: {error}") from error

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        try:
            if value is None:
                self.host.remove_file(target)
            else:
                self.host.put_file(target, value.encode())
        except PermissionError:
            if value is None:
                Files(self.earlier).remove(target)
            else:
                Files(self.earlier).put(target, value.encode())
        if self.read(target) != value:
            raise Failed("FileUnreadable", f"{target} does not contain what was just written to it")
