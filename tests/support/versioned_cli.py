"""Run ``devalloc`` commands of any version, verb by verb in one process."""

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
class CommandOutput:
    code: int
    out: str
    err: str


class VersionedCli:
    """Where a user types commands."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process

    def __call__(self, *words: object, stdin: str = "", code: int = 0) -> CommandOutput:
        """One command, which ends with ``code``."""
        output = CommandOutput(*self._request("verb", [str(word) for word in words], stdin))
        assert output.code == code, f"{' '.join(map(str, words))}: {output.err}{output.out}"
        return output

    def objects(self, store: Path) -> dict[str, Any]:
        """All that this version finds in a store, by kind, namespace and name."""
        objects: dict[str, Any] = self._request("objects", str(store), "")
        return objects

    def put(self, store: Path, obj: dict[str, Any]) -> None:
        """As a node, a server of permits or an allocator writes it."""
        self._request("put", str(store), obj)

    def permit(self, store: Path, machine: str) -> dict[str, Any]:
        """What a server of permits counts for a machine: thousandths of a CPU and bytes."""
        permit: dict[str, Any] = self._request("permit", str(store), machine)
        return permit

    def _request(self, *message: object) -> Any:
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
def versioned_cli(version: Version, **environment: str) -> Iterator[VersionedCli]:
    process = version.start(version.python("-m", "tests.support.versioned_cli"), **environment)
    try:
        yield VersionedCli(process)
    finally:
        process.communicate()


# In the other process.


def _serve() -> None:
    from contextlib import closing
    from dataclasses import astuple

    from click.testing import CliRunner

    from devalloc.api import kinds
    from devalloc.cli.main import cli
    from devalloc.machines.permits.sources import read_vm
    from devalloc.store.sqlite import SQLiteStore

    api_kinds = kinds.API_KINDS if hasattr(kinds, "API_KINDS") else kinds.KINDS  # 0.1.0 calls it so
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
                    replaced = store.replace(second)
                    store.replace_status({**replaced, "status": second.get("status", {})})
                elif what == "permit":
                    record: Any = read_vm(store.get(*second.split("/")))
                    before = record.previous if hasattr(record, "previous") else record.kept  # 0.1.0 calls it so
                    answer = {"use": astuple(record.use), "permit": astuple(record.permit), "previous": astuple(before)}
                else:
                    entries = [(each["kind"], each["metadata"], each) for each in store.list(tuple(api_kinds)).objects]
                    answer = {f"{kind}/{m.get('namespace', '')}/{m['name']}": obj for kind, m, obj in entries}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
