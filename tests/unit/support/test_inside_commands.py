"""The program that runs commands inside an emulated host loads modules by their names, which must exist."""

from __future__ import annotations

import importlib.util

import pytest

from tests.machine.inside import commands


@pytest.mark.parametrize("name", commands.LOADED)
def test_a_module_that_is_loaded_beforehand_exists(name: str) -> None:
    assert importlib.util.find_spec(name) is not None
