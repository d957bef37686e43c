"""Training through the loader reaches what training in memory reaches.

The example script is what trains, so that it is tested too. In memory, torch_geometric
reaches 80.6 % on Cora's public split and 91.3 % on Facebook page-page with the same model.
"""

from __future__ import annotations

import stat
from pathlib import Path
from statistics import mean
from types import ModuleType

import pytest
import torch

import gnnstore
from benchmarks import hetero_accuracy
from gnnstore.converters import ConvertOptions, from_numpy, from_ogb, from_rmat
from tests.support.effort import choose, is_long
from tests.support.forks import RUN_SCRIPT, ForkServer
from tests.support.modules import import_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = EXAMPLES / "train_sage.py"


def module_of(name: str) -> ModuleType:
    return import_file(EXAMPLES / f"{name}.py")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return module_of("train_sage")


@pytest.mark.long("learned embeddings are trained with in both")
def test_links() -> None:
    """The example that predicts edges, on the graph that it makes."""
    example = module_of("train_links")
    mrr = example.run(example.parse(["--epochs", "2", "--negatives", "50"]))
    assert mrr > 3 / (1 + 50 / 2), "three times a model that learns nothing"


def test_links_by_learned_embeddings() -> None:
    example = module_of("train_links")
    options = "--learned 32 --epochs 2 --negatives 50 --lr 0.01"
    assert example.run(example.parse(options.split())) > 3 / (1 + 50 / 2)


@pytest.mark.timeout(600)
def test_links_of_twitch(pytestconfig: pytest.Config) -> None:
    edges = pytestconfig.rootpath.parent / "shared" / "data" / "twitch-de"
    if not is_long() or not edges.is_dir():
        pytest.skip("takes a minute; part of the long form, where the graph is beside the project")
    example = module_of("train_links")
    path = edges / "musae-twitch-DE.txt.gz"
    options = "--learned 64 --epochs 5 --lr 0.01 --batch-size 4096"
    assert example.run(example.parse([str(path), *options.split()])) > 3 / (1 + 100 / 2)


@pytest.mark.parametrize(
    ("model", "least"), [("complex", 0.25), *choose((), (("distmult", 0.2), ("transe", 0.1)))]
)
def test_knowledge_graph(model: str, least: float) -> None:
    """Filtered, among 1,000 entities: a model that learns nothing has an MRR of 1/500."""
    example = module_of("train_knowledge_graph")
    options = ["--model", model, "--epochs", "1", "--negative-chunks", "3"]
    assert example.run(example.parse(options)) > least


def test_demo(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """GraphSAGE beats both controls; in `make long`, again in one place with the same result."""
    demo = module_of("demo")
    arguments = demo.parse(["--dir", str(tmp_path / "new"), "--scale", "13", "--epochs", "4"])
    found = demo.run(arguments)
    assert found["GraphSAGE"] > found["MLP"] + 0.15
    assert found["GraphSAGE"] > found["GraphSAGE, shuffled"] + 0.15
    text = capfd.readouterr().out
    for words in ("gnnstore convert rmat", "gnnstore inspect", "of features stayed on disk"):
        assert words in text
    for model, accuracy in found.items():
        assert f"{model} " in text
        assert f"{accuracy:.1%}" in text
    if is_long():
        small = demo.parse(["--dir", str(tmp_path / "small"), "--scale", "10", "--epochs", "1"])
        assert demo.run(small) == demo.run(small)


@pytest.mark.long("typed batches are compared exactly in both")
@pytest.mark.timeout(600)
def test_types(tmp_path: Path) -> None:
    """Over some seeds, the mean is that of PyG on the whole graph, within two standard errors."""
    path = hetero_accuracy.make_store(tmp_path / "s.gnn", choose(600, 2000))
    epochs = choose(8, hetero_accuracy.EPOCHS)
    seeds = choose(2, hetero_accuracy.SEEDS)
    found = hetero_accuracy.compare(path, seeds, epochs)
    assert abs(found["standard_errors"]) <= hetero_accuracy.BAR, found
    for accuracies in found["accuracies"].values():
        assert min(accuracies) > 0.4, "among eight classes; 0.24 without neighbours"


@pytest.mark.long("takes minutes")
@pytest.mark.timeout(600)
def test_links_of_facebook(facebook_npz: Path) -> None:
    example = module_of("train_links")
    options = "--fanouts 10 --batch-size 4096 --epochs 2 --lr 0.01"
    assert example.run(example.parse([str(facebook_npz), *options.split()])) > 0.3


def accuracies(example: ModuleType, store: Path, options: str) -> list[float]:
    """Test accuracy of the best epoch by validation, for some seeds."""
    return [
        example.run(example.parse([str(store), *options.split(), "--seed", str(seed)])).best.test
        for seed in range(5)
    ]


@pytest.mark.long("as a planted graph is trained on in both")
@pytest.mark.timeout(600)
def test_cora(example: ModuleType, cora_directory: Path, tmp_path: Path) -> None:
    store = from_ogb(cora_directory, tmp_path / "cora.gnn")
    found = accuracies(
        example,
        store,
        "--fanouts -1 --layers 2 --hidden 64 --dropout 0.5 --lr 0.02 --weight-decay 5e-4 "
        "--normalize --epochs 30",
    )
    assert mean(found) >= 0.79, found


@pytest.mark.long("as a planted graph is trained on in both")
@pytest.mark.timeout(600)
def test_facebook(example: ModuleType, facebook_npz: Path, tmp_path: Path) -> None:
    options = ConvertOptions(undirected=True)  # each edge is stored once
    store = from_numpy(facebook_npz, tmp_path / "facebook.gnn", options=options)
    found = accuracies(
        example,
        store,
        "--fanouts 25 --layers 2 --hidden 64 --dropout 0.4 --lr 0.02 --weight-decay 1e-4 "
        "--batch-size 1124 --epochs 40 --eval-every 5",
    )
    assert mean(found) >= 0.905, found


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small graph with communities to find."""
    path = tmp_path_factory.mktemp("planted") / "rmat.gnn"
    return from_rmat(path, scale=11, feature_dim=32, num_communities=4, seed=1)


OPTIONS = "--fanouts 10 --hidden 32 --lr 0.01 --epochs 3 --batch-size 256 --threads 2"


def test_training_is_reproducible_and_beats_chance(example: ModuleType, planted: Path) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in a fixed order
    try:
        first, second = (
            example.run(example.parse([str(planted), *OPTIONS.split(), "--strategy", strategy]))
            for strategy in ("memory", "mmap")
        )
    finally:
        torch.set_num_threads(num_threads)
    assert first == second
    assert first.best.test > 0.6, "a quarter by chance"


def test_training_writes_nothing_into_a_store(planted: Path, forks: ForkServer) -> None:
    """Run as somebody who may write; that nothing changed must be seen, not enforced."""
    files = {path: path.stat() for path in sorted(planted.rglob("*"))}
    for path, found in files.items():
        if stat.S_ISREG(found.st_mode):
            path.chmod(0o444)
    before, after = "warnings.simplefilter('error')", "warnings.simplefilter('ignore')"
    code = f"import warnings; {before}\n{RUN_SCRIPT}\n{after}"  # the libraries' ends are not ours
    ended = forks.run(code, EXAMPLE, planted, *OPTIONS.split())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("epoch ") == 4
    assert "best by validation" in ended.stdout
    now = {path: path.stat() for path in sorted(planted.rglob("*"))}
    assert now.keys() == files.keys()
    for path, found in files.items():
        assert now[path].st_mtime_ns == found.st_mtime_ns
    gnnstore.verify(planted)
