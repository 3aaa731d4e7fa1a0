//! From a path to a copy of the table.

use std::ffi::c_int;
use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mesh_plugin_abi::{MESH_PLUGIN_ABI_VERSION, MESH_PLUGIN_ENTRY, MeshPluginEntry, MeshPluginTable};

use crate::{LoadError, LoadWatch};

/// Every plugin's table reaches up to here: behind `shutdown`.
const LEAST_SIZE: usize = offset_of!(MeshPluginTable, begin_generation);

/// The first fields, which all versions of the table have.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    struct_size: u32,
    abi_version: u32,
}

/// `RTLD_NODELETE`, where there is one: a library that closes itself stays.
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
const STAYS: c_int = libc::RTLD_NODELETE;
#[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "freebsd")))]
const STAYS: c_int = 0;

/// Loads a library, which runs its initialisers, and copies its table. It stays loaded even if it is refused: one of its
/// initialisers may have started a thread. `watch` says when the system's loader has it, and when no more is asked of that.
pub(super) fn open(path: &Path, watch: &LoadWatch) -> Result<MeshPluginTable, LoadError> {
    watch.opening();
    let entry = load(path);
    watch.opened();
    let entry = entry?;
    // SAFETY: the symbol is the entry function of this major version, which takes nothing and may always be called.
    let table = unsafe { entry() };
    if table.is_null() {
        return Err(LoadError::NullTable { path: path.to_owned() });
    }
    if !table.is_aligned() {
        return Err(LoadError::MisalignedTable {
            path: path.to_owned(),
            alignment: align_of::<MeshPluginTable>(),
        });
    }
    copy(path, table)
}

/// Its entry function. To look for that takes the loader's lock as well, which a library that loads at the same time
/// may hold.
fn load(path: &Path) -> Result<MeshPluginEntry, LoadError> {
    // SAFETY: what an initialiser of the library does is beyond any check; the user asked for it by its path.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | STAYS) };
    let library = library.map_err(|source| LoadError::System {
        path: path.to_owned(),
        source,
    })?;
    let library = ManuallyDrop::new(library);
    entry(&library).ok_or_else(|| LoadError::MissingEntry { path: path.to_owned() })
}

fn entry(library: &Library) -> Option<MeshPluginEntry> {
    // SAFETY: the header gives the symbol this type; the option takes up a symbol whose address is null.
    let symbol = unsafe { library.get::<Option<MeshPluginEntry>>(MESH_PLUGIN_ENTRY) };
    symbol.ok().and_then(|symbol| *symbol)
}

/// `table` is neither null nor misaligned.
fn copy(path: &Path, table: *const MeshPluginTable) -> Result<MeshPluginTable, LoadError> {
    let too_small = |size| LoadError::TableTooSmall {
        path: path.to_owned(),
        size,
        least: LEAST_SIZE,
    };
    // SAFETY: the entry function returns a table that lives as long as the library, and each begins with its size.
    let struct_size = unsafe { table.cast::<u32>().read() };
    let size = usize::try_from(struct_size).unwrap_or(usize::MAX);
    if size < size_of::<Head>() {
        return Err(too_small(struct_size));
    }
    // SAFETY: as above, and the table says that it is long enough.
    let head = unsafe { table.cast::<Head>().read() };
    let (major, minor) = version(head.abi_version);
    let (supported, _) = version(MESH_PLUGIN_ABI_VERSION);
    // Asked first: the size of another version's table means nothing here.
    if major != supported {
        let path = path.to_owned();
        return Err(LoadError::OtherVersion {
            path,
            major,
            minor,
            supported,
        });
    }
    if size < LEAST_SIZE {
        return Err(too_small(struct_size));
    }
    // A pointer of which the table has only a part is not there.
    let taken = size.min(size_of::<MeshPluginTable>()) / size_of::<usize>() * size_of::<usize>();
    let mut copy = MaybeUninit::<MeshPluginTable>::zeroed();
    // SAFETY: the table has at least `taken` bytes and the copy has room for them. All fields are integers, pointers
    // and optional functions, for which zero is a value.
    unsafe {
        std::ptr::copy_nonoverlapping(table.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), taken);
        Ok(copy.assume_init())
    }
}

pub(super) fn version(number: u32) -> (u16, u16) {
    let [a, b, c, d] = number.to_be_bytes();
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}
