"""Every table of the scaling protocols holds: our own, and the shared ones where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.neon import FORMS, judge_file, read, shown
from tests.support.shared import SHARED

OWN = Path(__file__).parent / "cases" / "scaling"
TABLES = sorted([*OWN.glob("*.yaml"), *(SHARED / "neon").glob("*.json")])
JUDGED = [path for path in TABLES if any(form.fits(read(path)) for form in FORMS)]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in JUDGED])
def test_every_case_of_a_table_holds(path: Path) -> None:
    verdicts = list(judge_file(path))
    assert verdicts
    failed = [shown(verdict, path.name) for verdict in verdicts if verdict.failures]
    assert not failed, "\n".join(failed)
