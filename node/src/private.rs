//! Files and directories that are the user's alone.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use rustix::process::geteuid;

use crate::NodeError;

/// Permissions of everybody but the owner.
const OTHERS: u32 = 0o077;

/// Directories with it, such as `/tmp`, are for everybody.
const STICKY: u32 = 0o1000;

/// Makes a directory that nobody else can look into, or closes the one that is there. Says whether it was made.
///
/// # Errors
///
/// It is another user's, for everybody, or no directory.
pub(crate) fn private_directory(path: &Path) -> Result<bool, NodeError> {
    let made = !path.exists();
    let make = DirBuilder::new().recursive(true).mode(0o700).create(path);
    make.map_err(NodeError::file("make", path))?;
    let facts = fs::metadata(path).map_err(NodeError::file("read", path))?;
    let refuse = |why: &str| {
        let message = format!("the data directory {} {why}; use another --data-dir", path.display());
        Err(NodeError::DataDir(message))
    };
    if facts.uid() != geteuid().as_raw() {
        return refuse("belongs to another user");
    }
    if facts.mode() & STICKY != 0 {
        return refuse("is for everybody");
    }
    if facts.mode() & OTHERS != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(NodeError::file("close", path))?;
        let mode = format!("{:o}", facts.mode() & 0o777);
        tracing::warn!(directory = %path.display(), mode, "the data directory was open to others; it is closed now");
    }
    Ok(made)
}

/// Opens a file to lock it, or makes it. Others who could open it could lock it, and keep the node from starting.
pub(crate) fn private_lock(path: &Path) -> Result<File, NodeError> {
    let failed = NodeError::file("write", path);
    let open = || {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if facts.mode() & OTHERS != 0 {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        Ok(file)
    };
    open().map_err(failed)
}

/// Refuses a secret that others can read, or may have written.
///
/// # Errors
///
/// What to run.
pub(crate) fn check_secret(path: &Path, facts: &Metadata) -> Result<(), NodeError> {
    let (path, user) = (path.display(), geteuid());
    // The superuser can read whatever there is, for whomever.
    if facts.uid() != user.as_raw() && !user.is_root() {
        let message = format!(
            "{path} belongs to another user; run `chown {} {path}`, or use another --data-dir",
            user.as_raw()
        );
        return Err(NodeError::DataDir(message));
    }
    if facts.mode() & OTHERS != 0 {
        let message = format!(
            "{path} can be read by other users (mode {:o}); run `chmod 600 {path}`, or remove it to have a new one if \
             somebody may have read it",
            facts.mode() & 0o777
        );
        return Err(NodeError::DataDir(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn open_to(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_is_made_closed_and_one_that_is_open_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        assert!(private_directory(&path).unwrap());
        assert_eq!(mode(&path), 0o700);
        open_to(&path, 0o755);
        assert!(!private_directory(&path).unwrap());
        assert_eq!(mode(&path), 0o700);
        open_to(&path, 0o1777);
        let error = private_directory(&path).unwrap_err().to_string();
        assert!(error.contains("is for everybody"), "{error}");
        assert_eq!(mode(&path), 0o1777);
    }

    #[test]
    fn a_lock_is_for_its_owner_and_never_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        private_lock(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        open_to(&path, 0o644);
        private_lock(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(private_lock(&link).is_err());
        let fifo = dir.path().join("fifo");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        assert!(private_lock(&fifo).is_err());
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused_with_what_to_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, "secret").unwrap();
        let check = || check_secret(&path, &fs::metadata(&path).unwrap());
        for wide in [0o644, 0o640, 0o604, 0o620, 0o666] {
            open_to(&path, wide);
            let error = check().expect_err("wide").to_string();
            assert!(error.contains(&format!("chmod 600 {}", path.display())), "{error}");
        }
        for closed in [0o600, 0o400] {
            open_to(&path, closed);
            check().unwrap();
        }
    }
}
