"""The command, in this process."""

from tests.support.shell import devalloc

__all__ = ["devalloc"]
