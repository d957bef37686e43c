"""The command line: everything a user can do with a store from a shell.

Nothing in the library imports this folder, and no rule about graphs or files lives here: a command
reads its arguments, calls the library and prints the result.
"""
