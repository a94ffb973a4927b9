# Postrider. `make demo` and `make test` install everything that a fresh Debian machine needs.

.DEFAULT_GOAL := help
SHELL := /bin/bash
# Debian installs server programs in directories that are not on an ordinary user's PATH.
export PATH := $(PATH):/usr/sbin:/sbin

# cargo-nextest runs the tests faster. Without it, `cargo test` runs them.
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

# The files of the dashboard are part of the program. With the hash of its page cargo compiles them again if and only if they changed.
CARGO = env $$(scripts/dashboard env) cargo
# Tests that measure by the clock or keep every core busy. `cargo test` runs them one at a time; nextest has their weights in .config/nextest.toml.
ALONE := events::crash:: campaigns::crash:: campaigns::limits::rate:: campaigns::resolver::late_effects:: channels::crash:: channels::outage:: jobs::crash:: tenancy::restored::

.PHONY: help setup demo build dashboard dashboard-test screens test check lint test-only crash crash-replies crash-jobs fuzz bench mirror schema sqlx clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: ## Run a campaign of three phases on this machine, and kill a worker in the middle
	@scripts/setup
	@scripts/dashboard try
	@$(CARGO) build --quiet -p postrider-cli
	@target/debug/postrider demo

build: dashboard ## Build the release binary, with the dashboard
	$(CARGO) build --release -p postrider-cli

dashboard: ## Build the files of the dashboard, for the next cargo build
	@scripts/dashboard

test: ## Check formatting, lints and prepared queries, and run every test
	@scripts/setup tests
	@scripts/dashboard
	@$(MAKE) --no-print-directory check test-only dashboard-test

check: ## Check formatting, lints, the pages of cargo doc and the prepared queries in .sqlx
	@scripts/setup
	cargo fmt --all --check
	scripts/sqlx check $(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace

test-only: ## Run the tests alone
ifeq ($(NEXTEST),yes)
	$(CARGO) nextest run --workspace
	$(CARGO) test --quiet --workspace --doc
else
	$(CARGO) test --workspace -- $(addprefix --skip=,$(ALONE))
	$(CARGO) test -p postrider-cli --test it -- --test-threads=1 $(ALONE)
endif

# Node may be in target/node, where scripts/setup puts it if the system's is too old.
IN_DASHBOARD = . scripts/lib.sh && use_node && cd dashboard && DASHBOARD_TEST_BINARY=$(CURDIR)/target/debug/postrider

dashboard-test: dashboard ## Check the dashboard, and run its tests in a browser against the program
	@$(CARGO) build --quiet -p postrider-cli
	$(IN_DASHBOARD) npm run --silent check
	$(IN_DASHBOARD) npm test --silent
	$(IN_DASHBOARD) npm run --silent e2e

screens: dashboard ## Write a page with every screen of the dashboard
	@scripts/setup tests
	@$(CARGO) build --quiet -p postrider-cli
	$(IN_DASHBOARD) npm run --silent screens

# Set CRASH_SECONDS, CRASH_SEED, CRASH_KILLS, CRASH_ITEMS and CRASH_RATES to choose another run.
crash: ## Run the long crash proof of campaigns: kills, stops, database crashes and provider faults, checked by the auditor
	@scripts/setup tests
	$(CARGO) test -p postrider-cli --test it -- --ignored --exact --nocapture campaigns::crash::the_long_run

# Set CRASH_SECONDS, CRASH_SEED, CRASH_KILLS and CRASH_RATES to choose another run.
crash-replies: ## Run the long crash proof of chat: kills of receiving and sending processes, and one-minute outages with ten thousand waiting replies
	@scripts/setup tests
	$(CARGO) test -p postrider-cli --test it -- --ignored --exact --nocapture --test-threads=1 channels::crash::the_long_run channels::outage::ten_thousand_replies_outlive_every_outage_of_a_minute

# Set CRASH_SECONDS, CRASH_SEED, CRASH_KILLS and CRASH_RATES to choose another run.
crash-jobs: ## Run the long crash proof of jobs: kills of processes that fire schedules and run functions
	@scripts/setup tests
	$(CARGO) test -p postrider-cli --test it -- --ignored --exact --nocapture jobs::crash::the_long_run

# Set FUZZ_SECONDS and FUZZ_SEED to choose another run.
fuzz: ## Send generated requests, valid and invalid, to every route of the OpenAPI document for longer
	@scripts/setup tests
	$(CARGO) test -p postrider-cli --test it -- --ignored --exact --nocapture api::schemathesis::the_long_run

bench: ## Compare the speed with raw SQL, on a temporary cluster
	@scripts/setup
	@$(CARGO) build --quiet --release -p postrider-cli
	@target/release/postrider bench

sqlx: ## Write .sqlx again, after a change of a query or of sql/
	@scripts/setup
	@scripts/sqlx update

mirror: ## Write the dashboard's copies of the state machines and of the OpenAPI document again
	UPDATE_DASHBOARD=1 cargo test --quiet -p postrider-cli --test it -- project::mirror

schema: ## Write sql/schema.sql again, after a change of sql/
	@scripts/setup
	UPDATE_SCHEMA=1 $(CARGO) test --quiet -p postrider-cli --test it -- postgres::migrations::dump

clean: ## Remove all build results
	cargo clean
