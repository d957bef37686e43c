"""Kinds of files, by their first bytes, and of directories, by names in them, with advice.

A file of another kind than the one that is read is refused with a message on what it is and what to
do with it; nothing is chosen by it.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

HEAD_BYTES = 4096
GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
BINARY = (
    "a NUL byte: the file is binary; raw edges: "
    'np.savez("e.npz", edge_index=np.fromfile(f, "<u4").reshape(-1, 2).T), and '
    "'gnnstore convert numpy e.npz'"
)

_TAR_MAGIC = slice(257, 262)
_TABLE = "convert it with 'gnnstore convert table'"
_ARRAY = (
    "give it to an option that takes arrays, or put it, as edge_index.npy, into a directory for "
    "'gnnstore convert numpy'"
)
_ZIP = (
    "a zip archive; one of arrays (.npz) is read by 'gnnstore convert numpy', a Data of torch.save "
    "by 'gnnstore convert pyg', and of others, extract what is in them"
)
_SQLITE = (
    "a database of SQLite, which is not read; read the table of edges with pandas.read_sql and "
    "give from_tables(frame, OUTPUT)"
)
_MATLAB = (
    "a file of MATLAB, which is not read; read its matrix with scipy.io.loadmat, save it with "
    "scipy.sparse.save_npz(\"a.npz\", A), and 'gnnstore convert numpy a.npz'"
)
_PICKLE = (
    "a pickle, in which code may hide; a Data of torch.save is read by 'gnnstore convert pyg', and "
    "what else is in it, if you trust it, is converted in Python, with from_pyg, from_arrays or "
    "from_tables"
)
_TEXT = (
    "is text; 'gnnstore convert snap' reads lists of edges, 'gnnstore convert triples' triples, "
    "and 'gnnstore convert typed' tables by type"
)
# First bytes of binary files, their kind, and advice.
_KINDS = (
    (b"\x93NUMPY", f"an array (.npy); {_ARRAY}"),
    (b"PAR1\x15", f"a Parquet file; {_TABLE}"),  # names in text may begin with PAR1
    (b"ARROW1\0\0", f"an Arrow or Feather file; {_TABLE}"),
    (ZIP_MAGIC, _ZIP),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, which is not read; save its arrays with numpy.savez"),
    (b"SQLite format 3\0", _SQLITE),
    *((magic, _MATLAB) for magic in (b"MATLAB 5.0 MAT-file", b"MATLAB 7.3 MAT-file")),
    *(
        (magic, "compressed, but not with gzip; decompress it")
        for magic in (b"BZh91AY&SY", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c")
    ),
)
# Kinds of files by two bytes, which raw numbers may begin with as well.
_SHORT_KINDS = (
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in range(2, 6)),
    *((magic, "text in UTF-16; convert it to UTF-8") for magic in (b"\xff\xfe", b"\xfe\xff")),
)

_NETWORKX = (
    "which is not read; read it with networkx ({}) and give from_pyg(from_networkx(g), OUTPUT), "
    "with from_networkx of torch_geometric.utils"
)
_JSON = f"is JSON, {_NETWORKX.format('node_link_graph')}"
_JSON_LINES = (
    "is JSON lines, which are not read; if each is an edge, read them with pandas.read_json(FILE, "
    "lines=True) and give from_tables(frame, OUTPUT); if not, read the graph with networkx and "
    "give from_pyg(from_networkx(g), OUTPUT)"
)
_SPACE = rb"(?:\s|(?:[#%]|//)[^\n]*\n)*"  # blanks and comments
_HEADER = rb"(?:(?:creator|version|comment)\s[^\n]*\s+)*"
_NAME = rb'(?:\s+(?:\w+|"[^"\n]*"))?'
# Text in formats of graphs.
_FORMATS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), words)
    for pattern, words in (
        (
            rb"\s*version https://git-lfs\.github\.com/spec/",
            "is a pointer of Git LFS, not the file itself; run git lfs pull in its repository",
        ),
        (rb"\s*<(!doctype )?html\b", "is a web page; download the file itself"),
        (
            rb"\s*(<\?xml\b.*)?<graphml\b",
            f"is GraphML, {_NETWORKX.format('read_graphml')}",
        ),
        (rb"\s*(<\?xml\b.*)?<gexf\b", f"is GEXF, {_NETWORKX.format('read_gexf')}"),
        (rb"\s*<\?xml\b", "is XML, which is not read; write its edges as text or as arrays"),
        (_SPACE + _HEADER + rb"graph\s*\[", f"is GML, {_NETWORKX.format('read_gml')}"),
        (
            _SPACE + rb"\*(vertices|network|arcs|edges)(list)?\b",
            f"is a file of Pajek, {_NETWORKX.format('read_pajek')}",
        ),
        (
            _SPACE + rb"(strict\s+)?(di)?graph" + _NAME + rb"\s*\{",
            f"is DOT, {_NETWORKX.format('nx_pydot.read_dot')}",
        ),
    )
)
# The beginning of an object, or of a list of objects or lists, that goes on in further lines.
_OPEN_JSON = re.compile(rb'\{\s*(\n|"[^"\n]*"\s*:)|\[\s*(\n|\{\s*"|\[\s*["0-9-])')


def describe_text(head: bytes) -> str | None:
    """Describe a file by its first bytes, if it is not text of rows, with advice."""
    return _describe(head, (*_KINDS, *_SHORT_KINDS))


def describe_raw(head: bytes) -> str | None:
    """Describe a file by its first bytes, if these cannot be raw numbers."""
    return _describe(head, _KINDS)


def describe_binary(head: bytes, *, is_input: bool = False) -> str | None:
    """Describe a file by its first bytes, if it is not arrays or tables, with advice.

    `is_input`: of the graph itself, which another converter may read if it is text.
    """
    is_zipped = head.startswith(GZIP_MAGIC)
    if is_zipped:
        with suppress(zlib.error):
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
    text = head.decode("utf-8", "replace").strip()
    is_text = "\ufffd" not in text[:-1] and "".join(text.split()).isprintable()
    if is_zipped and not (is_text and is_input):
        return "is compressed with gzip, which is read of text only; decompress it"
    return describe_text(head) or (_TEXT if is_input and text and is_text else None)


def _describe(head: bytes, kinds: Sequence[tuple[bytes, str]]) -> str | None:
    if head[_TAR_MAGIC] == b"ustar":
        return "is a tar archive; extract what is in it"
    found = next((f"is {kind}" for magic, kind in kinds if head.startswith(magic)), None)
    text = head.removeprefix(codecs.BOM_UTF8)
    words = (words for pattern, words in _FORMATS if pattern.match(text))
    return found or next(words, None) or _describe_json(text.lstrip())


def _describe_json(text: bytes) -> str | None:
    """Return what text is if it is JSON; names may begin with a brace or a bracket, too."""
    if text[:1] not in (b"{", b"["):
        return None
    line, _, rest = text.partition(b"\n")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return _JSON if _OPEN_JSON.match(text) else None
    if not isinstance(document, dict | list):
        return None
    return _JSON_LINES if rest.strip() else _JSON


# Kinds of directories, by files that one of them has, in the order in which they are looked for.
_DIRECTORIES = {
    "graphbolt": ("metadata.yaml",),
    "mag240m": ("processed/paper/node_feat.npy", "mag240m_kddcup2021/processed"),
    "ogb": (
        "raw/edge.csv*",
        "raw/data.npz",
        "raw/edge_index_dict.npz",
        "raw/triplet-type-list.csv*",
    ),
    "igbh": ("paper__written_by__author", "processed/paper__written_by__author"),
    "igb": ("paper__cites__paper", "processed/paper__cites__paper"),
    "typed": ("edges/*__*__*",),
    "triples": ("train.txt*", "train.tsv*", "train2id.txt"),
    "pyg": ("processed/data.pt", "data.pt"),
    "numpy": ("edge_index.npy", "indptr.npy"),
    "table": ("*.parquet", "*.arrow", "*.feather"),
}


def describe_directory(path: Path, own: str) -> str | None:
    """Return another kind of converter, which reads a directory, in words."""
    with suppress(OSError):
        for kind, patterns in _DIRECTORIES.items():
            found = next((file for name in patterns for file in path.glob(name)), None)
            if found is not None:
                what = f"reads {found}" if kind in ("pyg", "table") else "reads such a directory"
                return None if kind == own else f"'gnnstore convert {kind}' {what}"
    return None
