#!/usr/bin/env bash
# Lints the protobuf files and compares the public ones with the last release (released.binpb).
#
#   proto/check.sh            lint, and what would break a client of the last release
#   proto/check.sh --release  at a release: the present files become the ones to compare with
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=../deploy/setup.sh
. deploy/setup.sh

cache=${MESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mesh}
# The linter comes from npm as a program; nothing of it is built into Mesh.
buf=$cache/tools/buf/node_modules/.bin/buf
if [ ! -x "$buf" ]; then
    mesh_has npm || mesh_check=no mesh_install "$(mesh_package_manager)" npm
    mesh_say "installing buf into $cache/tools/buf"
    npm install --silent --no-audit --no-fund --prefix "$cache/tools/buf" @bufbuild/buf@1
fi

case "${1:-}" in
"")
    "$buf" lint
    "$buf" breaking --against proto/released.binpb
    ;;
--release) "$buf" build --path proto/mesh/v1 -o proto/released.binpb ;;
*)
    mesh_fail "usage: proto/check.sh [--release]"
    exit 2
    ;;
esac
