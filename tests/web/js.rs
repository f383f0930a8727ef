//! Node 22, Chromium and the packages of the tests in JavaScript.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

pub(crate) use crate::npm::node;
use crate::{npm, skip::skip};

/// The folder of the scripts, and of the lists of packages with their locks.
pub(crate) const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/js");

/// The folder of the front ends, each with its list of packages.
pub(crate) const FRONT_ENDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/front_ends");

/// Installs the packages of the front end `{folder}` in the same manner as [`packages`].
pub(crate) fn front_end(folder: &str) -> Option<PathBuf> {
    npm::packages(FRONT_ENDS, folder)
}

/// Installs the packages that `tests/web/js/{folder}` lists, and returns the folder with `node_modules`. If the
/// packages can't be installed, reports that the test is skipped, and returns `None`.
pub(crate) fn packages(folder: &str) -> Option<PathBuf> {
    npm::packages(SCRIPTS, folder)
}

/// Returns the program of Chromium. If Chromium is not installed, reports that the test is skipped, and returns `None`.
pub(crate) fn chromium() -> Option<PathBuf> {
    let program = env::var_os("OMNI_CHROMIUM").map_or_else(|| "/usr/bin/chromium".into(), PathBuf::from);
    if program.exists() {
        return Some(program);
    }
    skip(&format!("there is no Chromium at {}; OMNI_CHROMIUM can name another place", program.display()));
    None
}

#[test]
fn locks_of_the_packages_name_a_hash_for_each_and_no_host() {
    // The installation scripts of packages are turned off, because they could install something that no lock file
    // names.
    let settings = fs::read_to_string(Path::new(SCRIPTS).join(".npmrc")).unwrap();
    assert!(settings.contains("ignore-scripts=true"));
    let of_other_tests = [
        "../../acp/acp_sdk",
        "../../mcp/mcp_sdk",
        "../../../examples/front_ends/use_chat",
        "../../../examples/front_ends/assistant_ui",
    ];
    let own = ["ag_ui", "ai_sdk/6", "ai_sdk/7", "node", "page", "types"];
    for folder in own.into_iter().chain(of_other_tests) {
        let text = fs::read_to_string(Path::new(SCRIPTS).join(folder).join("package-lock.json")).unwrap();
        assert!(!text.contains("://"), "{folder} names a host");
        let lock: Value = serde_json::from_str(&text).unwrap();
        let packages = lock["packages"].as_object().unwrap();
        assert!(packages.len() > 1, "{folder}");
        for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
            assert!(package["integrity"].is_string(), "{folder}: {name} has no hash");
        }
    }
}
