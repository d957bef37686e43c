"""Measures a disk once, keeps its profile, and checks it at use."""
