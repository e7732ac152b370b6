"""The functions of the language: one module for each subject, with a table ``FUNCTIONS``.

A dialect takes what it needs of them; some tables depend on how a dialect compares or on its bounds.
"""
