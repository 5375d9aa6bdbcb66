#!/usr/bin/env bash
# Everything that has to pass, in the order of what fails fastest. Without hwloc's headers the half with default
# features is left out, and said so.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=/dev/null
. target/setup.env

# Where setup.sh put the OpenAI client.
target=${CARGO_TARGET_DIR:-target}
[ "${target#/}" != "$target" ] || target=$PWD/$target
export EDGE_DEPLOY_TEST_PYTHON=${EDGE_DEPLOY_TEST_PYTHON:-$target/pyvenv/bin/python}

begin=$SECONDS
step() { printf '\n== %s  (%d s since the start)\n' "$*" "$((SECONDS - begin))"; }

# Each entry: the flags of one way to build.
ways=("--no-default-features")
if [ -z "$FEATURES" ]; then
    ways=("" "--no-default-features")
else
    echo "hwloc is not here: checks with default features are left out"
fi

# New versions of Rust bring new lints; the project is held to those of the version it names.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
here=$(cargo --version | awk '{print $2}')
deny=(-D warnings)
if [ "${here%.*}" != "$wanted" ]; then
    echo "this is Rust $here; lints are enforced with $wanted and only shown here"
    deny=()
fi

step "format"
cargo fmt --check

for way in "${ways[@]}"; do
    step "lints ${way:-with default features}"
    # shellcheck disable=SC2086  # flags
    cargo clippy --quiet --locked --all-targets $way -- "${deny[@]}"
done

step "documentation"
# shellcheck disable=SC2086
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps --lib $FEATURES

step "models that the tests of real models use"
for model in default gemma-3-270m; do
    # shellcheck disable=SC2086
    cargo run --quiet --locked $FEATURES -- pull "$model" ||
        echo "SKIPPED: $model could not be fetched; tests of it will say so"
done

for way in "${ways[@]}"; do
    step "tests ${way:-with default features}"
    # shellcheck disable=SC2086
    cargo test --quiet --locked $way
done

step "generated files"
cargo run --quiet --locked --no-default-features -- generate --check

step "all passed"
