"""Command-line options that several verbs have."""
