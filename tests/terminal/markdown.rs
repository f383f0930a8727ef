//! Rendered Markdown. The pieces in which a text arrives must not change how it looks.

use omni_agent::{terminal::Style, testing::Step};
use proptest::prelude::*;

use crate::support::{Talk, scripted};

/// Returns what the chat shows for an answer in these pieces.
async fn shown(pieces: Vec<String>, style: Style) -> String {
    let session = scripted([Step::new().then_text(pieces).stop()]).await;
    let mut talk = Talk::with(&session, |chat| chat.style(style));
    talk.sees("> ").await;
    talk.type_line("Go");
    let end = if style == Style::Ansi { "\x1b[2m[" } else { "[scripted" };
    let shown = talk.sees(end).await;
    talk.end_input().await.0.unwrap();
    shown
}

async fn rendered(text: &str) -> String {
    shown(vec![text.to_owned()], Style::Ansi).await
}

/// Returns the text with short names in place of the styles.
fn named(text: &str) -> String {
    let names = [
        ("0", "/"),
        ("1", "bold"),
        ("1;4", "title"),
        ("3", "italic"),
        ("1;3", "both"),
        ("2", "dim"),
        ("36", "code"),
    ];
    names.into_iter().fold(text.to_owned(), |text, (code, name)| {
        text.replace(&format!("\x1b[{code}m"), &format!("<{name}>"))
    })
}

#[tokio::test(start_paused = true)]
async fn blocks_and_spans_have_styles() {
    for (text, expected) in [
        ("plain", "plain\n"),
        ("# Title\n## Part `x`\n", "<title>Title</>\n<bold>Part <code>x</><bold></>\n"),
        ("#hashtag", "#hashtag\n"),
        (
            "a **bold** and *italic* and ***both***.",
            "a <bold>bold</> and <italic>italic</> and <both>both</>.\n",
        ),
        ("_so_ and __so__, not snake_case_names", "<italic>so</> and <bold>so</>, not snake_case_names\n"),
        ("**bold with `code` inside**", "<bold>bold with <code>code</><bold> inside</>\n"),
        ("`a * b` and ``a ` b``", "<code>a * b</> and <code>a ` b</>\n"),
        ("2 * 3 * 4 and *open and `open", "2 * 3 * 4 and *open and `open\n"),
        ("*args, **kwargs", "*args, **kwargs\n"),
        ("\\*no\\* and \\a", "*no* and \\a\n"),
        ("- one\n  * two\n+ three\n-no", "• one\n  • two\n• three\n-no\n"),
        ("1. one\n2. **two**", "1. one\n2. <bold>two</>\n"),
        ("> quoted *text*", "<dim>│</> quoted <italic>text</>\n"),
        (
            "```rust\nlet *a* = `b`;\n  ```not\n```\nafter *it*",
            "<dim>```rust</>\n<code>let *a* = `b`;</>\n<code>  ```not</>\n<dim>```</>\nafter <italic>it</>\n",
        ),
        ("~~~\n```\n~~~~\nend", "<dim>~~~</>\n<code>```</>\n<dim>~~~~</>\nend\n"),
        ("---", "---\n"),
        ("```", "<dim>```</>\n"),
    ] {
        assert_eq!(named(&rendered(text).await), expected, "{text:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn plain_style_shows_the_text_as_it_is() {
    let text = "# Title\n- *a* `b`\n```\ncode\n```";
    assert_eq!(shown(vec![text.to_owned()], Style::Plain).await, format!("{text}\n"));
}

#[tokio::test(start_paused = true)]
async fn marker_without_a_near_partner_is_shown_as_it_is() {
    let text = format!("*{}*", "word ".repeat(100));
    assert_eq!(named(&rendered(&text).await), format!("{text}\n"));
}

#[tokio::test(start_paused = true)]
async fn many_open_markers_take_little_time() {
    let text = "*a _b ".repeat(20_000);
    assert_eq!(rendered(&text).await.len(), text.len() + 1);
}

/// A text with many markers.
fn any_text() -> impl Strategy<Value = Vec<String>> {
    let word = prop_oneof![
        3 => Just("word".to_owned()),
        2 => Just(" ".to_owned()),
        2 => Just("\n".to_owned()),
        1 => Just("é漢".to_owned()),
        4 => "[*_`#>+~\\\\-]{1,4}",
        1 => Just("x".repeat(390)),
    ];
    prop::collection::vec(word, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_split_renders_like_the_whole_text(words in any_text(), sizes in prop::collection::vec(1..9_usize, 1..40)) {
        let text = format!("a{}", words.concat());
        let mut letters = text.chars().peekable();
        let mut pieces = Vec::new();
        for size in sizes.iter().cycle() {
            pieces.push(letters.by_ref().take(*size).collect::<String>());
            if letters.peek().is_none() {
                break;
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (whole, split) = runtime.block_on(async { (rendered(&text).await, shown(pieces, Style::Ansi).await) });
        prop_assert_eq!(named(&whole), named(&split));
    }
}
