"""The ``devalloc`` command of any version, verb by verb in one process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from tests.support.previous import Version


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


class Terminal:
    """Where somebody types commands."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process

    def __call__(self, *words: object, stdin: str = "", code: int = 0) -> Said:
        """One command, which ends with ``code``."""
        said = Said(*self._asked("verb", [str(word) for word in words], stdin))
        assert said.code == code, f"{' '.join(map(str, words))}: {said.err}{said.out}"
        return said

    def objects(self, store: Path) -> dict[str, Any]:
        """All that this version finds in a store, by kind, namespace and name."""
        found: dict[str, Any] = self._asked("objects", str(store), "")
        return found

    def put(self, store: Path, obj: dict[str, Any]) -> None:
        """As a node, a server of permits or an allocator writes it."""
        self._asked("put", str(store), obj)

    def permit(self, store: Path, machine: str) -> dict[str, Any]:
        """What a server of permits counts for a machine: thousandths of a CPU and bytes."""
        found: dict[str, Any] = self._asked("permit", str(store), machine)
        return found

    def _asked(self, *message: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        try:
            return json.loads(line)
        except ValueError:
            raise AssertionError(line + self._process.communicate()[0]) from None


@contextmanager
def terminal(version: Version, **environment: str) -> Iterator[Terminal]:
    process = version.start(version.python("-m", "tests.support.terminal"), **environment)
    try:
        yield Terminal(process)
    finally:
        process.communicate()


# In the other process.


def _serve() -> None:
    from contextlib import closing
    from dataclasses import astuple

    from click.testing import CliRunner

    from devalloc.api.kinds import KINDS
    from devalloc.cli.main import cli
    from devalloc.controller.permits.records import read
    from devalloc.store.sqlite import SQLiteStore

    for line in sys.stdin:
        what, first, second = json.loads(line)
        answer: Any = None
        if what == "verb":
            result = CliRunner().invoke(cli, first, input=second, prog_name="devalloc")
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            answer = (result.exit_code, result.stdout, result.stderr)
        else:
            with closing(SQLiteStore(Path(first))) as store:
                if what == "put":
                    kept = store.replace(second)
                    store.replace_status({**kept, "status": second.get("status", {})})
                elif what == "permit":
                    record: Any = read(store.get(*second.split("/")))
                    answer = {name: astuple(getattr(record, name)) for name in ("use", "permit", "kept")}
                else:
                    found = [(each["kind"], each["metadata"], each) for each in store.list(tuple(KINDS)).objects]
                    answer = {f"{kind}/{m.get('namespace', '')}/{m['name']}": obj for kind, m, obj in found}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
