# Shortcuts only: what they do is in the scripts under tests/.

# Where cargo puts the programs, and a server with the module, started by the program that `make run` builds, too.
built := $${CARGO_TARGET_DIR:-target}/release
with_server := RLOCK_TESTSERVER=$(built)/rlock-testserver tests/with-server

.DEFAULT_GOAL := help
.PHONY: bench build chaos command-line compare demonstration docs election fencing fresh fuzz help install lint module package pictures release \
  run sanitize server servers soak test

build: module command-line ## Build target/release/librlock.so and the command line, target/release/rlock

command-line:
	tests/install-needs
	cargo build --release --package rlock-cli

module:
	tests/install-needs
	cargo build --release --lib

# The module, the demonstration, and the program that starts servers: in one go, for all targets that start a server.
demonstration:
	tests/install-needs
	tests/list-servers >/dev/null
	cargo build --release --package rlock --lib --example stock --package rlock-testkit --bins

# It builds nothing, so that root can install what a user has built.
install: ## Install what `make build` has built: PREFIX=/usr/local, DESTDIR=
	deploy/install "$(DESTDIR)" $(PREFIX)

package: ## Debian packages, an archive for other systems, and the clients' packages, in target/dist; ARGS=--all-wheels: Python's for other machines, too
	deploy/make-packages --needs
	$(MAKE) build
	deploy/make-packages
	clients/make-packages $(ARGS) $${CARGO_TARGET_DIR:-target}/dist

release: ## Everything that a release publishes, tried, in target/dist; publishes nothing; ARGS=--rehearse between releases
	deploy/make-release $(ARGS)

run: demonstration ## Build the module and the demonstration, start servers of its own, and run the demonstration on them
	$(with_server) --members 3 sh -c '$(built)/examples/stock --server "$$RLOCK_URL" --members "$$RLOCK_MEMBERS"'
	@printf '  Next: make server (docs/tutorial.md takes it from there), make fencing, make election, make docs\n\n'

server: demonstration ## A server with the module in the foreground, for redis-cli
	@$(with_server)

test: ## Every test, on the system's Redis and on all that `make servers` installed
	tests/run-all

fencing: demonstration ## A holder is stopped past its lease: its late write is refused where fences are checked
	tests/install-needs postgresql python3-venv
	$(with_server) examples/fencing/run

election: demonstration command-line ## One of three workers leads and is killed, and the next one leads; an observer prints each change
	@RLOCK=$(built)/rlock $(with_server) examples/election

chaos: module ## Locks of real servers amid faults for five minutes, in all languages, then what holders saw is checked; ARGS=--seconds=60
	tests/run-clients --prepare chaos
	cargo test --workspace --test chaos -- --world all --seconds 300 \
	  --programs "$$(realpath $${CARGO_TARGET_DIR:-target})/clients/all-contenders" $(ARGS)

bench: module ## The benchmarks, each beside what it is compared with; ARGS=--quick for a glance
	cargo bench --package rlock $(if $(findstring --quick,$(ARGS)),--profile dev) -- $(ARGS)

compare: ## rlock beside other distributed locks, on this machine: target/compare/index.html; ARGS=--quick for 5 minutes once it is built
	benches/peers/run $(ARGS)

docs: ## A site of the documents, with search: target/site/index.html
	docs/make-site

pictures: demonstration command-line ## Draw docs/pictures again: what `rlock top` shows in a real terminal
	tests/install-needs tmux
	RLOCK=$(built)/rlock $(with_server) docs/pictures/draw.py

servers: ## Put Redis 8 and Valkey 8 and 9 into .servers/, for `make test`
	tests/install-servers .servers

fuzz: ## Run each fuzz target briefly (needs a nightly toolchain)
	tests/run-fuzz

sanitize: ## The module's tests with every check: assertions, overflow, and valgrind (takes long)
	tests/run-sanitize

fresh: ## `make run` and `make test` on new Debian machines (as root; takes long)
	tests/fresh

soak: ## What takes too long for each change (as root; about four hours): before a release, and after changes of what it tries
	tests/fresh
	SEED_SECONDS=1800 cargo test --workspace --test simulation
	SEED_SECONDS=600 cargo test --test module audience
	tests/run-fuzz
	tests/run-sanitize
	$(MAKE) release ARGS=--rehearse
	$(MAKE) bench compare ARGS=--quick
	$(MAKE) chaos
	tests/run-all --everywhere
	tests/run-clients kubernetes bytecode celery gocron nestjs spring telemetry
	tests/mutants

lint: ## Words, formatting, clippy, rustdoc and shellcheck, warnings are errors
	tests/run-lint

help: ## This list
	@sed --quiet 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand --tabs=16
