"""Packs epochs ahead of training (`gnnstore pack`)."""
