//! A Mesh node: configuration, composition root, adapters.
