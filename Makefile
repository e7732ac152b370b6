# Everything goes into .venv; nothing outside this folder is touched.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
COLLECTED := $(VENV)/.tests-collected
# With the lowest versions that pyproject.toml allows; the second without the extra kubernetes, which wants newer ones.
LOWEST := .venv-lowest
LOWEST_BASE := .venv-lowest-base
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# Arguments for pytest, such as: make test-unit ARGS='-k quantity -x'
ARGS ?=
# How long each half of `make fuzz` goes on, in seconds; the round that is running is finished.
FUZZ_SECONDS ?= 60
# How many instances of resource.k8s.io it compares with upstream's allocator.
FUZZ_INSTANCES ?= 20000
# How many events of pools that are published again while claims have their devices.
FUZZ_EVENTS ?= 20000
# How many instances of each kind it compares with exhaustive search; the tests look at the first of them.
FUZZ_EXAMPLES ?= 400
SEARCHED := scaling_world.py normal_form.py place_properties.py place_partitions.py \
  blockers_of_cards.py reasons_true.py duplicate_devices.py joint_dra.py check.py random_hosts.py spread.py \
  decomposition.py oracle.py fencing.py eviction.py dra_holders.py waiting.py waiting_for_nodes.py settled_rounds.py \
  burst.py cel_differential.py oracle_dra.py incremental_check.py fleet_machine.py warm_rounds.py \
  inventory_invariants.py inventory_faults.py answer_types.py dra_group_reasons.py partitions.py \
  random_hosts_unreadable.py vm_scheduling.py columns_many_shapes.py columns.py columns_parts.py blockers_proven.py \
  replay_elsewhere.py scaling_oracle.py check_mutations.py fleet_partitions.py node_faults.py \
  resource_fleet_machine.py deadlines.py refusal.py resource_fleet_refusals.py moves_with_devices.py \
  wrong_content_dra.py damaged_dra.py malformed_manifests.py overview_junk.py permits_churn.py \
  upstream_differential.py node_journal_log.py scaling_tables.py node_plain_devices.py warm_joint.py
# Workers of the quick tiers, of which one that has nothing left takes over from another.
JOBS ?= auto
# Of the unit and conformance tiers: each waits a fifth of its time, for threads, processes and what is meant to hang, so
# there is one to spare.
QUICK_JOBS ?= $(if $(filter auto,$(JOBS)),$(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1))),$(JOBS))
# Of the machine tier: emulated machines compute, and each worker keeps a CPU busy.
MACHINE_JOBS ?= 2
# Of the cluster tier, which `make test-hosts` runs beside it: its tests mostly wait for control planes and the kubelet.
CLUSTER_JOBS ?= 2
# Strict: a link that leads nowhere is an error.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
# Bytecode is kept: without it each worker, and each child that tests start, compiles all anew: a fifth of the unit tier
unexport PYTHONDONTWRITEBYTECODE

# How many requests `make permits-soak` makes.
PERMIT_REQUESTS ?= 100000
# Of random runs, such as a date; empty: another one each time.
SEED ?=
# At which points `make power-cuts` cuts the power, such as prepare:3-9; default: at all.
SOAK_CUTS ?=

# What `make mutants` changes: these modules, or those that differ from where this branch left BASE.
MODULES ?=
BASE ?= main

.PHONY: help setup demo demo-machine golden test test-all test-hosts built built-upstream built-machine built-cluster test-unit test-conformance test-machine test-cluster test-lowest mutants mutants-survey build-plan dev-cluster images oci-images release lint lint-workflows site nightly-fuzz nightly-faults nightly-mutants nightly-golden nightly-soak format chart changelog previous protos bench fuzz faults soak power-cuts controllers-soak permits-soak adoption-race partitions cuts migration-faults guest-soak timeline screenshots demo-picture clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(STAMP) ## install everything into .venv (again only when pyproject.toml changed)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "devalloc needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make setup PYTHON=python3.12" >&2; exit 2; }
	@echo "Setting up $(VENV), once: 1 to 3 minutes, 240 MB to download, 1 GB on disk."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "No virtual environment: install the package python3-venv and run make setup again." >&2; exit 2; }
	@$(PIP) install --root-user-action=ignore --require-hashes --requirement constraints.txt \
	  | awk '/^Collecting/ {printf "."; fflush()} /^Installing/ {printf " installing, half a minute"; fflush()} END {print ""}'
	@$(PIP) install --root-user-action=ignore --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(LOWEST)/.setup-done: EXTRAS := all,test
$(LOWEST_BASE)/.setup-done: EXTRAS := solver,node,guest,permits,test
%/.setup-done: pyproject.toml | $(STAMP)
	@echo "Setting up $*, once: 10 to 60 seconds, 120 MB to download, 450 MB on disk."
	@rm -rf $*
	@$(PYTHON) -m venv $*
	@$(BIN)/uv pip install --quiet --python $*/bin/python --build-constraints constraints.txt --resolution lowest-direct \
	  --editable '.[$(EXTRAS)]'
	@touch $@

demo: setup ## the main job, shown on this machine in a few seconds
	@$(BIN)/devalloc demo

demo-machine: setup ## a machine with a GPU, from its claim to its guest, on an emulated host: minutes, no root
	@$(BIN)/python -m tools.demo_machine $(ARGS)

# In one run, which has the libraries imported once, and no worker that waits at the end of a tier.
test: $(COLLECTED) ## the unit and conformance tiers: minutes, and nothing to build
	@echo "== unit and conformance"
	@$(PYTEST) tests/unit tests/conformance -n $(QUICK_JOBS) --dist worksteal $(ARGS)

# With CI=true a skip is a failure, so what the tests of `make test` would skip for is built before them.
test-all: build-plan built test test-hosts ## all tiers: builds Kubernetes and test machines once (see make build-plan)
ifeq ($(CI),true)
test test-conformance: built-upstream
endif

test-hosts: built-machine built-cluster ## the machine and cluster tiers, side by side
	@echo "== machine and cluster"
	@$(PYTEST) tests/machine tests/cluster -n $$(($(MACHINE_JOBS) + $(CLUSTER_JOBS))) $(ARGS)

# Of a fresh clone each worker would compile all modules, and rewrite the assertions of all tests, at the same time as the
# others. What cannot be collected is reported by the tests.
$(COLLECTED): $(STAMP)
	@echo "Compiling the tests, once: half a minute."
	@for half in 'tests/unit/[a-m]*/ tests/conformance' 'tests/unit/[n-z]*/'; do \
	  { $(PYTEST) --collect-only -qq $$half > /dev/null || true; } & \
	done; wait
	@touch $@

# $(call tier,NAME,PYTEST OPTIONS): a tier without tests yet passes, and says so.
define tier
	@if [ -n "$$(find tests/$(1) -name 'test_*.py' -print -quit 2>/dev/null)" ]; then \
	  echo "== $(1)"; $(PYTEST) tests/$(1) $(2) $(ARGS); \
	else echo "== $(1): no tests yet"; fi
endef

test-unit: $(COLLECTED) ## seconds: properties, fakes
	$(call tier,unit,-n $(QUICK_JOBS) --dist worksteal)

test-conformance: $(COLLECTED) ## cases with known answers, examples, oracles
	$(call tier,conformance,-n $(QUICK_JOBS) --dist worksteal)

test-machine: built-machine ## real QEMU and kernel (skips where there is none)
	$(call tier,machine,-n $(MACHINE_JOBS))

test-cluster: built-cluster ## a real Kubernetes control plane (skips where there is none)
	$(call tier,cluster,-n $(CLUSTER_JOBS))

build-plan: setup ## what the tests are going to build on this machine, with time, download and disk space
	@$(BIN)/python -m tests.support.builds

# What is built once, which says how far it is: no test's time is measured by it, and workers cannot say. What cannot be
# built (status 1) is no reason to run no other tests.
built: built-upstream built-machine built-cluster
built-upstream: setup
	@$(BIN)/python -m tests.support.builds upstream selectors browser || [ $$? = 1 ]
built-machine: setup
	@$(BIN)/python -m tests.support.builds machines network || [ $$? = 1 ]
built-cluster: setup
	@$(BIN)/python -m tests.support.builds kubernetes promtool || [ $$? = 1 ]

test-lowest: $(LOWEST)/.setup-done $(LOWEST_BASE)/.setup-done ## what the lowest allowed versions of libraries can break: tools/lowest.toml
	@echo "== with the lowest versions"
	@$(LOWEST_BASE)/bin/python -m pytest $$($(BIN)/python -m tools.lowest_tests base) -n $(QUICK_JOBS) --dist worksteal $(ARGS)
	@$(LOWEST)/bin/python -m pytest $$($(BIN)/python -m tools.lowest_tests kubernetes) -n $(QUICK_JOBS) --dist worksteal $(ARGS)

mutants: setup ## change modules in one place at a time, and see their unit tests fail: MODULES='PATH...', or those that differ from BASE=main
	@$(BIN)/python -m tools.mutants --base $(BASE) $(MODULES) $(ARGS)

mutants-survey: setup ## MUTANTS=100 of all modules together, with a table; records first which tests run which line
	@$(BIN)/python -m tools.mutants --survey $(or $(MUTANTS),100) --seed $(or $(SEED),1) $(ARGS)

dev-cluster: setup ## a Kubernetes to try things out, until Ctrl-C; as root with a node (built once: 20 minutes)
	@$(BIN)/python -m tools.dev_cluster

images: setup ## test machines, built from Debian packages into the user's cache; tests do it when they need to
	$(BIN)/python -m tests.support.images

oci-images: setup ## the container images, as OCI archives in dist/; ARGS='--prefix REGISTRY/PATH --fresh', see docs/install.md
	$(BIN)/python -m deploy.images build $(ARGS)

release: setup ## all files of a release, of the last commit, into dist/vVERSION: packages, images of amd64 and arm64, chart, manifests, bills of materials
	@$(BIN)/python -m tools.release $(ARGS)

lint-workflows: ## .github/workflows, with actionlint (needs Go)
	GOFLAGS=-mod=mod go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

lint: setup ## style, types, import rules, words, names in docstrings, links of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m tools.words
	$(BIN)/python -m tools.docstring_names
	$(SITE) --quiet

site: setup ## the documentation site, in build/site
	$(SITE)

format: setup ## rewrite to the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chart: setup ## the Helm chart of deploy/helm anew from the manifests beside it, and their version from devalloc/version.py
	$(BIN)/python -m devalloc.install.chart deploy/helm

changelog: setup ## put the fragments of changes/ into the first chapter of CHANGELOG.md, and remove them
	@$(BIN)/python -m tools.changelog collect

previous: setup ## after a release: keep the sources of TAG=v0.1.0 for the tests of upgrades
	$(BIN)/python -m tests.support.previous $(TAG)

protos: setup ## generate the wire code of node-plugin/devalloc_node/pb anew from its .proto files
	$(BIN)/python -m grpc_tools.protoc -I node-plugin \
	  --python_out=node-plugin --pyi_out=node-plugin --grpc_python_out=node-plugin node-plugin/devalloc_node/pb/*.proto

golden: setup ## compare all answers, outputs and manifests with those recorded before a redesign: minutes; ARGS='claims --show claims/7'
	@$(BIN)/python -m tools.golden compare $(ARGS)

bench: setup ## discovery by tree size, solving by fleet size: a table
	$(BIN)/python -m benchmarks

fuzz: setup ## random fleets against the oracle and upstream's allocator, then property tests with new seeds
	@mkdir -p build
	$(BIN)/python -m tools.fuzz_resource_claims --count $(FUZZ_INSTANCES) --seed $(or $(SEED),$$((RANDOM * 32768 + RANDOM))) --out build
	$(BIN)/python -m tools.fuzz_claims --seconds $(FUZZ_SECONDS) --seed $(or $(SEED),$$RANDOM) --out build
	$(BIN)/python -m tools.fuzz_pools --events $(FUZZ_EVENTS) --seed $(or $(SEED),$$((RANDOM * 32768 + RANDOM)))
	DEVALLOC_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PYTEST) $(addprefix tests/conformance/test_,$(SEARCHED)) -n $(JOBS) -q
	@$(if $(SEED),RANDOM=$(SEED);) end=$$((SECONDS + $(FUZZ_SECONDS))); \
	while [ $$SECONDS -lt $$end ]; do \
	  seed=$$((RANDOM * 32768 + RANDOM)); \
	  echo "== property tests, --hypothesis-seed=$$seed, $$((end - SECONDS)) s left"; \
	  DEVALLOC_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PYTEST) tests -m hypothesis --hypothesis-seed=$$seed -n $(JOBS) -x -q $(ARGS); \
	done

faults: setup ## fail and kill the node plugin at every state-changing call, with machines also cut the power and begin a second plugin; a table of how many there are
	$(BIN)/python -m tools.fault_points
	$(PYTEST) tests/unit/node/test_rates.py -n $(JOBS) -k kill
	DEVALLOC_UPGRADE_POINTS=5 $(PYTEST) tests/conformance/test_upgrade_node.py -n $(JOBS)
	DEVALLOC_WARM_STRIDE=1 DEVALLOC_WARM_ROUNDS=100 $(PYTEST) tests/machine/test_warm_pool.py tests/machine/test_warm_machines.py tests/machine/test_warm_objects.py tests/machine/test_warm_network.py tests/machine/test_warm_cni.py

soak: power-cuts controllers-soak ## what must hold before a release: power cuts of a test host, and the storm on a cluster: long

power-cuts: setup ## cut the power of a test machine after every change of host and journal, and boot it again: long
	$(BIN)/python -m tools.power_cuts $(SOAK_CUTS)

controllers-soak: setup ## 500 claims in ten minutes while two controllers, the API server and etcd are disturbed; two minutes without it
	$(BIN)/python -m tools.controllers_soak $(ARGS)

permits-soak: setup ## PERMIT_REQUESTS=100000 for a full node, with servers killed and replies lost: minutes; ARGS=--cluster for controllers of a real API server
	$(BIN)/python -m tools.permits_soak --requests $(PERMIT_REQUESTS) $(ARGS)

adoption-race: setup ## 1,000 claims for kube-scheduler and devalloc while a driver is adopted and given back and processes die: 5 minutes; ARGS='--unsafe' without the policy
	$(BIN)/python -m tools.adoption_race $(ARGS)

partitions: setup ## cut off or kill each process at every step of a machine that is scaled, in virtual time: many minutes
	$(BIN)/python -m tools.partitions_soak $(ARGS)

cuts: setup ## the six connection cuts, on a real machine that is scaled (as root): minutes
	DEVALLOC_CUTS=all $(PYTEST) tests/machine/test_guest_partitions.py -n 1 $(ARGS)

migration-faults: setup ## a real machine that moves between two plugins, with one of six faults at each of about 210 calls: about ten minutes for each fault; MIGRATION_FAULTS=5 for every fifth call
	MIGRATION_FAULTS=$${MIGRATION_FAULTS:-all} $(PYTEST) tests/machine/test_migration.py tests/machine/test_moves_of_cards_with_faults.py tests/machine/test_machine_faults.py -n 1 -s -k fault_anywhere --timeout 0 -o faulthandler_timeout=0 $(ARGS)

guest-soak: setup ## a machine with a VF by VFIO, inside an emulated host with SR-IOV, scaled up and down: minutes
	$(BIN)/python -m tools.guest_soak

# What .github/workflows/nightly.yml runs, each with the seed of the day; `make nightly-fuzz SEED=20261129` repeats one.
nightly-fuzz: FUZZ_SECONDS = 600
nightly-fuzz: fuzz
nightly-faults: faults partitions
nightly-mutants: MUTANTS = 300
# As many as surveys show today: lower it when they show less. The goal, which CI has for changed modules, is below 8.
nightly-mutants: ARGS = --allow 20
nightly-mutants: mutants-survey
nightly-golden: golden
nightly-soak: built-cluster
	$(BIN)/python -m tools.permits_soak --requests 20000 --seed $(or $(SEED),1)
	$(BIN)/python -m tools.controllers_soak --seed $(or $(SEED),1)

timeline: setup ## docs/scaling-timeline.svg and .json anew, from a real machine that is scaled
	DEVALLOC_UPDATE_DOCS=1 $(PYTEST) tests/machine/test_guest_scaling.py -n 1 $(ARGS)

screenshots: setup ## docs/page-light.png, page-dark.png and top.svg anew, of a fleet of examples
	$(BIN)/python -m tools.screenshots

demo-picture: setup ## docs/demo.svg anew, from what the demo prints
	$(BIN)/python -m tools.demo_picture

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) $(LOWEST) $(LOWEST_BASE) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache benchmarks/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
