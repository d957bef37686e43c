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
    affiliated = folder / "processed" / "author___affiliated_with___institution"
    for directory in (papers, citations, writes, affiliated):
        directory.mkdir(parents=True)
    np.save(papers / "node_feat.npy", graph.attributes["x"].astype(np.float16))
    np.save(papers / "node_label.npy", _labels(graph))
    np.save(papers / "node_year.npy", graph.attributes["year"].astype(np.int16))
    np.save(citations / "edge_index.npy", graph.edge_index)
    np.save(writes / "edge_index.npy", np.zeros((2, 3), np.int64))
    np.save(affiliated / "edge_index.npy", np.zeros((2, 2), np.int64))
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
    arrays: dict[str, dict[str, Any]] = {}
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

        archives: dict[str, dict[str, Any]] = {
            "num_nodes_dict": {n: np.array([c]) for n, c in counts.items()},
            "num_edges_dict": {n: np.array([e.num_edges]) for n, e in edges.items()},
            "edge_index_dict": {n: e.edge_index.numpy() for n, e in edges.items()},
            "edge_w": {n: e.w.numpy()[:, None] for n, e in edges.items()},
        }
        for name, members in archives.items():
            np.savez(raw / f"{name}.npz", **members)
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
        place = raw / "relations" / name
        write_csv_gz(place / "edge.csv.gz", own.edge_index.numpy().T)
        write_csv_gz(place / "num-edge-list.csv.gz", np.array([own.num_edges]))
        write_csv_gz(place / "edge_w.csv.gz", own.w.numpy()[:, None])
    flags = ",".join(str(name == "paper") for name in counts)
    write_text(split / "nodetype-has-split.csv.gz", f"{header}\n{flags}\n")
    for name, own in ids.items():
        write_csv_gz(split / "paper" / f"{name}.csv.gz", own)
    return root


def write_mag240m_types(root: Path, data: Any, *, meta: Any = None) -> Path:
    """Write a `HeteroData` of papers, authors and institutions as `mag240m_kddcup2021`."""
    import torch  # noqa: PLC0415

    folder = root / "mag240m_kddcup2021"
    papers = folder / "processed" / "paper"
    papers.mkdir(parents=True)
    own = data["paper"]
    np.save(papers / "node_feat.npy", own.x.numpy().astype(np.float16))
    labels = own.y.numpy().astype(np.float32)
    labels[~(own.train_mask | own.val_mask).numpy()] = np.nan
    np.save(papers / "node_label.npy", labels)
    np.save(papers / "node_year.npy", own.time.numpy().astype(np.int16))
    names = {"cites": "cites", "writes": "writes", "at": "affiliated_with"}
    for source, relation, target in data.edge_types:
        if relation in names:
            place = folder / "processed" / f"{source}___{names[relation]}___{target}"
            place.mkdir()
            np.save(place / "edge_index.npy", data[source, relation, target].edge_index.numpy())
    counts = {name: data[name].num_nodes for name in ("paper", "author", "institution")}
    torch.save({**counts, "num_classes": 153} if meta is None else meta, folder / "meta.pt")
    splits = {"train": own.train_mask, "valid": own.val_mask, "test-dev": ~own.train_mask}
    ids = {name: mask.nonzero().flatten().numpy() for name, mask in splits.items()}
    torch.save(ids, folder / "split_dict.pt")
    return folder


def write_igbh(root: Path, data: Any, *, raw: bool = False) -> Path:
    """Write a `HeteroData` as IGBH is published; in the largest sizes without headers."""
    for name in data.node_types:
        if "x" not in data[name]:
            continue
        folder = root / "processed" / name
        folder.mkdir(parents=True)
        x = np.zeros((data[name].num_nodes, 1024), np.float32)
        x[:, : data[name].x.shape[1]] = data[name].x.numpy()
        arrays = {"node_feat": x}
        if "y" in data[name]:
            arrays["node_label_19"] = data[name].y.numpy().astype(np.float32)
        for file, values in arrays.items():
            if raw:
                values.astype("<f4").tofile(folder / f"{file}.npy")
            else:
                np.save(folder / f"{file}.npy", values)
    for edge_type in data.edge_types:
        folder = root / "processed" / "__".join(edge_type)
        folder.mkdir(parents=True)
        edge_index = data[edge_type].edge_index.numpy()
        np.save(folder / "edge_index.npy", np.ascontiguousarray(edge_index.T))
    return root


def write_graphbolt_types(root: Path, data: Any, *, edge_format: str = "numpy") -> Path:
    """Write a `HeteroData` as an OnDiskDataset with types, features of both, and one task."""
    root.mkdir(parents=True)
    lines = ["dataset_name: small", "graph:", "  nodes:"]
    lines += [f"    - {{type: {name}, num: {data[name].num_nodes}}}" for name in data.node_types]
    lines.append("  edges:")
    features = ["feature_data:"]
    for place, edge_type in enumerate(data.edge_types):
        own, name = data[edge_type], ":".join(edge_type)
        if edge_format == "csv":
            text = "".join(f"{s},{t}\n" for s, t in own.edge_index.T.tolist())
            (root / f"edges-{place}.csv").write_text(text)
        else:
            np.save(root / f"edges-{place}.npy", own.edge_index.numpy())
        ending = "csv" if edge_format == "csv" else "npy"
        lines.append(
            f"    - {{type: '{name}', format: {edge_format}, path: edges-{place}.{ending}}}"
        )
        np.save(root / f"w-{place}.npy", own.w.numpy())
        features.append(
            f"  - {{domain: edge, type: '{name}', name: w, format: numpy, path: w-{place}.npy}}"
        )
    for name in data.node_types:
        if "x" in data[name]:
            np.save(root / f"x-{name}.npy", data[name].x.numpy())
            features.append(
                f"  - {{domain: node, type: {name}, name: feat, format: numpy, path: x-{name}.npy}}"
            )
    lines += [*features, "tasks:", "  - name: classify"]
    masks = {"train_set": data["paper"].train_mask, "validation_set": data["paper"].val_mask}
    for key, mask in masks.items():
        ids = mask.nonzero().flatten()
        np.save(root / f"{key}.npy", ids.numpy())
        np.save(root / f"{key}-y.npy", data["paper"].y[ids].numpy())
        lines += [
            f"    {key}:",
            "      - type: paper",
            "        data:",
            f"          - {{name: seeds, format: numpy, path: {key}.npy}}",
            f"          - {{name: labels, format: numpy, path: {key}-y.npy}}",
        ]
    (root / "metadata.yaml").write_text("\n".join(lines) + "\n")
    return root
