"""The order of an epoch, and how an iteration resumes in it."""
