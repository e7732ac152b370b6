"""``python -m devalloc``"""

from devalloc.cli.main import main

main()
