"""An open store: its topology, and the arrays that all loaders on it share."""
