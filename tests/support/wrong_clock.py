"""The command with a wall clock that is wrong: python -m tests.support.wrong_clock SECONDS VERB ...

Its own modules ask another clock what time it is; the monotonic clocks, and those of TLS, stay as they are.
"""

from __future__ import annotations

import datetime
import importlib
import sys
import time


class Wrong(datetime.datetime):
    """A clock that is ahead."""

    ahead = datetime.timedelta()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Wrong:
        """The wrong time."""
        return super().now(tz) + cls.ahead


def set_wrong(seconds: float) -> int:
    """Set it wrong, for all modules of the controller; how many look at one."""
    true = time.time
    time.time = lambda: true() + seconds
    Wrong.ahead = datetime.timedelta(seconds=seconds)
    importlib.import_module("devalloc.programs.controller")
    looking = [
        module
        for name, module in [*sys.modules.items()]
        if name.startswith("devalloc.") and getattr(module, "datetime", None) is datetime.datetime
    ]
    for module in looking:
        setattr(module, "datetime", Wrong)  # noqa: B010
    return len(looking)


if __name__ == "__main__":
    assert set_wrong(float(sys.argv.pop(1))) > 0
    sys.exit(importlib.import_module("devalloc.cli.main").main())
