"""``python -m devalloc_node.guest``: the guest monitor, where nothing of devalloc is installed but what it imports."""

from __future__ import annotations

import sys

from devalloc_node.guest.main import main

sys.exit(main(sys.argv[1:]))
