"""Programs for maintainers: what takes long, or is run by hand. Nothing of the product imports them."""
