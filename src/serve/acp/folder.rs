//! The label with a conversation's folder.

use std::path::Path;

/// The name of the label.
pub(super) const FOLDER: &str = "omni.cwd";

/// The maximum length of a label's value.
const LONGEST: usize = 128;

/// Returns the label's value: the path, or its checksum if the path can't be a label.
pub(super) fn label(folder: &Path) -> String {
    match folder.to_str() {
        Some(path) if (1..=LONGEST).contains(&path.len()) && !path.chars().any(char::is_control) => {
            path.to_owned()
        }
        _ => format!("crc:{:08x}", crc32fast::hash(folder.as_os_str().as_encoded_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_is_too_long_becomes_its_checksum() {
        assert_eq!(label(Path::new("/home/ann/project")), "/home/ann/project");
        let long = format!("/{}", "a".repeat(128));
        assert_eq!(label(Path::new(&long)), format!("crc:{:08x}", crc32fast::hash(long.as_bytes())));
        assert!(label(Path::new("/a\nb")).starts_with("crc:"));
    }
}
