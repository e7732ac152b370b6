"""Where files of claims are, and may still be after the plugin was told other folders."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from devalloc_node.claims.claim_files import folders_ever
from devalloc_node.journal import open_journal


def test_folders_of_earlier_settings_are_remembered_over_restarts(tmp_path: Path) -> None:
    """What was written there must be found when its claim is unprepared."""
    for now, ever in (
        (["/var/run/cdi", "/data"], ("/data", "/var/run/cdi")),
        (["/etc/cdi", "/data"], ("/data", "/etc/cdi", "/var/run/cdi")),
        (["/data"], ("/data", "/etc/cdi", "/var/run/cdi")),
    ):
        with closing(open_journal(tmp_path / "node")) as journal:
            assert folders_ever(journal, now) == ever
