# The project's commands. `make demo` and `make test` are the contract; see README.md.

CARGO ?= cargo
BIN := target/release

# `make demo` settings: TRACE=FILE replays a real Mooncake trace instead of a generated one.
export TRACE HEAD WORKERS SPEEDUP CONCURRENCY OUT BIN

.PHONY: build test lint bench demo clean

build:
	$(CARGO) build --release --bins

test:
	$(CARGO) test --all-targets

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps

bench:
	$(CARGO) bench

demo: build
	@scripts/demo

clean:
	$(CARGO) clean
	rm -rf results/demo
