//! Tells the crate which release of llama.cpp's bindings it is built with, from the lock file.

use std::{env, fs, path::Path};

fn main() {
    let lock = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../Cargo.lock");
    println!("cargo:rerun-if-changed={}", lock.display());
    let text = fs::read_to_string(lock).unwrap_or_default();
    let mut lines = text.lines().skip_while(|line| *line != "name = \"llama-cpp-sys-2\"");
    let version = lines
        .nth(1)
        .and_then(|line| line.strip_prefix("version = "))
        .unwrap_or("unknown");
    println!(
        "cargo:rustc-env=MESH_LLAMA_VERSION=llama-cpp-sys-2 {}",
        version.trim_matches('"')
    );
}
