"""Which version this is: what the installation says, and an answer where there is none."""

from __future__ import annotations

from importlib import metadata

import pytest

from devalloc.version import installed_version


def test_the_installation_says_it() -> None:
    assert installed_version() == metadata.version("devalloc")


def test_packages_in_a_folder_that_was_never_installed_have_one_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata.Distribution, "discover", lambda **search: iter(()))
    assert installed_version() == "unknown"
