"""The command line: everything a user can do with a store from a shell.

Nothing in the library imports this room, and no rule about graphs or files lives here: a
command reads its arguments, calls the library and prints what came back.
"""
