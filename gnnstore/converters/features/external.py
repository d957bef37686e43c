"""Features that lie beside a graph: in which files, and whose each row is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gnnstore.converters.arrays.raw import RawLayout
from gnnstore.converters.arrays.scattered import ScatteredRows
from gnnstore.converters.arrays.source import ArraySource
from gnnstore.converters.features.files import FeatureFiles, Paths, open_features, open_labels
from gnnstore.converters.inputs import PathLike
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import UsageError


@dataclass(frozen=True)
class BesideFeatures:
    """The node attribute `x`, and the files that it is in.

    Attributes
    ----------
    source : ArraySource [N, ...]
        The rows as they come.
    dtype : str or None
        Their element type, where NumPy has none.
    row_ids : ArraySource [N], or None
        The id of each row; None: row i is that of node i.
    files : tuple of Path
        All of them.
    """

    source: ArraySource
    dtype: str | None
    row_ids: ArraySource | None
    files: tuple[Path, ...]

    def write(self, writer: GraphWriter, nodes: ArraySource | None) -> None:
        """Write them as `x`, each row as that of its node.

        Parameters
        ----------
        nodes : ArraySource [N], or None
            The node of each row; None: they are in order.

        Raises
        ------
        InputError
            If a node has no row, or several.
        NoSpaceError
            If there is no room to sort them.
        """
        if nodes is None:
            writer.set_node_attribute("x", self.source, dtype=self.dtype)
            return
        place = writer.spill_directory / "features"
        ordered = ScatteredRows(self.source, nodes, place, writer.options.memory_bytes)
        writer.set_node_attribute("x", ordered, dtype=self.dtype)
        ordered.close()


def open_beside(
    features: Paths | None, raw: RawLayout | None, ids: PathLike | None
) -> BesideFeatures | None:
    """Open the features and the ids of their rows; None if there are none.

    Raises
    ------
    UsageError
        If something is said about features that are not given.
    NotFoundError, InputError, StorageError
        See `open_features`.
    """
    if features is None:
        if raw is not None or ids is not None:
            raise UsageError(
                "features_raw and features_ids (--features-raw, --features-ids) say what the "
                "features are like; give the features as well"
            )
        return None
    found = open_features(features, raw=raw)
    rows: FeatureFiles | None = None if ids is None else open_labels(ids)
    return BesideFeatures(
        found.source,
        found.dtype,
        None if rows is None else rows.source,
        (*found.files, *(() if rows is None else rows.files)),
    )
