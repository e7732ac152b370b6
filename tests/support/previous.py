"""The release before this version, as processes: its sources are kept in ``tests/upgrade``, and run with the same
virtual environment. ``make previous TAG=v0.1.0`` keeps those of another tag instead.

They are a file and not taken from the tag when a test runs, because a clone may have none. Only what runs is kept: no
tests, no documents. What a test starts in both versions (``tests.support.*``) is of this version, and may use of
devalloc only what both have.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import old_names
from tests.support.go_build import cache_folder, locked
from tests.support.repository import REPO

FOLDER = REPO / "tests" / "upgrade"
FOLDERS = ("devalloc", "solver", "node-plugin", "crds", "deploy")
LEFT_OUT = ("deploy/helm", "deploy/images", "deploy/node/systemd")
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]


@dataclass(frozen=True)
class Version:
    """A version of devalloc that can be run."""

    name: str
    tree: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Of its processes, which find the tests' support in this tree."""
        folders = [self.tree, self.tree / "solver", self.tree / "node-plugin", REPO]
        own = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONUNBUFFERED": "1"}
        if (table := FOLDER / f"names-{self.name}.json").exists():
            own[old_names.ENVIRONMENT] = str(table)
        return os.environ | own | more

    def python(self, *words: str) -> list[str]:
        """A command of Python's, which does not look for modules where it is started."""
        return [sys.executable, "-P", *words]

    def devalloc(self, *words: str) -> list[str]:
        """The command."""
        return self.python("-m", "devalloc.cli", *words)

    def start(self, command: Sequence[str], *, pass_fds: Sequence[int] = (), **more: str) -> subprocess.Popen[str]:
        """What it prints comes line by line, errors among it. ``more``: of the environment."""
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment(**more),
            pass_fds=pass_fds,
        )


PRESENT = Version("this version", REPO)


def archive() -> Path:
    """The sources of the previous release."""
    (path,) = FOLDER.glob("devalloc-*.tar.xz")
    return path


def previous() -> Version:
    """The previous release, unpacked in the cache."""
    packed = archive()
    content, name = packed.read_bytes(), packed.name.removeprefix("devalloc-").removesuffix(".tar.xz")
    tree = cache_folder() / f"previous-{hashlib.sha256(content).hexdigest()[:12]}"
    with locked(tree):
        if not (done := tree / ".done").exists():
            with tarfile.open(fileobj=io.BytesIO(content)) as sources:
                sources.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no filters
                sources.extractall(tree)
            metadata = tree / f"devalloc-{name}.dist-info" / "METADATA"  # 0.1.0 asks the installation for its version
            metadata.parent.mkdir(exist_ok=True)
            metadata.write_text(f"Metadata-Version: 2.1\nName: devalloc\nVersion: {name}\n")
            done.touch()
    return Version(name, tree)


def keep(tag: str) -> Path:
    """Put the sources of a tag in the place of those that are kept. Raises subprocess.CalledProcessError."""
    without = [f":(exclude){path}" for path in LEFT_OUT]
    command = ["git", "archive", "--format=tar", tag, "--", *FOLDERS, *without]
    packed = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, check=True).stdout
    content = lzma.compress(packed, filters=_FILTERS)
    for old in [*FOLDER.glob("devalloc-*.tar.xz"), *FOLDER.glob("names-*.json")]:
        old.unlink()
    path = FOLDER / f"devalloc-{tag.removeprefix('v')}.tar.xz"
    path.write_bytes(content)
    (FOLDER / "SHA256SUMS").write_text(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")
    return path


if __name__ == "__main__":
    print(keep(sys.argv[1]).relative_to(REPO))
