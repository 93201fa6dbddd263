# Everything that a developer runs, one word each. Tools that the project needs
# for itself go into .bin, which git ignores.

.DEFAULT_GOAL := help
SHELL := /bin/sh

BIN := $(CURDIR)/.bin
GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(BIN)/golangci-lint-$(GOLANGCI_VERSION)
ROLES := producer consumer reconciler

# How long each fuzz target runs, and the longest that the tests of one package
# may take before go test gives up and prints where every goroutine stands.
FUZZTIME ?= 10s
TIMEOUT ?= 8m

# Packages tested at once: one more than there are cores, because a test of servers waits a third of its time.
PACKAGES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: help
help: ## List these targets.
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: setup ## Play a sale on a private stack and audit it; ORDERS=file SHARDS=n KEEP=folder ARGS='more flags'.
	@go run ./deploy/demo $(if $(ORDERS),--orders '$(ORDERS)') $(if $(SHARDS),--shards '$(SHARDS)') $(if $(KEEP),--keep '$(KEEP)') $(ARGS)

.PHONY: test
test: setup ## Run every test on private servers; ARGS='-run TestName -v' narrows it.
	@sh deploy/local/setup.sh pgbouncer || echo "setup: the tests behind a pooler are skipped"
	go test -p $(PACKAGES) -timeout $(TIMEOUT) $(ARGS) ./...

# Run inside its folder, because only there go test passes the table on while it grows.
.PHONY: test-e2e
test-e2e: setup ## Keep the promises at their full size, over real processes; prints a table. ARGS='-run TestName'.
	@cd deploy/suites/e2e && STOCKPIPE_SUITE=full go test -count=1 -timeout 40m $(ARGS)

# In lives of orders; a run takes about ORDERS/4000 seconds, and at most three times that and two minutes.
.PHONY: test-retention
test-retention: setup ## Let ORDERS (1000000) orders come and end with a short retention: memory of Redis flat, audits clean, then prune.
	@cd deploy/suites/e2e && STOCKPIPE_SUITE=full STOCKPIPE_ORDERS='$(or $(ORDERS),1000000)' go test -count=1 -timeout 60m $(ARGS) -run '^TestMemoryOfRedisIsFlat'

TIMES ?= 1

.PHONY: test-faults
test-faults: setup ## Let every part die, lie, pause and come back while it sells, each row TIMES (1) times; prints a table. ARGS='-run TestName'.
	@cd deploy/suites/faults && STOCKPIPE_SUITE=full go test -count=$(TIMES) -timeout 4h $(ARGS)

.PHONY: test-image
test-image: ## Build the image's programs as the Dockerfile does, from what .dockerignore lets through.
	STOCKPIPE_SUITE=full go test -count=1 ./deploy/compose

SOAK ?= 20m

.PHONY: soak
soak: setup ## Sell for SOAK (20m) with a random fault every 20-60 s; SEED=n plays one again.
	@cd deploy/suites/faults && STOCKPIPE_SUITE=full STOCKPIPE_SOAK='$(SOAK)' $(if $(SEED),STOCKPIPE_SEED='$(SEED)') go test -count=1 -timeout 25h -v -run '^TestSoak$$'

CHECKS ?= 2000

.PHONY: test-model
test-model: setup ## Compare model, Redis, log and Postgres over CHECKS (2000) random histories, on 1 shard and on 4.
	go test -count=1 -timeout 4h -run 'PostgresAgree|Mutant' ./deploy/suites/protocol -v -rapid.checks=$(CHECKS) $(ARGS)

.PHONY: race
race: setup ## Run the tests of the libraries under the race detector.
	@sh deploy/local/setup.sh cc
	CGO_ENABLED=1 go test -race -timeout $(TIMEOUT) $(ARGS) ./pkg/...

.PHONY: lint
lint: $(GOLANGCI) ## Run the linters of .golangci.yml.
	$(GOLANGCI) run ./...

.PHONY: bench
bench: setup ## Measure the hot paths against their references; ARGS='more flags'.
	go run ./deploy/suites/bench $(ARGS)

.PHONY: mutants
mutants: setup ## Break the product line by line and see a test notice each; ARGS='-run ledger -p 4' or -list.
	@go run ./deploy/suites/mutants $(ARGS)

.PHONY: fuzz
fuzz: setup ## Run every fuzz target for FUZZTIME (10s) each.
	@found=0; \
	for file in $$(find . -name '*_test.go' ! -path '*/testdata/*' ! -path './.bin/*' | sort); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file"); do \
			found=$$((found + 1)); \
			echo "== fuzz $$target in $$(dirname "$$file"), $(FUZZTIME)"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime '$(FUZZTIME)' "$$(dirname "$$file")" || exit 1; \
		done; \
	done; \
	echo "fuzz: $$found targets, nothing found"

.PHONY: build
build: ## Build the three roles into .bin.
	@mkdir -p $(BIN)
	@for role in $(ROLES); do \
		if [ -f "$$role/main.go" ]; then go build -o "$(BIN)/stockpipe-$$role" "./$$role" || exit 1; echo ".bin/stockpipe-$$role"; fi; \
	done

.PHONY: setup
setup: ## Install redis-server and Postgres where they are missing, or name the package.
	@sh deploy/local/setup.sh redis postgres

# The linter is built by the same Go that checks the code; the version stands in
# the file name, so that a new one is fetched when it changes here.
$(GOLANGCI):
	@mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(BIN)/golangci-lint $@
