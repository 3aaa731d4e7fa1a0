//! `mesh`: the one binary of Mesh.
fn main() {}
