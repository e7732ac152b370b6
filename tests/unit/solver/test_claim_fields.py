"""Each field of a DeviceClaim says what it decides, and the places that must know it do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from devalloc.api.claim import DeviceClaimDetail, DeviceClaimInstance, DeviceClaimSpec, Effect
from tests.support.repository import REPO

_PARTS = {"claims", "one_of"}
"""Fields that contain others."""
_SOLVER = REPO / "solver" / "devalloc_solver"
CHECK = [path.read_text() for path in (_SOLVER / "check").glob("*.py")]
DIALECT = [path.read_text() for path in (_SOLVER / "dialects" / "device_claims").glob("*.py")]
ANSWERS = [(_SOLVER / "dialects" / "device_claims" / "answers.py").read_text()]


def fields() -> Iterator[tuple[str, list[Effect]]]:
    for model in (DeviceClaimDetail, DeviceClaimInstance, DeviceClaimSpec):
        for name in model.__annotations__.keys() - _PARTS:
            metadata = model.model_fields[name].metadata
            yield f"{model.__name__}.{name}", [each for each in metadata if isinstance(each, Effect)]


def names(*effects: Effect) -> list[str]:
    return sorted({path.partition(".")[2] for path, own in fields() for effect in own if effect in effects})


def is_read(name: str, sources: list[str]) -> bool:
    return any(re.search(rf"\.{name}\b", source) for source in sources)


def test_each_field_says_what_it_decides() -> None:
    assert [path for path, effects in fields() if len(effects) != 1] == []


@pytest.mark.parametrize("name", names(Effect.DEVICES, Effect.CHOICE))
def test_what_decides_about_devices_is_read_by_the_search_and_apart_from_it_by_the_check(name: str) -> None:
    assert is_read(name, DIALECT)
    assert is_read(name, CHECK)


@pytest.mark.parametrize("name", names(Effect.CONTENT))
def test_what_an_answer_says_besides_is_read_where_answers_are_made(name: str) -> None:
    assert is_read(name, ANSWERS)


def test_the_guide_shows_each_field() -> None:
    guide = (REPO / "docs" / "claims.md").read_text()
    aliases = [
        model.model_fields[name].alias or name
        for model in (DeviceClaimInstance, DeviceClaimSpec)
        for name in model.model_fields
    ]
    assert [alias for alias in aliases if f"{alias}:" not in guide and f"`{alias}`" not in guide] == []
