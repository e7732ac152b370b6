"""Helpers of the tests. Some run beside the previous release, whose modules have the names that they had then."""

import os
from pathlib import Path

from tests.support import old_names

if table := os.environ.get(old_names.ENVIRONMENT):
    old_names.install(Path(table))
