# The commands of this repository. `make` alone lists them.

SHELL := bash
.DEFAULT_GOAL := help

# go.work is the one list of our modules. It leaves out tools/, for the reason stated there, which
# only has to be tidy.
modules = $(shell go list -m -f '{{.Dir}}')

# Alone: with the versions of the module's own go.mod. The workspace raises every version to the
# newest that one of the modules requires.
alone = GOWORK=off

# The oldest Go that users may have: go.mod names it.
oldest = GOTOOLCHAIN=go$(shell sed -n 's/^go //p' go.mod)

# The linter is a Go module like any other, pinned in tools/. One run in the workspace needs half of
# the time of a run in each module.
golangci-lint = $(cache)/golangci-lint

# Files that the tests need and no package manager has.
cache = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/latchkit

# On a machine with little disk, CI gives a folder for what only one step compiles; the step removes it.
scratch =
in-scratch = $(if $(scratch),GOCACHE=$(scratch)/$(1))
forget = $(if $(scratch),rm -rf $(scratch)/$(1))

# The packages whose tests hold the laws on a server.
stores = ./internal/redisstore ./internal/quorum ./internal/scriptless ./locker/polling

# The server of the oldest Redis that users may have.
redis-6.2 = $(cache)/redis-6.2

# The tests stop and restart real servers, and a busy machine can be late for a bound that an idle
# machine keeps. So a failed test runs once more, alone. It must pass then, and the summary
# names it: such a test has a defect, or the product has. A data race, a panic and more than five
# failures are final.
gotestsum = $(cache)/gotestsum
test-go = $(gotestsum) --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=5 \
	--rerun-fails-abort-on-data-race --rerun-fails-run-root-test

.PHONY: help
help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

.PHONY: tools
tools: ## install the servers that the tests start, or say what to install
	@.ci/install-servers

.PHONY: clients
clients: ## install the locks of other languages that the tests run beside latchkit
	@.ci/install-clients $(cache)/clients

.PHONY: gotestsum
gotestsum:
	@$(alone) go build -C tools -o $(gotestsum) gotest.tools/gotestsum

.PHONY: golangci-lint
golangci-lint:
	@$(alone) go build -C tools -o $(golangci-lint) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: test
test: tools clients gotestsum ## run all tests, in all modules, on real servers, with the newest and the oldest versions
	@# Until its end, go test keeps a copy of each package that it compiles, beside the one in the cache. So
	@# on a small disk, one command for each module compiles first. Elsewhere that is slower: tests wait
	@# for time to pass while others compile.
	@set -e; for module in $(if $(scratch),$(modules)); do \
		echo "$$module compiles"; \
		(cd $$module && $(call in-scratch,race) go list -race -test -export ./... >/dev/null); \
	done
	@# The linters run go vet.
	$(call in-scratch,race) $(test-go) --packages work -- -race -vet=off -ldflags="-s -w" -shuffle=on -timeout 20m
	@echo "the laws of all Stores on Redis 6.2, and a former master that serves on"
	@.ci/install-servers redis-6.2 $(redis-6.2)
	PATH="$(redis-6.2):$$PATH" $(call in-scratch,race) $(test-go) --packages "$(stores)" -- -race -vet=off -ldflags="-s -w" -count=1 -run 'ObeysTheLaws|FormerMaster' -skip SetAndAClusterObeys
	@# Checked from sources, because each module would compile its own versions of what it imports.
	@$(alone) go build -C tools -o $(cache)/typecheck ./typecheck
	@printf '%s\n' $(modules) | $(alone) xargs -P 2 -I{} $(cache)/typecheck -tests $$(go env GOOS)/$$(go env GOARCH) {} ./...
	@$(call forget,race)
	@echo "the root once more, without the laws of Stores, with the oldest Go and the oldest dependencies"
	$(alone) $(oldest) $(call in-scratch,oldest) $(test-go) --packages ./... -- -p 4 -vet=off -ldflags="-s -w" -shuffle=on -timeout 20m -skip 'ObeysTheLaws|LawsHold|WhenACallIsLost'
	@$(call forget,oldest)

.PHONY: matrix
matrix: tools clients gotestsum ## run the suites on Valkey, Redis, Redict, PostgreSQL 17 and MySQL, and write the table of docs/operations.md: an hour
	.ci/matrix

# The rounds of make chaos and make soak: for how long.
time = 1h

.PHONY: chaos
chaos: tools ## attack locks of all kinds on all topologies for some minutes, on one server in turn
	.ci/chaos

.PHONY: soak
soak: tools ## the same for an hour on all three servers, and write docs/faults.md; make soak time=8h
	.ci/chaos $(time)
	go test -count=1 -timeout 1h ./internal/quorum -run Membership -v -seeds 500
	go test -count=1 -timeout 1h ./internal/quorum -run WhenACallIsLost -nodes 5 -part -1
	go test -count=1 -timeout 1h ./locker -run InAStorm -storm 5m
	go test -count=1 -timeout 1h ./internal/tests/sqllock -run WithEachLibrary -library-processes 16 -library-increments 1000

.PHONY: mutants
mutants: tools ## break the code in one line at a time, and see a test fail: half an hour
	.ci/mutants

# Each adapter has a target. Fuzzing starts with the corpus, which make test runs as well.
fuzztime = 20s

.PHONY: fuzz
fuzz: ## is each key what the framework reads? 20 s for each adapter; make fuzz fuzztime=10m
	.ci/fuzz $(fuzztime) guided

.PHONY: check
check: format systems lint tidy arch generated vulnerable mutable ## everything else that CI wants to be so

.PHONY: format
format: ## is all code as gofmt writes it?
	@echo "gofmt -l ."
	@unformatted=$$(gofmt -l .); \
	if [[ -n $$unformatted ]]; then echo "gofmt -w these:" $$unformatted >&2; exit 1; fi

# What users import, on the systems on which no test runs: files for other systems than Linux are
# read nowhere else. The tests, and latchctl, need processes of Unix.
.PHONY: systems
systems: ## are the types of the root right on macOS, tests included, and of all for users on macOS and Windows?
	@set -e; $(alone) go build -C tools -o $(cache)/typecheck ./typecheck; \
	users=$$(go list -f '{{if ne .Name "main"}}{{.ImportPath}}{{end}}' work | grep -v /internal/); \
	$(cache)/typecheck -tests darwin/arm64 . ./...; \
	$(cache)/typecheck darwin/arm64 . ./cmd/latchctl $$users; \
	$(cache)/typecheck windows/amd64 . $$users

.PHONY: lint
lint: golangci-lint ## the linters of .golangci.yml, in all modules; go vet is one of them
	$(golangci-lint) run $(addsuffix /...,$(modules))

# -e goes on when a package is missing that only the tests of a dependency need:
# not every proxy has what redsync is tested with. A diff fails all the same.
.PHONY: tidy
tidy: ## does each go.mod name what is used, and nothing else?
	@set -e; for module in $(modules) tools; do \
		echo "go mod tidy -e -diff in $$module"; \
		(cd $$module && $(alone) go mod tidy -e -diff); \
	done

.PHONY: arch
arch: ## who imports what, the public API, the scripts, the documents
	$(alone) go test ./internal/archtest

# The database is on vuln.go.dev, which some networks do not reach. Then nothing is checked, and the
# warning says so. Every other error fails.
.PHONY: vulnerable
vulnerable: ## does a known vulnerability reach our code?
	@set -e; $(alone) go build -C tools -o $(cache)/govulncheck golang.org/x/vuln/cmd/govulncheck; \
	for module in $(modules); do \
		echo "govulncheck in $$module"; \
		if out=$$(cd $$module && $(alone) $(cache)/govulncheck ./... 2>&1); then continue; fi; \
		printf '%s\n' "$$out" >&2; \
		if [[ $$out != *"fetching vulnerabilities"* ]]; then exit 1; fi; \
		echo "WARNING: the database of vulnerabilities cannot be had: nothing was checked" >&2; \
		exit 0; \
	done

.PHONY: generate
generate: tools ## write anew what protoc makes of the .proto files
	.ci/generate

.PHONY: generated
generated: tools ## is that what is committed?
	.ci/generate -check

.PHONY: mutable
mutable: ## do the patches of make mutants still apply?
	.ci/mutants --check

.PHONY: bench
bench: tools ## what locks cost, beside the floor and the peers: some 8 minutes on an idle machine
	go run -C bench . -all
