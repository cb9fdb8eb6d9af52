# strandline: what to type. `make help` lists it.

export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test test-full bench lint deps docs need-cargo

help: ## list these
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

need-cargo:
	@build/need-cargo

demo: need-cargo ## build strandline and watch it work on a process of its own
	@cargo build --release
	@cargo run --release --quiet -- demo

test: need-cargo deps ## install what the tests need and run them
	@build/test

test-full: need-cargo deps ## the same with the long tests, and other glibcs in a private folder
	@if [ -x build/fetch-glibcs ]; then build/fetch-glibcs; fi
	@STRANDLINE_TEST_FULL=1 build/test

bench: need-cargo ## measure, as ratios within one run
	@if [ -x benches/run ]; then benches/run; else cargo bench --workspace; fi

lint: need-cargo ## formatting, clippy, the unsafe fence, licences
	@build/lint

deps: ## install what the tests need (apt, as root)
	@build/deps

docs: need-cargo ## manual pages and completions into target/docs
	@mkdir -p target/docs/completions
	@cargo run --release --quiet -- man target/docs/man1
	@for shell in bash zsh fish; do \
		cargo run --release --quiet -- completions $$shell > target/docs/completions/strandline.$$shell; done
	@echo "target/docs: manual pages in man1, completions for bash, zsh and fish"
