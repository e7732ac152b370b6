"""What is wrong with an image of an architecture that this machine cannot run: each file of its archive is read.

A program or library must be of the architecture, and each library that it needs, each target of a link and each
interpreter must be in the image.
"""

from __future__ import annotations

import io
import json
import posixpath
import struct
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.images.contents import Platform

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"


@dataclass(frozen=True)
class Elf:
    """A program or library."""

    machine: int
    needed: tuple[str, ...]
    """The libraries that it loads."""


@dataclass(frozen=True)
class Tree:
    """All files of an image."""

    architecture: str
    """That its configuration names."""
    files: Mapping[str, bytes]
    links: Mapping[str, str]
    folders: frozenset[str]

    def has(self, path: str) -> bool:
        """Whether there is something at an absolute path, through links."""
        return self.resolved(path) is not None

    def resolved(self, path: str, depth: int = 20) -> str | None:
        """The path of a file or folder without links, from the root; None for none."""
        at = ""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for number, part in enumerate(parts):
            step = posixpath.normpath(posixpath.join("/", at, part)).lstrip("/")
            if step in self.links:
                if not depth:
                    return None
                target = posixpath.join("/", posixpath.dirname(step), self.links[step], *parts[number + 1 :])
                return self.resolved(posixpath.normpath(target), depth - 1)
            at = step
        return at if at in self.files or at in self.folders or not at else None


def read(archive: Path) -> Tree:
    """The files of an OCI archive, its layers one above the other."""
    with tarfile.open(archive) as tar:

        def content(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None, name
            return file.read()

        (described,) = json.loads(content("manifest.json"))
        config = json.loads(content(described["Config"]))
        files: dict[str, bytes] = {}
        links: dict[str, str] = {}
        folders: set[str] = set()
        for layer in described["Layers"]:
            with tarfile.open(fileobj=io.BytesIO(content(layer))) as members:
                for member in members:
                    if member.issym():
                        links[member.name] = member.linkname
                    elif member.isdir():
                        folders.add(member.name)
                    else:
                        file = members.extractfile(member)
                        files[member.name] = file.read() if file else b""
    return Tree(config["architecture"], files, links, frozenset(folders))


def problems(tree: Tree, platform: Platform) -> Iterator[str]:
    """A sentence for each thing that would keep the image from running on the platform."""
    if tree.architecture != platform.name:
        yield f"the image is configured for {tree.architecture}, not {platform.name}"
    names = {path.rpartition("/")[2] for path in (*tree.files, *tree.links)}
    for path, content in sorted(tree.files.items()):
        if content.startswith(b"\x7fELF"):
            elf = read_elf(content)
            if elf is None or elf.machine != platform.elf:
                yield f"{path} is not a program or library of {platform.name}"
                continue
            yield from (f"{path} needs {name}, which is not in the image" for name in elf.needed if name not in names)
        elif content.startswith(b"#!/"):
            interpreter = content[2:].split(maxsplit=1)[0].decode()
            if path.startswith("usr/bin/") and not tree.has(interpreter):
                yield f"{path} needs {interpreter}, which is not in the image"
    for path, target in sorted(tree.links.items()):
        if not tree.has(path):
            yield f"{path} leads to {target}, which is not in the image"


def read_elf(content: bytes) -> Elf | None:
    """None for a file that is damaged, or not of 64 bits in little-endian order."""
    if not content.startswith(_ELF64_LITTLE_ENDIAN):
        return None
    try:
        (machine,) = struct.unpack_from("<H", content, 18)
        (table,) = struct.unpack_from("<Q", content, 32)
        size, count = struct.unpack_from("<HH", content, 54)
        headers = [struct.unpack_from("<IIQQQQQQ", content, table + number * size) for number in range(count)]
        loads = [(address, offset, length) for kind, _, offset, address, _, length, _, _ in headers if kind == _PT_LOAD]
        needed, strings = [], None
        for kind, _, offset, _, _, length, _, _ in headers:
            if kind == _PT_DYNAMIC:
                for tag, value in struct.iter_unpack("<QQ", content[offset : offset + length // 16 * 16]):
                    if tag == _DT_NEEDED:
                        needed.append(value)
                    elif tag == _DT_STRTAB:
                        strings = next(value - begin + at for begin, at, long in loads if begin <= value < begin + long)
        if needed and strings is None:
            return None
        return Elf(machine, tuple(_text(content, (strings or 0) + name) for name in needed))
    except (struct.error, StopIteration, ValueError):
        return None


def _text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()


def differences(one: Tree, other: Tree, platforms: tuple[Platform, Platform]) -> Iterator[str]:
    """Files of two architectures of an image that differ though they are no programs, and those that only one has."""

    def general(path: str, platform: Platform) -> str:
        name = path.replace(platform.triplet, "TRIPLET")
        return name.replace(platform.triplet.partition("-")[0], "MACHINE")

    left = {general(path, platforms[0]): content for path, content in one.files.items()}
    right = {general(path, platforms[1]): content for path, content in other.files.items()}
    for path in sorted({*left, *right}):
        first, second = left.get(path), right.get(path)
        if first is None or second is None:
            yield f"{path} is only for {platforms[first is None].name}"
        elif first != second and not (first.startswith(b"\x7fELF") and second.startswith(b"\x7fELF")):
            yield f"{path} differs"
