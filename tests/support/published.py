"""Small graphs in the layouts in which the large public ones are published.

The real files take up to a terabyte. A converter has to get the place, type and order of the data
right, which are the same for a hundred nodes. Layouts follow the projects' own readers:
`ogb.lsc.MAG240MDataset`, `ogb.nodeproppred`, IGB's `dataloader.py`, GraphBolt's YAML specification,
and the headers of snap.stanford.edu.
"""

from __future__ import annotations

import gzip
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.testing.graphs import GraphArrays

SNAP_HEADERS = {
    "com-friendster.ungraph.txt": (
        "# Undirected graph: ../../data/output/friendster.txt\n# Friendster\n"
        "# Nodes: {nodes} Edges: {edges}\n# FromNodeId\tToNodeId\n"
    ),
    "soc-LiveJournal1.txt": (
        "# Directed graph (each unordered pair of nodes is saved once): soc-LiveJournal1.txt \n"
        "# Directed LiveJournal friednship social network\n"
        "# Nodes: {nodes} Edges: {edges}\n# FromNodeId\tToNodeId\n"
    ),
    "twitter-2010.txt": "",
}


def write_snap(path: Path, graph: GraphArrays, *, line_end: str = "\n") -> Path:
    """Write an edge list as snap.stanford.edu serves the one of this name, gzipped if `.gz`."""
    name = path.name.removesuffix(".gz")
    separator = " " if name == "twitter-2010.txt" else "\t"
    text = SNAP_HEADERS[name].format(nodes=graph.num_nodes, edges=graph.num_edges)
    text = text.replace("\n", line_end)
    text += "".join(f"{s}{separator}{t}{line_end}" for s, t in graph.edge_index.T.tolist())
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_csv_gz(path: Path, rows: npt.NDArray[Any]) -> None:
    """Write an array [N] or [N, F] as OGB's gzipped CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = (rows[:, None] if rows.ndim == 1 else rows).tolist()
    text = "".join(",".join(map(repr, row)) + "\n" for row in table)
    path.write_bytes(gzip.compress(text.encode()))


def write_papers100m(root: Path, graph: GraphArrays) -> Path:
    """Write `ogbn_papers100M`: compressed archives, float labels [N, 1] with NaN."""
    raw = root / "raw"
    raw.mkdir(parents=True)
    np.savez_compressed(
        raw / "data.npz",
        edge_index=graph.edge_index,
        num_nodes_list=np.array([graph.num_nodes]),
        num_edges_list=np.array([graph.num_edges]),
        node_feat=graph.attributes["x"],
        node_year=graph.attributes["year"][:, None],
    )
    np.savez_compressed(raw / "node-label.npz", node_label=_labels(graph)[:, None])
    for name, ids in graph.splits.items():
        write_csv_gz(root / "split" / "time" / f"{name}.csv.gz", ids)
    return root


def write_products(root: Path, graph: GraphArrays) -> Path:
    """Write `ogbn_products`: gzipped CSV, to be read with inverse edges."""
    raw = root / "raw"
    write_csv_gz(raw / "edge.csv.gz", graph.edge_index.T)
    write_csv_gz(raw / "num-node-list.csv.gz", np.array([graph.num_nodes]))
    write_csv_gz(raw / "num-edge-list.csv.gz", np.array([graph.num_edges]))
    write_csv_gz(raw / "node-feat.csv.gz", graph.attributes["x"])
    write_csv_gz(raw / "node-label.csv.gz", graph.attributes["y"])
    for name, ids in graph.splits.items():
        write_csv_gz(root / "split" / "sales_ranking" / f"{name}.csv.gz", ids)
    return root


def write_mag240m(root: Path, graph: GraphArrays) -> Path:
    """Write `mag240m_kddcup2021` below `root` and return it."""
    import torch  # noqa: PLC0415  (its pickles are part of the layout)

    folder = root / "mag240m_kddcup2021"
    papers = folder / "processed" / "paper"
    citations = folder / "processed" / "paper___cites___paper"
    writes = folder / "processed" / "author___writes___paper"
    for directory in (papers, citations, writes):
        directory.mkdir(parents=True)
    np.save(papers / "node_feat.npy", graph.attributes["x"].astype(np.float16))
    np.save(papers / "node_label.npy", _labels(graph))
    np.save(papers / "node_year.npy", graph.attributes["year"].astype(np.int16))
    np.save(citations / "edge_index.npy", graph.edge_index)
    np.save(writes / "edge_index.npy", np.zeros((2, 3), np.int64))
    counts = {"paper": graph.num_nodes, "author": 4, "institution": 2, "num_classes": 153}
    torch.save(counts, folder / "meta.pt")
    torch.save(dict(graph.splits), folder / "split_dict.pt")
    (folder / "RELEASE_v1.txt").write_text("")
    return folder


def write_igb(root: Path, graph: GraphArrays, *, raw: bool = False) -> Path:
    """Write a size of IGB; the two largest have features and labels without a header."""
    papers = root / "processed" / "paper"
    citations = root / "processed" / "paper__cites__paper"
    papers.mkdir(parents=True)
    citations.mkdir()
    arrays = {
        "node_feat.npy": graph.attributes["x"],
        "node_label_19.npy": graph.attributes["y"],
        "node_label_2K.npy": graph.attributes["y"] + 100,
    }
    for name, values in arrays.items():
        if raw:
            values.astype("<f4").tofile(papers / name)
        else:
            np.save(papers / name, values.astype(np.float32))
    np.save(citations / "edge_index.npy", np.ascontiguousarray(graph.edge_index.T))
    return root


def write_graphbolt(root: Path, graph: GraphArrays, *, edge_format: str = "numpy") -> Path:
    """Write an OnDiskDataset with features of nodes and edges and one task."""
    for folder in ("edges", "data", "set"):
        (root / folder).mkdir(parents=True)
    if edge_format == "csv":
        lines = "".join(f"{s},{t}\n" for s, t in graph.edge_index.T.tolist())
        (root / "edges" / "bulk.csv").write_text(lines)
    else:
        np.save(root / "edges" / "bulk.npy", graph.edge_index)
    np.save(root / "data" / "node-feat.npy", graph.attributes["x"])
    np.save(root / "data" / "edge-feat.npy", graph.attributes["edge_attr"])
    ending = "csv" if edge_format == "csv" else "npy"
    text = f"""\
        dataset_name: small
        graph:
          nodes:
            - num: {graph.num_nodes}
          edges:
            - format: {edge_format}
              path: edges/bulk.{ending}
        feature_data:
          - domain: node
            name: feat
            format: numpy
            path: data/node-feat.npy
          - domain: edge
            name: feat
            format: numpy
            in_memory: false
            path: data/edge-feat.npy
        tasks:
          - name: node_classification
            num_classes: 4
        """
    text = textwrap.dedent(text)
    for name, ids in graph.splits.items():
        np.save(root / "set" / f"{name}-seeds.npy", ids)
        np.save(root / "set" / f"{name}-labels.npy", graph.attributes["y"][ids])
        key = {"valid": "validation"}.get(name, name)
        text += f"    {key}_set:\n      - data:\n"
        for what in ("seeds", "labels"):
            path = f"set/{name}-{what}.npy"
            text += (
                f"          - name: {what}\n            format: numpy\n            path: {path}\n"
            )
    (root / "metadata.yaml").write_text(text)
    return root


def _labels(graph: GraphArrays) -> npt.NDArray[np.float32]:
    """Return labels as float32, NaN for nodes in no split."""
    labels = np.full(graph.num_nodes, np.nan, np.float32)
    for ids in graph.splits.values():
        labels[ids] = graph.attributes["y"][ids]
    return labels


def write_ogb_types(root: Path, data: Any, *, binary: bool = False) -> Path:
    """Write a `HeteroData` as ogbn-mag is published: `x`, `y` and `time` of nodes, `w` of edges."""
    raw = root / "raw"
    raw.mkdir(parents=True)
    counts = {name: data[name].num_nodes for name in reversed(data.node_types)}
    arrays: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name in counts:
        for key, file in (("x", "node_feat"), ("y", "node_label"), ("time", "node_year")):
            if key in data[name]:
                values = data[name][key].numpy()
                arrays.setdefault(file, {})[name] = values if key == "x" else values[:, None]
    edges = {"___".join(edge_type): data[edge_type] for edge_type in reversed(data.edge_types)}
    splits = {"train": data["paper"].train_mask, "valid": data["paper"].val_mask}
    splits["test"] = ~(splits["train"] | splits["valid"])
    ids = {name: mask.nonzero().flatten().numpy() for name, mask in splits.items()}
    split = root / "split" / "time"
    if binary:
        import torch  # noqa: PLC0415

        np.savez(raw / "num_nodes_dict.npz", **{n: np.array([c]) for n, c in counts.items()})
        np.savez(
            raw / "num_edges_dict.npz", **{n: np.array([e.num_edges]) for n, e in edges.items()}
        )
        np.savez(raw / "edge_index_dict.npz", **{n: e.edge_index.numpy() for n, e in edges.items()})
        np.savez(raw / "edge_w.npz", **{n: e.w.numpy()[:, None] for n, e in edges.items()})
        for file, by_type in arrays.items():
            stem = "node-label" if file == "node_label" else file
            np.savez_compressed(raw / f"{stem}.npz", **by_type)
        split.mkdir(parents=True)
        torch.save({name: {"paper": own} for name, own in ids.items()}, split / "split_dict.pt")
        return root

    def write_text(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))

    header = ",".join(counts)
    write_text(raw / "num-node-dict.csv.gz", f"{header}\n{','.join(map(str, counts.values()))}\n")
    has = {key: [name in own for name in counts] for key, own in arrays.items()}
    for file, key in (("feat", "node_feat"), ("label", "node_label")):
        flags = ",".join(map(str, has[key]))
        write_text(raw / f"nodetype-has-{file}.csv.gz", f"{header}\n{flags}\n")
    for file, by_type in arrays.items():
        folder = "node-label" if file == "node_label" else "node-feat"
        stem = file if file == "node_year" else file.replace("_", "-")
        for name, values in by_type.items():
            write_csv_gz(raw / folder / name / f"{stem}.csv.gz", values)
    text = "".join(name.replace("___", ",") + "\n" for name in edges)
    write_text(raw / "triplet-type-list.csv.gz", text)
    for name, own in edges.items():
        folder = raw / "relations" / name
        write_csv_gz(folder / "edge.csv.gz", own.edge_index.numpy().T)
        write_csv_gz(folder / "num-edge-list.csv.gz", np.array([own.num_edges]))
        write_csv_gz(folder / "edge_w.csv.gz", own.w.numpy()[:, None])
    flags = ",".join(str(name == "paper") for name in counts)
    write_text(split / "nodetype-has-split.csv.gz", f"{header}\n{flags}\n")
    for name, own in ids.items():
        write_csv_gz(split / "paper" / f"{name}.csv.gz", own)
    return root
