"""The constraints: each package by version and by the hashes of its files, for each Python and platform that counts."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from deploy.images import constraints
from deploy.images.cache import Unavailable
from deploy.images.constraints import Pin, constrained, fits, pins, rendered, without_wheel
from deploy.images.contents import CONSTRAINTS, SOURCE

A, B = "a" * 64, "b" * 64
EACH = {
    (minor, architecture): f"thing-1-cp3{minor}-cp3{minor}-manylinux_2_17_{architecture}.whl"
    for minor in (11, 12, 13, 14)
    for architecture in ("x86_64", "aarch64")
}


def package(name: str, *wheels: str, version: str = "1", **more: Any) -> dict[str, Any]:
    """An entry of a pylock.toml."""
    files = [{"url": f"https://files.example/{wheel}", "hashes": {"sha256": A}} for wheel in wheels]
    return {"name": name, "version": version, "wheels": files, **more}


class TestConstraints:
    def test_each_line_has_a_hash(self) -> None:
        """If not, pip refuses to install any of them: python -m deploy.images constrain --keep."""
        assert [name for name, pin in constrained().items() if not pin.hashes] == []

    def test_the_file_is_what_the_tool_writes(self) -> None:
        """Sorted, each package once, and neither addresses nor options beside them."""
        text = CONSTRAINTS.read_text()
        head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        assert text == head + "".join(pin.line(name) for name, pin in sorted(constrained().items()))

    def test_they_are_for_the_pythons_that_the_project_allows(self) -> None:
        project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
        allowed = SpecifierSet(project["requires-python"])
        assert all(allowed.contains(f"3.{minor}") for minor in constraints.MINORS)
        assert not allowed.contains(f"3.{min(constraints.MINORS) - 1}")

    def test_entries_are_read_as_they_were_written(self) -> None:
        written = {"a-b": Pin("1", frozenset({A, B})), "c": Pin("2.0", frozenset({A}), "sys_platform == 'win32'")}
        text = "# a head\n" + "".join(pin.line(name) for name, pin in written.items())
        assert pins(text) == written
        assert pins(f"A.b==1 --hash=sha256:{A} --hash=sha256:{B}\n") == {"a-b": written["a-b"]}

    @pytest.mark.parametrize(
        "line", ["a>=1", "a", f"a==1 --hash=md5:{A}", "--index-url https://x", "a==1 --hash=sha256:1"]
    )
    def test_a_line_that_pins_nothing_is_refused(self, line: str) -> None:
        with pytest.raises(ValueError, match="invalid line"):
            pins(line)


class TestRegeneration:
    def test_all_files_of_a_version_may_be_installed(self) -> None:
        both = package("A_b", "a_b-1-py3-none-any.whl", sdist={"url": "x/a_b-1.tar.gz", "hashes": {"sha256": B}})
        assert pins(rendered([both])) == {"a-b": Pin("1", frozenset({A, B}))}

    def test_a_package_in_two_versions_is_refused(self) -> None:
        with pytest.raises(Unavailable, match="thing is needed in two versions: 1 and 2"):
            rendered([package("thing", "x.whl"), package("thing", "x.whl", version="2")])

    def test_a_package_without_a_wheel_for_one_platform_is_refused(self) -> None:
        assert list(without_wheel([package("thing", *EACH.values())])) == []
        for (minor, architecture), missing in EACH.items():
            (problem,) = without_wheel([package("thing", *(wheel for wheel in EACH.values() if wheel != missing))])
            assert problem == f"thing 1 has no wheel for Python 3.{minor} on {architecture}"

    @pytest.mark.parametrize(
        ("wheel", "minors"),
        [
            ("a-1-py3-none-any.whl", {11, 12, 13, 14}),
            ("a-1-py2.py3-none-any.whl", {11, 12, 13, 14}),
            ("a-1-cp39-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", {11, 12, 13, 14}),
            ("a-1-cp312-abi3-manylinux_2_28_x86_64.whl", {12, 13, 14}),
            ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", {12}),
            ("a-1-py3-none-linux_x86_64.whl", {11, 12, 13, 14}),
            ("a-1-py312-none-any.whl", {12}),
            ("a-1-cp313-cp313t-manylinux_2_28_x86_64.whl", set()),
            ("a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", set()),
            ("a-1-cp312-cp312-musllinux_1_2_x86_64.whl", set()),
            ("a-1-cp312-cp312-manylinux_2_28_aarch64.whl", set()),
            ("a-1-cp312-cp312-win_amd64.whl", set()),
        ],
    )
    def test_which_wheels_fit(self, wheel: str, minors: set[int]) -> None:
        assert {minor for minor in constraints.MINORS if fits(wheel, minor, "x86_64")} == minors
