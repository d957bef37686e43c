"""The console: options, progress, tables, exit codes."""
