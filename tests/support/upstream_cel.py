"""Upstream's own CEL of device selectors: a Go program around the released module, and the answers it once gave.

The program is in ``benchmarks/peer/selectors``; go.mod beside it pins k8s.io/dynamic-resource-allocation. The answers
are kept in ``tests/conformance/selectors.json``. Run this module to build the program ahead of the tests, which takes
a minute; ``python -m tests.support.upstream_cel record`` has it give the answers again.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.cel.kubernetes import CelDevice, CompileError, EvaluationError, compile
from tests.support.go_build import Unavailable, cache_folder, locked, run, toolchain
from tests.support.random_selectors import selector
from tests.support.upstream_allocator import SOURCE, version

ANSWERS_FILE = Path(__file__).parents[1] / "conformance" / "selectors.json"

GATES = frozenset(("DRAConsumableCapacity", "DRAListTypeAttributes"))

RANDOM = range(100_000, 103_000)
"""Seeds of the random expressions whose answers are kept as ``random``, in this order, with a digest of their texts."""

Devices = Mapping[str, Mapping[str, Any]]
"""By name: driver, attributes, capacity and allowMultipleAllocations, as a ResourceSlice has them."""


def kept_answers() -> dict[str, Any]:
    """The kept answers: ``devices``, ``selectors`` (answer by expression), ``differences`` (upstream, ours and why),
    ``random`` (answers to ``random_expressions``, and their ``digest``).

    An answer is C for an expression that does not compile, else a letter for each device in the order of their names:
    T for a match, F for none, E for an error.
    """
    content: dict[str, Any] = json.loads(ANSWERS_FILE.read_text(encoding="utf-8"))
    return content


def ours(expression: str, devices: Mapping[str, CelDevice]) -> str:
    """Our answer, in the same letters."""
    try:
        program = compile(expression, GATES)
    except CompileError:
        return "C"
    return "".join(_judged(program, devices[name]) for name in sorted(devices))


def _judged(program: Any, device: CelDevice) -> str:
    try:
        return "T" if program.matches(device) else "F"
    except EvaluationError:
        return "E"


def cel_devices(devices: Devices) -> dict[str, CelDevice]:
    """The devices as our implementation takes them."""
    return {name: _cel_device(device) for name, device in devices.items()}


def _cel_device(device: Mapping[str, Any]) -> CelDevice:
    attributes: dict[str, dict[str, Any]] = {}
    for name, value in device["attributes"].items():
        domain, identifier = _qualified(name, device["driver"])
        attributes.setdefault(domain, {})[identifier] = _value(value)
    capacity: dict[str, dict[str, Quantity]] = {}
    for name, amount in device["capacity"].items():
        domain, identifier = _qualified(name, device["driver"])
        capacity.setdefault(domain, {})[identifier] = Quantity.parse(amount["value"])
    return CelDevice(device["driver"], attributes, capacity, device.get("allowMultipleAllocations", False))


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _value(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "version":
        return SemVer.parse(content)
    if kind == "versions":
        return tuple(map(SemVer.parse, content))
    return tuple(content) if isinstance(content, list) else content


def random_expressions() -> list[str]:
    """Expressions of all kinds, the same each time."""
    return [selector(seed) for seed in RANDOM]


def digest(expressions: Iterable[str]) -> str:
    """Of the texts: answers belong to these and no others."""
    return hashlib.sha256("\0".join(expressions).encode()).hexdigest()[:20]


_PROGRAMS = ("selectors", "metadata")
"""Folders of programs of the same modules, which are built together."""


def built_binary() -> Path | None:
    """The program if this machine has built it, of this source."""
    program = _folder() / "selectors"
    return program if program.exists() else None


def _folder() -> Path:
    sources = (path for name in _PROGRAMS for path in sorted((SOURCE / name).glob("*.go")))
    files = [SOURCE / "go.mod", SOURCE / "go.sum", *sources]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]
    return cache_folder() / f"upstream-selectors-{version()}-{digest}"


def binary(name: str = "selectors") -> Path:
    """One of the programs; builds them when this source was not built yet. Raises Unavailable."""
    folder = _folder()
    with locked(folder):
        if not all((folder / each).exists() for each in _PROGRAMS):
            go = toolchain(lambda line: print(line, file=sys.stderr))
            run([go, "mod", "download"], SOURCE, "-mod=readonly")
            for each in _PROGRAMS:
                new = folder / f"{each}.new"
                run([go, "build", "-trimpath", "-buildvcs=false", "-o", str(new), f"./{each}"], SOURCE, "-mod=readonly")
                new.replace(folder / each)
    return folder / name


def theirs(program: Path, expressions: Iterable[str], devices: Devices, folder: Path) -> list[str]:
    """Upstream's answers; ``folder`` takes a file with the devices."""
    path = folder / "devices.json"
    path.write_text(json.dumps(devices), encoding="utf-8")
    lines = "".join(json.dumps(expression) + "\n" for expression in expressions)
    result = subprocess.run([program, path], input=lines, capture_output=True, text=True, check=True, timeout=60)
    return result.stdout.split()


def _refresh() -> None:
    content = kept_answers()
    program = binary()
    for group in (content["selectors"], content["differences"]):
        answers = theirs(program, group, content["devices"], program.parent)
        for expression, answer in zip(list(group), answers, strict=True):
            if isinstance(group[expression], dict):
                group[expression]["upstream"] = answer
            else:
                group[expression] = answer
    expressions = random_expressions()
    answers = theirs(program, expressions, content["devices"], program.parent)
    content["random"] = {"digest": digest(expressions), "answers": " ".join(answers)}
    content["source"] = content["source"].rpartition(" ")[0] + f" v{version()}"
    ANSWERS_FILE.write_text(written(content), encoding="utf-8")


def written(content: Mapping[str, Any]) -> str:
    """The kept answers as text, one line for each."""
    parts = []
    for name, value in content.items():
        shown = json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict):
            lines = (
                f"  {json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()
            )
            shown = "{\n" + ",\n".join(lines) + "\n }"
        parts.append(f" {json.dumps(name)}: {shown}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    try:
        print(binary())
        if sys.argv[1:] == ["record"]:
            _refresh()
    except Unavailable as error:
        sys.exit(f"not available here: {error}")
