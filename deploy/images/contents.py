"""What the images hold, as ``contents.toml`` says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parents[1]
"""The tree that devalloc itself is taken from."""
CONSTRAINTS = SOURCE / "constraints.txt"
"""The versions that the tests run with: `make setup` installs them, and the images have them too."""
BUILD_LOCK = HERE / "build.lock"
"""The wheels that build devalloc's own, by version and hash."""


@dataclass(frozen=True)
class Platform:
    """An architecture that images are built for."""

    name: str
    """As Debian, OCI and Docker call it."""
    triplet: str
    """The folder of its libraries."""
    wheels: tuple[str, ...]
    """The platform tags that pip accepts, the best first."""
    elf: int
    """``e_machine`` of its programs."""


@dataclass(frozen=True)
class Base:
    """The lowest layer."""

    release: str
    """Of Debian."""
    python: str
    """Its Python, such as ``3.11``."""
    packages: tuple[str, ...]
    without: tuple[str, ...]
    """Packages that those depend on, and that are left out."""
    left_out: tuple[str, ...]
    """Patterns of paths, from the root; ``{triplet}`` is the platform's."""

    @property
    def library(self) -> str:
        """Where the standard library lies, from the root."""
        return f"usr/lib/python{self.python}"

    @property
    def site(self) -> str:
        """Where what is installed on top lies, from the root."""
        return f"usr/local/lib/python{self.python}/dist-packages"


@dataclass(frozen=True)
class Dependencies:
    """The layer of wheels."""

    left_out: tuple[str, ...]
    """Patterns of paths, from the folder of what is installed."""


@dataclass(frozen=True)
class Image:
    """One of the images."""

    key: str
    title: str
    description: str
    extras: tuple[str, ...]
    """Of the distribution devalloc."""
    user: str
    command: tuple[str, ...]
    """Arguments of ``devalloc`` if the user gives none."""
    left_out: tuple[str, ...]
    """As of ``Dependencies``, for this image alone."""
    packages_left_out: tuple[str, ...]
    """Packages of devalloc itself that it does not run."""

    @property
    def name(self) -> str:
        return f"devalloc-{self.key}"

    @property
    def lock(self) -> Path:
        """Its wheels, by version and hash."""
        return HERE / f"{self.key}.lock"


@dataclass(frozen=True)
class Contents:
    """All of ``contents.toml``."""

    builder: str
    """The digest of the Debian image in which the Dockerfile builds."""
    platforms: dict[str, Platform]
    base: Base
    dependencies: Dependencies
    images: dict[str, Image]

    @property
    def builder_platform(self) -> Platform:
        """Where the build runs: its Python compiles for all of them, as bytecode is the same on each."""
        return self.platforms["amd64"]


def contents() -> Contents:
    """Raises TypeError where the file says what is not known here, or too little."""
    document = tomllib.loads((HERE / "contents.toml").read_text())
    images = {key: Image(key=key, **_frozen(image)) for key, image in document["images"].items()}
    platforms = {name: Platform(name=name, **_frozen(platform)) for name, platform in document["platforms"].items()}
    base, dependencies = Base(**_frozen(document["base"])), Dependencies(**_frozen(document["dependencies"]))
    return Contents(document["builder"], platforms, base, dependencies, images)


def requirements(keys: Iterable[str]) -> list[str]:
    """What the distribution and those of its extras ask for, as pyproject.toml has it; each once. Who is without the
    extra ``solver`` does not solve, and has none of its packages."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    extras, own = project["optional-dependencies"], f"{project['name']}["

    def of(lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            if line.startswith(own):  # extras that are made of others
                yield from of(more for extra in line[len(own) :].rstrip("]").split(",") for more in extras[extra])
            else:
                yield line

    wanted = list(dict.fromkeys(of(line for key in keys for line in extras[key])))
    solver = {_name(line) for line in extras["solver"]} - {_name(line) for line in wanted}
    own_lines = [line for line in project["dependencies"] if _name(line) not in solver]
    return list(dict.fromkeys([*own_lines, *wanted]))


def build_requirements() -> list[str]:
    """What builds devalloc's own wheel, as pyproject.toml has it."""
    return list(tomllib.loads((SOURCE / "pyproject.toml").read_text())["build-system"]["requires"])


def _name(requirement: str) -> str:
    return re.split(r"[<>=~!\[; ]", requirement)[0]


def _frozen(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
