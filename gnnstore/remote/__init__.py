"""Stores that lie elsewhere: in a bucket, behind a URL, or on a shared file system."""
