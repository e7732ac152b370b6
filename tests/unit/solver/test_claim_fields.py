"""Each field of a DeviceClaim says what it decides, and the places that must know it do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import pytest
from pydantic import ValidationError

from devalloc.api.claim import DeviceClaimDetail, DeviceClaimInstance, DeviceClaimSpec, Effect, fields_with
from devalloc.api.fields import is_empty
from devalloc_solver.dialects.device_claims import candidates
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


class NumberedRequest(DeviceClaimInstance):
    """A request with a number, which no request of ours has yet."""

    largest: Annotated[int | None, Effect.DEVICES] = None


def test_a_field_that_is_not_set_is_null_or_empty() -> None:
    """What has another default could not be told from what a user says; neither here nor by a rule of a CRD."""
    own = DeviceClaimInstance.model_fields
    assert [name for name, field in own.items() if not is_empty(field.get_default(call_default_factory=True))] == []


@pytest.mark.parametrize("value", [0, False])
def test_zero_and_false_say_something(value: object) -> None:
    assert not is_empty(value)


def test_a_request_for_zero_does_not_share_what_was_found_for_one_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "_SELECTING", fields_with(Effect.DEVICES, NumberedRequest))
    keys = [candidates._selection(NumberedRequest(device_class="gpu", largest=largest)) for largest in (None, 0, 1)]
    assert len(set(keys)) == 3
    nothing = (NumberedRequest(constraints=text, device_class="gpu") for text in (None, ""))
    assert {candidates._selection(one) for one in nothing} == {keys[0]}


def test_a_field_of_zero_cannot_stand_beside_alternatives() -> None:
    alternatives = [DeviceClaimDetail(device_class="gpu")]
    assert NumberedRequest(one_of=alternatives, device_class="", requests={}).alternatives == alternatives
    with pytest.raises(ValidationError, match="cannot be combined"):
        NumberedRequest(one_of=alternatives, largest=0)
