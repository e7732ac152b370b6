"""The layers of the images: what seldom changes below, devalloc itself on top. Each is kept by what made it.

A layer is a folder of the cache with ``layer.tar`` and ``components.json``, the packages that it brought.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from deploy.images import bom, debs, tree, wheels
from deploy.images.cache import Progress, Unavailable, cache_folder, lock_folder
from deploy.images.contents import BUILD_LOCK, SOURCE, Contents, Image, Platform
from devalloc.version import VERSION

NAMES = ("base", "dependencies", "devalloc")
"""From below."""
BOM = "usr/share/devalloc/bom.json"
LAUNCHER = "usr/bin/devalloc"
MAX_CACHED = 4
"""How many versions of a layer stay in the cache."""

_PASSWD = "root:x:0:0:root:/:/nonexistent\nnonroot:x:65532:65532:nonroot:/:/nonexistent\n"
_GROUP = "root:x:0:\nnonroot:x:65532:\n"
_NSSWITCH = "hosts: files dns\n"
_OURS = ("devalloc", "solver", "node-plugin", "crds", "deploy", "pyproject.toml", "README.md", "LICENSE")
"""What devalloc's wheel is made of, and how."""

Write = Callable[[Path], list[bom.Component]]
"""Fills the folder that becomes a layer; what it brought."""


def layers(
    image: Image, contents: Contents, progress: Progress, platform: Platform | None = None, *, fresh: bool = False
) -> list[Path]:
    """The folders of an image's layers, from below; what is not in the cache is made. ``platform``: the builder's if
    none is given. ``fresh``: Debian is asked for newer packages even where the cache has some. Raises Unavailable."""
    platform = platform or contents.builder_platform
    builder = _base(contents, contents.builder_platform, None, progress, fresh)
    foreign = platform != contents.builder_platform
    base = _base(contents, platform, builder, progress, fresh) if foreign else builder
    dependencies = _dependencies(image, contents, platform, builder, progress)
    own = _devalloc(image, contents, platform, _package(contents, builder, progress), [base, dependencies], progress)
    return [base, dependencies, own]


def components(folder: Path) -> list[bom.Component]:
    """What the layer in a folder of the cache brought."""
    return list(json.loads((folder / "components.json").read_text()))


def _base(contents: Contents, platform: Platform, builder: Path | None, progress: Progress, fresh: bool) -> Path:
    """``builder``: the layer whose Python compiles; its own if none is given."""
    base = contents.base
    left_out = tuple(pattern.format(triplet=platform.triplet) for pattern in base.left_out)

    def write(root: Path) -> list[bom.Component]:
        with tempfile.TemporaryDirectory() as folder:
            archives = debs.fetch(base.release, base.packages, Path(folder), progress, platform.name)
            named = {debs.name_and_version(archive): archive for archive in archives}
            _check_packages(base.without, [name for name, _ in named])
            wanted = {key: archive for key, archive in sorted(named.items()) if key[0] not in base.without}
            root.rmdir()
            debs.extract(wanted.values(), root)
            for (name, _), archive in wanted.items():
                _write_text(root / f"var/lib/dpkg/status.d/{name}", debs.control_file(archive))  # where scanners look
        _trim(root, left_out)
        _write_text(root / "etc/passwd", _PASSWD)
        _write_text(root / "etc/group", _GROUP)
        _write_text(root / "etc/nsswitch.conf", _NSSWITCH)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        progress("compiling Python's library")
        if builder is None:
            tree.compile_all(root, base.library, base, root)
        else:
            _compile(root, contents, builder, base.library)
        return [bom.debian_component(name, fields, base.release, platform.name) for name, fields in wanted]

    made = [repr(base), repr(platform), _PASSWD, _GROUP, _NSSWITCH]
    return _cached_layer(f"base-{platform.name}", made, [debs], write, progress, fresh=fresh)


def _trim(root: Path, left_out: tuple[str, ...]) -> None:
    tree.remove(root, left_out)
    for unread in debs.UNNEEDED_FOLDERS:
        if unread != "usr/share/doc":
            shutil.rmtree(root / unread, ignore_errors=True)
    for path in sorted((root / "usr/share/doc").rglob("*"), reverse=True):
        if path.name != "copyright" and path.is_file() and not path.is_symlink():
            path.unlink()
    for path in sorted((root / "usr/share/doc").rglob("*")):
        if path.is_symlink() and not path.exists():  # to what went just now
            path.unlink()
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def _dependencies(image: Image, contents: Contents, platform: Platform, builder: Path, progress: Progress) -> Path:
    left_out = (*contents.dependencies.left_out, *image.left_out)

    def write(root: Path) -> list[bom.Component]:
        site = root / contents.base.site
        site.mkdir(parents=True)
        wheels.install(image, contents, platform, site, progress)
        tree.remove(site, left_out)
        progress(f"{image.name}: compiling what was fetched")
        _compile(root, contents, builder, contents.base.site)
        return bom.wheel_components(site)

    made = [repr(contents.base), contents.base.site, repr(left_out), repr(contents.dependencies), repr(platform)]
    made += [image.lock.read_text()]
    return _cached_layer(f"{image.key}-dependencies-{platform.name}", made, [wheels, debs], write, progress)


def _devalloc(
    image: Image, contents: Contents, platform: Platform, package: Path, below: list[Path], progress: Progress
) -> Path:
    def write(root: Path) -> list[bom.Component]:
        tree.unpack(package / "layer.tar", root)
        tree.remove(root / contents.base.site, image.packages_left_out)
        launcher = root / LAUNCHER
        _write_text(
            launcher, f"#!/usr/bin/python{contents.base.python} -IBu\nfrom devalloc.cli.main import main\n\nmain()\n"
        )
        launcher.chmod(0o755)
        everything = [one for folder in (package, *below) for one in components(folder)]
        _write_text(root / BOM, bom.document(image.name, VERSION, everything).decode())
        return components(package)

    made = [image.key, platform.name, package.name, repr(image.packages_left_out)]
    made += [(folder / "components.json").read_text() for folder in below]
    return _cached_layer(f"{image.key}-devalloc-{platform.name}", made, [], write, progress)


def _package(contents: Contents, builder: Path, progress: Progress) -> Path:
    """devalloc's own wheel where it lies in an image, compiled: the same for all of them."""

    def write(root: Path) -> list[bom.Component]:
        site = root / contents.base.site
        site.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheels.build(Path(folder), progress)) as wheel:
            wheel.extractall(site)
        for path in site.glob("*.dist-info"):
            for name in ("RECORD", "WHEEL"):  # which build backend packed it is of no interest
                (path / name).unlink()
        _compile(root, contents, builder, contents.base.site)
        return bom.wheel_components(site)

    made = [repr(contents.base), contents.base.site, BUILD_LOCK.read_text(), _sources()]
    return _cached_layer("package", made, [wheels, debs], write, progress)


def _compile(root: Path, contents: Contents, builder: Path, folder: str) -> None:
    """Compile what is below ``root``/``folder``, by the Python of the builder's lowest layer."""
    with tempfile.TemporaryDirectory() as python:
        tree.unpack(builder / "layer.tar", Path(python))
        tree.compile_all(root, folder, contents.base, Path(python))


def _cached_layer(
    name: str, made: list[str], modules: list[ModuleType], write: Write, progress: Progress, *, fresh: bool = False
) -> Path:
    """The folder in the cache, made where it is not there. ``made`` and ``modules``: what makes it what it is."""
    sources = [inspect.getsource(module) for module in (*modules, tree, bom)]
    digest = hashlib.sha256("\0".join([*sources, _own_source(), *made]).encode()).hexdigest()[:12]
    cache = cache_folder() / "oci"
    folder = cache / f"{name}-{digest}"
    with lock_folder(cache):
        if fresh or not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix=".building-") as building:
                (root := Path(building) / "root").mkdir()
                (new := Path(building) / "layer").mkdir()
                listed = write(root)
                tree.pack(root, new / "layer.tar")
                (new / "components.json").write_text(json.dumps(listed, indent=1))
                shutil.rmtree(folder, ignore_errors=True)
                new.rename(folder)
            progress(f"built {folder}")
        folder.touch()
        for old in sorted(cache.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)[:-MAX_CACHED]:
            shutil.rmtree(old)
    return folder


def _own_source() -> str:
    return Path(__file__).read_text()


def _sources() -> str:
    """A digest of what the wheel is made of."""
    digest = hashlib.sha256()
    for top in _OURS:
        for path in sorted([SOURCE / top, *(SOURCE / top).rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(SOURCE)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _check_packages(names: tuple[str, ...], packages: list[str]) -> None:
    if strange := sorted(set(names) - set(packages)):
        raise Unavailable(f"{', '.join(strange)}: no such packages to leave out, see deploy/images/contents.toml")


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
