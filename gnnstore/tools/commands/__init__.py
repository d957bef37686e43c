"""Commands of `gnnstore`: a module for each."""
