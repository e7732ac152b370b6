"""A child that a test forks, to kill it or to see what it does, is not held up by what other tests did before."""

from __future__ import annotations

import gc
import os


class Finalized:
    def __init__(self, says: int) -> None:
        self.says = says
        self.itself = self  # only the garbage collector finds it

    def __del__(self) -> None:
        os.write(self.says, b"finalized")


def test_it_does_not_finalize_what_its_parent_left() -> None:
    reader, says = os.pipe()
    gc.disable()
    try:
        Finalized(says)
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        os.write(says, b"by no one, ")
        gc.collect()
        assert os.read(reader, 100) == b"by no one, finalized"
    finally:
        gc.enable()
        os.close(reader)
        os.close(says)
