# edge-deploy: build, serve, test.
#
#   make auto                      build, fetch the default model, plan, serve
#   make auto ARGS="-m FILE"       the same with flags of `edge-deploy auto`
#   make test                      everything CI runs

BINARY = $${CARGO_TARGET_DIR:-target}/release/edge-deploy

.DEFAULT_GOAL := help
.PHONY: auto build test bench clean help

help: ## show what there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile

auto: build ## set up, build, fetch the default model, plan and serve; flags in ARGS
	@. target/setup.env; exec "$(BINARY)" auto $(ARGS)

build: ## set up and build the release binary
	@scripts/setup.sh serve
	@. target/setup.env; cargo build --release --locked $$FEATURES

test: ## formats, lints, documentation, tests, generated files
	@scripts/setup.sh test
	@scripts/test.sh

bench: ## measure this build on this machine
	@scripts/setup.sh serve
	@. target/setup.env; cargo bench --locked $$FEATURES

clean: ## remove what was built
	@rm -rf target
