"""Options that all converters have in common, and their decorator; converters of plug-ins."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, get_args

from gnnstore.budget.limits import parse_memory
from gnnstore.converters.inputs.kinds import describe_directory
from gnnstore.errors import (
    InputError,
    NotFoundError,
    UsageError,
    check_choice,
    did_you_mean,
    limits_named,
    refuse_unknown,
    truth,
    whole_number,
)
from gnnstore.formats import StoreManifest
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.spec import TIME_UNITS
from gnnstore.formats.container.workdir import check_final
from gnnstore.formats.store.schema import (
    NODE_TYPE,
    SCALES_SUFFIX,
    EdgeTypeSpec,
    name_of_scales,
)
from gnnstore.progress import checked_progress
from gnnstore.units import Registry, parse_size

SelfLoops = Literal["keep", "drop", "add"]
IndexDtype = Literal["int64", "int32"]
FeatureScale = Literal["column"]
Fractions = tuple[float, float, float]  # of train, valid and test

_CHOICES = {
    "self_loops": get_args(SelfLoops),
    "feature_scale": get_args(FeatureScale),
    "index_dtype": get_args(IndexDtype),
}
_LISTS = ("time_attr", "weight_attr", "reverse", "time_unit")
# Options that provenance names only where they are given.
_ADDED = (*_LISTS, "add_inverse_edge", "split_fractions", "allow_error")
_SWITCHES = ("undirected", "overwrite", "resume", "add_inverse_edge", "allow_error")
# Options that change no byte of the result.
_WITHOUT_EFFECT = ("overwrite", "memory_bytes", "resume", "spill_dir")

P = ParamSpec("P")


@dataclass(frozen=True)
class ConvertOptions:
    """Options common to all converters.

    Attributes
    ----------
    undirected : bool
        Add the reverse of every edge, then keep one of each set of equal edges: the one
        that comes first in the input, with its attributes. Reverse edges come after all
        edges of the input: the reverse of edge e of E has id E + e and e's attributes.
        Refused where equal edges differ in a stored attribute.
    add_inverse_edge : bool
        Follow every edge by its reverse, with its attributes: edge e of the input becomes edges
        2e and 2e + 1. All edges are kept, equal ones too. For graphs without types.
    self_loops : "keep", "drop" or "add"
        "drop" removes every edge from a node to itself. "add" gives one to each node that
        has none, in ascending order of node, with ids after all other edges' ids; their
        `edge_weight` is 1 and their other attributes are 0.
    page_bytes : int, optional
        Page size of the arrays that are read by row; a power of two. None: for each array the
        smallest from 4 to 64 KiB that leaves at most 3 % of a page empty, or else the least.
    feature_dtype : str, or Mapping of str to str, optional
        Store the node attribute `x` as this type, such as "float16" or "bfloat16". A value
        that would overflow, or that an integer type cannot hold exactly, is an error. By name for
        other attributes, {"emb": "float16"}, or for attributes of one node type,
        {"paper:x": "int8"}.
    overwrite : bool
        Replace the output if it is a store already; the old one stays until the new one is
        complete.
    memory_bytes : int, optional
        The most memory to use for building the adjacency, as a number or as text ("4GB"); edges
        that it cannot hold are sorted on disk. None: all that is available.
    edge_ids : bool, optional
        Whether to store for each edge its position in the input. None: as the converter
        thinks fit (all but `from_rmat` do).
    index_dtype : "int64" or "int32", optional
        Type of `edge_index` and `n_id` in batches, by default int64. int32 takes half the memory,
        and some layers of PyG train with wrong gradients on it, of which loaders warn.
    resume : bool
        Go on with what an interrupted conversion to this output left: the same data, with
        the same options but `memory_bytes`, `spill_dir` and `overwrite`. The result is
        the same as an uninterrupted one, byte for byte. If nothing was left, start.
    feature_scale : "column", optional
        Where feature_dtype makes an attribute int8: divide each column by a scale of its own, so
        that its largest magnitude is 127, and round; columns of integers from -127 to 127 stay as
        they are. The store keeps the scales. Takes one more pass over the attribute.
    allow_error : bool
        With feature_scale: also take columns that differ from the input by more than 5 % of their
        standard deviation (root mean square), or in which more than half of the values that are
        not 0 become 0; they are refused otherwise.
    time_attr : sequence of str
        Attributes of nodes or edges with int64 times. For each, edges get an order by time, which
        loaders with this `time_attr` need; other integers become int64.
    time_unit : mapping of str to str, or sequence of str
        Units of times since 1970 whose input states none, as {"time": "s"} or ("time=s",): days D,
        s, ms, us or ns. Times of one name are stored in the finest of their units, which the store
        records.
    weight_attr : sequence of str
        Attributes of edges with weights, [E] or [E, 1]: finite and not negative. For each, edges
        get the sums that loaders with this `weight_attr` need.
    reverse : sequence of str
        For graphs of several types: edge types that also get a reverse type `rev_RELATION`, with
        the same ids and attributes: "all", relations, or types as in "author__writes__paper". Rows
        of more than 64 bytes are shared by both types, narrower ones are copied.
    split_fractions : tuple of three floats, or Mapping of str to such tuples, optional
        Draw the splits train, valid and test of nodes at random: shares that add up to at most 1,
        rounded so that all nodes are in a split where they add up to 1. By node type, if there are
        several: {"paper": (0.8, 0.1, 0.1)}. Refused where the input has splits of its own.
        (`from_rmat` has a parameter of this name.)
    seed : int
        In [0, 2**64): for what is drawn for `split_fractions`; the converter's where it has
        one.
    spill_dir : str, optional
        An existing directory for temporary files while edges are sorted on disk. None:
        next to the output.
    """

    undirected: bool = False
    self_loops: SelfLoops = "keep"
    page_bytes: int | None = None
    feature_dtype: Mapping[str, str] | str | None = None
    overwrite: bool = False
    memory_bytes: int | None = None
    edge_ids: bool | None = None
    index_dtype: IndexDtype | None = None
    resume: bool = False
    spill_dir: str | None = None
    feature_scale: FeatureScale | None = None
    time_attr: tuple[str, ...] = ()
    weight_attr: tuple[str, ...] = ()
    reverse: tuple[str, ...] = ()
    split_fractions: Mapping[str, Fractions] | Fractions | None = None
    seed: int = 0
    time_unit: tuple[str, ...] = ()
    add_inverse_edge: bool = False
    allow_error: bool = False

    def __post_init__(self) -> None:
        set_value = partial(object.__setattr__, self)
        for name in _LISTS:
            given = getattr(self, name)
            if isinstance(given, Mapping):
                given = [f"{key}={value}" for key, value in given.items()]
            names = _listed(given)
            if not all(isinstance(each, str) for each in names):
                raise UsageError(f"{name}={given!r}: expected a name, or a list of names")
            set_value(name, tuple(dict.fromkeys(names)))
        set_value("split_fractions", _by_type(self.split_fractions) or None)
        set_value("feature_dtype", _by_attribute(self.feature_dtype))
        if not 0 <= whole_number("seed", self.seed) < 2**64:
            raise UsageError(f"seed={self.seed} is not in [0, 2**64)")
        _check_time_units(self.time_unit)
        if self.page_bytes is not None:
            set_value("page_bytes", parse_size(self.page_bytes, name="page_bytes"))
        if self.memory_bytes is not None:
            set_value("memory_bytes", parse_memory(self.memory_bytes, name="memory_bytes"))
        for name in _SWITCHES:
            set_value(name, truth(name, getattr(self, name)))
        for name, choices in _CHOICES.items():
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), choices)
        if self.add_inverse_edge and self.undirected:
            raise UsageError(
                "add_inverse_edge and undirected both add reverse edges: choose add_inverse_edge "
                "to keep all edges, or undirected to keep one of each set of equal edges"
            )
        if self.feature_scale is not None and "int8" not in self.feature_dtypes.values():
            raise UsageError(
                f"feature_scale={self.feature_scale!r} goes with feature_dtype='int8', not "
                f"{self.feature_dtype!r}: floats need no scale"
            )

        if self.allow_error and self.feature_scale is None:
            raise UsageError(
                "allow_error=True is for the error of multiples of scales; give feature_scale= too"
            )

    def fractions_of(self, node_type: str) -> Fractions | None:
        """Return the shares of the splits to draw of a node type; None: none are drawn."""
        given: Any = self.split_fractions or {}  # by type: see __post_init__
        found: Fractions | None = given.get(node_type, given.get(""))
        return found

    def check_types(self, node_types: Sequence[str]) -> None:
        """Raise if splits are to be drawn of a type that is not there, or of no type of several."""
        given: Any = self.split_fractions or {}
        for name in given:
            if name not in node_types and (name or len(node_types) > 1):
                what = f"there is no node type {name!r}" if name else "nodes have types"
                raise UsageError(
                    f"split_fractions: {what}; there are {', '.join(map(repr, node_types))}: write "
                    f"{node_types[0]}=0.8,0.1,0.1 for one, as --split-fractions, or "
                    f"{{{node_types[0]!r}: (0.8, 0.1, 0.1)}} in Python"
                )

    @property
    def feature_dtypes(self) -> Mapping[str, str]:
        """The types of `feature_dtype`, by "NAME" or "TYPE:NAME" of an attribute."""
        given = self.feature_dtype
        return {"x": given} if isinstance(given, str) else given or {}

    def feature_dtype_of(self, node_type: str, name: str) -> str | None:
        """Return the type to store an attribute of nodes as; None: as it comes."""
        given = self.feature_dtypes
        found = [key for key in (name, f"{node_type}:{name}") if key in given]
        if len(found) > 1:
            raise UsageError(
                f"feature_dtype={f'{found[1]}={given[found[1]]}'!r}: names an attribute that "
                f"{found[0]!r} names too; give it one type"
            )
        return given[found[0]] if found else None

    def is_scaled(self, node_type: str, name: str) -> bool:
        """Whether an attribute of nodes is to be stored as multiples of scales."""
        return self.feature_scale is not None and self.feature_dtype_of(node_type, name) == "int8"

    @property
    def time_units(self) -> dict[str, str]:
        """The units that `time_unit` states, by attribute."""
        pairs = (entry.rpartition("=") for entry in self.time_unit)
        return {name: unit for name, _, unit in pairs}

    def to_json(self) -> dict[str, Any]:
        """Return the options that affect the store's contents, for its provenance."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in _WITHOUT_EFFECT
            and (value or name not in _ADDED)
            and (name != "seed" or self.split_fractions)
        }


def _by_attribute(given: Any) -> dict[str, str] | str | None:
    """Return types by attribute, or the type of `x` if there are no others."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        pairs = [
            _attribute_type(each) if isinstance(each, str) else ("x", each)
            for each in _listed(given)
        ]
    found: dict[str, str] = {}
    for key, dtype in pairs:
        check_choice("feature_dtype", dtype, tuple(STORAGE_DTYPES))
        if key in found:
            raise UsageError(
                f"feature_dtype={f'{key}={dtype}'!r}: {key!r} has the type {found[key]} already; "
                "give it one"
            )
        found[key] = dtype
    return found["x"] if list(found) == ["x"] else found or None


def _listed(given: Any) -> list[Any]:
    """Return one value, or several, as a list; of None an empty one."""
    if given is None:
        return []
    return [given] if isinstance(given, str) or not isinstance(given, Iterable) else [*given]


def _attribute_type(text: str) -> tuple[str, str]:
    """Return attribute and type of "[TYPE:][NAME=]DTYPE"."""
    key, mark, dtype = text.rpartition("=")
    if not mark:
        node_type, mark, dtype = text.rpartition(":")
        key = f"{node_type}{mark}x"
    return key, dtype


def _check_time_units(entries: Iterable[str]) -> None:
    for entry in entries:
        attribute, _, unit = entry.rpartition("=")
        if not attribute or unit not in TIME_UNITS:
            raise UsageError(
                f"time_unit={entry!r}: expected NAME=UNIT, with one of {', '.join(TIME_UNITS)}"
            )


def _by_type(given: Any) -> Mapping[str, Fractions] | None:
    """Return fractions of splits by node type, "" being the only one."""
    if given is None:
        return None
    found: dict[str, Fractions] = {}
    for name, fractions in (given if isinstance(given, Mapping) else {"": given}).items():
        found[name] = check_fractions("split_fractions", fractions)
    return found


def check_fractions(name: str, fractions: Any) -> Fractions:
    """Return the shares of train, valid and test; raise UsageError if they are none."""
    try:
        train, valid, test = (float(share) for share in fractions)
    except (TypeError, ValueError):
        train = valid = test = -1.0
    if not (min(train, valid, test) >= 0 and train + valid + test <= 1 + 1e-9):
        raise UsageError(
            f"{name}={fractions} are not three shares that add up to at most 1; write shares of "
            "train, valid and test, as in 0.8,0.1,0.1"
        )
    return train, valid, test


def refuse_scales_name(
    options: ConvertOptions, node_type: str, name: str, owner: str, attributes: Container[str]
) -> None:
    """Refuse a name that the scales of one of the type's attributes have."""
    base = name.removesuffix(SCALES_SUFFIX)
    if base != name and base in attributes and options.is_scaled(node_type, base):
        raise name_of_scales(owner, base)


def check_features(
    options: ConvertOptions | None,
    attributes: Mapping[str, Collection[str]],
    remedy: str = "leave the option out",
) -> None:
    """Refuse the type of an attribute that is not there; `attributes` are the nodes' by type."""
    found = {of: list(names) for of, names in attributes.items()}
    known = {key for of, names in found.items() for own in names for key in (own, f"{of}:{own}")}
    for key, dtype in ({} if options is None else options.feature_dtypes).items():
        if key in known:
            continue
        if key == "x":
            raise UsageError(f"feature_dtype={dtype!r}: there are no features to store; {remedy}")
        is_typed = list(found) != [NODE_TYPE]
        there = [f"{of}:{own}" if is_typed else own for of, names in found.items() for own in names]
        raise UsageError(
            f"feature_dtype={f'{key}={dtype}'!r}: there is no such attribute of nodes"
            f"{did_you_mean(key, there)}; there are: {', '.join(there) or 'none'}"
        )


def with_orders(options: ConvertOptions, edges: EdgeTypeSpec) -> ConvertOptions:
    """Return options by which a store that is made from a store keeps orders and sums."""
    return replace(options, time_attr=tuple(edges.orders), weight_attr=tuple(edges.weight_sums))


def refuse_options(options: ConvertOptions, names: Iterable[str], why: str) -> None:
    """Refuse options that are not as they are by default."""
    for name in names:
        if getattr(options, name) != getattr(ConvertOptions, name):
            raise UsageError(f"{name} {why}")


def refuse_rules(options: ConvertOptions, doing: str) -> None:
    """Refuse the rules for edges and features where a store is made from a store."""
    rules = ("undirected", "add_inverse_edge", "self_loops", "feature_dtype", *_LISTS)
    refuse_options(options, rules, f"is not for {doing}; convert with it")


def single_options(function: Callable[P, Path]) -> Callable[P, Path]:
    """Take single options, such as `overwrite=True`, next to or in place of `options=`."""
    signature = inspect.signature(function)
    single = {field.name for field in fields(ConvertOptions)} - signature.parameters.keys()

    @wraps(function)
    def with_options(*args: P.args, **kwargs: P.kwargs) -> Path:
        if "options" in signature.parameters:
            known = [*single, *signature.parameters]
            takes_more = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
            refuse_unknown(function.__name__, () if takes_more else kwargs, known)
            if not isinstance(kwargs.get("options"), ConvertOptions | None):
                raise UsageError(
                    f"options has the type {type(kwargs['options']).__name__}; expected a "
                    "gnnstore.converters.ConvertOptions, or give each option by its name, as in "
                    f"{function.__name__}(..., overwrite=True)"
                )
        if "options" in signature.parameters and kwargs.keys() & single:
            more: dict[str, Any] = {name: kwargs.pop(name) for name in kwargs.keys() & single}
            options: Any = kwargs.get("options") or ConvertOptions()
            kwargs["options"] = replace(options, **more)
        return function(*args, **kwargs)

    return with_options


def converter(convert: Callable[P, Path]) -> Callable[P, Path]:
    """Take single options, refuse an output that exists, and let errors name a system's limit."""
    signature = inspect.signature(convert)

    @wraps(convert)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Path:
        given = signature.bind(*args, **kwargs).arguments
        options = given.get("options") or ConvertOptions()
        if "seed" in signature.parameters and options.split_fractions:
            kwargs["options"] = replace(options, seed=given.get("seed", options.seed))
        if "output" in given:
            _check_places(convert.__name__, given)
        checked_progress(given.get("progress"))
        if "output" in given and not (options.overwrite or options.resume):
            final = Path(os.path.abspath(given["output"]))  # noqa: PTH100 - links stay
            check_final(final, StoreManifest, overwrite=False)
        try:
            return convert(*args, **kwargs)
        except (NotFoundError, InputError) as error:
            path = given.get("input", given.get("data"))
            if not isinstance(path, str | os.PathLike) or not Path(path).is_dir():
                raise
            is_about = isinstance(error, NotFoundError) or error.path == os.fspath(path)
            other = describe_directory(Path(path), convert.__name__.removeprefix("from_"))
            if other is None or not is_about:
                raise
            message = f"{error.message}. {other}"
            raise type(error)(message, path=error.path, offset=error.offset) from error

    return limits_named("convert")(single_options(checked))


def _check_places(name: str, given: Mapping[str, Any]) -> None:
    """Refuse an output that is not a path, perhaps as it was given in the input's place."""
    output, (first, source) = given["output"], next(iter(given.items()))
    if isinstance(output, str | os.PathLike):
        return
    swapped = f"; the input comes first, as in {name}({first}, output)"
    is_swapped = isinstance(source, str | os.PathLike) and output is not None
    raise UsageError(
        f"output has the type {type(output).__name__}; expected the path of the new store, such "
        f"as 'graph.gnn'{swapped if is_swapped else ''}"
    )


@dataclass(frozen=True)
class Converter:
    """A converter of a plug-in, for `gnnstore convert NAME INPUT OUTPUT`.

    Attributes
    ----------
    name : str
        The command's word.
    convert : callable
        Called as `convert(input, output, options=ConvertOptions, progress=Progress)`, as
        functions decorated with `gnnstore.plugins.converter` can be; returns the store's path.
    summary : str
        One sentence for `--help`.
    """

    name: str
    convert: Callable[..., Path]
    summary: str


CONVERTERS: Registry[Converter] = Registry()


def check_sorted(options: ConvertOptions, label: str, *, has_names: bool) -> None:
    """Refuse `sorted=True` where a store has its edges in another order than the input."""
    for name in ("undirected", "add_inverse_edge"):
        if getattr(options, name):
            raise UsageError(
                f"sorted=True: {name}= adds the reverse of each edge, which comes in another "
                "order; leave one of them out"
            )
    if options.reverse:
        raise UsageError(
            "sorted=True: reverse= adds edge types whose edges come in another order; write a "
            "sorted file of its own for each, or leave one of them out"
        )
    if has_names:
        raise InputError(
            f"{label}: sorted=True needs integers at the ends of edges, and these are names, which "
            "are numbered in order of appearance; number them, or leave sorted=True out"
        )
