"""What `make release` makes: the same bytes each time, and links that lead somewhere."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from deploy.images import bom
from deploy.images.contents import contents
from deploy.package_metadata import REPOSITORY, urls, with_absolute_links
from devalloc.version import VERSION
from tests.support.repository import REPO
from tools import release
from tools.release import Refused

HOME = "https://git.example/team/devalloc"
LINK = re.compile(r"\]\(([^)\s]+)\)")


class TestReadme:
    """A registry shows it without the files beside it."""

    TEXT = (REPO / "README.md").read_text()

    def test_each_link_and_picture_leads_to_a_file_of_this_version(self) -> None:
        links = LINK.findall(with_absolute_links(self.TEXT, HOME, VERSION))
        assert len(links) > 10
        for link in links:
            if link.startswith(HOME):
                match = re.fullmatch(rf"{HOME}/(?:blob|raw)/v{re.escape(VERSION)}/([^#]+)(?:#.*)?", link)
                assert match is not None, link
                assert (REPO / match[1]).exists(), link
            else:
                assert link.startswith("https://"), link

    def test_a_picture_is_a_file_and_no_page_about_one(self) -> None:
        shown = with_absolute_links("![a](docs/a.svg) [b](docs/b.md#c) [d](#e) [f](https://g)", HOME, "1")
        assert (
            shown
            == f"![a]({HOME}/raw/v1/docs/a.svg) [b]({HOME}/blob/v1/docs/b.md#c) [d]({HOME}/blob/v1/README.md#e) [f](https://g)"
        )

    def test_without_a_repository_links_lead_to_a_reserved_domain(self) -> None:
        assert re.match(r"https://[\w.]+\.example/", REPOSITORY)
        assert {*urls(HOME, "1")} >= {"Source", "Documentation", "Changelog", "Issues", "Security"}


class TestChart:
    def test_the_same_files_make_the_same_archive_with_the_prefix_of_its_images(self) -> None:
        packed = release.chart(REPO / "deploy" / "helm", "registry.example/team/")
        assert packed == release.chart(REPO / "deploy" / "helm", "registry.example/team/")
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            names = tar.getnames()
            values = yaml.safe_load(tar.extractfile("devalloc/values.yaml").read())  # type: ignore[union-attr]
            chart = yaml.safe_load(tar.extractfile("devalloc/Chart.yaml").read())  # type: ignore[union-attr]
        assert names[0] == "devalloc/Chart.yaml"
        assert {name.partition("/")[0] for name in names} == {"devalloc"}
        assert values["image"]["prefix"] == "registry.example/team/"
        assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)

    def test_an_archive_has_no_time_and_no_owner(self) -> None:
        packed = release.archive({"devalloc/b": b"2", "devalloc/a": b"1"})
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as tar:
            assert [(member.name, member.mtime, member.uid, member.uname) for member in tar] == [
                ("devalloc/a", 0, 0, ""),
                ("devalloc/b", 0, 0, ""),
            ]
        assert packed[4:8] == b"\0\0\0\0"


def test_the_package_lists_the_versions_that_the_images_have() -> None:
    versions = bom.versions_of(release.package_bom(contents()))
    assert {"pkg:pypi/ortools", "pkg:pypi/grpcio", "pkg:pypi/kubernetes"} <= {*versions}


def test_all_files_are_in_the_sums_in_the_form_that_sha256sum_reads(tmp_path: Path) -> None:
    for name in ("b", "a", "SHA256SUMS"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_bytes(release.sums(tmp_path))
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "a: OK\nb: OK\n")


class TestCommit:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        self.git(tmp_path, "init", "--quiet")
        (tmp_path / "file").write_text("1")
        self.git(tmp_path, "add", ".")
        self.git(tmp_path, "commit", "--quiet", "--message", "one")
        return tmp_path

    @staticmethod
    def git(tree: Path, *words: str) -> None:
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tree), *identity, *words], check=True)

    def test_a_commit_with_the_tag_of_the_version_is_released(self, tree: Path) -> None:
        self.git(tree, "tag", f"v{VERSION}")
        assert release.describe_commit(tree).startswith(f"release v{VERSION} of commit ")

    def test_a_commit_without_one_is_a_trial(self, tree: Path) -> None:
        assert release.describe_commit(tree).endswith("these files are a trial, not the release")

    def test_a_tag_of_another_version_is_refused(self, tree: Path) -> None:
        self.git(tree, "tag", "v99.0.0")
        with pytest.raises(Refused, match=rf"the tag v99\.0\.0, and devalloc/version\.py is {re.escape(VERSION)}"):
            release.describe_commit(tree)

    @pytest.mark.parametrize("name", ["file", "another"])
    def test_a_tree_with_other_files_than_its_commit_is_refused(self, tree: Path, name: str) -> None:
        (tree / name).write_text("2")
        with pytest.raises(Refused, match=f"1 files differ from the last commit, such as {name}"):
            release.describe_commit(tree)


def test_a_folder_that_is_no_release_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "devalloc-1.tar").write_text("1")
    (tmp_path / "letter").write_text("2")
    with pytest.raises(Refused, match="letter is no file of a release: give an empty folder with --out"):
        release.empty(tmp_path)
    assert len([*tmp_path.iterdir()]) == 2
    (tmp_path / "letter").unlink()
    release.empty(tmp_path)
    assert [*tmp_path.iterdir()] == []
