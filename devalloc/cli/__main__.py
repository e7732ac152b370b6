"""``python -m devalloc.cli``"""

from devalloc.cli.main import main

main()
