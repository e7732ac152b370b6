"""The chart of ``deploy/helm`` is what the manifests say."""

from __future__ import annotations

from pathlib import Path

import pytest

from devalloc.install import chart as module
from devalloc.version import VERSION

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "helm"


def test_the_files_are_what_the_manifests_say() -> None:
    written = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    assert written == module.chart(VERSION), "write them anew with: make chart"


def test_what_helm_would_take_for_an_expression_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "dump_yaml", lambda objects: "text: '{{ evil }}'\n")
    with pytest.raises(ValueError, match="read as an expression"):
        module.chart("1.0")
