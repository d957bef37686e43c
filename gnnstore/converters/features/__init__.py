"""Node attributes: found, cast and scaled."""
