# strandline: what to type. `make help` lists it.

export PATH := $(HOME)/.cargo/bin:$(PATH)

# Other versions of what is read, each fetched by its scripts/fetch-NAME into .cache/NAME.
FETCHED := glibcs perls sbcls gos nodes musls jdks polars google-tcmallocs valgrind-tests

.DEFAULT_GOAL := help
.PHONY: help demo test test-full test-kernels fuzz bench studies lint deps docs dist need-cargo

help: ## list these
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

need-cargo:
	@scripts/need-cargo

demo: need-cargo ## build strandline and watch it work on a process of its own
	@cargo build --release
	@cargo run --release --quiet -- demo

test: need-cargo ## install what the tests need and run them (ten minutes from nothing; SKIP_INSTALL=1 installs nothing)
	@scripts/test

test-full: need-cargo ## the same with the long tests, and other glibcs, perls, SBCLs, Gos, JDKs, allocators in private folders
	@scripts/deps --full
	@case "$${SKIP_INSTALL:-0}" in 0 | no) ;; *) echo "test-full: fetches nothing (SKIP_INSTALL)"; exit 0 ;; esac; \
		for name in $(FETCHED); do scripts/fetch-$$name .cache/$$name || true; done
	@STRANDLINE_GLIBCS=$(CURDIR)/.cache/glibcs STRANDLINE_PERLS=$(CURDIR)/.cache/perls \
		STRANDLINE_SBCLS=$(CURDIR)/.cache/sbcls STRANDLINE_GOS=$(CURDIR)/.cache/gos STRANDLINE_NODES=$(CURDIR)/.cache/nodes \
		STRANDLINE_MUSLS=$(CURDIR)/.cache/musls STRANDLINE_JDKS=$(CURDIR)/.cache/jdks \
		STRANDLINE_VALGRIND_TESTS=$(CURDIR)/.cache/valgrind-tests STRANDLINE_POLARS=$(CURDIR)/.cache/polars/bin/python3 \
		STRANDLINE_GOOGLE_TCMALLOCS=$(CURDIR)/.cache/google-tcmallocs scripts/test --full

test-kernels: need-cargo ## the same on other kernels and settings, in virtual machines (docs/kernels.md): most of an hour
	@kernels/run

fuzz: need-cargo ## run a reader's fuzz target: make fuzz TARGET=walker SECONDS=600 (TARGET=all: each of them)
	@scripts/fuzz "$(TARGET)" "$(or $(SECONDS),60)"

bench: need-cargo ## measure, as ratios within one run; writes benches/RESULTS.md
	@benches/run.sh

studies: need-cargo deps ## run the studies in full (an hour); writes studies/RESULTS.md and their READMEs
	@scripts/studies

lint: need-cargo ## formatting, clippy, the unsafe fence, links, manifests, licences
	@scripts/lint

deps: ## install what the tests and studies need (apt-get, as root); prints the list and its size first
	@scripts/deps --full

dist: need-cargo ## tarballs for glibc 2.28 and static, a .deb, a wheel, an image, into target/dist; each is tried (ten minutes; zig and maturin from PyPI)
	@scripts/dist

docs: need-cargo ## manual pages and completions into target/docs
	@mkdir -p target/docs/completions
	@cargo run --release --quiet -- man target/docs/man1
	@for shell in bash zsh fish; do \
		cargo run --release --quiet -- completions $$shell > target/docs/completions/strandline.$$shell; done
	@echo "target/docs: manual pages in man1, completions for bash, zsh and fish"
