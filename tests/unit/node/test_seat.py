"""Who serves a host: by each way of publishing its devices at most one, but for the pods of a rolling update."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from devalloc_node import seat
from devalloc_node.errors import Denied, Failed
from devalloc_node.seat import WAYS, Way, taken
from tests.support.waiting import until


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_two_serve_side_by_side_only_as_pods_of_a_rolling_update(tmp_path: Path, first: Way, second: Way) -> None:
    said: list[str] = []
    with taken(tmp_path, first, said.append):
        if first == second != "pools":
            with taken(tmp_path, second, said.append, wait=0.0):
                assert said == []
            return
        words = rf"process {os.getpid()} .*{WAYS[first]}; .*devalloc.io/publish=host"
        with pytest.raises(Denied, match=words) as error, taken(tmp_path, second, said.append, wait=0.0):
            pass
        assert (error.value.code, error.value.retryable) == ("NodeServed", True)
    with taken(tmp_path, second, said.append, wait=0.0):
        assert said == [], "who ended stands in nobody's way"


def test_one_that_ends_is_waited_for(tmp_path: Path) -> None:
    over, said = threading.Event(), list[str]()

    def second() -> None:
        with taken(tmp_path, "pools", said.append):
            over.set()

    with taken(tmp_path, "slices", said.append):
        thread = threading.Thread(target=second)
        thread.start()
        until(lambda: said, "it says for whom it waits")
        assert not over.is_set()
    assert over.wait(60)
    thread.join(60)
    assert len(said) == 1
    assert f"waiting {seat.WAIT_SECONDS:.0f} s" in said[0]


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    (tmp_path / "serving-pools.lock").symlink_to(tmp_path / "other")
    with pytest.raises(Failed, match=r"serving-pools\.lock"), taken(tmp_path, "slices", print):
        pass
