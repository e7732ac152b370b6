"""The functions of the language: one module per library, each with a table ``FUNCTIONS``."""
