"""What the conversion commands share."""
