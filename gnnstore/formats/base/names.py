"""Names that users choose, as path components; and the check of paths that a store claims.

Node types, attributes and splits are named by the user's data ("x", "paper", "a/b?"), and
become directories. Percent-encoding keeps every name distinct and every component safe.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

from gnnstore.errors import CorruptStoreError, InputError

# most bytes of a name; file systems allow 255, and names of shards are appended elsewhere
MAX_COMPONENT_BYTES = 200
MAX_FILE_NAME_BYTES = 255
MAX_PATH_BYTES = 2048  # most bytes of a path, without the directory's own; Linux allows 4096 in all


def encode(name: str) -> str:
    """Return `name` as one path component: letters, digits, '_', '-' and '.' stay."""
    component = _quoted(name)
    if not component or len(component) > MAX_COMPONENT_BYTES:
        raise InputError(
            f"the name {name[:40]!r} cannot be stored: names have 1 to {MAX_COMPONENT_BYTES} "
            "bytes after percent-encoding; rename it"
        )
    return component


def _quoted(name: str) -> str:
    try:
        component = quote(name, safe="")
    except UnicodeEncodeError:
        raise InputError(
            f"the name {ascii(name)[:60]} cannot be stored: it has half of a character (a lone "
            "surrogate), which is not Unicode; rename it"
        ) from None
    # '~' is safe to quote() and to file systems, but shells expand it; a leading dot
    # hides the directory, and '.' and '..' are not names.
    component = component.replace("~", "%7E")
    if component.startswith("."):
        component = "%2E" + component[1:]
    if component == "zarr.json":  # Zarr's own file in the directory that would hold the name
        component = "zarr%2Ejson"
    return component


# Underscores that are encoded in joined names, where '__' separates: at the ends, and in a row.
_AMBIGUOUS = re.compile("^_|_$|__+")


def joined(*parts: str, long: str) -> str:
    """Return names as one path component, which no others have; of long ones `long`, a digest."""
    if not all(parts):
        raise InputError(f"the names {parts} cannot be stored: one is empty; rename it")
    component = "__".join(
        _AMBIGUOUS.sub(lambda found: "%5F" * len(found[0]), _quoted(part)) for part in parts
    )
    if len(component) <= MAX_COMPONENT_BYTES:
        return component
    return f"{long}-{hashlib.sha256(component.encode()).hexdigest()[:32]}"


def decode(component: str) -> str:
    """Return the name that `encode` turned into `component`."""
    return unquote(component)


def node_array(node_type: str, name: str) -> str:
    """Path of a node attribute's array in a store."""
    return f"nodes/{encode(node_type)}/{encode(name)}"


def split_array(node_type: str, name: str) -> str:
    """Path of a split's array of node ids in a store."""
    return f"splits/{encode(node_type)}/{encode(name)}"


def scales_array(node_type: str, name: str) -> str:
    """Path of the scales of the columns of a node attribute."""
    return f"scales/{encode(node_type)}/{encode(name)}"


def original_id_array(node_type: str) -> str:
    """Path of the map from node ids back to the ids of the original data."""
    return f"maps/{encode(node_type)}/original_id"


def whole_id_array(node_type: str) -> str:
    """Path of the ids that nodes of a part have in the whole store."""
    return f"maps/{encode(node_type)}/whole_id"


def original_name_directory(node_type: str) -> str:
    """Path of the group with the nodes' names in the original data: bytes and offsets."""
    return f"maps/{encode(node_type)}/original_name"


def edge_directory(source: str, relation: str, target: str) -> str:
    """Path of an edge type's group: holds indptr, indices, edge_id and attrs/."""
    return f"edges/{_edge_component(source, relation, target)}"


def value_names_directory(edge_type: tuple[str, str, str], attribute: str) -> str:
    """Path of the group with the names of an edge attribute's values: bytes and offsets."""
    return f"{edge_directory(*edge_type)}/value_names/{encode(attribute)}"


def edge_split_directory(edge_type: tuple[str, str, str], name: str) -> str:
    """Path of an edge split's group: holds source, target, optional arrays, and attrs/."""
    return f"edge_splits/{_edge_component(*edge_type)}/{encode(name)}"


def order_array(edge_type: tuple[str, str, str], name: str) -> str:
    """Path of the places of edges within their columns in the order of a time attribute."""
    return f"{edge_directory(*edge_type)}/order/{encode(name)}"


def weight_sums_array(edge_type: tuple[str, str, str], name: str) -> str:
    """Path of the sums of the integer weights within each column."""
    return f"{edge_directory(*edge_type)}/weight_sums/{encode(name)}"


def _edge_component(*edge_type: str) -> str:
    return joined(*edge_type, long="edge")


def graph_array(name: str) -> str:
    """Path of a graph-level array in a store."""
    return f"graph/{encode(name)}"


def value_array(of: str | tuple[str, str, str], name: str) -> str:
    """Path of an array of a node type or an edge type as a whole."""
    directory = f"values/{encode(of)}" if isinstance(of, str) else f"{edge_directory(*of)}/values"
    return f"{directory}/{encode(name)}"


def check_relative_path(path: str, *, file: str) -> str:
    """Return a path that a store's metadata claims, if it stays inside the store."""
    parts = path.split("/")
    is_long = len(path) > MAX_PATH_BYTES or max(map(len, parts)) > MAX_FILE_NAME_BYTES
    if is_long or any(part in ("", ".", "..") for part in parts) or "\0" in path or "\\" in path:
        raise CorruptStoreError(
            f"{file}: malformed metadata: the path {path[:200]!r} does not stay inside the store, "
            "or is too long; do not use this store, and get a new copy from where it came",
            path=file,
        )
    return path
