//! The directory of the server's socket: short, private, and gone when the server is.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::account::ServerUser;
use super::errors::{EmbeddedError, io_error};
use super::home::Home;

/// There is one server per directory, so the port is only a part of the socket's name.
pub(super) const PORT: u16 = 5432;

const PREFIX: &str = "postrider-";
const RANDOM_LENGTH: usize = 8;
/// The longest path of a socket (macOS allows 104 bytes with the closing zero, Linux 108).
const SOCKET_PATH_MAX: usize = 103;

/// The path of the socket in its directory.
pub(super) fn socket_path(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!(".s.PGSQL.{port}"))
}

/// Makes a fresh directory that the server's user owns, and links it from the data directory. Removed when
/// dropped, unless it is kept.
pub(super) fn make(home: &Home, user: &ServerUser) -> Result<TempDir, EmbeddedError> {
    // Not the runtime directory first: it goes away when its user logs out, and a server may stay.
    let bases = [
        Some(PathBuf::from("/tmp")),
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        Some(env::temp_dir()),
    ];
    let mut tried = Vec::new();
    for base in bases.into_iter().flatten() {
        match make_in(&base, user) {
            Ok(dir) => {
                let link = home.socket_link();
                let _ = fs::remove_file(&link);
                symlink(dir.path(), &link).map_err(io_error("link", &link))?;
                return Ok(dir);
            }
            Err(reason) => tried.push(format!("{}: {reason}", base.display())),
        }
    }
    Err(EmbeddedError::NoSocketDir { tried: tried.join(", ") })
}

fn make_in(base: &Path, user: &ServerUser) -> Result<TempDir, String> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    let name = base.as_os_str().as_encoded_bytes();
    let length = socket_path(&base.join(PREFIX), PORT).as_os_str().len() + RANDOM_LENGTH;
    if !base.is_absolute() || !name.iter().all(plain) {
        return Err("its name is not plain".to_owned());
    }
    if length > SOCKET_PATH_MAX {
        return Err("its name is too long".to_owned());
    }
    let base = fs::canonicalize(base).map_err(|error| error.to_string())?;
    user.must_reach(&base).map_err(|error| error.to_string())?;
    let dir = tempfile::Builder::new()
        .prefix(PREFIX)
        .rand_bytes(RANDOM_LENGTH)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(base)
        .map_err(|error| error.to_string())?;
    user.own(dir.path()).map_err(|error| error.to_string())?;
    Ok(dir)
}

/// Removes the directory of a server that is gone, and the link to it.
pub(super) fn remove(home: &Home) {
    let link = home.socket_link();
    let Ok(dir) = fs::read_link(&link) else {
        return;
    };
    let is_ours = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if is_ours {
        // Only what a server leaves there, so that a link that lies can do no harm.
        let socket = socket_path(&dir, PORT);
        let _ = fs::remove_file(socket.with_added_extension("lock"));
        let _ = fs::remove_file(socket);
        let _ = fs::remove_dir(&dir);
    }
    let _ = fs::remove_file(link);
}
