//! The folder in which an example stores conversations.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process,
};

use super::Flag;

/// The flag that sets the folder.
pub const STORE: Flag =
    Flag { name: "--store", value: "DIR", help: "the folder in which conversations are kept" };

/// A folder. If it is temporary, dropping the value removes it.
pub struct Folder {
    path: PathBuf,
    is_temporary: bool,
}

impl Folder {
    /// Returns the given folder, or a temporary one.
    pub fn given_or_temporary(given: Option<&str>) -> io::Result<Self> {
        if let Some(path) = given {
            return Self::at(path.into());
        }
        let name = format!("omni-agent-example-{}", process::id());
        Ok(Self { path: env::temp_dir().join(name), is_temporary: true })
    }

    /// Returns the given folder, or the system's folder for application data.
    pub fn given_or_of_the_user(given: Option<&str>) -> io::Result<Self> {
        let path = match given {
            Some(path) => path.into(),
            None => data_home()?.join("omni-agent").join("conversations"),
        };
        Self::at(path)
    }

    fn at(path: PathBuf) -> io::Result<Self> {
        if path.exists() && !path.is_dir() {
            let path = path.display();
            return Err(io::Error::other(format!("{path} is a file; --store takes the name of a folder")));
        }
        Ok(Self { path, is_temporary: false })
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_temporary {
            // If this fails, the system's cleanup of temporary files removes the folder.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Returns the folder for the user's application data. This is `%LOCALAPPDATA%` on Windows. On other systems, it is the
/// folder of the XDG base directory specification, which says to ignore relative paths.
fn data_home() -> io::Result<PathBuf> {
    let variable = if cfg!(windows) { "LOCALAPPDATA" } else { "XDG_DATA_HOME" };
    let set = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env::home_dir().map(|home| home.join(".local").join("share"));
    set.or_else(home).ok_or_else(|| io::Error::other("there is no home folder; name one with --store DIR"))
}
