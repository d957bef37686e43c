"""The work of `gnnstore predict` and `gnnstore pack`."""
