"""Formats of texts in Kubernetes' CEL: what each accepts, and that checking a text costs by its length."""

from __future__ import annotations

import pytest

from devalloc_solver.cel.library.formats import _PROBLEMS, NAMES, Format, _validate
from devalloc_solver.cel.values import NOTHING


class Meter:
    """Counts what an evaluation spends."""

    spent = 0

    def spend(self, units: int) -> None:
        assert units > 0, "an evaluation never gets cost back"
        self.spent += units


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("dns1123Label", ["a", "a-1", "a" * 63], ["", "-a", "A", "a.b", "a" * 64]),
        ("dns1123Subdomain", ["a", "a.b-c", "1.2"], ["", ".a", "a..b", "A", "a" * 254]),
        ("dns1035Label", ["a", "a-1"], ["1a", "", "A"]),
        ("dns1123LabelPrefix", ["a", "a-"], ["-a", "A"]),
        ("qualifiedName", ["a", "example.com/a", "A_b"], ["", "/a", "example.com/", "a/b/c"]),
        ("labelValue", ["", "a", "A.b_c"], ["-a", "a b", "a" * 64]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567", ""]),
        ("byte", ["aGk="], ["a", "aGk"]),
        ("date", ["2024-02-29", "0000-02-29"], ["2023-02-29", "2024-13-01", "2024-1-1", ""]),
        (
            "datetime",
            ["2024-02-29T23:59:59Z", "2024-02-29t00:00:00.5+01:00"],
            ["2024-02-29", "2023-02-29T00:00:00Z", "2024-02-29T24:00:00Z", "2024-02-29T00:60:00Z", "T00:00:00Z", ""],
        ),
    ],
)
def test_what_a_format_accepts(name: str, valid: list[str], invalid: list[str]) -> None:
    assert [text for text in valid if _PROBLEMS[name](text)] == []
    assert [text for text in invalid if not _PROBLEMS[name](text)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_longer_text_costs_more(name: str) -> None:
    costs = []
    for length in (0, 1, 1000, 100_000):
        meter = Meter()
        _validate(meter, Format(name), "x" * length)  # type: ignore[arg-type]
        costs.append(meter.spent)
    assert costs == sorted(set(costs))
    assert costs[-1] >= 100_000


def test_a_valid_text_has_no_problems() -> None:
    assert _validate(Meter(), Format("dns1123Label"), "a") is NOTHING  # type: ignore[arg-type]
