"""Layer-wise inference over all nodes of a store (`gnnstore.inference`)."""
