"""The page beside `devalloc up`: with a token of its own, which only this user reads."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from devalloc.programs.settings import TOKEN_FILE
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell, devalloc
from tests.support.fleet_manifests import fill, gpu_pool
from tests.support.served_page import ask

__all__ = ["devalloc"]


@contextmanager
def up(path: Path, page: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "devalloc.cli", "up", "--no-inventory", "--no-node"]
    command += ["--page", page, "--store", str(path)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_it_shows_the_store_to_who_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "devalloc.db"
    with closing(SQLiteStore(path)) as store, up(path, "127.0.0.1:0") as process:
        fill(store, gpu_pool("card-of-mine"))
        assert process.stdout is not None
        output = ""
        while not (match := re.search(r"page (http://\S+/devalloc/)", output)):
            line = process.stdout.readline()
            assert line, f"it ended: {output}"
            output += line
        token_file = tmp_path / TOKEN_FILE
        token = token_file.read_text().strip()
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert len(token) >= 43
        assert token not in output, "a file, or a journal, is no place for it"
        assert str(token_file) in output
        url = match[1]
        assert b"card-of-mine" in ask(url, "view?open=node:n", Authorization=f"Bearer {token}")[2]
        assert ask(url, "view")[0] == 401
        process.terminate()
        rest, _ = process.communicate(timeout=120)
        assert (process.returncode, "stopped" in rest, token in rest) == (0, True, False)
        assert not token_file.exists()


def test_a_port_that_is_taken_ends_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with up(tmp_path / "devalloc.db", f"127.0.0.1:{taken.getsockname()[1]}") as process:
            output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.search(r"--page cannot listen at 127.0.0.1:\d+: Address already in use; name another port$", output, re.M)
    assert "pools: created" not in output, "before anything is written"


@pytest.mark.parametrize("page", ["here", "example.org:1", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", ":1"])
def test_an_invalid_page_address_is_refused(devalloc: Shell, tmp_path: Path, page: str) -> None:
    output = devalloc("up", "--no-inventory", "--no-node", "--page", page, "--store", tmp_path / "devalloc.db")
    message = f"'--page': must be HOST:PORT such as 127.0.0.1:10301, not {page!r}"
    if page == "example.org:1":
        message = f"--page must be an IP address and a port such as 127.0.0.1:10301, not {page}"
    assert (output.code, message in output.err) == (2, True)
