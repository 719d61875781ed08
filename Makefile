# agentguard: build, check, test, install. `make help` lists the targets.
# Tools are pinned in .ci/tools.mod, apart from the program's own dependencies; Debian
# packages that a target needs are installed by .ci/deps.sh when it runs as root.
SHELL := /bin/bash
.DEFAULT_GOAL := build

BIN     ?= bin
PREFIX  ?= /usr/local
DESTDIR ?=
SYSCONFDIR ?= /etc
UNITS  := $(notdir $(wildcard packaging/systemd/*))
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

GO     ?= go
TOOL   := $(GO) tool -modfile=$(CURDIR)/.ci/tools.mod
LDFLAGS = -s -w -X main.version=$(VERSION)
CASES  ?= ../shared/cases
# A directory whose name begins with a dot is not in "./...".
PKGS   := ./... ./.ci/vm/vminit ./.ci/apidoc

# The compiler of everything that is committed as machine code.
export CLANG ?= clang-19
export LLD   ?= ld.lld-19
# Static, and the same from any C library. `make race` alone needs cgo.
export CGO_ENABLED ?= 0
# The toolchain is the one that is installed: nothing is fetched behind a build's back. Except
# for what speaks HTTP and TLS with strangers: its library must have the newest fixes, so it is
# built with this release of Go, which comes from the module proxy (HTTP_TOOLCHAIN=local: the installed one).
export GOTOOLCHAIN ?= local
# Everything as it is released, so that builds, checks and tests share what is compiled.
export GOFLAGS += -trimpath
export HTTP_TOOLCHAIN ?= go1.27.3

# Kernel state (cgroups, pins) is no part of Go's test cache, and two packages' leak checks
# would see each other's runs: no cache, one package at a time.
TESTFLAGS  ?=
GOTEST      = $(GO) test -count=1 -p 1 -timeout 20m $(TESTFLAGS)
FUZZCOUNT  ?= 20000

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- build

# Copied, as an installation does: the linker writes page by page, and where the page cache
# holds a program in single pages, each start pays a millisecond for mapping them (Linux 6.18, ext4).
.PHONY: build
build: ## build bin/agentguard and bin/agentguard-http (static; GOARCH=arm64 for arm64)
	$(GO) build -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN)/.linked ./cmd/agentguard
	install -m 755 $(BIN)/.linked $(BIN)/agentguard
	GOTOOLCHAIN=$(HTTP_TOOLCHAIN) $(GO) build -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN)/.linked ./cmd/agentguard-http
	install -m 755 $(BIN)/.linked $(BIN)/agentguard-http
	rm $(BIN)/.linked

# Written by the program itself, so it runs on this machine whatever GOARCH says.
.PHONY: share
share: ## manual pages and shell completions, in bin/share
	rm -rf $(BIN)/share
	mkdir -p $(BIN)/share/man/man1 $(BIN)/share/bash-completion/completions $(BIN)/share/zsh/site-functions $(BIN)/share/fish/vendor_completions.d
	env -u GOARCH $(GO) build -tags agentguard_docs -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN)/share/.docs ./cmd/agentguard
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)} $(BIN)/share/.docs man $(BIN)/share/man/man1
	$(BIN)/share/.docs completion bash >$(BIN)/share/bash-completion/completions/agentguard
	$(BIN)/share/.docs completion zsh >$(BIN)/share/zsh/site-functions/_agentguard
	$(BIN)/share/.docs completion fish >$(BIN)/share/fish/vendor_completions.d/agentguard.fish
	rm $(BIN)/share/.docs
	mkdir -p $(BIN)/share/doc/agentguard
	cp -r README.md CHANGELOG.md SECURITY.md ARCHITECTURE.md LICENSE LICENSES NOTICE docs $(BIN)/share/doc/agentguard/
	.ci/licenses.sh $(BIN)/share/doc/agentguard/third_party

.PHONY: generate
generate: ## make BPF objects, init programs and tables again (clang-19)
	@.ci/deps.sh generate
	supervisor/init/c/build.sh
	$(GO) generate ./...

.PHONY: demo
demo: ## build, install to bin/, and run testdata/project's test suite in the sandbox
	@.ci/deps.sh demo
	@$(MAKE) --no-print-directory build
	$(BIN)/agentguard exec -w testdata/project -- make test

# ---- check

.PHONY: check
check: check-vet check-fmt check-staticcheck check-apidoc check-deadcode check-methods check-vuln check-generated check-licenses check-scripts check-tree check-portable ## every check that runs nothing of ours

.PHONY: check-vet
check-vet:
	$(GO) vet $(PKGS)
	$(GO) vet -tags agentguard_seam ./...
	$(GO) vet -tags agentguard_docs ./cmd/agentguard
	GOARCH=arm64 $(GO) vet ./...

.PHONY: check-fmt
check-fmt:
	@bad=$$($(TOOL) gofumpt -l . .ci testdata/project) && { [ -z "$$bad" ] || { echo "not gofumpt-ed (make fmt): $$bad"; exit 1; }; }

.PHONY: fmt
fmt: ## format the Go files
	$(TOOL) gofumpt -l -w . .ci testdata/project

.PHONY: check-staticcheck
check-staticcheck:
	$(TOOL) staticcheck -checks inherit,ST1000,ST1020,ST1021,ST1022 $(PKGS)

# What is not internal is read by go doc.
.PHONY: check-apidoc
check-apidoc:
	$(GO) run ./.ci/apidoc policy trace trace/query trace/seal trace/export landlock bpf supervisor supervisor/init

# From the commands only: what nothing but a test reaches is dead too.
.PHONY: check-deadcode
check-deadcode:
	@out=$$($(TOOL) deadcode ./cmd/... ./bench/... ./.ci/vm/vminit) && { [ -z "$$out" ] || { echo "$$out"; exit 1; }; }

# What finds methods by name (text/template does) makes the linker keep every method of every
# type: a tenth more program, of which each launch pays its share.
.PHONY: check-methods
check-methods:
	@out=$$($(GO) build -ldflags=-dumpdep -o $(BIN)/.methods ./cmd/agentguard 2>&1 | grep -m1 '<ReflectMethod>'); rm -f $(BIN)/.methods; \
		[ -z "$$out" ] || { echo "methods are looked up by name: $$out"; exit 1; }
	@out=$$($(GO) list -deps ./cmd/agentguard | grep -xE 'net/http|crypto/tls|github.com/google/jsonschema-go/.*'); \
		[ -z "$$out" ] || { echo "belongs to agentguard-http (decision 0026), not to agentguard: $$out"; exit 1; }

# Each program with the toolchain that it is built with.
HTTP_PKGS := ./cmd/agentguard-http ./internal/dispatch ./internal/gateway
.PHONY: check-vuln
check-vuln:
	db=$$(.ci/vulndb.sh) && $(TOOL) govulncheck -db "$$db" $$($(GO) list ./... | grep -vxF "$$($(GO) list $(HTTP_PKGS))") && \
		GOTOOLCHAIN=$(HTTP_TOOLCHAIN) $(TOOL) govulncheck -db "$$db" $(HTTP_PKGS)

.PHONY: check-generated
check-generated:
	.ci/generated.sh

.PHONY: check-licenses
check-licenses:
	.ci/licenses.sh

.PHONY: check-scripts
check-scripts:
	@.ci/deps.sh check
	git ls-files -z '*.sh' .ci/run packaging/deb/p\* docs/examples/agentguard-shell | xargs -0 -r shellcheck -S warning

.PHONY: check-tree
check-tree:
	.ci/tree.sh

# A record is read and verified on any machine; elsewhere than on Linux the program does just that.
.PHONY: check-portable
check-portable:
	GOARCH=arm64 $(GO) build ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet ./trace/... ./policy/...
	GOOS=windows $(GO) vet ./trace/... ./policy/...
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/agentguard
	GOOS=windows $(GO) build -o /dev/null ./cmd/agentguard

# ---- test

# What the tests' runs kept on the host for the next one is nothing that tests should leave. It stays where a run is live.
SWEEP = [ ! -x bin/agentguard ] || [ $$(id -u) != 0 ] || bin/agentguard runs sweep || :

.PHONY: test
test: ## all tests; as root, else what needs root is skipped and named
	@.ci/deps.sh test
	@[ $$(id -u) = 0 ] || echo 'make test: not root: tests of the sandbox itself will be skipped' >&2
	@$(MAKE) --no-print-directory build
	$(GOTEST) $(PKGS); status=$$?; $(SWEEP); exit $$status

# Not those of cmd/agentguard: they start the program, which is built without cgo and so without
# the detector (decision 0018's process gives up its capabilities in every thread, and Go must know them
# all); what it does beside itself is in supervisor and internal, whose tests do it in their own process.
# A program with the detector waits for a second as it exits: tests start hundreds.
.PHONY: race
race: ## the tests of all packages but the commands, under the race detector (needs gcc)
	@.ci/deps.sh race
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 $(GO) test -race -short -vet=off -count=1 -p 1 -timeout 20m $(TESTFLAGS) $$($(GO) list $(PKGS) | grep -v '/cmd/agentguard$$'); status=$$?; $(SWEEP); exit $$status

.PHONY: fuzz-smoke
fuzz-smoke: ## each fuzz target with FUZZCOUNT inputs
	.ci/fuzz.sh $(FUZZCOUNT)

.PHONY: test-vm
test-vm: ## a smoke test on other kernels, under qemu
	@.ci/deps.sh test
	.ci/vm/test-vm.sh

.PHONY: cases
cases: build ## the confinement cases in CASES, where they are to be had, in MODES (docs/cases.md)
	@.ci/deps.sh cases
	AG_CASES_SLOW=$${AG_CASES_SLOW:-4} .ci/cases.sh $(CASES) $(MODES)

.PHONY: cases-vm
cases-vm: ## all of them on other kernels, under qemu: ten to twenty minutes a kernel and mode
	@.ci/deps.sh cases
	.ci/vm/cases.sh $(CASES) $(KERNELS)

.PHONY: compat
compat: build ## everyday tools in every mode of the workspace; writes docs/compat.md
	.ci/compat.sh $(ROWS)

.PHONY: bench
bench: bench-launch ## launch time, workspaces, allowlists and records, beside native and others, interleaved
	@$(MAKE) --no-print-directory bench-workspace BENCHFLAGS=
	@$(MAKE) --no-print-directory bench-relay BENCHFLAGS='-rounds 20 -megabytes 64 -requests 1000 -idle 2000'
	@$(MAKE) --no-print-directory bench-record BENCHFLAGS=

.PHONY: bench-launch
bench-launch: build ## what a launch costs, in process and through the helper, beside native and bubblewrap, interleaved
	@.ci/deps.sh bench
	$(GO) build -o $(BIN)/launch ./bench/launch
	$(BIN)/launch -agentguard $(BIN)/agentguard -user 61234 $(BENCHFLAGS)

.PHONY: bench-workspace
bench-workspace: build ## what a copy-on-write workspace costs; BENCHFLAGS=-whole for trees of 500 000 files
	$(GO) build -o $(BIN)/workspace ./bench/workspace
	$(BIN)/workspace -agentguard $(BIN)/agentguard $(BENCHFLAGS)

.PHONY: bench-relay
bench-relay: build ## what an allowlist costs a connection, beside loopback and SOCKS5, interleaved
	$(GO) build -o $(BIN)/relay ./bench/relay
	$(BIN)/relay -agentguard $(BIN)/agentguard $(BENCHFLAGS)

.PHONY: bench-record
bench-record: build ## what it costs to be observed, beside strace and bpftrace, and to ask 10 000 records
	@.ci/deps.sh bench-record
	$(GO) build -o $(BIN)/record ./bench/record
	$(BIN)/record -agentguard $(BIN)/agentguard $(BENCHFLAGS)
	$(GO) test -run '^$$' -bench '^Benchmark(Decode|Record|Append|Builder|Read)$$' -benchtime 0.2s -benchmem ./bpf ./supervisor ./trace ./trace/seal

# ---- install

# Examples go to SYSCONFDIR under names that nothing reads; what the administrator made of
# them is left alone by both.
.PHONY: install
install: ## install to DESTDIR/PREFIX (what `make build share` made: root needs no Go)
	@[ -x $(BIN)/agentguard ] && [ -x $(BIN)/agentguard-http ] || $(MAKE) --no-print-directory build
	@[ -d $(BIN)/share ] || $(MAKE) --no-print-directory share
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BIN)/agentguard $(BIN)/agentguard-http
	cd $(BIN)/share && find . -type f ! -perm -100 -exec install -D -m 644 {} $(DESTDIR)$(PREFIX)/share/{} \;
	cd $(BIN)/share && find . -type f -perm -100 -exec install -D -m 755 {} $(DESTDIR)$(PREFIX)/share/{} \;
	install -D -m 644 packaging/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/agentguard.conf
	install -D -m 644 packaging/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/agentguard.conf
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for u in $(UNITS); do sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/systemd/$$u >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$u && chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$$u || exit 1; done
	install -D -m 644 -t $(DESTDIR)$(SYSCONFDIR)/agentguard packaging/etc/*.example

.PHONY: uninstall
uninstall: ## remove what install put there, and what runs keep on the host between them
	[ -n "$(DESTDIR)" ] || [ ! -x $(PREFIX)/bin/agentguard ] || $(PREFIX)/bin/agentguard runs sweep
	rm -f $(DESTDIR)$(PREFIX)/bin/agentguard{,-http} $(DESTDIR)$(PREFIX)/share/man/man1/agentguard{,-*}.1
	rm -f $(DESTDIR)$(PREFIX)/share/{bash-completion/completions/agentguard,zsh/site-functions/_agentguard,fish/vendor_completions.d/agentguard.fish}
	rm -f $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/agentguard.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/agentguard.conf $(addprefix $(DESTDIR)$(PREFIX)/lib/systemd/system/,$(UNITS))
	rm -f $(addprefix $(DESTDIR)$(SYSCONFDIR)/agentguard/,$(notdir $(wildcard packaging/etc/*.example)))
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/agentguard
	-rmdir --ignore-fail-on-non-empty $(DESTDIR)$(SYSCONFDIR)/agentguard

.PHONY: check-install
check-install: ## install, compare with the manifest, uninstall; in a directory of its own
	.ci/install.sh

.PHONY: dist
dist: ## tarballs, .debs and lists of contents for amd64 and arm64, and checksums, in dist/
	.ci/dist.sh $(VERSION)

.PHONY: check-dist
check-dist: ## make dist twice: the same bytes, and packages that install
	.ci/distcheck.sh $(VERSION)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist .cache testdata/project/build
