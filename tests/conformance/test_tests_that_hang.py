"""A test that hangs fails, and the run goes on and ends: whatever the test waits for at its own end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import subprocess
import sys
import threading

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_waits_for_a_child_when_it_fails():
    with subprocess.Popen(SLEEPER) as child:
        try:
            child.wait()
        finally:
            threading.Event().wait()


def test_leaves_a_thread():
    def later():
        assert threading.Event().wait(600)

    threading.Thread(target=later).start()


def test_comes_last():
    pass
"""


def test_the_run_ends_with_what_hung_and_what_did_not(tmp_path: Path) -> None:
    file = tmp_path / "test_hanging.py"
    file.write_text(TESTS)
    root = Path(__file__).parents[2]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    words += ["-c", str(root / "pyproject.toml"), "--rootdir", str(root), "-o", "timeout=3", str(file)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    assert "Timeout (>3.0s)" in done.stdout
    assert "in later" in done.stderr, "the output names the thread that kept the process"


ENDS_ITS_WORKER = """
import os


def test_before():
    pass


def test_that_ends_its_worker():
    os._exit(1)  # as faulthandler does where a test hangs in a library


def test_after():
    pass
"""


def test_a_test_that_ends_its_worker_fails_and_does_not_run_again(tmp_path: Path) -> None:
    """In the tiers that need a machine; elsewhere xdist has it so. It would hang for as long in each new worker."""
    for tier, content in {"machine": ENDS_ITS_WORKER, "cluster": "def test_there():\n    pass\n"}.items():
        folder = tmp_path / "tests" / tier
        folder.mkdir(parents=True)
        (folder / f"test_of_{tier}.py").write_text(content)
    root = Path(__file__).parents[2]
    words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-p", "tests.support.scheduler"]
    words += ["-c", str(root / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path / "tests")]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed" in done.stdout
    assert "crashed while running 'tests/machine/test_of_machine.py::test_that_ends_its_worker'" in done.stdout
