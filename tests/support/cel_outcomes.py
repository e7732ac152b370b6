"""Expressions and what becomes of them, for tables of tests."""

from __future__ import annotations

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.cel.device_claims import Budget, CompileError, EvaluationError, compile
from devalloc_solver.check import celpy_engine

DEVICE: dict[str, str | int | Quantity | SemVer] = {
    "model": "a100",
    "vram": Quantity.parse("40Gi"),
    "bandwidth": Quantity.parse("1500M"),
    "fraction": Quantity.parse("1500m"),
    "linkSpeed": "25G",
    "numa": 0,
    "firmware": SemVer.parse("1.10.0+build.7"),
    "candidate": SemVer.parse("2.0.0-rc.1"),
    "pcie-root": "pci0000:00",
    "devalloc.io/pool": "p",
    "function": "vf",
    "ünïcode": "é",
}


def outcome(text: str, device: dict[str, str | int | Quantity | SemVer] | None = None) -> object:
    """True, False, or the kind of failure: 'error' for this device, 'invalid' for the expression.

    Raises AssertionError if cel-python, the evaluator of the check, judges the device otherwise.
    """
    device = DEVICE if device is None else device
    result: object
    try:
        result = compile(text).evaluate(device, Budget(100_000))
    except EvaluationError:
        result = "error"
    except CompileError:
        return "invalid"
    assert verdict_of_the_check(text, device) in (None, result is True)
    return result


def verdict_of_the_check(text: str, device: dict[str, str | int | Quantity | SemVer]) -> bool | None:
    """What cel-python decides; None for what it is not asked."""
    expression = celpy_engine.parse(text)
    return None if expression is None else expression.holds(device, celpy_engine.Work(3_000))


def table(rows: str) -> list[tuple[str, object]]:
    """Rows 'outcome | expression'."""
    values: dict[str, object] = {"true": True, "false": False, "error": "error", "invalid": "invalid"}
    split = [line.strip().partition(" | ") for line in rows.strip().splitlines() if line.strip()]
    return [(expression.strip(), values[want.strip()]) for want, _, expression in split]
