"""A cache whose size follows the machine's: a program of the guest gets the size."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from devalloc_node.guest.memory_rules import MIB, cache_size

_SECONDS = 3.0  # the agent waits 5 s for a reply


class Cache(Protocol):
    """Anything that gives memory back on request."""

    async def fit(self, memory: int) -> str:
        """Fit into a machine with so many bytes. Returns a clause that says what was done; raises OSError."""


@dataclass(frozen=True, slots=True)
class ProgramCache:
    """A program that is started with the new size in bytes as its only argument, and exits with 0 when it is done."""

    program: str
    where: str
    """``disk`` or ``memory``."""

    async def fit(self, memory: int) -> str:
        size = cache_size(memory, self.where)
        process = await asyncio.create_subprocess_exec(
            self.program, str(size), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(_SECONDS):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise OSError(f"{self.program} did not set the cache to {size // MIB} MiB within {_SECONDS:g} s") from None
        if code != 0:
            raise OSError(f"{self.program} could not set the cache to {size // MIB} MiB: exit code {code}")
        return f"cache set to {size // MIB} MiB"
