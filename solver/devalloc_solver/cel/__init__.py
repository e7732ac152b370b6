"""CEL: one sub-package for each dialect, and the budgets that bound evaluation in both."""
