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

# What make test runs with the race detector: the root module, and what a contributor of any part needs
# beside it.
raced = ./... ./internal/sqltest $(addprefix ./internal/tests/,asynqlock engine runall sqllock)

# And without the race detector: the models, each of which is one goroutine that computes, and the
# sale, as README's command builds it.
plain = $(addprefix ./internal/tests/,queue quorum readers semaphore miniredis) ./examples/flashsale

# What the documents show beside these packages: make test compiles it with its tests, and links nothing.
shown = ./examples/... ./contrib/cronlock $(addprefix ./internal/tests/,dashboards frameworks otellock)

# All other packages of the workspace: a new package is in make test-all until it is named above.
rest = $(filter-out $(shell go list $(raced) $(plain)),$(shell go list work))

# On a machine with little disk, CI gives the command that removes builds. It runs after the last step
# that needs them.
forget = :

# The packages whose tests hold the laws on a server.
stores = ./internal/redisstore ./internal/quorum ./internal/scriptless ./locker/polling

# The server of the oldest Redis that users may have.
redis-6.2 = $(cache)/redis-6.2

# No test is repeated: a test that fails now and then has a defect, or the product has. Tests with
# servers mostly wait, so more packages run at once than there are cores, but for those that start
# programs, browsers and clusters: a server that gets no processor for half a second is one that hangs.
# Therefore compilers and linkers yield to tests. The linters run go vet.
cores = $(shell getconf _NPROCESSORS_ONLN)
at-once = $(shell echo $$((2 * $(cores))))
go-test = go test -p $(at-once) -toolexec "nice -n 19" -vet=off -ldflags="-s -w" -shuffle=on -timeout 15m

say = @printf '\n=== %s: %s\n' "$$(date +%T)"

.PHONY: help
help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 11

.PHONY: tools
tools: ## install the servers that the tests start, or say what to install
	@.ci/install-servers

.PHONY: clients
clients: ## install the locks of other languages that the tests run beside latchkit
	@.ci/install-clients $(cache)/clients

.PHONY: golangci-lint
golangci-lint:
	@$(alone) go build -C tools -o $(golangci-lint) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: test
test: ## laws on real servers, adapters, SQL, killed processes, the sale; it installs what it needs: at most 12 minutes
	@.ci/install-servers redis-server postgres mariadbd cc
	$(go-test) -race $(raced)
	$(go-test) $(plain)
	go run ./examples/flashsale -assert
	go vet $(shown)

.PHONY: test-all
test-all: tools clients others redis-6.2 alone oldest attacked check ## what make test leaves out, and what CI wants beside the tests: some 20 minutes

.PHONY: others
others:
	$(say) "the packages that make test leaves out"
	$(go-test) -p $(cores) -race $(rest)

.PHONY: redis-6.2
redis-6.2:
	$(say) "the laws of all Stores on Redis 6.2, and a former master that serves on"
	.ci/install-servers redis-6.2 $(redis-6.2)
	PATH="$(redis-6.2):$$PATH" $(go-test) -race -count=1 -run 'ObeysTheLaws|FormerMaster' -skip SetAndAClusterObeys $(stores)
	$(forget)

# Checked from sources, because each module would compile its own versions of what it imports.
.PHONY: alone
alone:
	$(say) "the types of each module with the versions of its own go.mod"
	@$(alone) go build -C tools -o $(cache)/typecheck ./typecheck
	@printf '%s\n' $(modules) | $(alone) xargs -P 2 -I{} $(cache)/typecheck -tests $$(go env GOOS)/$$(go env GOARCH) {} ./...

.PHONY: oldest
oldest:
	$(say) "the root, without the laws of Stores, with the oldest Go and the oldest dependencies"
	$(alone) $(oldest) $(go-test) $(if $(laws),,-skip 'ObeysTheLaws|LawsHold|WhenACallIsLost') ./...
	$(forget)

.PHONY: attacked
attacked:
	$(say) "pauses on MySQL, chaos, broken code, foreign requests"
	.ci/matrix --ci
	.ci/chaos
	.ci/mutants --worst
	.ci/fuzz 10s

.PHONY: matrix
matrix: tools clients ## run the suites on Valkey, Redis, Redict, PostgreSQL 17 and MySQL, and write the table of docs/versions.md: an hour
	.ci/matrix

# The rounds of make soak: for how long.
time = 1h

.PHONY: chaos
chaos: tools ## attack locks of all kinds on all topologies for some minutes, on one server in turn
	.ci/chaos

.PHONY: soak
soak: tools ## the same for an hour on all three servers, and write docs/faults.md; make soak time=8h
	.ci/chaos $(time)
	go test -count=1 -timeout 1h ./internal/quorum -run WhenACallIsLost -nodes 5 -part -1
	go test -count=1 -timeout 1h ./locker -run InAStorm -storm 5m
	go test -count=1 -timeout 1h ./internal/tests/sqllock -run WithEachLibrary -library-processes 16 -library-increments 1000

.PHONY: mutants
mutants: tools ## break the code in one line at a time, and see a test fail: an hour
	.ci/mutants

# Each adapter has a target. Fuzzing starts with the corpus, which make test-all runs as well.
fuzztime = 20s

.PHONY: fuzz
fuzz: ## is each key what the framework reads? 20 s for each adapter; make fuzz fuzztime=10m
	.ci/fuzz $(fuzztime) guided

.PHONY: check
check: format systems lint tidy arch api licences generated mutable ## everything else that CI wants to be so

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

.PHONY: api
api: ## do programs that use the stable names of the last tag still compile?
	.ci/api

.PHONY: licences
licences: ## does docs/licences.md say what each module links?
	.ci/licences -check

# The database is on vuln.go.dev, which some networks do not reach. Then nothing is checked, and the
# warning says so. Every other error fails.
.PHONY: vulnerable
vulnerable: ## does a known vulnerability reach our code? CI asks each night, because the answer changes without a commit
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
