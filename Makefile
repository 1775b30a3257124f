# make demo          train the demo network on a simulated MKR1000 (PORT=native: without an emulator)
# make check         lint, types, quick tests, how much of firmware/src they run: six minutes
# make test          everything that must hold: make check, then the slow tests and simulated boards
# make coverage      how many lines of each file of the host the quick tests run (ten minutes)
# make lint          formatters, linters and types alone
# make bench         what a RAM budget costs on a board, next to keep-everything
# make bench-host    the kernels on this computer next to PyTorch, steps of both in turns
# make bench-kernels  cycles of kernels on simulated chips, now and earlier (OPTIONS=--shapes)
# make bench-program  cycles, RAM and flash of other programs on a simulated chip (OPTIONS: files)
# make bench-keyword   a DS-CNN learns a new voice of espeak-ng, as a device would
# make bench-transfer  how fast weights of 437 MB go onto a native board and off it
# make bench-transfers  transfers of the simulated boards: processor's cycles, share of bus time
# make bench-placement  how fast hard placements are found, MiniMalloc's among them
# make bench-streaming  networks whose operators exceed the RAM of simulated boards (40 minutes)
# make bench-tiny    the models of MLPerf Tiny on both simulated chips: RAM, time, energy (20 minutes)
# make bench-recurrent  networks over time on the simulated nRF52840 (five minutes)
# make bench-prices   simulated times of kernels next to their estimates (OPTIONS=--fit)
# make bench-predict  predicted time and energy of steps next to simulated boards (OPTIONS=--fit)
# make bench-fine-tune  ResNet-18 learns two more digits in 220 KiB (ten minutes)
# make bench-solver  the planner next to the paper's formulation (15 minutes; OPTIONS=--quick)
# make bench-planners  programs of Checkmate and Moccasin, PyTorch's planner (five minutes)
# make bench-forward  every built-in model infers in the RAM in which it trains (20 minutes)
# make fleet        a fleet of four boards on Flower, which is installed for it (ten minutes)
# make zoo           90 networks of torchvision, timm, transformers train as in PyTorch (hours)
# make bench-torch   plans for steps of PyTorch, executed next to eager execution (five minutes)
# make paper         the POET paper's claims next to ours (OPTIONS, see bench/paper/__main__.py)
# make results       all of these but zoo, and schedules and ledger, which follow: two hours, on an
#                    idle machine (OPTIONS: names of parts, see bench/results.py). Not in it, and much
#                    longer or without a page: what follows, up to `make mutants`, and `make coverage`
# make fuzz          changed files against every reader of the host (SEED, FUZZ_CASES of each format)
# make fuzz-usb      hostile hosts against the USB device, sanitizers on (SEED, SECONDS)
# make fuzz-card     a disturbed wire between SD driver and card, sanitizers on (SEED, SECONDS)
# make fuzz-slices   random budgets, inferences, saves and power cuts of boards in slices
# make fuzz-outputs  a full disk and SIGKILL at every event of every file that a command writes
# make fuzz-contents  changed contents of cards against the runtime, sanitizers on (SEED, SECONDS)
# make fuzz-nest     changed schedules against a reference of their steps (SEED, SECONDS)
# make fault-nest    trainings on cards with faults; 100,000 are a result (SEED, RUNS)
# make soak          a life of 20,000 steps, 1,000,000 cases of each fuzzer: parts soak-... (-j 2)
# make walk          every false write of a card at every written block of a training run (hours)
# make cuts          power cuts at many writes of two streamed steps on the MKR1000 (SEED)
# make mutants       each instruction of the assembly changed once: a test must find every change
# make schedules     the examples in schedules/, solved again, and all pictures (Chromium)
# make firmware      the images of the bare-metal boards, by PlatformIO, and where their memory goes
# make ledger        the tables of that in docs/reference/memory.md, made again
# make docs          the pages as a site, build/docs/index.html; a dead link fails
# make wheel         the package as users install it
# make release       all that users install, built and tried, in dist/; refuses what is not a release

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PORT ?= sim:mkr1000
SEED ?= 1
SECONDS ?= 600
FUZZ_CASES ?= 100000
RUNS ?= 100000
RECIPE = $(BIN)/python -c 'from poet_host.firmware_build.recipe import *; made = recipe("mkr1000"); $(1)'
PYTEST := -m pytest -n 3 --dist loadfile --no-loadscope-reorder
COVERING = POET_COUNTS=$(CURDIR)/build/check/c CC=$(CURDIR)/tests/support/covering_cc \
  XDG_CACHE_HOME=$(CURDIR)/build/check/cache
C_SOURCES = $(shell find firmware examples \( -name '*.c' -o -name '*.h' \))

.PHONY: demo cross check coverage test lint format bench bench-host bench-kernels bench-program \
  bench-keyword \
  bench-transfer bench-transfers bench-placement bench-solver bench-streaming bench-tiny \
  bench-predict bench-prices bench-fine-tune bench-planners bench-torch bench-forward bench-recurrent fleet zoo results paper fuzz fuzz-usb fuzz-card \
  fuzz-contents fuzz-nest fault-nest fuzz-slices fuzz-outputs soak \
  soak-life soak-host soak-card soak-contents soak-nest soak-nest-faults soak-usb soak-coverage walk cuts mutants schedules firmware ledger docs wheel release clean

demo: $(VENV)/run.stamp $(if $(findstring sim:,$(PORT)),cross)
	$(BIN)/poet-host demo --port $(PORT)

# The cross compiler: from apt where we may, else PlatformIO's.
cross: $(VENV)/run.stamp
	@$(call RECIPE,find_compiler(made)) 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends \
	      gcc-arm-none-eabi libnewlib-arm-none-eabi; \
	  else \
	    $(PIP) install --quiet 'platformio>=6.1,<7' && \
	    $(BIN)/pio pkg install --global --tool "$$($(call RECIPE,print(made.package)))"; \
	  fi; } || { echo "no cross compiler could be installed: try 'apt install gcc-arm-none-eabi" \
	    "libnewlib-arm-none-eabi', or do without it: 'make demo PORT=native'"; exit 2; }

# Three workers on two cores: many tests wait for a board, a time limit or a process. They start
# hundreds of Python processes; without kept bytecode, each compiles the package again. Files begin in
# the order of tests/conftest.py: the longest first.
check test: export PYTHONDONTWRITEBYTECODE =

# What `check` runs, `test` does not run again.
test: check
	PYTHONPATH=tests $(BIN)/python -m support.builds slow
	$(BIN)/python $(PYTEST) -m slow tests

# What needs no simulated chip and no cross compiler. Lines of firmware/src are counted by gcov.
check: lint
	rm -rf build/check && mkdir -p build/check
	$(COVERING) PYTHONPATH=tests $(BIN)/python -m support.builds
	$(COVERING) $(BIN)/python $(PYTEST) -m "not slow" tests
	$(BIN)/gcovr --root . --filter firmware/src/ --fail-under-line 95 build/check/c

# Counting the lines of the host doubles the processor time of the quick tests.
coverage: $(VENV)/dev.stamp
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run $(PYTEST) -m "not slow" tests
	$(BIN)/coverage combine --quiet
	{ echo "make coverage" && date +%F && git rev-parse --short HEAD && \
	  $(BIN)/coverage report --skip-covered --sort cover; } > build/coverage/report.txt
	mv build/coverage/report.txt bench/coverage.txt

# cppcheck leaves out crc32.c, whose tables the preprocessor computes: it took a minute of each run.
lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check host tests bench examples firmware docs
	$(BIN)/ruff check host tests bench examples firmware docs
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)
	@if command -v cppcheck >/dev/null; then \
	  cppcheck -j 2 --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability \
	    --inline-suppr --suppress=missingIncludeSystem -I firmware/include -I firmware/src \
	    -i firmware/src/crc32.c \
	    firmware/src firmware/kernels firmware/port; \
	else echo "cppcheck is not installed: its checks are left out"; fi

format: $(VENV)/dev.stamp
	$(BIN)/ruff format host tests bench examples firmware docs
	$(BIN)/clang-format -i $(C_SOURCES)

fuzz: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m fuzz.host --cases $(FUZZ_CASES) --seed $(SEED) --output bench/fuzz-host.txt

fuzz-usb: $(VENV)/dev.stamp
	$(BIN)/python tests/support/usb_layer.py $(SEED) -$(SECONDS)

fuzz-card: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m support.card_bench $(SEED) -$(SECONDS)

# Every false write of a card at every written block of a run, about an hour on each chip.
walk: $(VENV)/dev.stamp
	for b in mkr1000 nrf52840_dk; do PYTHONPATH=tests $(BIN)/python -m fuzz.card_walk $$b \
	  --first 1 --output bench/walk-$$b.txt || exit 1; done

# Power cuts at 500 random writes of a step of resnet8-cifar in 24 KiB, and at all writes but the
# first of a step of resnet-digits in 8 KiB, about 12 minutes; then at 500 random writes of each of
# two trainings that commit every 10 steps. (SEED)
cuts: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m fuzz.card_cuts mkr1000 --seed $(SEED) \
	  --output bench/cuts-mkr1000.txt
	PYTHONPATH=tests $(BIN)/python -m fuzz.card_cuts mkr1000 --model resnet-digits --ram 8KiB \
	  --data digits --cuts 100000 --same-board 100 --seed $(SEED) \
	  --output bench/cuts-8kib-mkr1000.txt
	PYTHONPATH=tests $(BIN)/python -m fuzz.commit_cuts --seed $(SEED) --output bench/cuts-commits.txt
	PYTHONPATH=tests $(BIN)/python -m fuzz.learner_cuts --output bench/cuts-learner.txt
	PYTHONPATH=tests $(BIN)/python -m fuzz.learner_chip_cuts --seed $(SEED) \
	  --output bench/cuts-learner-chips.txt

LIVES = 5000
fuzz-slices: $(VENV)/dev.stamp
	POET_SANITIZE=cc CC=cc LD_PRELOAD=$$(cc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
	  PYTHONMALLOC=malloc PYTHONPATH=tests $(BIN)/python -m fuzz.sliced_lives \
	  --seed $(SEED) --lives $(LIVES) --output bench/fuzz-slices.txt

# Every command of poet-host, about 40 minutes.
fuzz-outputs: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m fuzz.outputs --output bench/fuzz-outputs.txt

fuzz-contents: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m support.contents_bench $(SEED) -$(SECONDS)

# Each part can run alone, and soak-life goes on after an interruption. The fuzzers in C run by
# number of rounds. A case of `card` takes 20 ms, so it has a tenth of the rounds. (SEED, ROUNDS)
ROUNDS = 1000000
SOAK = card contents nest usb
SOAK_FORMATS = poet card safetensors package.json trace learner
soak: soak-life soak-host soak-nest-faults $(addprefix soak-,$(SOAK)) soak-coverage

soak-life: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m fuzz.soak --steps 20000 --seed $(SEED) --output bench/soak.txt

soak-host: $(SOAK_FORMATS:%=soak-host-%)

soak-host-card: CASES = $(ROUNDS:%0=%)
soak-host-%: CASES = $(ROUNDS)
soak-host-%: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m fuzz.host --cases $(CASES) --seed $(SEED) --formats $* \
	  --jobs 1 --output bench/$@.txt

soak-card: FUZZER = support.card_bench
soak-contents: FUZZER = support.contents_bench
soak-nest: FUZZER = support.nest_bench fuzz
soak-usb: FUZZER = support.usb_layer
$(addprefix soak-,$(SOAK)): $(VENV)/dev.stamp
	mkdir -p build/soak
	begin=$$(date +%s); PYTHONPATH=tests $(BIN)/python -m $(FUZZER) $(SEED) $(ROUNDS) > build/soak/$@ && \
	{ echo "make $@ SEED=$(SEED) ROUNDS=$(ROUNDS)"; echo "$$(date +%F), commit $$(git rev-parse --short=10 HEAD)," \
	  "1 process, $$((($$(date +%s) - begin + 59) / 60)) minutes"; echo; cat build/soak/$@; } > bench/$@.txt

soak-nest-faults:
	$(MAKE) fault-nest RUNS=$(ROUNDS)

soak-coverage: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m fuzz.covered --seed $(SEED) --output bench/soak-coverage.txt

# What reaches new code is kept in build/fuzz-nest.
fuzz-nest: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m support.nest_bench fuzz $(SEED) -$(SECONDS)

fault-nest: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m support.nest_bench faults $(SEED) $(RUNS)

mutants: $(VENV)/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m support.floats mutate m0plus bench/mutants-m0plus.txt
	PYTHONPATH=tests $(BIN)/python -m support.floats mutate m4f bench/mutants-m4f.txt

schedules: $(VENV)/run.stamp
	$(BIN)/poet-host solve resnet-digits --board mkr1000 --ram 24KiB --time-limit 120 \
	  --output schedules/resnet-digits-mkr1000.poet
	for f in schedules/*.poet; do $(BIN)/poet-host show $$f > $${f%.poet}.txt && \
	  $(BIN)/poet-host show $$f --png $${f%.poet}.png || exit 1; done
	$(BIN)/python -m bench.nest_picture schedules/nest.png
	PYTHONPATH=tests $(BIN)/python -m support.schedule_page docs/how-to/show.png
	$(BIN)/python docs/explanation/five_nodes.py docs/explanation/five-nodes.svg

bench: $(VENV)/dev.stamp
	$(BIN)/python -m bench.board $(OPTIONS)

bench-host: $(VENV)/dev.stamp
	$(BIN)/python -m bench.host_kernels $(OPTIONS)

bench-kernels: $(VENV)/dev.stamp
	$(BIN)/python -m bench.kernels $(OPTIONS)

bench-program: $(VENV)/dev.stamp
	$(BIN)/python -m bench.program $(OPTIONS)

# Needs espeak-ng; about 5 minutes.
bench-keyword: $(VENV)/dev.stamp
	$(BIN)/python -m bench.keyword

bench-transfer: $(VENV)/dev.stamp
	$(BIN)/python -m bench.transfer $(OPTIONS)

bench-transfers: $(VENV)/dev.stamp
	$(BIN)/python -m bench.transfers_board

bench-placement: $(VENV)/dev.stamp
	$(BIN)/python -m bench.placement $(OPTIONS)

bench-streaming: $(VENV)/dev.stamp
	$(BIN)/python -m bench.streaming $(OPTIONS)

bench-tiny: $(VENV)/dev.stamp
	$(BIN)/python -m bench.tiny $(OPTIONS)

bench-recurrent: $(VENV)/dev.stamp
	$(BIN)/python -m bench.recurrent $(OPTIONS)

bench-prices: $(VENV)/dev.stamp
	$(BIN)/python -m bench.prices $(OPTIONS)

bench-predict: $(VENV)/dev.stamp
	$(BIN)/python -m bench.predict $(OPTIONS)

bench-fine-tune: $(VENV)/dev.stamp
	$(BIN)/python -m bench.fine_tune

bench-solver: $(VENV)/dev.stamp
	$(BIN)/python -m bench.solver $(OPTIONS)

bench-planners: $(VENV)/dev.stamp
	$(BIN)/python -m bench.planners $(OPTIONS)

bench-forward: $(VENV)/dev.stamp
	$(BIN)/python -m bench.forward $(OPTIONS)

bench-torch: $(VENV)/dev.stamp
	$(BIN)/python -m bench.torch_plans $(OPTIONS)

# Flower wants other versions of some packages: it has an environment of its own.
fleet: build/fleet/installed
	PATH=$(CURDIR)/build/fleet/bin:$$PATH build/fleet/bin/python -m bench.fleet

build/fleet/installed: pyproject.toml | $(BIN)/python
	$(PYTHON) -m venv build/fleet
	build/fleet/bin/python -m pip install --quiet --editable '.[sim,fleet]'
	touch $@

# torchvision, timm and transformers are needed by nothing else.
zoo: build/zoo/installed
	build/zoo/bin/python -m bench.zoo $(OPTIONS)

build/zoo/installed: pyproject.toml | $(BIN)/python
	$(PYTHON) -m venv build/zoo
	build/zoo/bin/python -m pip install --quiet --editable '.[dev]' torchvision timm transformers
	touch $@

# Parts of it measure time: nothing else may run on the machine. (OPTIONS: names of parts)
results: $(VENV)/dev.stamp
	$(BIN)/python -m bench.results $(OPTIONS)

paper: $(VENV)/dev.stamp
	$(BIN)/python -m bench.paper $(OPTIONS)

firmware: $(VENV)/dev.stamp
	$(BIN)/pio run

ledger: $(VENV)/dev.stamp
	$(BIN)/python -m poet_host.firmware_build.ledger docs/reference/memory.md
	PYTHONPATH=tests $(BIN)/python -m support.small_library

docs: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx -aEWn --keep-going -q -c docs -d build/doctrees . build/docs
	@echo "the site is build/docs/index.html"

wheel: $(VENV)/dev.stamp
	$(BIN)/python -m build --outdir dist

# With OPTIONS=--try it builds and tries the archives in any case.
release: $(VENV)/dev.stamp $(VENV)/docs.stamp
	$(PIP) install --quiet --no-deps --editable .  # with the version that CHANGELOG.md begins with
	$(BIN)/python -m bench.release $(OPTIONS)

clean:
	rm -rf $(VENV) build dist .pio

$(VENV)/run.stamp: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --editable '.[plot,sim]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --editable '.[dev]'
	touch $@ $(VENV)/run.stamp

$(VENV)/docs.stamp: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --editable '.[docs]'
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "poet-host needs Python 3.11 or newer: try 'make PYTHON=python3.12 $(MAKECMDGOALS)'"; exit 2; }
	@command -v cc >/dev/null || { echo "poet-host needs a C compiler: try 'apt install gcc'"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python cannot make a virtual environment: try 'apt install python3-venv'"; exit 2; }
