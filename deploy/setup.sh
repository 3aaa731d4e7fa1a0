# Installs what building Mesh needs beside Rust. Sourced by quickstart.sh and tests/run.sh, not run.
#
#   mesh_setup          says what is missing, installs it
#   mesh_setup --check  says what is missing and how it would be installed, changes nothing
#   mesh_target_dir     prints where cargo builds to
#
# llama.cpp is compiled from source: it needs a C++ compiler, CMake with make, and libclang for its Rust bindings.
# ccache is used if it is there, and Ninja if CMAKE_GENERATOR says so. Nothing asks for pkg-config or git.

mesh_say() { printf '== %s\n' "$*" >&2; }

mesh_fail() {
    printf 'error: %s\n' "$*" >&2
    return 1
}

mesh_has() { command -v "$1" >/dev/null 2>&1; }

mesh_has_libclang() {
    if [ -n "${LIBCLANG_PATH:-}" ]; then
        return 0
    fi
    local directory file
    for directory in /usr/lib/llvm*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib64/llvm*/lib /usr/lib /usr/local/lib \
        /opt/homebrew/opt/llvm/lib /usr/local/opt/llvm/lib /Library/Developer/CommandLineTools/usr/lib \
        /Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib; do
        for file in "$directory"/libclang.so* "$directory"/libclang-*.so* "$directory"/libclang.dylib; do
            if [ -e "$file" ]; then
                return 0
            fi
        done
    done
    return 1
}

mesh_has_certificates() {
    [ -n "${SSL_CERT_FILE:-}" ] || [ "$(uname -s)" = Darwin ] ||
        [ -s /etc/ssl/certs/ca-certificates.crt ] || [ -s /etc/pki/tls/certs/ca-bundle.crt ] || [ -s /etc/ssl/cert.pem ]
}

# Prints what is missing, a word each.
mesh_missing() {
    mesh_has c++ || mesh_has g++ || mesh_has clang++ || echo c++
    mesh_has cmake || echo cmake
    mesh_has make || mesh_has gmake || echo make
    mesh_has clang || echo clang
    mesh_has_libclang || echo libclang
    mesh_has_certificates || echo certificates
}

# Prints the package that brings a thing, for one package manager.
mesh_package() {
    case "$1:$2" in
    apt:c++) echo g++ ;;
    apt:libclang) echo libclang-dev ;;
    apt:certificates | dnf:certificates) echo ca-certificates ;;
    dnf:c++) echo gcc-c++ ;;
    dnf:libclang) echo clang-devel ;;
    brew:c++ | brew:clang | brew:libclang) echo llvm ;;
    brew:certificates) echo ca-certificates ;;
    *) echo "$2" ;;
    esac
}

mesh_package_manager() {
    if mesh_has brew && [ "$(uname -s)" = Darwin ]; then
        echo brew
    elif mesh_has apt-get; then
        echo apt
    elif mesh_has dnf; then
        echo dnf
    fi
}

# Says a command, and runs it unless this is a check.
mesh_do() {
    if [ "$mesh_check" = yes ]; then
        mesh_say "would run: $*"
    else
        mesh_say "running: $*"
        "$@"
    fi
}

# The same, as root.
mesh_do_as_root() {
    if [ "$(id -u)" = 0 ]; then
        mesh_do "$@"
    elif mesh_has sudo; then
        mesh_do sudo "$@"
    else
        mesh_fail "this needs root, and there is no sudo; run as root: $*"
    fi
}

mesh_install() {
    local manager=$1
    shift
    case "$manager" in
    apt)
        mesh_do_as_root apt-get update
        mesh_do_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
        ;;
    dnf) mesh_do_as_root dnf install -y "$@" ;;
    brew) mesh_do brew install "$@" ;;
    *) mesh_fail "no apt-get, dnf or brew here; install by hand: $*" ;;
    esac
}

mesh_find_cargo() {
    if ! mesh_has cargo && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        export PATH
    fi
    mesh_has cargo || mesh_fail "there is no cargo; install Rust (rustup.rs or your system's package), then run this again"
}

mesh_setup() {
    local mesh_check=no
    if [ "${1:-}" = --check ]; then
        mesh_check=yes
    fi
    mesh_find_cargo || return 1
    local missing manager thing packages=()
    missing=$(mesh_missing | tr '\n' ' ')
    missing=${missing% }
    if [ -z "$missing" ]; then
        mesh_say "nothing is missing: C++ compiler, make, cmake, clang and libclang are here"
        return 0
    fi
    manager=$(mesh_package_manager)
    mesh_say "missing: $missing"
    for thing in $missing; do
        packages+=("$(mesh_package "${manager:-none}" "$thing")")
    done
    mesh_install "${manager:-none}" "${packages[@]}" || return 1
    if [ "$mesh_check" = no ]; then
        missing=$(mesh_missing | tr '\n' ' ')
        [ -z "$missing" ] || mesh_fail "still missing after the installation: $missing; install it by hand"
    fi
}

# Run in the workspace. CARGO_TARGET_DIR and cargo's configuration are honoured.
mesh_target_dir() {
    cargo metadata --format-version 1 --no-deps --locked | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}
