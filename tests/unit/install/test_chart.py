"""The chart of ``deploy/helm`` is what the manifests say."""

from __future__ import annotations

from pathlib import Path

from devalloc.install import chart as module
from devalloc.version import VERSION

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "helm"


def test_the_files_are_what_the_manifests_say() -> None:
    written = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    assert written == module.chart(VERSION), "write them anew with: make chart"


def test_expressions_of_prometheus_are_none_of_helms() -> None:
    """The first character of each is written by an expression of Helm; tests/cluster lets Helm expand them."""
    written = module.chart(VERSION)["templates/monitoring.yaml"]
    assert '{{ "{{" }} $value }} devices' in written
    assert "{{ $" not in written
