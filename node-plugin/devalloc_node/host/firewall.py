"""Rules of the kernel's packet filter, by the program ``nft``: one call, one transaction.

Rules are text on its standard input. What goes into them is checked before: names of interfaces, addresses, MACs.
"""

from __future__ import annotations

import errno
import subprocess

_SECONDS = 30.0
_MOST_TEXT = 400
"""Characters of what nft says, in errors."""


def load_rules(nft: str, text: str) -> None:
    """Apply rules to the network namespace of this thread: all of them, or none. Raises OSError."""
    _run(nft, ["-f", "-"], text)


def read_table(nft: str, family: str, table: str) -> str | None:
    """A table of this thread's namespace, as nft prints it; None if there is none. Raises OSError."""
    tables = _run(nft, ["list", "tables"]).splitlines()
    if f"table {family} {table}" not in tables:
        return None
    return _run(nft, ["-n", "list", "table", family, table])


def _run(nft: str, words: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            [nft, *words], input=text, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise OSError(errno.ENOENT, "cannot find nft, which filters packets; install it or set --nft", nft) from None
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"did not answer within {_SECONDS:.0f} s", nft) from None
    if done.returncode:
        why = " ".join((done.stderr or done.stdout).split())[-_MOST_TEXT:] or f"failed with {done.returncode}"
        raise OSError(errno.EPROTO, why, nft)
    return done.stdout
