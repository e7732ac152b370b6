"""The ``devalloc`` command: parsing, tables, progress. What is done is done by the other packages."""
