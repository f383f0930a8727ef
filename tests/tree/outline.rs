//! The drawing of a tree as text.

use omni_agent::{
    message::{Attachment, Content, Message, ProviderItem, Thinking, ToolResult, ToolUse},
    tree::Tree,
};
use serde_json::json;

use crate::support::{branching, id, user};

#[test]
fn display_shows_branches_and_the_path() {
    let mut tree = branching();
    tree.navigate(id(6)).unwrap();
    let expected = "\
* ├─ 1 assistant: 1
  │  ├─ 2 assistant: 2
  │  │  3 assistant: 3
  │  │  4 assistant: 4
* │  ├─ 5 assistant: 5
> │  │  ├─ 6 assistant: 6
  │  │  └─ 7 assistant: 7
  │  └─ 8 assistant: 8
  └─ 9 assistant: 9";
    assert_eq!(tree.to_string(), expected);
}

#[test]
fn display_without_branches_does_not_indent() {
    let mut tree = Tree::new();
    for text in ["a", "b", "c"] {
        tree.push(user(text));
    }
    assert_eq!(tree.to_string(), "* 1 user: a\n* 2 user: b\n> 3 user: c");
    tree.navigate(id(2)).unwrap();
    assert_eq!(tree.to_string(), "* 1 user: a\n> 2 user: b\n  3 user: c");
    tree.clear();
    assert_eq!(tree.to_string(), "  1 user: a\n  2 user: b\n  3 user: c");
}

/// Returns the text that follows the role in the line of this message.
fn words(message: Message) -> String {
    let mut tree = Tree::new();
    let start = format!("> 1 {}", message.role);
    tree.push(message);
    tree.to_string().strip_prefix(&start).unwrap().to_owned()
}

#[test]
fn display_shows_blocks_without_text_in_brackets() {
    let tool_use = ToolUse::new("a", "weather", json!({ "city": "Rome" }));
    let answer: Vec<Content> = vec![
        Thinking::new("hm").into(),
        "Let me look.".into(),
        tool_use.clone().into(),
        ProviderItem::new("responses", json!({})).into(),
    ];
    assert_eq!(words(Message::assistant(answer)), ": Let me look. [uses weather] [responses item]");
    let silent: Vec<Content> = vec![Thinking::new("hm").into(), " ".into(), tool_use.clone().into()];
    assert_eq!(words(Message::assistant(silent)), ": [thinking] [uses weather]");
    let results: Vec<Content> = vec![
        ToolResult::ok(&tool_use, "sunny").into(),
        ToolResult::error(&tool_use, "no such city").into(),
        Attachment::url("image/png", "https://example.org/a.png").into(),
    ];
    assert_eq!(words(Message::user(results)), ": [result] [error] [image/png]");
    assert_eq!(words(Message::user("")), "");
    assert_eq!(words(Message::user(" \n ")), "");
}

#[test]
fn display_uses_one_line_without_control_characters() {
    assert_eq!(words(Message::user("  one\n\ttwo\u{1b}[2Jthree \u{2028} four ")), ": one two [2Jthree four");
    let tool_use = ToolUse::new("a", "wea\nther\u{7}", json!({}));
    assert_eq!(words(Message::assistant(tool_use)), ": [uses weather]");
}

#[test]
fn display_cuts_at_a_word_within_sixty_characters() {
    let sixty = "twelve chars and twelve more, and so on until there are sixt";
    assert_eq!(sixty.chars().count(), 60);
    assert_eq!(words(Message::user(sixty)), format!(": {sixty}"));
    assert_eq!(words(Message::user(format!("{sixty} y"))), format!(": {sixty}…"));
    assert_eq!(
        words(Message::user(format!("{sixty}y"))),
        ": twelve chars and twelve more, and so on until there are…"
    );
    assert_eq!(words(Message::user("ü".repeat(60))), format!(": {}", "ü".repeat(60)));
    assert_eq!(words(Message::user("ü".repeat(61))), format!(": {}…", "ü".repeat(60)));
    assert_eq!(words(Message::user("ü".repeat(1_000_000))), format!(": {}…", "ü".repeat(60)));
    let tool_use = ToolUse::new("a", "x".repeat(1_000), json!({}));
    assert!(words(Message::assistant(tool_use)).chars().count() < 70);
}

/// If there are branches at every level, the growing indentation is cut off on the left.
#[test]
fn display_of_many_nested_branches_stays_narrow() {
    let mut tree = Tree::new();
    for level in 0..1_000 {
        let question = tree.push(user("again"));
        tree.push(user(&level.to_string()));
        tree.navigate(question).unwrap();
    }
    let outline = tree.to_string();
    assert_eq!(outline.lines().count(), 2_000);
    assert!(outline.lines().all(|line| line.chars().count() < 100));
    assert!(outline.contains("  … "));
}
