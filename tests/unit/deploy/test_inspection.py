"""Images that cannot run here are read file by file."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.images import inspection, oci, tree
from deploy.images.contents import contents
from deploy.images.inspection import Tree

AMD64, ARM64 = contents().platforms["amd64"], contents().platforms["arm64"]


def library(machine: int, *needed: str) -> bytes:
    """A library that needs others: ELF's header, one segment for the file and one for the dynamic section."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    at = 64 + 2 * 56
    dynamic = b"".join(struct.pack("<QQ", 1, strings.index(name.encode())) for name in needed)
    dynamic += struct.pack("<QQ", 5, at) + struct.pack("<QQ", 0, 0)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, at + len(strings), at + len(strings), 1)
    section = struct.pack("<IIQQQQQQ", 2, 4, at + len(strings), at, at, len(dynamic), len(dynamic), 8)
    return header + load + section + strings + dynamic


WHOLE = Tree(
    architecture="arm64",
    files={
        "usr/bin/python3.11": library(ARM64.elf, "libc.so.6"),
        "usr/bin/devalloc": b"#!/usr/bin/python3.11 -I\n",
        "usr/lib/aarch64-linux-gnu/libc.so.6": library(ARM64.elf),
        "usr/share/text": b"text",
    },
    links={"lib": "usr/lib", "usr/bin/python3": "python3.11"},
    folders=frozenset({"usr", "usr/bin", "usr/lib", "usr/lib/aarch64-linux-gnu"}),
)


def test_an_image_that_has_all_it_needs_has_no_problem() -> None:
    assert [*inspection.problems(WHOLE, ARM64)] == []


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("usr/bin/python3.11", library(AMD64.elf), "usr/bin/python3.11 is not a program or library of arm64"),
        ("usr/bin/python3.11", b"\x7fELF\x01\x01", "usr/bin/python3.11 is not a program or library of arm64"),
        ("usr/bin/python3.11", library(ARM64.elf)[:100], "usr/bin/python3.11 is not a program or library of arm64"),
        (
            "usr/bin/python3.11",
            library(ARM64.elf, "libc.so.6", "libz.so.1"),
            "usr/bin/python3.11 needs libz.so.1, which is not in the image",
        ),
        ("usr/bin/devalloc", b"#!/bin/sh\n", "usr/bin/devalloc needs /bin/sh, which is not in the image"),
    ],
)
def test_a_file_that_could_not_run_is_a_problem(path: str, content: bytes, problem: str) -> None:
    assert [*inspection.problems(replace(WHOLE, files={**WHOLE.files, path: content}), ARM64)] == [problem]


def test_a_link_that_leads_nowhere_is_a_problem() -> None:
    broken = replace(WHOLE, links={**WHOLE.links, "usr/bin/pager": "/usr/bin/less", "loop": "loop"})
    assert [*inspection.problems(broken, ARM64)] == [
        "loop leads to loop, which is not in the image",
        "usr/bin/pager leads to /usr/bin/less, which is not in the image",
    ]


def test_an_image_of_another_architecture_is_a_problem() -> None:
    assert "the image is configured for arm64, not amd64" in [*inspection.problems(WHOLE, AMD64)]


def test_architectures_of_an_image_differ_in_programs_alone() -> None:
    other = {
        path.replace("aarch64", "x86_64"): library(AMD64.elf) if content.startswith(b"\x7fELF") else content
        for path, content in WHOLE.files.items()
    }
    amd64 = replace(WHOLE, architecture="amd64", files=other)
    assert [*inspection.differences(amd64, WHOLE, (AMD64, ARM64))] == []
    changed = {**other, "usr/share/text": b"another"}
    del changed["usr/bin/devalloc"]
    assert [*inspection.differences(replace(amd64, files=changed), WHOLE, (AMD64, ARM64))] == [
        "usr/bin/devalloc is only for arm64",
        "usr/share/text differs",
    ]


def test_an_archive_is_read_with_its_layers_one_above_the_other(tmp_path: Path) -> None:
    packed = []
    for number, files in enumerate(({"a": "1", "b/c": "2"}, {"a": "3"})):
        for name, text in files.items():
            path = tmp_path / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / str(number) / "link").symlink_to("a")
        tree.pack(tmp_path / str(number), tmp_path / f"{number}.tar")
        packed.append(oci.layer(tmp_path / f"{number}.tar", "a test"))
    oci.write(tmp_path / "image.tar", "here/thing:1", packed, {}, architecture="arm64")
    assert inspection.read(tmp_path / "image.tar") == Tree(
        "arm64", {"a": b"3", "b/c": b"2"}, {"link": "a"}, frozenset({"b"})
    )


def test_a_program_of_this_machine_is_read() -> None:
    elf = inspection.read_elf(Path(sys.executable).resolve().read_bytes())
    assert elf is not None
    assert elf.machine in (AMD64.elf, ARM64.elf)
    assert [name for name in elf.needed if name.startswith("libc.so")]
