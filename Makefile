# Postrider. `make demo` and `make test` do all the set-up that a fresh Debian machine needs.

.DEFAULT_GOAL := help
SHELL := /bin/bash
# Debian keeps servers where ordinary users do not look.
export PATH := $(PATH):/usr/sbin:/sbin

# cargo-nextest runs the tests faster where it is installed; cargo itself does everywhere.
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

.PHONY: help setup demo build test check lint test-only crash crash-replies crash-jobs fuzz bench schema sqlx clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: ## Show the whole thing at work on this machine
	@scripts/setup
	@cargo build --quiet -p postrider-cli
	@target/debug/postrider demo

build: ## Build the server for production
	cargo build --release -p postrider-cli

test: ## Everything that must hold: formatting, lints, checked queries, tests
	@scripts/setup tests
	@$(MAKE) --no-print-directory check test-only

check: ## Formatting, lints, the pages of cargo doc, and the freshness of .sqlx
	@scripts/setup
	cargo fmt --all --check
	scripts/sqlx check cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --workspace

test-only: ## The tests alone
ifeq ($(NEXTEST),yes)
	cargo nextest run --workspace
	cargo test --quiet --workspace --doc
else
	cargo test --workspace
endif

# Set CRASH_SECONDS, CRASH_SEED, CRASH_KILLS, CRASH_ITEMS and CRASH_RATES to choose another run.
crash: ## The long form of the crash proof: kills, stops, database crashes, provider faults, and the auditor
	@scripts/setup tests
	cargo test -p postrider-cli --test it -- --ignored --exact --nocapture campaigns::crash::the_long_run

# Set CRASH_SECONDS and CRASH_SEED to choose another run.
crash-replies: ## The same for chat: kills of those who receive and reply, and outages of a minute with ten thousand replies waiting
	@scripts/setup tests
	cargo test -p postrider-cli --test it -- --ignored --exact --nocapture --test-threads=1 channels::crash::the_long_run channels::outage::ten_thousand_replies_outlive_every_outage_of_a_minute

# Set CRASH_SECONDS and CRASH_SEED to choose another run.
crash-jobs: ## The same for jobs: kills of those who fire schedules and run functions
	@scripts/setup tests
	cargo test -p postrider-cli --test it -- --ignored --exact --nocapture jobs::crash::the_long_run

# Set FUZZ_SECONDS and FUZZ_SEED to choose another run.
fuzz: ## The long form of trying everything that the OpenAPI document says, and does not say
	@scripts/setup tests
	cargo test -p postrider-cli --test it -- --ignored --exact --nocapture api::schemathesis::the_long_run

bench: ## Speed beside the raw SQL limit, on a cluster made for it
	@scripts/setup
	@cargo build --quiet --release -p postrider-cli
	@target/release/postrider bench

sqlx: ## Make .sqlx anew after a query or a file of sql/ has changed
	@scripts/setup
	@scripts/sqlx update

schema: ## Make sql/schema.sql anew after a file of sql/ has changed
	@scripts/setup
	UPDATE_SCHEMA=1 cargo test --quiet -p postrider-cli --test it -- migrations::dump

clean: ## Remove what was built
	cargo clean
