"""Commands that take a store, and write its nodes and edges in another form."""
