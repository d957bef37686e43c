"""The work of `gnnstore plan` and `gnnstore pack`."""
