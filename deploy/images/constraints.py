"""``constraints.txt``: the version and the hashes of each package that developers, tests and images install.

``make setup`` installs all of it, and pip refuses a file without its hash. The locks of the images name a part of it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.images.cache import Progress, Unavailable
from deploy.images.contents import CONSTRAINTS, SOURCE, build_requirements, requirements

MINORS = (11, 12, 13, 14)
"""Python 3.x, for which each package must have a wheel; the lowest is the one of ``requires-python``."""
ARCHITECTURES = ("x86_64", "aarch64")

_HEAD = """\
# What the tests run with and what the images have, for Python 3.11 to 3.14: version and hash of each file.
# Written by python -m deploy.images constrain; `--keep` keeps the versions that pyproject.toml still allows.
"""
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One version of a package, and the files of it that may be installed."""

    version: str
    hashes: frozenset[str]
    """SHA-256, in hexadecimal digits."""
    marker: str = ""
    """The environments that install it, as PEP 508 writes them; empty: all."""

    def line(self, name: str) -> str:
        """Its entry in ``constraints.txt``."""
        words = [f"{name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")]
        return " \\\n    ".join([*words, *(f"--hash=sha256:{digest}" for digest in sorted(self.hashes))]) + "\n"


def pins(text: str) -> dict[str, Pin]:
    """The pins of a requirements file, by the normalised name of their package. Raises ValueError."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return dict(_pin(line) for line in lines if line.strip() and not line.startswith("#"))


def _pin(line: str) -> tuple[str, Pin]:
    match = re.fullmatch(r"([\w.-]+)==([^\s;]+)(?: ; (.*?))?((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*", line)
    if not match:
        raise ValueError(f"invalid line {line[:60]!r}: want NAME==VERSION and --hash=sha256:DIGEST")
    name, version, marker, hashes = match.groups()
    return normalised(name), Pin(version, frozenset(_HASH.findall(hashes)), marker or "")


def normalised(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constrained() -> dict[str, Pin]:
    """What the tests run with."""
    return pins(CONSTRAINTS.read_text())


def write_versions(folder: Path) -> Path:
    """A file with the versions alone: pip checks hashes of nothing but requirements that have some themselves."""
    file = folder / "versions.txt"
    file.write_text("".join(f"{name}=={pin.version}\n" for name, pin in constrained().items()))
    return file


def constrain(progress: Progress, *, keep: bool) -> None:
    """Write the constraints anew: the newest versions that pyproject.toml allows together for developers, or with
    ``keep`` those of before where it allows them. Raises Unavailable."""
    progress("looking for versions and their files")
    with tempfile.TemporaryDirectory() as temporary:
        wanted, output = Path(temporary, "wanted.in"), Path(temporary, "pylock.toml")
        wanted.write_text("\n".join([*requirements(["dev"]), *build_requirements()]))
        if keep:  # uv prefers the versions of an output that is there
            output.write_text(_without_files(constrained()))
        python = ["--universal", "--python-version", f"3.{MINORS[0]}", "--fork-strategy", "fewest"]
        _uv("pip", "compile", *python, "--format", "pylock.toml", "--output-file", str(output), str(wanted))
        packages = tomllib.loads(output.read_text())["packages"]
    if problems := list(without_wheel(packages)):
        raise Unavailable("; ".join(problems))
    CONSTRAINTS.write_text(rendered(packages))


def _without_files(versions: Mapping[str, Pin]) -> str:
    """A pylock.toml with versions alone."""
    packages = (f'[[packages]]\nname = "{name}"\nversion = "{pin.version}"\n' for name, pin in versions.items())
    return 'lock-version = "1.0"\ncreated-by = "devalloc"\n' + "".join(packages)


def _uv(*words: str) -> None:
    command = [sys.executable, "-m", "uv", *words, "--quiet"]
    done = subprocess.run(command, cwd=SOURCE, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"uv failed: {' '.join(done.stderr.split())[-600:]}")


def rendered(packages: Iterable[Mapping[str, Any]]) -> str:
    """The constraints for packages as pylock.toml (PEP 751) has them. Raises Unavailable for two versions of one."""
    entries: dict[str, Pin] = {}
    for package in packages:
        name, hashes = normalised(package["name"]), frozenset(file["hashes"]["sha256"] for file in _files(package))
        if name in entries:
            raise Unavailable(f"{name} is needed in two versions: {entries[name].version} and {package['version']}")
        entries[name] = Pin(package["version"], hashes, package.get("marker", ""))
    return _HEAD + "".join(entries[name].line(name) for name in sorted(entries))


def without_wheel(packages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """For each package that must be built for a Python or architecture that devalloc supports: a sentence."""
    for package in packages:
        names = [file["url"].rsplit("/", 1)[1] for file in package.get("wheels", [])]
        for minor in MINORS:
            for architecture in ARCHITECTURES:
                if not any(fits(name, minor, architecture) for name in names):
                    yield f"{package['name']} {package['version']} has no wheel for Python 3.{minor} on {architecture}"


def _files(package: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]


def fits(wheel: str, minor: int, architecture: str) -> bool:
    """Whether the wheel of that name installs on CPython 3.``minor`` and glibc's Linux."""
    pythons, abi, platforms = (tags.split(".") for tags in wheel.removesuffix(".whl").split("-")[-3:])
    stable = "abi3" in abi and any(
        match and int(match[1]) <= minor for match in (re.fullmatch(r"cp3(\d+)", tag) for tag in pythons)
    )
    own = f"cp3{minor}" in pythons and f"cp3{minor}" in abi  # and no build for threads without a lock
    if not (stable or own or ({"py3", f"py3{minor}"} & {*pythons} and "none" in abi)):
        return False
    return any(tag == "any" or re.fullmatch(rf"(many)?linux\w*_{architecture}", tag) for tag in platforms)
