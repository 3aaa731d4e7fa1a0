#!/usr/bin/env bash
# From a fresh clone to an answer from three nodes: installs what is missing, builds, runs `mesh demo`.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: deploy/quickstart.sh [--check]

1. installs what building needs and is not there: a C++ compiler, make, cmake, clang, libclang
   (apt-get on Debian and Ubuntu, dnf on Fedora, brew on macOS; with sudo unless you are root)
2. builds the workspace with cargo; llama.cpp takes some minutes the first time
3. runs `mesh demo`: three nodes on loopback, and one answer

Rust must be there already. --check says what would be done and does nothing. CARGO_TARGET_DIR is honoured.
TEXT
}

case "${1:-}" in
"" | --check) ;;
-h | --help)
    usage
    exit 0
    ;;
*)
    usage >&2
    exit 2
    ;;
esac

# cargo would read a relative path from where it runs.
case "${CARGO_TARGET_DIR:-/}" in
/*) ;;
*) export CARGO_TARGET_DIR="$PWD/$CARGO_TARGET_DIR" ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/setup.sh
. deploy/setup.sh

mesh_setup "$@"
if [ "${1:-}" = --check ]; then
    mesh_say "would run: cargo build --workspace --locked"
    mesh_say "would run: mesh demo"
    exit 0
fi
mesh_say "running: cargo build --workspace --locked"
cargo build --workspace --locked
mesh=$(mesh_target_dir)/debug/mesh
mesh_say "running: $mesh demo"
"$mesh" demo
mesh_say "it works; the binary is $mesh, and README.md says what to do with it"
