"""The facts in ``tests/data``: each is named in the README, and more may be read from a folder that is named."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.support import recordings, reference_data


def test_the_readme_names_every_file_and_no_other() -> None:
    files = {
        str(path.relative_to(reference_data.DATA)) for path in reference_data.DATA.rglob("*") if path.is_file()
    } - {"README.md"}
    readme = (reference_data.DATA / "README.md").read_text()
    named = {cell.strip("`") for line in readme.splitlines() if line.startswith("| `") for cell in line.split(" ")[1:2]}
    assert named == files


def test_the_facts_stay_small() -> None:
    assert sum(path.stat().st_size for path in reference_data.DATA.rglob("*") if path.is_file()) < 500_000


def test_packed_content_is_read_as_it_was(tmp_path: Path) -> None:
    content = {"b": [1, "ä", None], "a": {"x": 0.5}}
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(content))
    assert reference_data.main([str(path)]) == 0
    assert reference_data.read(tmp_path / "facts.json.xz") == content


class TestMoreCases:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("DEVALLOC_SHARED_CASES", str(tmp_path))
        return tmp_path

    def test_cases_are_added_to_those_in_the_tree(self, folder: Path) -> None:
        before = len(reference_data.claim_cases()), len(reference_data.resource_claim_cases())
        (folder / "random.json").write_text(json.dumps({"cases": [{"name": "another"}]}))
        (folder / "upstream-dra.json").write_text(json.dumps({"cases": [{"name": "one"}, {"name": "two"}]}))
        assert (len(reference_data.claim_cases()), len(reference_data.resource_claim_cases())) == (
            before[0] + 1,
            before[1] + 2,
        )

    def test_tables_are_added_to_those_in_the_tree(self, folder: Path) -> None:
        before = reference_data.scaling_tables()
        (folder / "neon").mkdir()
        (folder / "neon" / "more.json").write_text("{}")
        assert reference_data.scaling_tables() == [*before, folder / "neon" / "more.json"]

    def test_a_folder_that_is_not_there_is_an_error(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DEVALLOC_SHARED_CASES", str(folder / "none"))
        with pytest.raises(FileNotFoundError, match="DEVALLOC_SHARED_CASES"):
            reference_data.claim_cases()


def test_an_archive_of_a_machine_becomes_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "machine.tar.gz", "w:gz") as tar:
        folder, file, link = tarfile.TarInfo("sys/bus"), tarfile.TarInfo("sys/bus/rom"), tarfile.TarInfo("sys/link")
        folder.type, link.type, link.linkname, file.size = tarfile.DIRTYPE, tarfile.SYMTYPE, "bus/rom", 3
        tar.addfile(folder)
        tar.addfile(file, io.BytesIO(b"a\xff\0"))
        tar.addfile(link)
    (tmp_path / "machines").mkdir()
    recordings.main([str(tmp_path / "machine.tar.gz"), str(tmp_path / "machines" / "machine.json.xz")])
    monkeypatch.setattr(reference_data, "DATA", tmp_path)
    root = recordings.unpack("machine", tmp_path / "unpacked")
    assert (root / "sys" / "link").read_bytes() == b"a\xff\0"
    assert (root / "sys" / "link").is_symlink()
