"""The journal, and writers that go on where another stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.converters import ConvertOptions, from_numpy, from_rmat, from_snap
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import InputError, NotFoundError, StorageError, StoreExistsError, UsageError
from gnnstore.formats import Schema, StoreReader, StoreWriter
from gnnstore.formats.arrays import paged
from gnnstore.formats.arrays.journal import (
    JOURNAL_FILE,
    Journal,
    append_record,
    encode_record,
    foreign_spill_name,
    read_records,
)
from gnnstore.formats.container.workdir import find_leftovers
from tests.support.effort import choose, examples
from tests.support.stores import assert_same_files

FINGERPRINT: dict[str, Any] = {"kind": "test", "options": {"undirected": False}, "sizes": [1, 2]}


class DiskError(StorageError):
    """What a disk that breaks raises."""


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write after a few pages, as a writer of large arrays does."""
    monkeypatch.setattr(paged, "_BUFFER_BYTES", 4096)


# ---- the journal's file


def test_records_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, FINGERPRINT, {})
    (tmp_path / "run").write_bytes(b"12345")
    journal.record_run({"files": [str(tmp_path / "run")], "num_edges": 7})
    again = Journal.read(tmp_path, to_continue=True)
    assert again is not None
    assert again.fingerprint == FINGERPRINT
    assert again.runs() == [{"files": [str(tmp_path / "run")], "num_edges": 7}]
    assert again.has_work


@pytest.mark.parametrize("array", ["../other", "{}/other"])
def test_a_journal_names_no_files_of_others(tmp_path: Path, array: str) -> None:
    """What it names is deleted when it is merged or written again."""
    directory, other = tmp_path / "own", tmp_path / "other"
    for place in (directory, other, other / "spill"):
        place.mkdir()
        (place / "file").write_bytes(b"12345")
    Journal.create(directory, FINGERPRINT, {})
    named = {"array": array.format(tmp_path), "number": 0, "file": "file", "layout": [], "crc": 0}
    for record in (
        {"kind": "shard", **named},
        {"kind": "run", "run": {"files": [str(other / "file")]}, "sizes": [5]},
        {"kind": "spill_directory", "path": str(other / "spill")},
    ):
        append_record(directory / JOURNAL_FILE, record)
    journal = Journal.read(directory, to_continue=True)
    assert journal is not None
    assert journal.runs() == []
    journal.forget_steps()
    journal.remove_unfinished()
    assert (other / "file").exists()
    assert (other / "spill/file").exists()


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_damage_costs_only_what_comes_after(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut the file anywhere or flip any bit: whole lines before the place are read, no others."""
    records = [
        {"kind": "header", "version": 2, "fingerprint": {"a": "ä\n\r "}},
        *({"kind": "forget_runs", "n": number} for number in range(4)),
    ]
    lines = [encode_record(record) for record in records]
    whole = b"".join(lines)
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:place]
    else:
        bit = 1 << data.draw(st.integers(0, 7))
        damaged = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
    path = tmp_path_factory.mktemp("journal") / JOURNAL_FILE
    path.write_bytes(damaged)
    ends = np.cumsum([len(line) for line in lines])
    num_whole = int(np.searchsorted(ends, place, side="right"))
    found, good_bytes = read_records(path)
    assert found == records[:num_whole]
    assert good_bytes == sum(map(len, lines[:num_whole]))


def test_a_torn_line_is_cut_off_before_the_next(tmp_path: Path) -> None:
    Journal.create(tmp_path, FINGERPRINT, {})
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(encode_record({"kind": "run"})[:-5])
    journal = Journal.read(tmp_path, to_continue=True)
    assert journal is not None
    journal.record_run({"files": [], "num_edges": 1})
    records, _ = read_records(tmp_path / JOURNAL_FILE)
    assert [record["kind"] for record in records] == ["header", "run"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a journal\n",
        encode_record({"kind": "header", "version": 1, "fingerprint": {}}),
        encode_record({"kind": "run"}),
    ],
)
def test_what_is_no_journal_of_ours(tmp_path: Path, content: bytes) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(content)
    assert Journal.read(tmp_path, to_continue=True) is None


def test_runs_end_where_a_file_is_not_what_it_was(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, FINGERPRINT, {})
    for number in range(3):
        path = tmp_path / f"{number}.run"
        path.write_bytes(bytes(number + 10))
        journal.record_run({"files": [str(path)], "number": number})
    assert [run["number"] for run in journal.runs()] == [0, 1, 2]
    (tmp_path / "1.run").write_bytes(bytes(5))
    assert [run["number"] for run in journal.runs()] == [0]
    journal.forget_runs()
    again = Journal.read(tmp_path, to_continue=True)
    assert again is not None
    assert again.runs() == []


def test_a_journal_cannot_name_any_directory_to_be_deleted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years")
    left = tmp_path / ".a.gnn.tmp-00000000"
    left.mkdir()
    Journal.create(left, FINGERPRINT, {})
    append_record(left / JOURNAL_FILE, {"kind": "spill_directory", "path": str(home)})
    with StoreWriter(tmp_path / "a.gnn"):
        assert not left.exists()
    assert (home / "thesis.tex").exists()


# ---- a store writer that goes on


def write(
    path: Path,
    rows: np.ndarray[Any, Any],
    *,
    resume: bool = False,
    stop: str | None = None,
    step: int = 7,
    fingerprint: Mapping[str, Any] = FINGERPRINT,
) -> list[int]:
    """Write two paged arrays and a compressed one in pieces, failing where `stop` says."""
    committed = []
    with StoreWriter(
        path, page_bytes=512, shard_bytes=2**16, fingerprint=fingerprint, resume=resume
    ) as writer:
        writer.compressed("graph/c", np.arange(9), name="c")
        if stop == "cold":
            raise DiskError("the disk broke")
        for name in ("a", "b"):
            array = writer.paged(
                f"graph/{name}", name=name, row_shape=rows.shape[1:], dtype="int32", num_rows=5000
            )
            committed.append(array.num_committed_rows)
            for begin in range(0, 5000, step):
                if stop == f"{name}{begin // 1000}":
                    raise DiskError("the disk broke")
                array.append(rows[begin : begin + step])
            array.close()
        specs = {name: writer._writers[f"graph/{name}"].spec for name in ("a", "b")}
        writer.commit(Schema((), (), {}, specs), {"kind": "test"})
    return committed


@pytest.fixture
def rows() -> np.ndarray[Any, Any]:
    # 100 bytes: rows do not fill their pages.
    return np.random.default_rng(0).integers(0, 2**31, (5000, 25), np.int32)


def leftover(directory: Path) -> Path:
    (found,) = find_leftovers(directory)
    assert found.state == "resumable"
    return found.path


@pytest.mark.parametrize("step", choose([7, 5000], [1, 7, 100, 5000]))
@pytest.mark.parametrize("stop", choose(["a3", "b2"], ["a1", "a3", "b0", "b2"]))
def test_a_resumed_store_is_the_same(
    tmp_path: Path, rows: np.ndarray[Any, Any], stop: str, step: int
) -> None:
    write(tmp_path / "whole.gnn", rows)
    with pytest.raises(DiskError, match=r"the disk broke\. What was finished .* resume=True"):
        write(tmp_path / "a.gnn", rows, stop=stop, step=1 if step == 5000 else step)
    left = leftover(tmp_path)
    committed = write(tmp_path / "a.gnn", rows, resume=True, step=step)
    # A shard has 128 pages of 5 rows.
    wanted = {"a1": [640, 0], "a3": [2560, 0]}
    assert committed == wanted.get(stop, [5000, 0 if stop == "b0" else 1920])
    assert_same_files(tmp_path / "a.gnn", tmp_path / "whole.gnn")
    assert not left.exists()


def test_it_can_be_interrupted_again_and_again(tmp_path: Path, rows: np.ndarray[Any, Any]) -> None:
    write(tmp_path / "whole.gnn", rows)
    for stop in ("cold", "a1", "a1", "a3", "a0", "b2", "b2"):
        with pytest.raises(DiskError):
            write(tmp_path / "a.gnn", rows, resume=True, stop=stop)
    assert write(tmp_path / "a.gnn", rows, resume=True) == [5000, 1920]
    assert_same_files(tmp_path / "a.gnn", tmp_path / "whole.gnn")


def test_rows_that_are_there_are_neither_read_nor_written(
    tmp_path: Path, rows: np.ndarray[Any, Any]
) -> None:
    with pytest.raises(DiskError):
        write(tmp_path / "a.gnn", rows, stop="a3")
    shard = leftover(tmp_path) / "graph" / "a" / "c.0.0"
    before = shard.stat()
    spoiled = rows.copy()
    spoiled[:2560] = 0
    write(tmp_path / "a.gnn", spoiled, resume=True)
    assert (tmp_path / "a.gnn" / "graph" / "a" / "c.0.0").stat().st_ino == before.st_ino
    reader = StoreReader.open(tmp_path / "a.gnn")
    stored = reader.read(reader.schema.graph_arrays["a"])
    np.testing.assert_array_equal(stored, rows)


@pytest.mark.parametrize("damage", ["flip", *choose([], ["cut"]), "delete"])
def test_shards_are_checked_before_they_are_believed(
    tmp_path: Path, rows: np.ndarray[Any, Any], damage: str
) -> None:
    write(tmp_path / "whole.gnn", rows)
    with pytest.raises(DiskError):
        write(tmp_path / "a.gnn", rows, stop="b2")
    shard = leftover(tmp_path) / "graph" / "a" / "c.2.0"
    if damage == "flip":
        data = bytearray(shard.read_bytes())
        data[1000] ^= 1
        shard.write_bytes(data)
    elif damage == "cut":
        os.truncate(shard, shard.stat().st_size - 1)
    else:
        shard.unlink()
    assert write(tmp_path / "a.gnn", rows, resume=True) == [2 * 640, 1920]
    assert_same_files(tmp_path / "a.gnn", tmp_path / "whole.gnn")


@pytest.mark.parametrize("is_same", [True, False])
def test_another_conversion_is_not_continued(
    tmp_path: Path, rows: np.ndarray[Any, Any], is_same: bool
) -> None:
    with pytest.raises(DiskError):
        write(tmp_path / "a.gnn", rows, stop="a3")
    other = {"kind": "test", "options": {"undirected": True}, "sizes": (1, 3)}
    expected = r"options\.undirected was False and is True now; sizes was \[1, 2\]"
    with pytest.raises(UsageError, match=expected):
        write(tmp_path / "a.gnn", rows, resume=True, fingerprint=other)
    left = leftover(tmp_path)
    # Without resume it is removed, which is said with what would have been possible.
    events: list[str] = []
    own = FINGERPRINT if is_same else other
    with StoreWriter(tmp_path / "a.gnn", on_event=events.append, fingerprint=own):
        assert not left.exists()
    assert events[0].endswith("; --resume would have gone on with it") == is_same


def test_nothing_to_resume_starts_and_says_so(tmp_path: Path, rows: np.ndarray[Any, Any]) -> None:
    events: list[str] = []
    with StoreWriter(
        tmp_path / "a.gnn", fingerprint=FINGERPRINT, resume=True, on_event=events.append
    ):
        pass
    assert events == [f"nothing to resume for {tmp_path / 'a.gnn'}: starting from the beginning"]


def test_a_finished_store_is_not_resumed(tmp_path: Path, rows: np.ndarray[Any, Any]) -> None:
    write(tmp_path / "a.gnn", rows)
    with pytest.raises(StoreExistsError):
        write(tmp_path / "a.gnn", rows, resume=True)


def begin_and_raise(path: Path, error: BaseException, **options: Any) -> None:
    with StoreWriter(path, **options) as writer:
        writer.compressed("graph/c", np.arange(9), name="c")
        raise error


@pytest.mark.parametrize("error", [InputError("a bad row"), ZeroDivisionError(), UsageError("no")])
def test_errors_of_the_data_leave_nothing(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)):
        begin_and_raise(tmp_path / "a.gnn", error, fingerprint=FINGERPRINT)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_without_a_fingerprint_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        begin_and_raise(tmp_path / "a.gnn", KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == []


# ---- conversions


def interrupt(monkeypatch: pytest.MonkeyPatch, convert: Any) -> None:
    """Run a conversion that Ctrl-C ends just before its commit."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            convert()


def test_inputs_that_changed_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    edges, output = tmp_path / "edges.txt", tmp_path / "out" / "g.gnn"
    edges.write_text("0 5\n5 7\n")
    interrupt(monkeypatch, lambda: from_snap(edges, output))
    resume = ConvertOptions(resume=True)
    with pytest.raises(UsageError, match=r"options\.self_loops was 'keep' and is 'drop' now"):
        from_snap(edges, output, options=ConvertOptions(resume=True, self_loops="drop"))
    status = edges.stat()
    edges.write_text("0 5\n5 8\n")
    os.utime(edges, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(UsageError, match=r"inputs_changed.* was .* and is .* now"):
        from_snap(edges, output, options=resume)
    edges.write_text("0 5\n5 7\n")
    os.utime(edges, ns=(status.st_atime_ns, status.st_mtime_ns))
    from_snap(edges, output, options=resume)
    from_snap(edges, tmp_path / "whole.gnn")
    assert_same_files(output, tmp_path / "whole.gnn")


def test_budget_and_spill_directory_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("out", "spill", "spill2"):
        (tmp_path / name).mkdir()
    output = tmp_path / "out" / "r.gnn"
    before = ConvertOptions(spill_dir=str(tmp_path / "spill"))
    interrupt(monkeypatch, lambda: from_rmat(output, scale=6, options=before))
    after = ConvertOptions(
        resume=True, memory_bytes=2**30, spill_dir=str(tmp_path / "spill2"), overwrite=True
    )
    from_rmat(output, scale=6, options=after)
    from_rmat(tmp_path / "whole.gnn", scale=6)
    assert_same_files(output, tmp_path / "whole.gnn")


def spill_and_fail(output: Path, options: ConvertOptions) -> None:
    source: dict[str, Any] = {"parameters": {}}
    with GraphWriter(output, kind="test", source=source, options=options) as writer:
        assert writer.spill_directory.parent.name == "spill"
        assert writer.spill_directory.name == foreign_spill_name(writer._store.temporary_path)
        writer.spill_directory.mkdir()
        (writer.spill_directory / "0.run").write_bytes(bytes(10))
        raise InputError("a bad line")


def test_what_was_spilled_elsewhere_goes_with_the_rest(tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    with pytest.raises(InputError, match="a bad line"):
        spill_and_fail(tmp_path / "g.gnn", ConvertOptions(spill_dir=str(tmp_path / "spill")))
    assert list((tmp_path / "spill").iterdir()) == []
    nowhere = ConvertOptions(spill_dir=str(tmp_path / "x"))
    with pytest.raises(NotFoundError, match=r"the spill directory: .* does not exist"):
        from_rmat(tmp_path / "r.gnn", scale=4, options=nowhere)
    assert [path.name for path in tmp_path.iterdir()] == ["spill"]


def test_data_in_memory_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be resumed: data in memory cannot be compared"):
        GraphWriter(tmp_path / "g.gnn", kind="pyg", options=ConvertOptions(resume=True))
    assert list(tmp_path.iterdir()) == []


def test_equal_conversions_are_equal_stores(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1, 2], [1, 2, 0]], x=np.ones((3, 4), np.float32))
    first = from_numpy(tmp_path / "g.npz", tmp_path / "a.gnn")
    second = from_numpy(tmp_path / "g.npz", tmp_path / "b.gnn")
    assert_same_files(first, second)
    other = from_numpy(
        tmp_path / "g.npz", tmp_path / "c.gnn", options=ConvertOptions(self_loops="add")
    )
    uuids = {StoreReader.open(path).uuid for path in (first, second, other)}
    assert len(uuids) == 2
    assert all(uuid[14] == "8" for uuid in uuids)
