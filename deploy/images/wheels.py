"""The wheels of an image: which ones (its lock), and how they are installed for a Python that need not be this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.images.cache import Progress, Unavailable
from deploy.images.constraints import Pin, pins, write_versions
from deploy.images.contents import BUILD_LOCK, SOURCE, Contents, Image, Platform, build_requirements, requirements

_HEAD = """\
# The wheels of the image devalloc-{}, for Python {}: written by python -m deploy.images lock.
"""
_BUILD_HEAD = """\
# The wheels that build devalloc's own: written by python -m deploy.images lock.
"""


def lock(image: Image, contents: Contents, progress: Progress) -> None:
    """Write the image's lock anew: the versions that the tests run with. Raises Unavailable."""
    progress(f"{image.name}: looking for its wheels")
    head = _HEAD.format(image.key, contents.base.python)
    image.lock.write_text(head + _locked(requirements(image.extras), contents))


def lock_build(contents: Contents, progress: Progress) -> None:
    """Write the lock of what builds devalloc's own wheel anew. Raises Unavailable."""
    progress("looking for what builds devalloc's wheel")
    BUILD_LOCK.write_text(_BUILD_HEAD + _locked(build_requirements(), contents))


def _locked(wanted: list[str], contents: Contents) -> str:
    with tempfile.TemporaryDirectory() as folder:
        versions = write_versions(Path(folder))
        hashes: dict[str, set[str]] = {}
        for platform in contents.platforms.values():
            for name, version, digest in _resolved([*wanted, "--constraint", str(versions)], contents, platform):
                hashes.setdefault(f"{name}=={version}", set()).add(f" --hash=sha256:{digest}")
    return "".join(sorted(f"{pin}{''.join(sorted(hashes[pin]))}\n" for pin in hashes))


def _resolved(words: list[str], contents: Contents, platform: Platform) -> list[tuple[str, str, str]]:
    """Name, version and digest of each wheel that pip would install. Raises Unavailable."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        target = _target(Path(folder), contents, platform)
        _pip("install", "--dry-run", "--ignore-installed", "--report", str(report), *target, *words)
        return [
            (
                one["metadata"]["name"].lower().replace("_", "-"),
                one["metadata"]["version"],
                one["download_info"]["archive_info"]["hashes"]["sha256"],
            )
            for one in json.loads(report.read_text())["install"]
        ]


def locked(file: Path) -> dict[str, Pin]:
    """What a lock names, by package."""
    return pins(file.read_text())


def install(image: Image, contents: Contents, platform: Platform, site: Path, progress: Progress) -> None:
    """Install what the lock names into a folder, not compiled. Raises Unavailable."""
    progress(f"{image.name}: fetching {len(locked(image.lock))} wheels")
    target = _target(site, contents, platform)
    _pip("install", "--no-compile", "--no-deps", "--require-hashes", "-r", str(image.lock), *target)
    for path in site.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):  # of this installation
            (path / name).unlink(missing_ok=True)


def build(folder: Path, progress: Progress) -> Path:
    """devalloc's own wheel, built by what its lock names. Raises Unavailable."""
    progress("building devalloc's wheel")
    with _backend() as backend:
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(SOURCE),
             environment={"PYTHONPATH": backend})  # fmt: skip
    (wheel,) = folder.glob("devalloc-*.whl")
    return wheel


def build_source(folder: Path, progress: Progress) -> Path:
    """devalloc's source distribution, built by the same. Raises Unavailable."""
    progress("building devalloc's source distribution")
    script = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    with _backend() as backend:
        command = [sys.executable, "-c", script, str(folder.absolute())]
        settings = {**os.environ, "PYTHONPATH": backend}
        done = subprocess.run(command, cwd=SOURCE, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"no source distribution: {' '.join(done.stderr.split())[-600:]}")
    return folder / done.stdout.split()[-1]


@contextmanager
def _backend() -> Iterator[str]:
    """A folder with what builds packages."""
    with tempfile.TemporaryDirectory() as folder:
        _pip("install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--target", folder,
             "-r", str(BUILD_LOCK))  # fmt: skip
        yield folder


def _target(folder: Path, contents: Contents, platform: Platform) -> list[str]:
    platforms = [word for tag in platform.wheels for word in ("--platform", tag)]
    python = ["--python-version", contents.base.python, "--implementation", "cp"]
    return ["--target", str(folder), "--only-binary", ":all:", *platforms, *python]


def _pip(*words: str, environment: Mapping[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise Unavailable(f"pip {words[0]} failed: {' '.join((done.stderr or done.stdout).split())[-600:]}")
