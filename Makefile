# `make` lists the targets: those with a ## behind them.

GO ?= go
TOOL := $(GO) tool -modfile=tools/go.mod

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/queued
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/queued ./cmd/queued

.PHONY: run
run: build ## start the daemon on an embedded database in var/, with some jobs; Ctrl-C stops it
	@examples/run.sh

.PHONY: test
test: ## install and start all that the tests need, run them, say what was covered (ARGS="-run X ./job": only these)
	test/run.sh $(ARGS)

.PHONY: lint
lint: ## vet, linters, formatting, go.mod
	$(GO) vet ./...
	$(TOOL) golangci-lint run
	@test -z "$$($(TOOL) gofumpt -l . | tee /dev/stderr)" || { echo 'not formatted: run make fmt'; exit 1; }
	$(GO) mod tidy -diff

.PHONY: fmt
fmt: ## format the Go code
	$(TOOL) golangci-lint fmt

# Files that `make generate` writes.
GENERATED := docs/configuration.md configs/queued.yaml

.PHONY: generate
generate: ## make the generated files again
	$(GO) generate ./...

.PHONY: generated
generated: generate
	git diff --exit-code -- $(GENERATED)

.PHONY: check
check: lint generated test ## all that must hold before a change goes in: lint, generated files current, tests

.PHONY: servers
servers: ## start the database servers of the tests; see test/servers/servers.sh
	test/servers/servers.sh up
	test/servers/servers.sh status

.PHONY: servers-down
servers-down: ## stop them and remove their data
	test/servers/servers.sh down
