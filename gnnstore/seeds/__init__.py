"""The seeds of batches."""
