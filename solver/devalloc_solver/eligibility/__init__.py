"""Which devices an expression accepts: compiled expressions of either dialect, their judge, and what an index asks."""
