# `make` lists what there is. Needs Go 1.25, make and git; `make tools` says
# what is missing.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO ?= go
PREFIX ?= /usr/local
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
# Where CNI runtimes look for plug-ins: /usr/lib/cni on Debian, often /opt/cni/bin.
CNIDIR ?= $(PREFIX)/lib/cni
# Where the programs to install are; those of another directory may be for another machine.
BIN ?= .
export CGO_ENABLED = 0
# Programs and tests have the same object files of packages.
export GOFLAGS += -trimpath
# The architecture of `make cross`.
CROSS ?= arm64

# Without the symbol table and DWARF the binary is a quarter smaller. Stack traces and
# pprof need neither; debuggers and perf do: make build LDFLAGS=
LDFLAGS ?= -s -w

# The version comes from git; a clone that git mistrusts (another owner) or a
# plain copy of the files is built without one.
BUILD = $(GO) build -buildvcs=$(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false) -ldflags='$(LDFLAGS)'

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: tools
tools: ## check for what building needs
	@scripts/tools $(GO)

.PHONY: build
build: tools ## build ./cleat, one static binary, ./cleat-cni and ./cleat-node
	$(BUILD) -o ./ ./cmd/...

.PHONY: bench
bench: build ## measure the usual networks here, in under 3 minutes
	./cleat bench quick

.PHONY: setup
setup: ## install the Debian packages that tests use (as root), or list them
	@scripts/setup

# Lists packages, then failed and skipped tests with their output, then the totals.
GOTESTSUM = $(GO) tool gotestsum --format=pkgname
TEST_ALL = $(GOTESTSUM) --rerun-fails=1 --rerun-fails-max-failures=3
# Packages that are tested one after the other, because they keep all processors busy, depend on time, or
# look for what is left behind on the whole machine. Guests beside the others made tests fail that depend on time.
ALONE = ^cleat/(cli|(bench/wiring|lab/vm|traffic|tunnel|usernet)(/.*)?)$$
# The packages whose tests take longest of the others, which begin first.
LONGEST = ./cmd/cleat-node ./bench/remote ./network/named ./bench/attacher ./network/attach

# Packages that mostly wait two at a time, then the others; without the cache, because results
# depend on the machine. If at most three tests of a part fail, each runs once more, alone.
.PHONY: test
test: build setup ## run all tests, the vm tier too where QEMU is installed
	@status=0; $(TEST_ALL) --packages="$(LONGEST) $$($(GO) list ./... | grep -Ev '$(ALONE)')" -- -count=1 -timeout 20m -p 2 || status=$$?; \
	$(TEST_ALL) --packages="$$($(GO) list ./... | grep -E '$(ALONE)')" -- -count=1 -timeout 20m -p 1 || status=$$?; exit $$status

.PHONY: test-unit
test-unit: tools ## run the quick tests: no root, no packages, no guests
	$(GOTESTSUM) --packages=./... -- -short

# Packages and stories that run programs of administrators. Debian's login gives root alone
# a PATH with /usr/sbin and /sbin.
.PHONY: test-path
test-path: tools ## run tests of other programs (tc, ovs-vsctl, dockerd) with an ordinary user's PATH
	PATH="$$(dirname "$$(command -v $(GO))"):/usr/local/bin:/usr/bin:/bin" $(GOTESTSUM) \
	  --packages='./internal/program ./lab ./link ./netns/find ./bench/container ./compat/pipework' -- -count=1
	PATH="$$(dirname "$$(command -v $(GO))"):/usr/local/bin:/usr/bin:/bin" $(GOTESTSUM) \
	  --packages=./cli -- -count=1 -run 'TestScript/(pipework|graph|mptcp-status)|TestDoctorPath|TestSystemd'

.PHONY: test-vm
test-vm: tools setup ## try every kind of link and the rootless data path under other kernels, in QEMU
	$(GO) test -count=1 -v -timeout 30m ./lab/vm

.PHONY: test-long
test-long: tools ## try the rootless data path and the tunnel at length: over twenty minutes
	CLEAT_FUZZ_FRAMES=10000000 $(GO) test -count=1 -v -timeout 20m ./usernet ./sandbox -run TestRandomGuest
	CLEAT_FUZZ_CALLS=1000000 $(GO) test -count=1 -v -timeout 60m ./sandbox -run TestRandomCalls
	$(GO) test -count=1 -timeout 30m ./usernet/usernettest -run TestCleat -long
	$(GO) test -count=1 -timeout 30m ./tunnel -run TestSimulatedZoo -zoo.cases 300
	CLEAT_REMOTE_EVERY_MOMENT=1 $(GO) test -count=1 -v -timeout 30m ./bench/remote -run TestCutAtEveryMoment
	CLEAT_FUZZ_PACKETS=10000000 $(GO) test -count=1 -v -timeout 20m ./tunnel ./tunnel/endpoint -run 'TestHostileNetwork|TestIntruders'

.PHONY: lint
lint: tools ## check format, vet and staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	  test -z "$$unformatted" || { echo "not formatted (gofmt -w them):"; echo "$$unformatted"; exit 1; } >&2
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

.PHONY: bpf
bpf: tools ## make the BPF objects again; needs clang, llvm and libbpf-dev
	@GO='$(GO)' scripts/bpf

.PHONY: bpf-check
bpf-check: tools ## see that the BPF objects are those of their sources, with the clang of Debian 12
	@GO='$(GO)' scripts/bpf check

.PHONY: vuln
vuln: tools ## look for known vulnerabilities in what the program calls
	@scripts/vuln $(GO)

.PHONY: cross
cross: tools ## build for arm64 in out/arm64
	GOARCH=$(CROSS) $(BUILD) -o out/$(CROSS)/ ./cmd/...

.PHONY: man
man: build ## write the manual pages to out/man
	./cleat man out/man
	./cleat-node man out/man

# The unit of `cleat keep --install`, for the program's place after the installation.
UNIT = env -u CLEAT_STATE_DIR ./cleat keep --print-unit | sed 's|^ExecStart=.* keep|ExecStart=$(PREFIX)/bin/cleat keep|'

.PHONY: install
install: man ## install programs, manual, completions and systemd units under PREFIX (/usr/local)
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin $(BIN)/cleat $(BIN)/cleat-node
	install -D -m 0755 $(BIN)/cleat-cni $(DESTDIR)$(CNIDIR)/cleat-cni
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 0644 out/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/{bash-completion/completions,fish/vendor_completions.d} $(DESTDIR)$(ZSHDIR)
	for program in cleat cleat-node; do \
	  ./$$program completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$program; \
	  ./$$program completion zsh > $(DESTDIR)$(ZSHDIR)/_$$program; \
	  ./$$program completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$program.fish; \
	done
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	$(UNIT) > $(DESTDIR)$(PREFIX)/lib/systemd/system/cleat-keep.service
	./cleat keep --print-socket-unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/cleat-keep.socket
	sed 's|/usr/bin|$(PREFIX)/bin|' packaging/cleat-node.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/cleat-node.service
	install -d $(DESTDIR)$(PREFIX)/share/cleat
	./cleat net cni-conf cleat --create > $(DESTDIR)$(PREFIX)/share/cleat/10-cleat.conflist

.PHONY: uninstall
uninstall: ## remove what install has put under PREFIX
	rm -f $(DESTDIR)$(PREFIX)/bin/cleat{,-node} $(DESTDIR)$(CNIDIR)/cleat-cni $(DESTDIR)$(PREFIX)/share/man/man1/cleat{,-*}.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/cleat{,-node} $(DESTDIR)$(ZSHDIR)/_cleat{,-node}
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/cleat{,-node}.fish
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/system/cleat-{keep.service,keep.socket,node.service}
	rm -rf $(DESTDIR)$(PREFIX)/share/cleat

# Go and Debian have the same names for amd64 and arm64.
DEB_ARCH ?= $(shell $(GO) env GOARCH)
DEB = out/cleat_$(shell scripts/version)-1_$(DEB_ARCH).deb

.PHONY: deb
deb: build ## build the Debian package in out; DEB_ARCH=arm64 for another machine
	@$(MAKE) --no-print-directory cross CROSS=$(DEB_ARCH)
	@packaging/build $(GO) $(DEB_ARCH) $(DEB)

.PHONY: test-deb
test-deb: setup deb ## install, use, remove and purge the Debian package in a new Debian
	CLEAT_DEB=$$PWD/$(DEB) $(GOTESTSUM) --packages='./packaging ./cli' -- -count=1 -p 1 -run 'TestContents|TestInstall|TestSystemdPackage'

.PHONY: test-engines
test-engines: tools setup ## have Podman of a newer Debian put its containers on networks of cleat
	@dir=$$(mktemp -d); trap 'rm -rf --one-file-system "$$dir"' EXIT; \
	  compat/engines/testdata/tree.sh "$$dir/tree" trixie >"$$dir/log" 2>&1 || tail -n 5 "$$dir/log"; \
	  CLEAT_SID=$$dir/tree $(GOTESTSUM) --packages=./compat/engines -- -count=1 -run TestNetworks

.PHONY: clean
clean: ## remove what was built
	rm -rf cleat cleat-cni cleat-node out
