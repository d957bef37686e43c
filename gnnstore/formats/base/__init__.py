"""Files, names and JSON: what arrays and sealed directories are made of."""
