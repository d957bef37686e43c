"""Tables of nodes and edges in columns: Parquet, Arrow and Feather files, and frames in memory."""
