"""Text tables: blocks of lines, the parser against Python's own numbers, line numbers."""

from __future__ import annotations

import bz2
import gzip
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.converters.inputs.opening import read_blocks
from gnnstore.converters.inputs.text_tables import TableFormat, TextColumn, TextTable
from gnnstore.errors import InputError
from gnnstore.progress import NullPhase
from tests.support.effort import choose

PAIRS = TableFormat("int64", num_columns=2)
NODES = TableFormat("int64", minimum=0, limit=5, what="node id")
SNAP = TableFormat(
    "int64", num_columns=2, delimiter=None, comments=b"#%", minimum=0, what="node id"
)
IGNORING = TableFormat("int64", num_columns=2, delimiter=None, ignore_extra=True)
WEIGHT = TextColumn(2, "float32")
WEIGHTED = TableFormat("int64", num_columns=4, columns=(WEIGHT,), delimiter=None)
FEATURES = TableFormat("float32", delimiter=None)


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, table_format: TableFormat, block_bytes: int = 2**24) -> npt.NDArray[Any]:
    return TextTable(path, table_format, block_bytes=block_bytes).read()


class CountingPhase(NullPhase):
    def __init__(self) -> None:
        self.total = 0

    def advance(self, n: int = 1) -> None:
        self.total += n


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("block_bytes", [1, 2, 5, 64, 2**20])
def test_blocks_are_the_file(tmp_path: Path, name: str, block_bytes: int) -> None:
    text = "".join(f"{i},{i * i}\n" for i in range(50)) + "7,8"
    path = write(tmp_path / name, text)
    phase = CountingPhase()
    blocks = list(read_blocks(path, phase, block_bytes=block_bytes))
    assert b"".join(block.data for block in blocks) == text.encode()
    lines_before = 0
    for block in blocks:
        assert block.first_line == lines_before + 1
        lines_before += block.data.count(b"\n")
    assert phase.total == path.stat().st_size


@pytest.mark.parametrize(
    "text",
    ["", "\n", "\n\n\n", "# only a comment\n", "#a\n%b\n\n"],
)
def test_a_table_without_rows_is_empty(tmp_path: Path, text: str) -> None:
    assert read(write(tmp_path / "t", text), SNAP).shape == (0, 2)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("tail", ["", "\n", "\n\n\n"])
def test_line_ends_and_blank_lines_at_the_end_do_not_matter(
    tmp_path: Path, ending: str, tail: str
) -> None:
    text = ending.join(["1,2", "3,4"]) + tail.replace("\n", ending)
    for block_bytes in (1, 2**20):
        rows = read(write(tmp_path / "t", text), PAIRS, block_bytes)
        assert rows.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "text",
    [
        "1 2\n3 4\n",
        "1\t2\n3\t4\n",
        "1,2\n3,4\n",
        "1, 2\n3 , 4\n",
        "  1   2  \n3    4\n",
        "1\t2\t\n3 \t 4\n",
        "1 2\n\t3\t4\n",
        "# head\n# er\n1 2\n3 4\n",
        "% KONECT\n\n1 2\n\n# between\n3 4 \n\n",
        "+1 2\n3 0004\n",
        "\ufeff1,2\n3,4\n",
        "\ufeff# head\n1  2\n3  4\n",
    ],
)
def test_edge_lists_come_in_many_forms(tmp_path: Path, text: str) -> None:
    for name in ("t.txt", "t.txt.gz"):
        assert read(write(tmp_path / name, text), SNAP).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "table_format", "message"),
    [
        ("1\t2\n3\t\t4\n", SNAP, "line 2: found 3 fields, expected 2"),
        ("1\t2\t9\n3\t\t4\n", IGNORING, "line 2: column 2: '' is not an integer, expected a value"),
        ("1\t2\t8\n\t4\t9\n", IGNORING, "line 2: column 1: '' is not an integer, expected a value"),
        ("1\t2\t.5\t7\n3\t4\t\t7\n", WEIGHTED, "line 2: column 3: '' is not a number"),
        ("1\t\t2\n3\t4\t\n", FEATURES, "line 1: column 2: '' is not a number, expected a value"),
        ("\t1\t2\n3\t4\t5\n", FEATURES, "line 1: column 1: '' is not a number, expected a value"),
        ("1 2\r3 4\r", IGNORING, "line 1: a carriage return without a line feed ends no line"),
        ("a,b\rc,d\r", replace(IGNORING, dtype="text"), "line 1: a carriage return without"),
        ("1 2\n# a comment\r3 4\n5 6\n", SNAP, "line 2: a carriage return without a line feed"),
        ("1 2 x\n3 4 y\r5 6\n", IGNORING, "line 2: a carriage return without a line feed"),
        (" \n1 2\n", FEATURES, "line 1: the line is blank where a row was expected"),
        ("\v\f\n1 2\n", FEATURES, "line 1: the line is blank where a row was expected"),
    ],
)
@pytest.mark.parametrize("block_bytes", [4, 2**20])
def test_no_column_takes_the_place_of_one_that_is_missing(
    tmp_path: Path, text: str, table_format: TableFormat, message: str, block_bytes: int
) -> None:
    with pytest.raises(InputError) as caught:
        read(write(tmp_path / "t", text), table_format, block_bytes)
    assert message in str(caught.value)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("1\t2\t\n3\t4\t\n", [[1, 2], [3, 4]]),
        ("1 2\t\n3 4\t\n", [[1, 2], [3, 4]]),
        ("1\t\n2\t\n", [[1], [2]]),
        ("\t1\n\t2\n", [[1], [2]]),
    ],
)
def test_blanks_around_rows_are_no_columns(
    tmp_path: Path, text: str, rows: list[list[int]], ending: str
) -> None:
    has_comments = replace(FEATURES, comments=b"#" if "#" in text else b"")
    path = write(tmp_path / "t", text.replace("\n", ending))
    assert read(path, has_comments).tolist() == rows


def test_extra_columns_are_skipped_on_demand(tmp_path: Path) -> None:
    for text in (
        "1 2 0.5\n3 4 nan\n",
        "1,2,x,y\n3,4,z,\n",
        "1\t2\tsome text\t\n3\t4\t\tmore\n",  # a last column without a value is a field
        "1\t2\tx\ty\n3\t4\tz\t\n",
        "1 2 {}\n3 4 {'w': 3, 'at': {1: 2}}\n",  # networkx writes these
        "1,2, {'w': 1, 'v': 2}\n3,4,{}\n",
        "1 2\t0.5\t7\n3 4\t0.5\t7\n",  # KONECT has both
    ):
        path = write(tmp_path / "t", text)
        assert read(path, IGNORING).tolist() == [[1, 2], [3, 4]]
    for text in ("1 2\n3 4 5\n", "1,2,x,y\n3,4,z\n", "1 2 {}\n3 4 5\n"):
        with pytest.raises(
            InputError, match=r"line 2: (found \d fields|column 3: '5' is not in b)"
        ):
            read(write(tmp_path / "t", text), IGNORING)
    with pytest.raises(InputError, match=r"line 1: found 3 fields, expected 2"):
        read(write(tmp_path / "t", "1 2 0.5\n"), SNAP)


def test_floats(tmp_path: Path) -> None:
    text = "1,2.5,-3e-2\nnan,inf,-Infinity\n"
    rows = read(write(tmp_path / "t", text), TableFormat("float32"))
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(
        rows, np.array([[1, 2.5, -3e-2], [np.nan, np.inf, -np.inf]], "f4")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,x\n", "line 2: column 2: 'x' is not an integer, expected a value"),
        ("1,2\n3,nan\n", "line 2: column 2: 'nan' is not an integer"),
        ("1,2\n3,4.0\n", "line 2: column 2: '4.0' is not written as an integer"),
        ("1,2\n0x1F,4\n", "line 2: column 1: '0x1F' is not an integer"),
        ("1,2\n1_0,4\n", "line 2: column 1: '1_0' is not an integer"),
        ("1,2\n3,\n", "line 2: column 2: '' is not an integer, expected a value"),
        ("1,2\n\n3,4\n", "line 2: the line is blank where a row was expected"),
        ("\n1,2\n", "line 1: the line is blank where a row was expected"),
        ("1,2\n3\n", "line 2: found 1 field, expected 2"),
        ("1,2\n3,4,5\n", "line 2: found 3 fields, expected 2"),
        ("1,2\n3 4\n", "line 2: found 1 field, expected 2, in '3 4'"),
        ("1,2\n3\t4\n", "where commas separate fields as in the first line"),
        ('1,2\n"3",4\n', "line 2: column 1: '\"3\"' is not an integer"),
        ("1,2\n3,4\r5,6\n", "line 2: a carriage return without a line feed ends no line"),
        ("1,2\n3,99999999999999999999\n", "value 99999999999999999999 is outside [-2^63, 2^63)"),
        ("1,2\n3,9223372036854775808\n", "value 9223372036854775808 is outside [-2^63, 2^63)"),
        ("from,to\n1,2\n", "line 1: column 1: 'from' is not an integer"),
        (b"1,2\n\xff\xfe,1\n", "line 2: column 1: '\ufffd\ufffd' is not an integer"),
        (b"1,2\n\x00,1\n", r"line 2: a NUL byte: the file is binary; raw edges: np.savez("),
    ],
)
@pytest.mark.parametrize("block_bytes", [4, 2**20])
def test_a_bad_line_is_named(
    tmp_path: Path, text: str | bytes, message: str, block_bytes: int
) -> None:
    path = write(tmp_path / "edge.csv.gz", text)
    with pytest.raises(InputError) as caught:
        read(path, PAIRS, block_bytes)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("text", "table_format", "message"),
    [
        ("5\n", NODES, "node id 5 is outside [0, 5)"),
        ("1\n-1\n", NODES, "line 2: column 1: node id -1"),
        ("-1 2\n", SNAP, "line 1: column 1: node id -1 is outside [0, 2^63)"),
        (
            "1\nnan\n",
            TableFormat("float64", allow_nan=False, what="label"),
            "line 2: column 1: NaN",
        ),
        ("1e39\n", TableFormat("float32"), "line 1: column 1: '1e39' overflows float32"),
        ("1e999\n", TableFormat("float64"), "line 1: column 1: '1e999' overflows float64"),
        ("1\none\n", TableFormat("float32"), "line 2: column 1: 'one' is not a number"),
        ("1\n1_0\n", TableFormat("float32"), "line 2: column 1: '1_0' is not a number"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(
    tmp_path: Path, text: str, table_format: TableFormat, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(write(tmp_path / "t", text), table_format)
    assert message in str(caught.value)


def test_line_numbers_count_comments_and_earlier_blocks(tmp_path: Path) -> None:
    text = "# one\n" + "1 2\n" * 300 + "\n% note\n" + "3 4\n" * 300 + "5 six\n"
    for block_bytes in (10, 1000, 2**20):
        with pytest.raises(InputError, match=r"line 604: column 2: 'six'"):
            read(write(tmp_path / "t", text), SNAP, block_bytes)


FIELDS = st.sampled_from(
    ["0", "1", "23", "-4", "+5", "", " 6", "7 ", "x", "0x8", "9.5", "nan", "1e3", 20 * "9"]
)
LINES = st.lists(
    st.one_of(
        st.tuples(FIELDS, st.sampled_from([",", " ", "\t", "  "]), FIELDS).map("".join),
        st.sampled_from(["", "# note", "%", "  ", "1", "1,2,3", "1 2 3"]),
    ),
    max_size=6,
)


def outcome(path: Path, table_format: TableFormat, block_bytes: int = 2**20) -> Any:
    """Return the rows, or the error's text."""
    try:
        return TextTable(path, table_format, block_bytes=block_bytes).read().tolist()
    except InputError as error:
        return str(error)


def test_names_are_places() -> None:
    text = b"b a,x\n a ,\tb a\n"
    records, _, fault = _core.parse_text(text, "nn", ",", b"")
    assert fault is None
    names, codes, first = _core.encode_names(text, records.view(np.uint32))
    assert names == [b"b a", b"x", b"a"]
    assert codes.tolist() == [0, 1, 2, 0]
    assert first.tolist() == [0, 1, 2]
    with pytest.raises(IndexError, match="within the text"):
        _core.encode_names(text, np.array([10, 10], np.uint32))


def test_decimals_are_rounded_once() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**63, choose(300, 3000)).view(np.float64)
    texts = [repr(float(value)) for value in bits[np.isfinite(bits)]]
    texts += [
        f"{value:.{digits}f}" for value in rng.normal(size=choose(25, 200)) for digits in range(12)
    ]
    # Half-way between two floats, and a digit beside it.
    middles = (rng.integers(2**24, 2**25, 300) * 2 + 1) / 2.0 ** rng.integers(1, 60, 300)
    texts += [f"{value:.60f}"[:end] for value in middles for end in (12, 17, 30, 62)]
    texts += [f"{value:.60f}1" for value in middles]
    texts += ["-0", "0.0", ".5", "5.", "1e5", "1E-5", "1e+22", "-1e-22", "9007199254740993"]
    texts += ["1e-40", "-1e-400", "0." + 400 * "0" + "1"]
    texts += ["nan", "-inf", "Infinity", "123456789012345678901234567890", "0." + 40 * "0" + "1"]
    for kind, dtype in (("d", np.float64), ("f", np.float32)):
        expected = pa.array(texts).cast(pa.from_numpy_dtype(dtype)).to_numpy()
        for text, value in zip(texts, expected, strict=True):
            found, _, fault = _core.parse_text(text.encode(), kind, ",", b"")
            if fault is not None:
                assert np.isinf(value)
                assert np.isfinite(float(text))
            else:
                np.testing.assert_array_equal(found.view(dtype), [value], text)
    for text in ("+-1", "nan(1)", "1e", ".", "0x1p3", "1_0", "infin", "--1", "1.2.3", "e5", "+"):
        assert _core.parse_text(text.encode(), "d", ",", b"")[2] is not None


def test_integers_are_read_to_the_ends_of_their_types() -> None:
    for kind, dtype in (("i", np.int64), ("u", np.uint64)):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        for number in (low, high, 0, 10**17, 10**18 - 1, 10**18, 10**18 + 1):
            for text in (str(number), "0" * 20 * (number >= 0) + str(number)):
                found, _, fault = _core.parse_text(text.encode(), kind, ",", b"")
                assert (fault, found.view(dtype).tolist()) == (None, [number])
        for number in (low - 1, high + 1, 10 * high, 10**19 + high, 10**30):
            assert _core.parse_text(str(number).encode(), kind, ",", b"")[2] is not None


def test_any_cut_of_a_text_is_parsed_or_refused() -> None:
    """No end of the buffer, at which words of eight bytes are read, is overstepped."""

    def is_clean(line: bytes) -> bool:
        try:
            integer, decimal, _ = line.split()
            return bool(int(integer) or float(decimal))
        except ValueError:
            return False

    text = b"123456789 12345678.123456789e-3 x\n-1\t 2.5 y\n"
    for end in range(1, len(text) + 1):
        _, _, fault = _core.parse_text(bytes(text[:end]), "id-", " ", b"")
        assert (fault is None) == all(map(is_clean, text[:end].splitlines())), end


def read_by_the_letter(lines: list[str], table_format: TableFormat) -> Any:
    """Return the rows as Python's own functions read them, or the number of the bad line."""
    has_comments, rows = bool(table_format.comments), []
    delimiter = table_format.delimiter
    for number, line in enumerate(lines, 1):
        if has_comments and (not line.strip() or line.strip()[0] in "#%"):
            continue
        if delimiter is None:
            delimiter = next((mark for mark in ",\t" if mark in line.strip()), " ")
        line = line.rstrip().lstrip("\v" if delimiter == "\t" else None)  # noqa: PLW2901
        fields = [part for tab in line.split("\t") for part in tab.split() or [""]]
        fields = fields if delimiter == " " else line.split(delimiter)
        try:
            is_bad = not line.strip() or len(fields) != table_format.num_columns
            assert not is_bad
            assert not any("_" in field for field in fields)
            if table_format.dtype == "float64":
                rows.append([*map(float, fields)])
            else:
                row = [*map(int, fields[:2]), *map(float, fields[2:])]
                assert max(map(abs, row[:2])) < 2**63
                assert table_format.minimum is None or min(row[:2]) >= 0
                rows.append(row)
        except (ValueError, AssertionError):
            return number
    return rows


@settings(max_examples=choose(12, 200), deadline=None)
@example(["1,2", "3,0x8"], "\n")
@example(["0 1", "1 2 3"], "\n")
@given(lines=LINES, ending=st.sampled_from(["\n", "\r\n"]))
def test_rows_are_as_python_reads_them(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ending: str
) -> None:
    path = write(tmp_path_factory.mktemp("t") / "t", ending.join(lines) + ending)
    while lines and not lines[-1].strip("\r"):
        lines.pop()  # blank lines at the end do not count
    for table_format in (SNAP, PAIRS, TableFormat("float64", num_columns=2)):
        expected = read_by_the_letter(lines, table_format)
        for block_bytes in (3, 2**20):
            found = outcome(path, table_format, block_bytes)
            if isinstance(expected, int):
                assert f": line {expected}: " in found
            else:
                assert str(found) == str(expected)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bz2.compress(b"0 1\n"), "is compressed, but not with gzip; decompress it"),
        (b"PK\x03\x04\x14\x00", "is a zip archive; one of arrays"),
        ("0 1\n".encode("utf-16"), "is text in UTF-16; convert it to UTF-8"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"edges.txt: {said}"):
        read(path, SNAP)


def test_blocks_that_are_parsed_at_once_find_the_types_of_two_columns(tmp_path: Path) -> None:
    fractions = ("1 2 3.5 4\n", "1 2 3 4.5\n")
    text = "".join("1 2 3 4\n" * 4000 + fraction for fraction in fractions)
    columns = (TextColumn(2), TextColumn(3))
    form = TableFormat("int64", num_columns=4, columns=columns, delimiter=None, minimum=0)
    for _ in range(10):
        table = TextTable(write(tmp_path / "t", text), form, block_bytes=len(text) // 2)
        list(table.blocks())
        table.settle_types()
        assert table.types == ("float32", "float32")


def test_a_bomb_without_line_ends_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.converters.inputs.opening.MAX_LINE_BYTES", 2**20)
    path = tmp_path / "bomb.gz"
    for text, line in ((b"0" * 2**22, 1), (b"\n" * 2**22 + b"0" * 2**22, 2**22 + 1)):
        path.write_bytes(gzip.compress(text))
        with pytest.raises(InputError, match=rf"bomb.gz: line {line} is longer than 1048576 bytes"):
            read(path, SNAP, 2**18)


@pytest.mark.parametrize("blank", [*choose([], [b"\n", b"\r\n"]), b" \n"])
def test_blank_lines_take_no_longer_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: bytes
) -> None:
    monkeypatch.setattr("gnnstore.converters.inputs.opening.MAX_LINE_BYTES", 2**20)
    path = tmp_path / "edges.gz"
    lines = blank * (2**21 // len(blank))

    def seconds(text: bytes) -> float:
        path.write_bytes(gzip.compress(text, 1))
        begin = time.process_time()
        assert read(path, SNAP, 2**18)[[0, -1]].tolist() == [[1, 2], [3, 4]]
        return time.process_time() - begin

    usual = seconds(b"1 2\n" * 2**20 + b"3 4\n")
    assert seconds(lines + b"1 2\n" + lines + b"3 4\n" + lines) < 5 * usual
    num_before = lines.count(b"\n") + 1
    path.write_bytes(gzip.compress(b"1,2\n" + lines + b"x,1\n", 1))
    with pytest.raises(InputError, match="line 2: the line is blank where a row was expected"):
        read(path, PAIRS, 2**18)
    with pytest.raises(InputError, match=f"line {num_before + 1}: column 1: 'x' is not an integer"):
        read(path, replace(PAIRS, skip_blank=True), 2**18)
