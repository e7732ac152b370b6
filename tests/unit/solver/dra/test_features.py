"""Feature gates by their names (settled D1)."""

from __future__ import annotations

import pytest

from devalloc_solver.dra import AllocationError
from devalloc_solver.dra import features as gate
from devalloc_solver.dra.features import read_features


def test_without_a_word_everything_up_to_beta_is_on_and_lists() -> None:
    on = read_features(None)

    assert {gate.ADMIN_ACCESS, gate.FRACTIONAL_RANGE, gate.LIST_ATTRIBUTES, gate.BINDING_CONDITIONS} <= on
    assert not on & {gate.COMPATIBILITY_GROUPS, gate.DERIVED_ATTRIBUTES, gate.OPTIONAL_NODE_OPERATIONS}


def test_an_empty_list_switches_all_off() -> None:
    assert read_features([]) == frozenset()


@pytest.mark.parametrize("name", sorted(gate.DEFAULT))
def test_the_short_name_and_the_name_of_the_gate_mean_the_same(name: str) -> None:
    assert read_features([name]) == read_features([name.removeprefix("DRA")]) == {name}


def test_upstreams_name_for_binding_conditions_is_known() -> None:
    assert read_features(["DeviceBindingAndStatus"]) == {gate.BINDING_CONDITIONS}


def test_an_unknown_gate_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(AllocationError, match=r"'AdminAcess'.*did you mean AdminAccess\?"):
        read_features(["AdminAcess"])
