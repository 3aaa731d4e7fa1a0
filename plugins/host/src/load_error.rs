//! Why a library is refused.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use crate::Callback;
use crate::description::hex;

/// Most bytes of a plugin's name.
pub const NAME_BYTES: usize = 64;
/// Most bytes of a plugin's version.
pub const VERSION_BYTES: usize = 64;

/// Everything that [`crate::Library::load`] can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A relative path would mean another file in another working directory.
    #[error("{} is not an absolute path; give the plugin's whole path, from the root", path.display())]
    RelativePath {
        /// The path as given.
        path: PathBuf,
    },
    /// There is nothing at the path.
    #[error("{} does not exist; check the path of the plugin", path.display())]
    Missing {
        /// The path as given.
        path: PathBuf,
    },
    /// A directory, a device or the like.
    #[error("{} is not a regular file; give the path of the plugin's library itself", path.display())]
    NotAFile {
        /// The path as given.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}; make the plugin readable for the user that the node runs as", path.display())]
    Unreadable {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not the one that was pinned.
    #[error(
        "{} has the BLAKE3 digest {}, but {} was asked for; fetch the right file, or correct the digest",
        path.display(), hex(found), hex(expected)
    )]
    DigestMismatch {
        /// The path as given.
        path: PathBuf,
        /// What was asked for.
        expected: [u8; 32],
        /// What the file has.
        found: [u8; 32],
    },
    /// The file was written or replaced between the two looks at it, before and after it was loaded.
    #[error(
        "{} changed while it was being loaded, from BLAKE3 digest {} to {}; its code may have run: restart the node once the file is complete",
        path.display(), hex(before), hex(after)
    )]
    Changed {
        /// The path as given.
        path: PathBuf,
        /// What it had first.
        before: [u8; 32],
        /// What it had after it was loaded.
        after: [u8; 32],
    },
    /// The file is something else.
    #[error("{} is not a shared library: {reason}; build the plugin as a shared library", path.display())]
    NotALibrary {
        /// The path as given.
        path: PathBuf,
        /// What it is.
        reason: String,
    },
    /// The file ends before all that the system would map from it.
    #[error("{} is cut short; copy it again", path.display())]
    CutShort {
        /// The path as given.
        path: PathBuf,
    },
    /// The library cannot run here.
    #[error("{} is built for {found}, but this node runs on {expected}; build the plugin for {expected}", path.display())]
    OtherMachine {
        /// The path as given.
        path: PathBuf,
        /// What it is for.
        found: String,
        /// What it would have to be for.
        expected: String,
    },
    /// The system refuses it.
    #[error(
        "the system cannot load {}: {}; install the libraries that it needs, or build it again on this machine",
        path.display(), words(source)
    )]
    System {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        source: libloading::Error,
    },
    /// It exports no entry function.
    #[error(
        "{} does not export `mesh_plugin_v1`; it is not a plugin, or one for another version of the interface: build it against mesh_plugin.h",
        path.display()
    )]
    MissingEntry {
        /// The path as given.
        path: PathBuf,
    },
    /// The entry function returned null.
    #[error("`mesh_plugin_v1` of {} returned no table; it must return the address of a constant one", path.display())]
    NullTable {
        /// The path as given.
        path: PathBuf,
    },
    /// The address cannot be one of a table.
    #[error(
        "`mesh_plugin_v1` of {} returned a table at an address that is not a multiple of {alignment}; return the address of a MeshPluginTable",
        path.display()
    )]
    MisalignedTable {
        /// The path as given.
        path: PathBuf,
        /// What it must be a multiple of.
        alignment: usize,
    },
    /// The table ends before what every plugin has.
    #[error(
        "the table of {} says that it has {size} bytes, but at least {least} are needed; set struct_size to sizeof(MeshPluginTable)",
        path.display()
    )]
    TableTooSmall {
        /// The path as given.
        path: PathBuf,
        /// Its `struct_size`.
        size: u32,
        /// Bytes up to the end of `shutdown`.
        least: usize,
    },
    /// It was built against another major version.
    #[error(
        "{} follows version {major}.{minor} of the plugin interface, but this node takes version {supported}; build it against this node's mesh_plugin.h",
        path.display()
    )]
    OtherVersion {
        /// The path as given.
        path: PathBuf,
        /// Its major version.
        major: u16,
        /// Its minor version.
        minor: u16,
        /// The major version of this host.
        supported: u16,
    },
    /// A function that every plugin has is null.
    #[error("the table of {} has no `{function}`; every plugin must have one", path.display())]
    MissingFunction {
        /// The path as given.
        path: PathBuf,
        /// The function.
        function: Callback,
    },
    /// A function that goes with MESH_CAP_PROPOSES is null.
    #[error(
        "the table of {} sets MESH_CAP_PROPOSES but has no `{function}`; add the function, or take the flag away",
        path.display()
    )]
    CannotPropose {
        /// The path as given.
        path: PathBuf,
        /// The function.
        function: Callback,
    },
    /// A text of the table has a length but no bytes.
    #[error("the {field} in the table of {} is null but has a length; set its data", path.display())]
    NullText {
        /// The path as given.
        path: PathBuf,
        /// "name" or "version".
        field: &'static str,
    },
    /// It has no name.
    #[error("the table of {} has an empty name; give the plugin a name of 1 to {NAME_BYTES} bytes", path.display())]
    NameEmpty {
        /// The path as given.
        path: PathBuf,
    },
    /// Its name is too long.
    #[error("the name in the table of {} has {length} bytes; give the plugin a name of 1 to {NAME_BYTES} bytes", path.display())]
    NameTooLong {
        /// The path as given.
        path: PathBuf,
        /// Bytes.
        length: u64,
    },
    /// Its name is no text.
    #[error("the name in the table of {} is not UTF-8: `{shown}`; write it as UTF-8", path.display())]
    NameNotUtf8 {
        /// The path as given.
        path: PathBuf,
        /// The name, as far as it is text.
        shown: String,
    },
    /// Its version is too long.
    #[error("the version in the table of {} has {length} bytes; make it at most {VERSION_BYTES} bytes", path.display())]
    VersionTooLong {
        /// The path as given.
        path: PathBuf,
        /// Bytes.
        length: u64,
    },
    /// Its version is no text.
    #[error("the version in the table of {} is not UTF-8: `{shown}`; write it as UTF-8", path.display())]
    VersionNotUtf8 {
        /// The path as given.
        path: PathBuf,
        /// The version, as far as it is text.
        shown: String,
    },
}

/// What the system's loader says is one level down.
fn words(error: &libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |source| source.to_string())
}
