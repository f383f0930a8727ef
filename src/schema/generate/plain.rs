//! Descriptions in plain words, made from documentation comments.

/// Returns the text without links, examples and line breaks inside paragraphs.
pub(super) fn text(comment: &str) -> String {
    let mut paragraphs: Vec<String> = Vec::new();
    let mut is_open = false;
    let mut is_code = false;
    for line in comment.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            (is_code, is_open) = (!is_code, false);
        } else if is_code || is_definition(line) {
            // Readers of a schema need neither examples in Rust nor the targets of links.
        } else if line.is_empty() {
            is_open = false;
        } else if is_open && !is_item(line) {
            let paragraph = paragraphs.last_mut().expect("an open paragraph has been added");
            paragraph.push(' ');
            paragraph.push_str(line);
        } else {
            // Items of a list follow each other without an empty line.
            match paragraphs.last_mut().filter(|_| is_open) {
                Some(list) => list.extend(["\n", line]),
                None => paragraphs.push(line.to_owned()),
            }
            is_open = true;
        }
    }
    without_links(&paragraphs.join("\n\n"))
}

/// Returns whether the line defines the target of links: `[name]: target`.
fn is_definition(line: &str) -> bool {
    line.starts_with('[') && line.contains("]: ")
}

fn is_item(line: &str) -> bool {
    line.starts_with("- ") || line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok())
}

/// Replaces each link with its text. Brackets in code stay.
fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['`', '[']) {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let (kept, after) = if let Some(code) = rest.strip_prefix('`') {
            let end = code.find('`').map_or(rest.len(), |end| end + 2);
            rest.split_at(end)
        } else {
            let inside = &rest[1..];
            match inside.find(']') {
                Some(end) => (&inside[..end], without_target(&inside[end + 1..])),
                None => rest.split_at(1),
            }
        };
        plain.push_str(kept);
        rest = after;
    }
    plain + rest
}

/// Removes the target that follows the text of a link.
fn without_target(rest: &str) -> &str {
    match rest.strip_prefix('(').and_then(|target| target.split_once(')')) {
        Some((_, after)) => after,
        None => rest,
    }
}

/// Replaces names of Rust with those in JSON, and removes references to functions.
///
/// The text may refer to an event by the name of its Rust variant. `is_event` returns whether the snake-case form of a
/// name is the tag of an event.
pub(super) fn with_json_names(text: &str, is_event: impl Fn(&str) -> bool) -> String {
    let text = without_reference(text);
    let mut parts = text.split('`');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    while let (Some(code), Some(after)) = (parts.next(), parts.next()) {
        let (is_path, name) = code.rsplit_once("::").map_or((false, code), |(_, name)| (true, name));
        let tag = snake_case(name);
        let name =
            if (is_path && name.starts_with(char::is_uppercase)) || is_event(&tag) { &tag } else { name };
        plain.extend(["`", name, "`", after]);
    }
    plain
}

/// Removes the name of the function at the end of a text such as "Sets the title: `Session::set_title`.".
fn without_reference(text: &str) -> String {
    match text.strip_suffix("`.").and_then(|text| text.rsplit_once(": `")) {
        Some((words, name)) if name.contains("::") => format!("{words}."),
        _ => text.to_owned(),
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (at, character) in name.char_indices() {
        if character.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

/// Replaces `None` with the form that the value has in JSON: absence or `null`.
pub(super) fn without_none(text: &str, is_absent: bool) -> String {
    if !is_absent {
        return text.replace("`None`", "`null`");
    }
    let text = text.replace(". `None`", ". Absent").replace("`None`", "absent");
    match text.strip_prefix("absent") {
        Some(rest) => format!("Absent{rest}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_comment_has_neither_links_nor_examples() {
        let comment = "The [id of the prompt], as for [`Agent::prompt`](super::Agent::prompt), `[0]` and\n[`Text`].\n\n\
                       [id of the prompt]: crate::agent\n\n```\nlet x = [1];\n```\n\n1. One\n   line.\n2. Two.\n\nThe [end";
        let plain = "The id of the prompt, as for `Agent::prompt`, `[0]` and `Text`.\n\n1. One line.\n2. Two.\n\nThe [end";
        assert_eq!(text(comment), plain);
    }

    #[test]
    fn with_json_names_replaces_variants_and_paths() {
        let is_event = |tag: &str| tag == "step_start";
        let named = |text: &str| with_json_names(text, is_event);
        assert_eq!(named("A `StepStart`, not a `Tree`."), "A `step_start`, not a `Tree`.");
        assert_eq!(named("Ends with `StopReason::ToolUse`."), "Ends with `tool_use`.");
        assert_eq!(named("See `StateView::tools` and `{}`."), "See `tools` and `{}`.");
        assert_eq!(named("Sets the title: `Session::set_title`."), "Sets the title.");
        assert_eq!(named("The text: `a`."), "The text: `a`.");
    }

    #[test]
    fn without_none_writes_null_unless_the_member_is_absent() {
        let words = "The title. `None` if there is none.";
        assert_eq!(without_none(words, false), "The title. `null` if there is none.");
        assert_eq!(without_none(words, true), "The title. Absent if there is none.");
        assert_eq!(without_none("`None` without a title.", true), "Absent without a title.");
    }
}
