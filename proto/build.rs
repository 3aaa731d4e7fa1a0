//! Compiles the `.proto` files with `protox`, so that no `protoc` is needed on the machine.

use std::{env, error::Error, fs, path::PathBuf};

const FILES: [&str; 7] = [
    "mesh/v1/inference.proto",
    "mesh/v1/lifecycle.proto",
    "mesh/v1/node.proto",
    "mesh/v1/plugin.proto",
    "mesh/v1/deployment.proto",
    "mesh/wire/v1/stage.proto",
    "mesh/wire/v1/control.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=mesh");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), prost_encode(&descriptors))?;
    tonic_prost_build::configure()
        .build_server(true)
        .build_client(true)
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .compile_fds(descriptors)?;
    Ok(())
}

fn prost_encode(descriptors: &impl prost::Message) -> Vec<u8> {
    descriptors.encode_to_vec()
}
