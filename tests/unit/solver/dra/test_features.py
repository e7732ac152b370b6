"""Feature gates by their names (settled D1)."""

from __future__ import annotations

import pytest

from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dra import AllocationError


def test_by_default_everything_up_to_beta_is_on_and_lists() -> None:
    on = read_gates(None)

    assert {gate.ADMIN_ACCESS, gate.FRACTIONAL_RANGE, gate.LIST_ATTRIBUTES, gate.BINDING_CONDITIONS} <= on
    assert not on & {gate.COMPATIBILITY_GROUPS, gate.DERIVED_ATTRIBUTES, gate.OPTIONAL_NODE_OPERATIONS}


def test_an_empty_list_switches_all_off() -> None:
    assert read_gates([]) == frozenset()


@pytest.mark.parametrize("name", sorted(gate.DEFAULT_GATES))
def test_the_short_name_and_the_name_of_the_gate_mean_the_same(name: str) -> None:
    assert read_gates([name]) == read_gates([name.removeprefix("DRA")]) == {name}


def test_upstreams_name_for_binding_conditions_is_known() -> None:
    assert read_gates(["DeviceBindingAndStatus"]) == {gate.BINDING_CONDITIONS}


def test_an_unknown_gate_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(AllocationError, match=r"'AdminAcess'.*did you mean AdminAccess\?"):
        read_gates(["AdminAcess"])
