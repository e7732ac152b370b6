"""docs/compatibility.md names the versions that the tests run with, and what packages and chart refuse."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from deploy.images.contents import contents
from tests.support.kube_build import CONTAINERD, HELM, KUBERNETES
from tests.support.repository import REPO

PAGE = (REPO / "docs" / "compatibility.md").read_text()
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]


def row(what: str) -> str:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {what}"))
    return line


@pytest.mark.parametrize(
    ("what", "version"), [("Kubernetes", KUBERNETES), ("container runtime", CONTAINERD), ("Helm", HELM)]
)
def test_what_is_tested_is_what_the_tests_build(what: str, version: str) -> None:
    assert version in row(what)


def test_what_is_required_is_what_chart_and_package_refuse() -> None:
    chart = yaml.safe_load((REPO / "deploy" / "helm" / "Chart.yaml").read_text())
    assert re.findall(r"\d+\.\d+", chart["kubeVersion"])[0] in row("Kubernetes")
    assert PROJECT["requires-python"].removeprefix(">=") in row("Python")


def test_each_python_of_the_hosted_tests_is_named() -> None:
    matrix = yaml.safe_load((REPO / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["unit"]["strategy"][
        "matrix"
    ]
    assert [version for version in matrix["python"] if version not in row("Python")] == []


def test_each_architecture_of_the_images_is_named() -> None:
    assert [name for name in contents().platforms if name not in row("architecture")] == []
