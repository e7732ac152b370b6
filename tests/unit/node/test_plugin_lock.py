"""Who serves a host: by each way of publishing its devices at most one, but for the pods of a rolling update."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from devalloc_node.errors import Denied, Failed
from devalloc_node.host import lock_folder
from devalloc_node.host.lock_folder import PUBLISH_MODES, PublishMode, exclusive_host
from tests.support.node_errors import raises
from tests.support.waiting import until


@pytest.mark.parametrize("first", PUBLISH_MODES)
@pytest.mark.parametrize("second", PUBLISH_MODES)
def test_two_serve_side_by_side_only_as_pods_of_a_rolling_update(
    tmp_path: Path, first: PublishMode, second: PublishMode
) -> None:
    messages: list[str] = []
    with exclusive_host(tmp_path, first, messages.append):
        if first == second != "pools":
            with exclusive_host(tmp_path, second, messages.append, wait=0.0):
                assert messages == []
            return
        words = rf"process {os.getpid()} .*{PUBLISH_MODES[first]}; .*devalloc.io/publish=host"
        with (
            raises(Denied, "NodeServed", retryable=True, match=words),
            exclusive_host(tmp_path, second, messages.append, wait=0.0),
        ):
            pass
    with exclusive_host(tmp_path, second, messages.append, wait=0.0):
        assert messages == [], "a process that ended is in no one's way"


def test_one_that_ends_is_waited_for(tmp_path: Path) -> None:
    over, messages = threading.Event(), list[str]()

    def second() -> None:
        with exclusive_host(tmp_path, "pools", messages.append):
            over.set()

    with exclusive_host(tmp_path, "slices", messages.append):
        thread = threading.Thread(target=second)
        thread.start()
        until(lambda: messages, "it says for whom it waits")
        assert not over.is_set()
    assert over.wait(60)
    thread.join(60)
    assert len(messages) == 1
    assert f"waiting {lock_folder.WAIT_SECONDS:.0f} s" in messages[0]


def test_the_folder_of_the_locks_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "locks"
    with exclusive_host(folder, "pools", print):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    (tmp_path / "serving-pools.lock").symlink_to(tmp_path / "other")
    with pytest.raises(Failed, match=r"serving-pools\.lock"), exclusive_host(tmp_path, "slices", print):
        pass
