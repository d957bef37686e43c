"""OnDiskDatasets of DGL GraphBolt: their metadata, arrays and tasks."""
