"""A guest that runs the project's guest monitor, and what it needs for that beside its image."""

from __future__ import annotations

import sys
from pathlib import Path
from py_compile import PycInvalidationMode, compile
from tempfile import TemporaryDirectory

import websockets

import devalloc
import devalloc_machines
import devalloc_neon
import devalloc_node
from tests.support.python_image import VERSION
from tests.support.repository import REPO

PACKAGES = "usr/lib/python3"
TAG = "cpython-" + VERSION.replace(".", "")
"""Of the guest's Python, in the names of its compiled files."""
LOAD = "usr/lib/load.py"
"""The program in the guest that ``load`` runs."""
ADDRESS = "192.0.2.2"
_OF_PROJECT = {
    Path(devalloc.__file__).parent: (
        "*.py",
        "net/*.py",
        "scaling/**/*.py",
        "api/**/*.py",
        "programs/__init__.py",
        "programs/guest_monitor.py",
    ),
    Path(devalloc_machines.__file__).parent: ("__init__.py", "guest/**/*.py"),
    Path(devalloc_neon.__file__).parent: ("__init__.py", "informant*.py"),
    Path(devalloc_node.__file__).parent: ("__init__.py", "net/**/*.py"),
}


def files() -> dict[str, bytes]:
    """The monitor and what it imports, by their paths in the guest."""
    folder = Path(websockets.__file__).parent
    paths = {LOAD: REPO / "tests/machine/inside/load.py"}
    paths |= {f"{PACKAGES}/websockets/{path.relative_to(folder)}": path for path in folder.rglob("*.py")}
    for folder, patterns in _OF_PROJECT.items():
        for pattern in patterns:
            paths |= {f"{PACKAGES}/{folder.name}/{path.relative_to(folder)}": path for path in folder.glob(pattern)}
    files = {name: path.read_bytes() for name, path in paths.items()}
    return files | _compiled(paths) if sys.implementation.cache_tag == TAG else files


def _compiled(sources: dict[str, Path]) -> dict[str, bytes]:
    """What Python makes of them, which an emulated CPU takes many seconds for."""
    made = {}
    with TemporaryDirectory() as folder:
        for name, source in sources.items():
            compile(str(source), f"{folder}/pyc", name, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
            above, _, file = name.rpartition("/")
            made[f"{above}/__pycache__/{file.removesuffix('.py')}.{TAG}.pyc"] = Path(folder, "pyc").read_bytes()
    return made


def start(allowed: str, *more: str) -> str:
    """The command that gives the guest its address and starts the monitor in it, with ``more`` options."""
    return (
        f"ip addr add {ADDRESS}/24 dev eth0; ip link set eth0 up; ip link set lo up; "
        f"export PYTHONPATH=/{PACKAGES}; "
        f"(python3 -m devalloc.programs.guest_monitor --allow {allowed} {' '.join(more)} >> /tmp/monitor.log "
        "2>&1 < /dev/null &)"
    )


def load(**until: int) -> str:
    """The command that has so many processes count in the guest's load, each until there is /tmp/NAME."""
    words = " ".join(f"{number} /tmp/{name}" for name, number in until.items())
    return f"(python3 -I -S /{LOAD} {words} > /tmp/load.log 2>&1 < /dev/null &)"
