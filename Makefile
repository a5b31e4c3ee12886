# Every chore of the project; `make help` lists them. What they need is installed by scripts/setup.sh.
#
# Variables: PREFIX, DESTDIR (install), JOBS, WERROR=ON (warnings are errors), CMAKE_ARGS (more -D… for the release
# build, such as -DKVASIR_LLAMA_DIR=DIR or -DKVASIR_ENGINE_PLATFORM=linux-x64-vulkan), FUZZ_SECONDS, OPERATIONS (soak), KILLS,
# AGENTS (names of tests/agents/agents.txt).

PREFIX ?= /usr/local
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
WERROR ?= OFF
CMAKE_ARGS ?=
FUZZ_SECONDS ?= 60
KILLS ?= 200
ROUNDS ?= 20
OPERATIONS ?= 1000000
AGENTS ?=
export PATH := $(CURDIR)/build/tools/bin:$(PATH)

# $(call build,preset,arguments,targets): configure (quietly: a second or less when nothing changed) and build.
build = cmake --preset $(1) $(2) > /dev/null && cmake --build --preset $(1) --parallel $(JOBS) --target $(or $(3),all)
configured = -DKVASIR_WERROR=$(WERROR) $(CMAKE_ARGS)

.PHONY: all demo test asan tsan fuzz soak kill hostile agents bench parity scenarios compat
.PHONY: lint format install dist uninstall clean distclean help
.DEFAULT_GOAL := all

all: ## build build/kvasir
	@$(call build,release,$(configured),kvasir)

demo: ## from nothing to five answered questions and a table; installs, builds and fetches what is missing
	@scripts/demo.sh

test: ## unit tests, then HTTP tests with the official clients
	@$(call build,release,$(configured))
	@scripts/test.sh build

asan: ## the same tests under the address and undefined-behaviour sanitizers
	@$(call build,asan)
	@scripts/test.sh build-asan

tsan: ## the tests on the fake engine under the thread sanitizer
	@$(call build,tsan)
	@scripts/test.sh build-tsan

fuzz: ## run every fuzzer for FUZZ_SECONDS (60)
	@scripts/fuzz.sh $(FUZZ_SECONDS)

soak: ## OPERATIONS (1000000) random operations on the fake engine, every file call failing once
	@$(call build,release,$(configured),test_sched_soak test_cache_faults)
	@scripts/soak.sh $(OPERATIONS)

kill: ## KILLS (200) SIGKILLs of a loaded server at random instants; what is left must be whole and be used
	@$(call build,release,$(configured))
	@scripts/kill.sh $(KILLS)

hostile: ## ROUNDS (20) of twisted, broken, abandoned requests to every API of a sanitized server, tiny models
	@$(call build,asan,,kvasir)
	@scripts/hostile.sh $(ROUNDS)

agents: ## coding agents of npm and PyPI (AGENTS="codex pi": only these) do a task on a scripted model; installs them
	@$(call build,release,$(configured),kvasir)
	@scripts/agents.sh build $(AGENTS)

bench: all ## the server against a bare llama_decode loop; what the cache gives and costs; as ratios
	@scripts/bench.sh

parity: ## how far restored runs are from uninterrupted ones, into docs/parity.md
	@$(call build,release,$(configured),parity)
	@scripts/parity.sh build

scenarios: ## what conversations of every shape cost on real tokenizers, into docs/scenarios.md
	@$(call build,release,$(configured))
	@scripts/scenarios.sh build

compat: all ## llama-server's own tests against kvasir, into docs/compat.md
	@scripts/llama-server-suite.sh

lint: ## clang-format, clang-tidy, module dependencies, shellcheck
	@cmake --preset release $(configured) > /dev/null
	@scripts/lint.sh

format: ## lay out the C sources with clang-format
	@scripts/lint.sh --fix

install: ## install under PREFIX (/usr/local), below DESTDIR if given
	@test -x build/kvasir || $(MAKE) --no-print-directory all # nothing is built as root when it is there
	@DESTDIR='$(DESTDIR)' cmake --install build --prefix '$(abspath $(PREFIX))'

dist: all ## one archive that runs where it is unpacked, tried out: build/dist/kvasir-VERSION-….tar.gz
	@scripts/make-fixtures.sh
	@archive=$$(scripts/dist.sh build) && scripts/dist-test.sh "$$archive" build/models/tiny/llama.gguf && echo "$$archive"

uninstall: ## remove what install put there
	cd '$(DESTDIR)$(abspath $(PREFIX))' && rm -rf lib/kvasir share/doc/kvasir share/kvasir && rm -f bin/kvasir \
	  share/man/man1/kvasir.1 share/bash-completion/completions/kvasir share/zsh/site-functions/_kvasir \
	  share/fish/vendor_completions.d/kvasir.fish lib/systemd/system/kvasir.service lib/systemd/user/kvasir.service

clean: ## remove what was compiled; engine, models and fetched tools stay
	rm -rf build-asan build-tsan build-fuzz
	@if [ -d build ]; then find build -mindepth 1 -maxdepth 1 ! -name 'engine*' ! -name models ! -name tools -exec rm -rf {} +; fi

distclean: ## remove everything that is not in the repository
	rm -rf build build-asan build-tsan build-fuzz tests/http-node/node_modules

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
