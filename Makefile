# A thin front to meson and scripts/. `make run` and `make test` are all that a fresh Debian 12 machine needs.
#
# Variables: STATE_DIR and LISTEN run a second server beside the first one; SUITES picks suites of `make test` (default: all:
# unit, protocol, kernel, system, e2e).

STATE_DIR ?= /var/lib/cubicle
LISTEN ?= 127.0.0.1:3000
DESTDIR ?=
SUITES ?=
FUZZ_SECONDS ?= 30
MESON ?= meson

.PHONY: run build test test-vm bench bench-vm asan coverage fuzz test-distro clean install

run: build
	@scripts/run '$(STATE_DIR)' '$(LISTEN)'

build:
	@scripts/deps run
	@scripts/build build -Dtests=false
	@ln -sfn build/src/cli/cubicle cubicle

# Everything: all suites, then unit and protocol under the sanitizers, then Debian 12's own kernel, then microVMs in that. With SUITES only those, once.
test:
	@scripts/deps test
	@scripts/build build-test -Dflavour=test
	@scripts/test build-test $(SUITES)
	@[ -n '$(SUITES)' ] || $(MAKE) --no-print-directory asan test-distro test-vm

# The unit and protocol suites under the address and undefined-behaviour sanitizers.
asan:
	@scripts/deps test
	@scripts/build build-asan -Dflavour=test -Db_sanitize=address,undefined -Db_lundef=false
	@scripts/test build-asan unit protocol

coverage:
	@scripts/deps test
	@scripts/build build-cov -Dflavour=test -Db_coverage=true
	@scripts/test build-cov unit protocol
	@ninja -C build-cov coverage-text && tail -n 3 build-cov/meson-logs/coverage.txt

# Every fuzz target with libFuzzer for FUZZ_SECONDS each, from its corpus; fails on the first finding. `make test` replays the corpora.
fuzz:
	@scripts/deps test
	@scripts/fuzz $(FUZZ_SECONDS)

bench: build
	@scripts/deps test
	@build/venv/bin/python bench/run build
	@build/venv/bin/python bench/cells build
	@build/venv/bin/python bench/pools build
	@build/venv/bin/python bench/templates build

# The microVM monitor against this machine's KVM; and, where that is hardware's, microVMs beside namespaces.
# CUBICLE_GUEST_KERNEL: the option guest.kernel, where no kernel for guests is installed.
bench-vm: build
	@build/venv/bin/python bench/vm build

# Debian 12's stock kernel under emulation: cgroup v2 with a power cut, then cgroup v1.
test-distro: build
	@scripts/deps test
	@tests/distro/run build

# MicroVMs in Debian 12's stock kernel under emulation, which emulates AMD SVM for them.
test-vm: build
	@scripts/deps test
	@tests/vm/run build

clean:
	rm -rf build build-test build-asan build-cov build-fuzz cubicle

install: build
	DESTDIR='$(DESTDIR)' $(MESON) install -C build --no-rebuild
