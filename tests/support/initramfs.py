"""Initial RAM disks of test machines: a static busybox, kernel modules in the order of their needs, and a script.

Everything is written by Python as root's, whichever user builds it.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.go_build import Unavailable


def build(kernel_modules: Path, names: Sequence[str], busybox: Path, init: str, files: Mapping[str, bytes]) -> bytes:
    """An archive for ``-initrd``, not compressed: an emulated CPU takes longer to unpack it than QEMU to copy it.

    ``kernel_modules``: lib/modules/<version> of an unpacked kernel. ``names``: modules that ``init`` finds as
    /m/NN-name.ko, with all that they need, in the order of loading; what is built into the kernel is left out.
    ``files``: more files by path.
    """
    all_files = {"bin/busybox": busybox.read_bytes(), "init": init.encode(), **files}
    for number, path in enumerate(modules(kernel_modules, names)):
        all_files[f"m/{number:02}-{_name(path)}.ko"] = _content(path)
    return archive(all_files, ("bin", "dev", "m", "new", "proc", "root", "run", "sys", "tmp", "etc"))


def archive(files: Mapping[str, bytes], folders: Sequence[str] = ()) -> bytes:
    """An archive of executable files and the folders above them; the kernel unpacks several that are appended to each
    other one over the other."""
    above = (str(parent) for path in files for parent in reversed(Path(path).parents[:-1]))
    entries = [(folder, 0o040755, b"") for folder in dict.fromkeys((*folders, *above))]
    return _newc([*entries, *((path, 0o100755, content) for path, content in files.items())])


def modules(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of modules and of all they need, each after those that it needs; nothing for what is built in.

    Raises Unavailable for a module that the kernel does not have.
    """
    paths = {_name(path): path for path in folder.rglob("*.ko*")}
    builtin = {_plain(Path(line).name.removesuffix(".ko")) for line in (folder / "modules.builtin").read_text().split()}
    files: dict[str, Path] = {}

    def add(name: str) -> None:
        name = _plain(name)
        if name in builtin or name in files:
            return
        if name not in paths:
            raise Unavailable(f"the kernel {folder.name} has no module {name}")
        for need in _needs(_content(paths[name])):
            add(need)
        files[name] = paths[name]

    for name in names:
        add(name)
    return list(files.values())


def _content(module: Path) -> bytes:
    content = module.read_bytes()
    return lzma.decompress(content) if module.suffix == ".xz" else content


def _name(module: Path) -> str:
    return _plain(module.name.split(".ko")[0])


def _needs(module: bytes) -> list[str]:
    """What a module's own section .modinfo says it depends on."""
    match = re.search(rb"(?<![a-z])depends=([\w,-]*)\0", module)
    return match[1].decode().split(",") if match and match[1] else []


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _newc(entries: Sequence[tuple[str, int, bytes]]) -> bytes:
    """The archive format of the kernel, "newc": per entry a header of 13 hexadecimal numbers, the name and the
    content, each filled up to a multiple of four bytes."""
    out = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        links = 2 if mode & 0o040000 else 1
        fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out)
