# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs in .venv and no
# more, and reuses it until pyproject.toml, constraints.txt or the C++ core changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
CORE := $(shell find gnnstore/_core -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)
DEMO_DIR ?= demo

.DEFAULT_GOAL := help
.PHONY: help demo test tests test-oldest test-newest long lint style types format docs docs-images docs-shots bench bench-peers sanitize portable wheel clean distclean

help:
	@echo 'make demo      set up, then convert a built-in graph and train on it (minutes)'
	@echo 'make test      set up, then lint, type-check and run every test'
	@echo 'make long      every test with its long loops: more kills, seeds and examples (an hour)'
	@echo 'make test-oldest  every test with the oldest versions that pyproject.toml allows, in .venv-oldest'
	@echo 'make test-newest  every test with the newest that there are, in .venv-newest'
	@echo 'make lint      ruff and mypy only'
	@echo 'make format    let ruff format and fix what it can'
	@echo 'make docs      build the site with the guides and the reference in build/site'
	@echo 'make docs-images  the pictures of the docs, from their numbers and from stores made for them'
	@echo 'make docs-shots  screenshots of that site in build/shots, with Chromium'
	@echo 'make bench     the quick benchmarks (see docs/benchmarks.md for the large ones)'
	@echo 'make bench-peers  set up what benchmarks compare with in .venv-peers (up to 6 GB, half an hour)'
	@echo 'make sanitize  run the kernels'\'' tests under AddressSanitizer and UBSan'
	@echo 'make portable  run them without the code for x86-64, as other processors do'
	@echo 'make wheel     build a wheel and a source archive in dist/'
	@echo 'make clean     remove what builds left behind; make distclean: .venv too'

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py --dir $(DEMO_DIR)

# Three files at a time, for one of them mostly waits for a disk or a process; budgets are measured
# in a cgroup or a process of each test's own. In the order of their names, so that
# tests/budget, which takes minutes, is not the last.
PYTEST := $(BIN)/pytest --processes=3

# What is imported is compiled once, and not in each of the hundreds of processes of the tests: torch
# alone is two thousand modules.
unexport PYTHONDONTWRITEBYTECODE

# Threads of OpenMP that find no processor free spin: training would take twice as long.
tests test-oldest test-newest long: export OMP_NUM_THREADS := 1

# mypy has one processor to itself for a minute: tests run beside it.
test: style
	@$(MAKE) --no-print-directory --jobs=2 types tests

tests: $(TESTABLE)
	$(PYTEST)

# The same tests with their long loops: more kills, seeds and examples, and every pair of cases.
# With Ray, which is too large for every run of the tests, and with what checks the archives.
long: $(TESTABLE)
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[ray]' \
	  --group release
	GNNSTORE_LONG_TESTS=1 $(PYTEST) --timeout 1800

lint: style types

style: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TESTABLE)
	$(BIN)/mypy

format: $(TESTABLE)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

BENCHMARKS := $(filter-out __init__ harness,$(patsubst benchmarks/%.py,%,$(wildcard benchmarks/*.py)))
bench: $(TESTABLE)
	@for name in $(BENCHMARKS); do \
	  echo "== python -m benchmarks.$$name --quick"; \
	  $(BIN)/python -m benchmarks.$$name --quick || exit 1; done

# GraphBolt runs on old versions of torch only, so that the peers have an environment of their own,
# as have their processes. PEERS_PIP has more options of pip install, such as an index of packages
# without CUDA.
bench-peers:
	$(PYTHON) benchmarks/parts/peers.py

docs: $(TESTABLE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'built build/site/index.html'

docs-images: $(TESTABLE)
	$(BIN)/python -m benchmarks.parts.images

docs-shots: docs
	$(BIN)/python docs/site/shots.py

# Editable, so that an edited .py file needs no reinstall; a changed .cpp file does. What builds the
# core stays in .venv, instead of in an environment that is made anew each time, so that only what
# changed is compiled. Python compiles modules when they are first used, which are a tenth of them.
$(INSTALLED): pyproject.toml constraints.txt $(CORE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'gnnstore needs Python 3.11 or newer; try: make PYTHON=python3.12 ...' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile --constraint constraints.txt 'pip>=25.1'
	$(PIP) install --no-compile --constraint constraints.txt --group build
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-compile --constraint constraints.txt \
	  --no-build-isolation --editable .
	@touch $@

$(TESTABLE): $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --constraint constraints.txt \
	  --no-build-isolation --editable '.[parquet,plot,remote]' --group test
	@touch $@

# The ends of the ranges that pyproject.toml allows, each in an environment of its own. The oldest
# versions have wheels for Python 3.11 and 3.12. Without PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# torch brings gigabytes of CUDA.
test-oldest test-newest: test-%:
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip --quiet install --upgrade pip
	mkdir -p build
	.venv-$*/bin/python release/bounds.py > build/oldest.txt
	.venv-$*/bin/python -m pip --quiet install --upgrade --upgrade-strategy eager \
	  $(if $(filter oldest,$*),--constraint build/oldest.txt) --config-settings build-dir=build/$* \
	  --editable '.[parquet,plot,remote]' --group test
	.venv-$*/bin/pytest --processes=3 -p no:cacheprovider

# Two archives: the sources, and a wheel for this Python (for 3.12 and later with the stable ABI).
wheel: $(INSTALLED)
	$(BIN)/python -c \
	  'from scikit_build_core.build import build_sdist; build_sdist("dist")' > /dev/null
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist

# A core that is built otherwise stands in a copy of the package that comes first on PYTHONPATH. The
# interpreter must be the one outside .venv: there the editable install would win. The checkout comes
# last, for processes that tests start and that import them. Without precompiled headers, so that a
# file that does not include what it needs is found.
define other_core
rm -rf $(1)/site
PATH="$(CURDIR)/$(BIN):$$PATH" cmake -G Ninja -S gnnstore/_core -B $(1)/core \
  -DGNNSTORE_WERROR=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python $(2)
PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(1)/core
mkdir -p $(1)/site
cp -R gnnstore $(1)/site/
rm -f $(1)/site/gnnstore/_core/_kernels*.so
cp $(1)/core/_kernels*.so $(1)/site/gnnstore/_core/
endef
with_core = site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
  base=$$($(BIN)/python -c 'import sys; print(sys._base_executable)'); \
  env PYTHONPATH="$(CURDIR)/$(1)/site:$$site:$(CURDIR)" PYTHONSAFEPATH=1

SANITIZE := build/sanitize
SANITIZED_TESTS ?= $(wildcard tests/unit/test_core_*.py tests/unit/test_sampling*.py) \
  tests/property tests/corruption
sanitize: $(TESTABLE)
	$(call other_core,$(SANITIZE),-DCMAKE_BUILD_TYPE=RelWithDebInfo -DGNNSTORE_SANITIZE=ON)
	$(call with_core,$(SANITIZE)) \
	  LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  $$base -m pytest -p no:cacheprovider --timeout 600 $(SANITIZED_TESTS)

# What runs on other processors than x86-64: the same results, and the same batches.
PORTABLE := build/portable
PORTABLE_TESTS ?= $(wildcard tests/unit/test_core_*.py tests/property/test_core_*.py) \
  tests/unit/test_access_lists.py tests/unit/test_segment_packing.py \
  tests/conformance/test_frozen_batches.py
portable: $(TESTABLE)
	$(call other_core,$(PORTABLE),-DGNNSTORE_PORTABLE=ON)
	$(call with_core,$(PORTABLE)) $$base -c \
	  'from gnnstore import _core; assert _core.crc32c_implementation() == "portable"'
	$(call with_core,$(PORTABLE)) $$base -m pytest -p no:cacheprovider $(PORTABLE_TESTS)

clean:
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-*
