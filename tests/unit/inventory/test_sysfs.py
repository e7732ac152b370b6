"""The boundary to the host's files: nothing outside the root, nothing that blocks, nothing that raises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from devalloc.inventory.sysfs import MAX_BYTES, Folder, ReadFault, Tree


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    (tmp_path / "host/sys/devices").mkdir(parents=True)
    return tmp_path / "host/sys"


def folder(sys: Path) -> Folder:
    tree = Tree(sys.parent).sys
    assert tree is not None
    return tree


@pytest.mark.parametrize("given", ["host", "host/sys", "host/sys/", "link"])
def test_the_folder_that_holds_sys_and_sys_itself_are_one_tree(sys: Path, tmp_path: Path, given: str) -> None:
    (tmp_path / "link").symlink_to("host")
    (sys.parent / "proc").mkdir()
    tree = Tree(tmp_path / given)
    assert tree.sys is not None
    assert tree.proc is not None
    assert tree.sys.path == str(sys)


def test_a_sysfs_folder_of_another_name_is_found_too(sys: Path) -> None:
    sys.rename(sys.parent / "recorded")
    tree = Tree(sys.parent / "recorded").sys
    assert tree is not None
    assert tree.names() == ["devices"]


@pytest.mark.parametrize("given", ["nothing", "host/sys/devices", "file"])
def test_a_folder_without_sysfs_has_none(sys: Path, tmp_path: Path, given: str) -> None:
    (tmp_path / "file").write_text("")
    assert Tree(tmp_path / given).sys is None


@pytest.mark.parametrize("target", ["/etc", "../../..", "../../outside"])
def test_a_link_out_of_the_root_is_not_followed(sys: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").mkdir()
    (sys / "away").symlink_to(target)
    place = folder(sys)
    assert place.folder("away") is None
    assert place.names("away") == []
    assert [fault.reason for fault in place.tree.faults] == ["leads out of the root folder"]


def test_a_file_is_not_read_through_a_link_out_of_the_root(sys: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (sys / "file").symlink_to(tmp_path / "secret")
    place = folder(sys)
    assert place.text("file") is None
    assert place.tree.faults == [ReadFault("/sys/file", "leads out of the root folder")]


def test_a_root_is_not_mistaken_for_a_sibling_with_a_longer_name(sys: Path, tmp_path: Path) -> None:
    (tmp_path / "host-too").mkdir()
    (sys / "away").symlink_to(tmp_path / "host-too")
    assert folder(sys).folder("away") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_is_one_component(sys: Path, name: str) -> None:
    place = folder(sys)
    for use in (place.folder, place.text, place.link, place.raw):
        with pytest.raises(ValueError, match="not a file name"):
            use(name)


def test_absence_is_no_fault(sys: Path) -> None:
    place = folder(sys)
    assert (place.text("no"), place.number("no"), place.link("no"), place.folder("no"), place.names("no")) == (
        None, None, None, None, [],
    )  # fmt: skip
    assert place.tree.faults == []


def test_what_is_no_file_neither_blocks_nor_raises(sys: Path) -> None:
    os.mkfifo(sys / "pipe")
    (sys / "folder").mkdir()
    (sys / "loop").symlink_to("loop")
    place = folder(sys)
    assert [place.text(name) for name in ("pipe", "folder", "loop")] == [None, None, None]
    assert [fault.path for fault in place.tree.faults] == ["/sys/pipe", "/sys/folder", "/sys/loop"]


def test_an_endless_file_is_read_to_the_bound_only(sys: Path) -> None:
    (sys / "long").write_bytes(b"1" * (MAX_BYTES + 1))
    place = folder(sys)
    assert place.text("long") is None
    assert "longer than" in place.tree.faults[0].reason


@pytest.mark.parametrize(
    ("content", "number"),
    [("7\n", 7), ("-1\n", -1), ("0x10de\n", 0x10DE), ("", None), ("seven", None), ("1 2", None), ("٣", None),
     ("9" * 30, None), ("1_0", None), ("0x" + "f" * 16, None)],
)  # fmt: skip
def test_numbers(sys: Path, content: str, number: int | None) -> None:
    (sys / "file").write_text(content)
    assert folder(sys).number("file") == number


def test_bytes_that_are_no_text_are_text_all_the_same(sys: Path) -> None:
    (sys / "file").write_bytes(b"\xff\xfeA\0\n")
    assert folder(sys).text("file") == "\ufffd\ufffdA"


def test_one_fault_is_recorded_once(sys: Path) -> None:
    (sys / "file").mkdir()
    place = folder(sys)
    place.text("file")
    place.text("file")
    assert len(place.tree.faults) == 1


def test_files_of_proc_sys_are_read() -> None:
    """On this machine: the kernel refuses reads of more bytes than it can have in one piece."""
    kernel = Tree(Path("/")).folder("proc", "sys", "kernel")
    assert kernel is not None
    assert kernel.text("osrelease") == os.uname().release
