"""The command, in this process."""

from tests.support.cli_shell import devalloc

__all__ = ["devalloc"]
