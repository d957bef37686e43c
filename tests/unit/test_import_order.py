"""Packages import from the packages below them, never from above, and in no cycle."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from tests.support.effort import choose

PACKAGE = Path(__file__).parents[2] / "gnnstore"

# From the bottom to the top: a package imports from itself and from those before it. Imports for
# type checking count, so that no cycle hides behind them.
LAYERS = (
    ("_version", "errors"),
    ("units", "random_words"),
    ("budget", "_core"),
    ("threads",),
    ("shared_memory",),
    ("machine",),
    ("progress", "timeline"),
    ("formats",),
    ("disk", "pictures"),
    ("remote",),
    ("sampling",),
    ("caching",),
    ("features",),
    ("graph",),
    ("seeds",),
    ("pipeline",),
    ("strategies",),
    ("partitions",),
    ("embeddings", "nn"),
    ("loaders",),
    ("packing", "layerwise", "evaluation"),
    ("plugins",),
)
# These stand beside the path of a batch: converters write what it reads.
ALLOWED: dict[str, set[str]] = {
    package: set().union(*LAYERS[:i]) for i, layer in enumerate(LAYERS) for package in layer
}
ALLOWED["converters"] = ALLOWED["disk"]
ALLOWED["plugins"] = {*ALLOWED["plugins"], "converters"}
ALLOWED["testing"] = {*ALLOWED["plugins"], "converters"}
ALLOWED["tools"] = {*ALLOWED["testing"], ""}  # "": `import gnnstore`, the public API
ALLOWED["__main__"] = {"tools"}

# Packages that work without torch: converting and checking a store must not cost its import.
TORCH_FREE = (
    "errors",
    "units",
    "random_words",
    "threads",
    "shared_memory",
    "machine",
    "progress",
    "budget",
    "_core",
    "formats",
    "disk",
    "pictures",
    "remote",
    "converters",
)

# The same for the folders of kernels, which include from themselves and from those before.
KERNELS = (
    "base",
    "files",
    "rows",
    "reading",
    "sampling",
    "traces",
    "planning",
    "packing",
    "building",
)

MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE) != Path("__init__.py")
)


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported_names(path: Path, top_level: bool = False) -> frozenset[str]:
    """Return every module that a file imports, `from a import b` giving "a.b"."""
    return _imported_names(path)[top_level]


@cache
def _imported_names(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return what a file imports anywhere, and what at its top level.

    These are kept, and not the trees: half a million objects, through which each collection of
    garbage in the tests after these would look for 0.3 s.
    """
    package = ("gnnstore", *path.relative_to(PACKAGE).parts[:-1])
    tree = ast.parse(path.read_text(), str(path))
    return _names(_statements(tree.body), package), _names(tree.body, package)


def _names(statements: Iterable[ast.stmt], package: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    for node in statements:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def _statements(body: list[Any]) -> Iterator[ast.stmt]:
    """Return all statements without their expressions, which are most of what `ast.walk` visits."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, name, []))


def imported_packages(path: Path) -> set[str]:
    """Return the packages that a file imports from; "" for `gnnstore` itself."""
    packages = set()
    for name in imported_names(path):
        first, _, rest = name.partition(".")
        package = rest.split(".")[0]
        if first == "gnnstore":
            packages.add(package if package in ALLOWED else "")
    return packages


def test_every_package_has_a_rule() -> None:
    assert {package_of(path) for path in MODULES} <= ALLOWED.keys()


def test_kernels_include_only_from_folders_before_theirs() -> None:
    files = sorted((PACKAGE / "_core/kernels").rglob("*.*"))
    assert {path.parent.name for path in files} == set(KERNELS)
    above = [
        f"{path.parent.name}/{path.name} includes {folder}/"
        for path in files
        for folder in set(re.findall(r'"kernels/(\w+)/', path.read_text()))
        if KERNELS.index(folder) > KERNELS.index(path.parent.name)
    ]
    assert above == []


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """Imports under TYPE_CHECKING and inside functions count."""
    by_name = {module_name(path): path for path in MODULES}
    graph = {
        name: [
            found
            for imported in imported_names(path)
            for found in (imported, imported.rpartition(".")[0])
            if found in by_name and found != name and not name.startswith(f"{found}.")
        ]
        for name, path in by_name.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_no_folders_import_each_other_in_a_cycle() -> None:
    """Folders within packages too; plug-ins and what a package shows of itself aside."""
    by_name = {
        module_name(path): path
        for path in MODULES
        if path.name not in {"__init__.py", "plugins.py"} and path.parent != PACKAGE
    }
    graph: dict[Path, set[Path]] = {}
    for path in by_name.values():
        names = {each for name in imported_names(path) for each in (name, name.rpartition(".")[0])}
        used = {by_name[name].parent for name in names & by_name.keys()}
        graph.setdefault(path.parent, set()).update(used - {path.parent})
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_only_from_packages_before_it(package: str) -> None:
    found = {
        str(path.relative_to(PACKAGE)): sorted(
            imported_packages(path) - {package} - ALLOWED[package]
        )
        for path in MODULES
        if package_of(path) == package
    }
    assert {path: packages for path, packages in found.items() if packages} == {}


@pytest.mark.parametrize("package", TORCH_FREE)
def test_torch_is_imported_on_demand_only(package: str) -> None:
    for path in (path for path in MODULES if package_of(path) == package):
        names = {name.split(".")[0] for name in imported_names(path, top_level=True)}
        assert not names & {"torch", "torch_geometric"}, path


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("gnnstore", "torch torch_geometric zarr numpy pyarrow click rich obstore ray"),
        *choose(
            [], [("gnnstore.plugins", "torch torch_geometric zarr pyarrow click rich obstore ray")]
        ),
    ],
)
def test_importing_is_light(module: str, heavy: str) -> None:
    code = f"import sys, {module}; print(sorted(set({heavy.split()}) & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["gnnstore", "gnnstore.plugins"])
def test_every_public_name_is_there(name: str) -> None:
    module = importlib.import_module(name)
    for public in module.__all__:
        assert getattr(module, public) is not None
    assert set(module.__all__) <= set(dir(module))


def test_an_unknown_name_is_an_attribute_error() -> None:
    import gnnstore  # noqa: PLC0415

    with pytest.raises(AttributeError, match="module 'gnnstore' has no attribute 'nothing'"):
        gnnstore.nothing  # noqa: B018


def test_modules_of_loaders_import_no_package_beyond_those_of_pyg() -> None:
    """Seconds of the import are torch's and torch_geometric's; nothing may be added to them."""
    by_name = {module_name(path): path for path in MODULES}
    left, seen, packages = {"gnnstore.loaders.node"}, set[str](), set[str]()
    while left:
        name = left.pop()
        package, _, rest = name.partition(".")
        if package != "gnnstore":
            packages.add(package)
        elif rest and name not in seen:
            seen.add(name)
            left.add(name.rpartition(".")[0])  # a name in a module, or what is imported before it
            left |= imported_names(by_name[name], top_level=True) if name in by_name else set()
    assert len(seen & by_name.keys()) > 50
    assert packages - sys.stdlib_module_names == {"numpy", "torch", "torch_geometric"}


@pytest.mark.long("imports torch anew; the test before looks at modules")
def test_a_loader_imports_no_package_beyond_those_of_pyg() -> None:
    code = (
        "import sys, torch_geometric.loader; "
        "before = {name.partition('.')[0] for name in sys.modules}; "
        "from gnnstore import NeighborLoader; "
        "after = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(after - before - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['gnnstore']"
