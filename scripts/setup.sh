#!/usr/bin/env bash
# Gets a machine ready to build edge-deploy, and says plainly what it does or what is missing.
#
#   scripts/setup.sh serve    what `make auto` needs
#   scripts/setup.sh test     that, and a Python environment with the OpenAI client for the server's tests
#
# On Debian and its kin as root, missing system packages are installed; otherwise the exact command is printed.
# Rust comes from rustup where cargo is absent or older than the project needs, in the version whose lints the
# project is held to. The result, `target/setup.env`,
# is read by the Makefile: PATH with cargo, and FEATURES (without hwloc where only its headers are missing).
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-serve}
target=${CARGO_TARGET_DIR:-target}
need_rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
features=

say() { printf 'setup: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }

# True when version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Whether pip's configuration names an index of its own.
pip_index_configured() {
    [ -n "${PIP_INDEX_URL:-}" ] && return 0
    local file
    for file in "${PIP_CONFIG_FILE:-}" /etc/pip.conf /etc/xdg/pip/pip.conf \
        "${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/pip/pip.conf" "${HOME:-/root}/.pip/pip.conf"; do
        if [ -f "$file" ] && grep -Eq '^[[:space:]]*index[-_]url[[:space:]]*[=:]' "$file"; then
            return 0
        fi
    done
    return 1
}

pip_works() { python3 -m pip --version >/dev/null 2>&1 || have pip3 || have pip; }

# The default models come from a package index: the one configured, or whatever pip itself uses.
pip_needed() { ! pip_index_configured && ! pip_works; }

cargo_version() { cargo --version 2>/dev/null | awk '{print $2}'; }

rust_is_new_enough() {
    local version
    version=$(cargo_version) || true
    [ -n "$version" ] && at_least "$version" "$need_rust"
}

missing_debian_packages() {
    have cc || echo gcc libc6-dev
    have make || echo make
    if ! rust_is_new_enough && ! have curl; then echo curl; fi
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    have pkg-config || echo pkg-config
    if ! pkg-config --exists hwloc 2>/dev/null; then echo libhwloc-dev; fi
    if ! pkg-config --exists libudev 2>/dev/null; then echo libudev-dev; fi
    if pip_needed; then echo python3-pip; fi
    if [ "$purpose" = test ] && ! python3 -c 'import ensurepip' >/dev/null 2>&1; then echo python3-venv; fi
}

install_system_packages() {
    local missing
    missing=$(missing_debian_packages | tr '\n' ' ' | sed 's/ *$//')
    [ -z "$missing" ] && return 0
    if have apt-get && is_root; then
        say "installing $missing"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        # shellcheck disable=SC2086  # a list of package names
        apt-get install -y -qq --no-install-recommends $missing >/dev/null
        return 0
    fi
    if have apt-get; then
        say "missing: $missing"
        say "install them with: sudo apt-get install $missing"
    else
        say "missing (by their Debian names): $missing"
        say "install the same with this system's package manager"
    fi
    if ! have cc || { ! rust_is_new_enough && ! have curl; }; then
        say "without a C compiler (and curl, to get Rust) nothing can be built"
        exit 1
    fi
}

# rustup's installer for this processor, checked against the digest published beside it.
install_rustup() {
    local base folder
    base=https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu
    folder=$(mktemp -d)
    curl --proto '=https' --tlsv1.2 -fsSL --retry 5 "$base/rustup-init" -o "$folder/rustup-init"
    curl --proto '=https' --tlsv1.2 -fsSL --retry 5 "$base/rustup-init.sha256" -o "$folder/sha256"
    if [ "$(awk '{print $1}' "$folder/sha256")" != "$(sha256sum "$folder/rustup-init" | awk '{print $1}')" ]; then
        say "the Rust installer arrived damaged; run this again"
        exit 1
    fi
    chmod +x "$folder/rustup-init"
    "$folder/rustup-init" -y -q --no-modify-path --profile minimal --component rustfmt,clippy \
        --default-toolchain "$need_rust" >&2
    rm -r "$folder"
}

ensure_rust() {
    local cargo_home=${CARGO_HOME:-${HOME:-/root}/.cargo}
    PATH="$cargo_home/bin:$PATH"
    rust_is_new_enough && return 0
    if have rustup; then
        say "adding Rust $need_rust beside $(cargo_version || true)"
        rustup toolchain install "$need_rust" --profile minimal --component rustfmt,clippy
        export RUSTUP_TOOLCHAIN=$need_rust
    else
        say "installing Rust $need_rust with rustup into $cargo_home"
        install_rustup
    fi
    if ! rust_is_new_enough; then
        say "cargo is $(cargo_version || echo absent), and $need_rust is needed; install it from https://rustup.rs"
        exit 1
    fi
}

choose_features() {
    if ! pkg-config --exists 'hwloc >= 2.8' 2>/dev/null || ! pkg-config --exists libudev 2>/dev/null; then
        say "building without hwloc: its headers are not here; the program's own reader of /sys is used"
        features=--no-default-features
    fi
}

# For the tests that talk to the server as OpenAI clients do. They say SKIPPED where it is absent.
python_environment() {
    local env=$target/pyvenv
    [ -x "$env/bin/python" ] && "$env/bin/python" -c 'import openai' 2>/dev/null && return 0
    if ! have python3; then
        say "no python3: the OpenAI client tests will say SKIPPED"
    elif python3 -m venv "$env" >/dev/null 2>&1 && "$env/bin/pip" install --quiet openai >/dev/null 2>&1; then
        say "OpenAI client installed in $env"
    else
        say "the OpenAI client could not be installed: its tests will say SKIPPED"
    fi
}

install_system_packages
ensure_rust
choose_features
mkdir -p "$target" target
if [ "$purpose" = test ]; then
    if ! cargo clippy --version >/dev/null 2>&1 || ! cargo fmt --version >/dev/null 2>&1; then
        have rustup && rustup component add rustfmt clippy
    fi
    python_environment
fi
{
    printf 'export PATH=%q\nexport FEATURES=%q\n' "$PATH" "$features"
    [ -z "${RUSTUP_TOOLCHAIN:-}" ] || printf 'export RUSTUP_TOOLCHAIN=%q\n' "$RUSTUP_TOOLCHAIN"
} >target/setup.env
