"""``python -m devalloc_machines.guest``: the guest monitor, where nothing is installed but what it imports."""

from __future__ import annotations

import sys

from devalloc_machines.guest.main import main

sys.exit(main(sys.argv[1:]))
