"""A graph on disk: its schema and manifest, reader, writer and verification."""
