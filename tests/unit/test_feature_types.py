"""The types that attributes of nodes are stored as, by name and by node type."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import (
    ConvertOptions,
    GraphWriter,
    HeteroGraphWriter,
    from_arrays,
    from_kronecker,
    from_pyg,
)
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.store.store import StoreReader

EDGES = np.array([[0, 1, 2], [1, 2, 0]])
WIDE = np.arange(12, dtype=np.float32).reshape(3, 4) / 8


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("float16", "float16"),
        ("x=float16", "float16"),
        ({"x": "float16"}, "float16"),
        (("float16", "emb=int8"), {"x": "float16", "emb": "int8"}),
        (("paper:int8",), {"paper:x": "int8"}),
        (("paper:emb=int8", "a:b:x=bool"), {"paper:emb": "int8", "a:b:x": "bool"}),
        (("a=b=int8",), {"a=b": "int8"}),
        ((), None),
    ],
)
def test_types_are_read(given: Any, found: Any) -> None:
    options = ConvertOptions(feature_dtype=given)
    assert options.feature_dtype == found
    assert options.to_json()["feature_dtype"] == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("int8", "x=float16"), "'x=float16': 'x' has the type int8 already"),
        (("emb=int8", "emb=int8"), "'emb=int8': 'emb' has the type int8 already"),
        ("x=float8", "feature_dtype='float8' is unknown; choose one of bool"),
        ({"emb": ""}, "feature_dtype='' is unknown"),
    ],
)
def test_types_that_are_refused(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ConvertOptions(feature_dtype=given)


def dtypes(path: Path) -> dict[str, str]:
    schema = StoreReader.open(path).schema
    return {
        f"{node.name}:{name}": spec.dtype
        for node in schema.node_types
        for name, spec in node.attributes.items()
    }


def test_each_attribute_has_the_type_of_its_name(tmp_path: Path) -> None:
    data = {"edge_index": EDGES, "x": WIDE, "emb": WIDE + 1, "y": np.array([1, 2, 3])}
    options = ConvertOptions(feature_dtype={"emb": "bfloat16", "y": "int16"})
    path = from_arrays(data, tmp_path / "a.gnn", options=options)
    assert dtypes(path) == {"node:x": "float32", "node:emb": "bfloat16", "node:y": "int16"}
    reader = StoreReader.open(path)
    assert reader.schema.node.attributes["y"].layout == "cold"
    assert reader.read(reader.schema.node.attributes["y"]).tolist() == [1, 2, 3]
    np.testing.assert_array_equal(reader.read(reader.schema.node.attributes["x"]), WIDE)


def hetero(path: Path, feature_dtype: Any, **more: Any) -> Path:
    options = ConvertOptions(feature_dtype=feature_dtype, **more)
    counts = {"paper": 3, "author": 3}
    with HeteroGraphWriter(path, counts, kind="test", options=options) as writer:
        for name in counts:
            writer.set_node_attribute(name, "x", WIDE)
        writer.set_node_attribute("paper", "emb", WIDE)
        writer.read_edges(("author", "writes", "paper"), [(EDGES[0], EDGES[1])], where="edges")
        return writer.commit()


def test_a_type_of_nodes_has_types_of_its_own(tmp_path: Path) -> None:
    found = dtypes(hetero(tmp_path / "a.gnn", ["float16", "paper:emb=bfloat16"]))
    assert found == {"paper:x": "float16", "author:x": "float16", "paper:emb": "bfloat16"}
    found = dtypes(hetero(tmp_path / "b.gnn", "paper:float16"))
    assert found == {"paper:x": "float16", "author:x": "float32", "paper:emb": "float32"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "author:emb=int8",
            "'author:emb=int8': there is no such attribute of nodes.*; there are: pa",
        ),
        ({"papr:x": "int8"}, "there are: paper:x, paper:emb, author:x"),
        (["float16", "paper:x=int8"], "'paper:x=int8': names an attribute that 'x' names too"),
    ],
)
def test_attributes_that_are_not_there_are_refused(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        hetero(tmp_path / "a.gnn", given)
    assert not any(tmp_path.iterdir())


def test_attributes_are_looked_up_before_any_edge_is_read(tmp_path: Path) -> None:
    from torch import from_numpy  # noqa: PLC0415
    from torch_geometric.data import Data  # noqa: PLC0415

    options = ConvertOptions(feature_dtype="emb=float16")
    said = "there is no such attribute of nodes; there are: x, y"
    y = np.array([1, 2, 3])
    with pytest.raises(UsageError, match=said):
        from_arrays({"edge_index": EDGES, "x": WIDE, "y": y}, tmp_path / "a.gnn", options=options)
    data = Data(x=from_numpy(WIDE), y=from_numpy(y), edge_index=from_numpy(EDGES))
    with pytest.raises(UsageError, match=said):
        from_pyg(data, tmp_path / "a.gnn", options=options)
    seed = from_arrays({"edge_index": EDGES, "x": WIDE, "y": y}, tmp_path / "seed.gnn")
    with pytest.raises(UsageError, match=said):
        from_kronecker(seed, tmp_path / "a.gnn", factor=2, options=options)
    with pytest.raises(UsageError, match="there are no features to store"):
        from_kronecker(
            seed,
            tmp_path / "a.gnn",
            factor=2,
            features=False,
            options=ConvertOptions(feature_dtype="float16"),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["seed.gnn"]


def test_times_have_no_other_type(tmp_path: Path) -> None:
    times = {"edge_index": EDGES, "x": WIDE, "time": np.array([1, 2, 3])}
    options = ConvertOptions(feature_dtype="time=int32", time_attr=("time",))
    with pytest.raises(UsageError, match=r"'time=int32': the attribute has times"):
        from_arrays(times, tmp_path / "a.gnn", options=options)
    days = {**times, "time": np.array([1, 2, 3], "datetime64[D]")}
    with pytest.raises(UsageError, match=r"the attribute has times, which are stored as int64"):
        from_arrays(days, tmp_path / "a.gnn", options=ConvertOptions(feature_dtype="time=int32"))


def test_scales_are_of_an_attribute_of_a_type(tmp_path: Path) -> None:
    path = hetero(tmp_path / "a.gnn", ["int8", "paper:emb=float16"], feature_scale="column")
    reader = StoreReader.open(path)
    assert dtypes(path) == {"paper:x": "int8", "author:x": "int8", "paper:emb": "float16"}
    for node in reader.schema.node_types:
        spec = node.attributes["x"]
        assert spec.scaled is not None
        assert spec.scaled.decoded == "float32"
        scales = reader.read(spec.scaled.scales)
        np.testing.assert_allclose(reader.read(spec) * scales, WIDE, atol=scales.max() * 0.51)


@pytest.mark.parametrize("name", ["x", "emb"])
def test_scales_are_of_what_becomes_int8(tmp_path: Path, name: str) -> None:
    options = ConvertOptions(feature_dtype={name: "int8", "z": "float16"}, feature_scale="column")
    data = {"edge_index": EDGES, name: WIDE, "z": WIDE, f"{name}_scale": WIDE}
    with pytest.raises(InputError, match=f"'{name}_scale' is what batches call the scales"):
        from_arrays(data, tmp_path / "a.gnn", options=options)
    del data[f"{name}_scale"]
    path = from_arrays(data, tmp_path / "a.gnn", options=options)
    assert dtypes(path) == {f"node:{name}": "int8", "node:z": "float16"}
    with (
        GraphWriter(tmp_path / "g.gnn", kind="mine", options=options, num_nodes=2) as writer,
        pytest.raises(UsageError, match=r"features that can be read twice, which these cannot"),
        writer.node_rows(name, num_rows=2, row_shape=(3,), dtype="float32"),
    ):
        pass
