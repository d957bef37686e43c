"""Arrays on disk, each a standard Zarr v3 array and a raw file at once."""
