"""Errors that end a call, of either dialect."""

from __future__ import annotations


class AnswerRefused(AssertionError):
    """The independent check found a violation in an answer: a bug of the solver. The answer is never returned."""
