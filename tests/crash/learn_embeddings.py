"""Learns embeddings with commits every few batches, and goes on where it was killed.

Prints the loss of each batch, bit for bit. Run as a script, by the test of kills.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

import gnnstore


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("run", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--partitions", action="store_true")
    options = parser.parse_args()

    store = gnnstore.open(options.store)
    torch.manual_seed(0)
    scale = torch.nn.Parameter(torch.ones(8))
    checkpoint, path = options.run / "run.pt", options.run / "rows.emb"
    saved = torch.load(checkpoint, weights_only=True) if checkpoint.exists() else None
    policy = None
    if options.partitions:
        policy = gnnstore.PartitionPolicy("two-level", capacity=2, logical=4)
    if saved is not None:
        table = gnnstore.EmbeddingTable.open(path, store, commit=saved["table"])
        scale.data.copy_(saved["scale"])
    else:  # also over what a run that was killed before its first checkpoint has left
        table = gnnstore.EmbeddingTable.create(
            path,
            store,
            dim=8,
            partitions=policy,
            seed=1,
            overwrite=True,
            keep=2,
        )
    loader = gnnstore.LinkNeighborLoader(
        store,
        [],
        batch_size=64,
        shuffle=True,
        seed=5,
        neg_sampling="binary",
        partitions=policy,
        tables=[table],
    )
    rows = gnnstore.RowwiseAdagrad(table, lr=0.1)
    dense = torch.optim.SGD([scale], lr=0.1)
    if saved is not None:
        loader.load_state_dict(saved["loader"])
    while loader.epoch < options.epochs:
        epoch = loader.epoch
        for batch in loader:
            z = table(batch.n_id) * scale
            source, target = z[batch.edge_label_index]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                (source * target).sum(-1), batch.edge_label
            )
            for optimizer in (rows, dense):
                optimizer.zero_grad()
            loss.backward()
            for optimizer in (rows, dense):
                optimizer.step()
            state = loader.state_dict()
            print(
                f"epoch {epoch} batch {state['batches']}: {float(loss.detach()).hex()}", flush=True
            )
            if state["batches"] % options.every == 0:
                unfinished = checkpoint.with_suffix(".tmp")
                torch.save(
                    {
                        "table": table.commit(state),
                        "loader": state,
                        "scale": scale.detach(),
                    },
                    unfinished,
                )
                os.replace(unfinished, checkpoint)  # noqa: PTH105
    table.close()


if __name__ == "__main__":
    main()
