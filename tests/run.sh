#!/usr/bin/env bash
# Builds Mesh and passes every test. Works on a fresh machine with a Rust toolchain; says what it installs.
#
#   tests/run.sh             everything
#   tests/run.sh EXPRESSION  only what the nextest filter expression names, such as 'package(mesh-gguf)'
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../deploy/setup.sh
. deploy/setup.sh

cache=${MESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mesh}
export MESH_CACHE=$cache

# Real clients run against a real mesh: the official `openai` package, and a subscriber with grpcio. They live in an
# environment of their own.
clients() {
    local python=$cache/clients/bin/python
    if ! "$python" -c 'import grpc_reflection, openai' 2>/dev/null; then
        mesh_say "installing openai and grpcio-reflection into $cache/clients"
        if ! python3 -m venv --clear "$cache/clients" 2>/dev/null; then
            mesh_check=no mesh_install "$(mesh_package_manager)" python3 python3-venv
            python3 -m venv --clear "$cache/clients"
        fi
        "$python" -m pip install --quiet --disable-pip-version-check openai grpcio-reflection
    fi
    export MESH_TEST_PYTHON=$python
}

mesh_setup
mesh_find_cargo
clients
MESH_TEST_MODELS=$(tests/models.sh)
export MESH_TEST_MODELS

mesh_say "building"
cargo build --workspace --locked
if mesh_has cargo-nextest; then
    cargo nextest run --workspace --locked --no-fail-fast ${1:+-E "$1"}
else
    # Slower, and one process for each file of tests, but the same tests.
    cargo test --workspace --locked --no-fail-fast -- --test-threads=2
fi
cargo test --workspace --locked --doc
