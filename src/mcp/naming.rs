//! The names under which a model calls the tools of servers.

use std::collections::{BTreeMap, BTreeSet};

/// The maximum length of a tool's name.
const LONGEST: usize = 128;

/// Returns the name of each tool, `SERVER__TOOL`, in the order of `tools`. The result for a tool does not depend on the
/// order of the other tools. The result is `None` for a tool that repeats an earlier tool in the list.
pub(super) fn names(server: &str, tools: &[&str]) -> Vec<Option<String>> {
    let plain: Vec<_> = tools.iter().map(|tool| format!("{server}__{tool}")).collect();
    let mut uses = BTreeMap::<String, BTreeSet<&str>>::new();
    for whole in &plain {
        uses.entry(replaced(whole)).or_default().insert(whole);
    }
    let mut taken = BTreeSet::new();
    let name = |whole: &String| {
        let name = replaced(whole);
        // A name without replaced characters is always unique. A name with replaced characters gets a checksum if it
        // equals another name.
        let collides = uses[&name].len() > 1 && name != *whole;
        let name = if collides || name.len() > LONGEST { marked(&name, whole) } else { name };
        taken.insert(name.clone()).then_some(name)
    };
    plain.iter().map(name).collect()
}

/// Replaces each character that services refuse in a tool's name.
fn replaced(name: &str) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    name.chars().map(|c| if good(c) { c } else { '_' }).collect()
}

/// Returns the name with a checksum of the whole name at its end. `name` contains only ASCII characters.
fn marked(name: &str, whole: &str) -> String {
    let mark = format!("_{:08x}", crc32fast::hash(whole.as_bytes()));
    format!("{}{mark}", &name[..name.len().min(LONGEST - mark.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(server: &str, tools: &[&str]) -> Vec<String> {
        names(server, tools).into_iter().map(Option::unwrap_or_default).collect()
    }

    #[test]
    fn names_other_characters_are_replaced() {
        assert_eq!(
            named("git hub", &["read-file", "a/b", "ü"]),
            ["git_hub__read-file", "git_hub__a_b", "git_hub___"]
        );
    }

    #[test]
    fn names_collision_ends_in_checksum_in_any_order() {
        let there = named("s", &["a_b", "a/b", "a b"]);
        let mut back = named("s", &["a b", "a/b", "a_b"]);
        back.reverse();
        assert_eq!(there, back);
        assert_eq!(there[0], "s__a_b");
        assert!(there[1].starts_with("s__a_b_") && there[1] != there[2], "{there:?}");
    }

    #[test]
    fn names_long_names_stay_distinct_within_the_limit() {
        let long = "x".repeat(500);
        let longer = "x".repeat(501);
        let found = named("s", &[&long, &longer]);
        assert!(found.iter().all(|name| name.len() == LONGEST));
        assert_ne!(found[0], found[1]);
    }

    #[test]
    fn names_equal_tools_are_named_once() {
        assert_eq!(names("s", &["a", "a"]), [Some("s__a".to_owned()), None]);
    }
}
