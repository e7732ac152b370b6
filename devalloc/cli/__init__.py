"""The ``devalloc`` command: parsing, tables, progress. The other packages do the work."""
