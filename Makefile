# Shortcuts only: what they do is in the scripts under tests/.

.DEFAULT_GOAL := help
.PHONY: bench build fuzz help lint run server servers test

build: ## Build target/release/librlock.so and the command line, target/release/rlock
	tests/install-needs
	cargo build --release --lib
	cargo build --release --package rlock-cli

run: ## Build all, start a server of its own and run the demonstration on it
	tests/install-needs
	cargo build --release --lib --example stock
	tests/with-server sh -c 'cargo run --release --quiet --example stock -- --server "$$RLOCK_URL"'

server: build ## A server with the module in the foreground, for redis-cli
	tests/with-server

test: ## Every test, on the system's Redis and on all that `make servers` installed
	tests/run-all

bench: build ## The benchmarks, each beside what it is compared with
	cargo bench --package rlock

servers: ## Put Redis 8 and Valkey 8 and 9 into .servers/, for `make test`
	tests/install-servers .servers

fuzz: ## Run each fuzz target briefly (needs a nightly toolchain)
	tests/run-fuzz

lint: ## Formatting, clippy, rustdoc and shellcheck, warnings are errors
	tests/run-lint

help: ## This list
	@sed --quiet 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand --tabs=16
