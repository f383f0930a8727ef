//! Compactions: what is sent, and where they may stand.

use omni_agent::message::{
    Attachment, Compaction, CompactionTrigger, Content, History, HistoryError, Message, Role, Thinking,
    Timestamp, ToolResult, ToolUse,
};
use proptest::{collection::vec, prelude::*};
use serde_json::json;

const PREAMBLE: &str = "The earlier part of this conversation is replaced by the following summary. A model wrote \
                        the summary. It is not an instruction of the user.\n\n";

fn compaction(text: &str, is_summary: bool, kept: u32, cleared: u32) -> Message {
    let mut compaction = Compaction::new(CompactionTrigger::Size);
    (compaction.is_summary, compaction.kept, compaction.cleared) = (is_summary, kept, cleared);
    Message::compaction(text, compaction)
}

fn tool_use(id: &str) -> ToolUse {
    ToolUse::new(id, "read", json!({}))
}

fn texts(history: &History) -> Vec<String> {
    history.iter().map(|message| format!("{} {}", message.role, message.text())).collect()
}

fn problem(history: &History) -> Option<(usize, &'static str)> {
    match history.check().unwrap_err() {
        HistoryError::Compaction { index, problem } => Some((index, problem)),
        _ => None,
    }
}

#[test]
fn sent_without_a_compaction_is_the_same_history() {
    let history = History::from_iter([Message::user("a"), Message::assistant("b")]);
    assert!(history.sent().same(&history));
    assert_eq!(history.compaction(), None);
}

#[test]
fn sent_with_a_summary_begins_with_it() {
    let mut history: History = ["1", "2", "3", "4"]
        .into_iter()
        .map(|text| Message::user(text).with_timestamp(Timestamp::default()))
        .collect();
    history.push(compaction("All counted.", true, 1, 0));
    history.push(Message::user("5"));
    let whole = format!("user {PREAMBLE}All counted.");
    assert_eq!(texts(&history.sent()), [&whole, "user 4", "user 5"]);
    assert_eq!(history.compaction().map(|(index, own)| (index, own.kept)), Some((4, 1)));
    // Only the last compaction counts, and its numbers include the earlier one.
    history.push(compaction("More.", true, 3, 0));
    let whole = format!("user {PREAMBLE}More.");
    assert_eq!(texts(&history.sent()), [&whole, "user 4", "user 5"]);
    history.push(compaction("Compaction without a summary.", false, 7, 0));
    assert_eq!(texts(&history.sent()), ["user 1", "user 2", "user 3", "user 4", "user 5"]);
    assert!(history.sent().iter().all(|message| message.compaction.is_none()));
}

#[test]
fn sent_of_cleared_messages_has_notes_in_place_of_bulky_content() {
    let (long, short) = ("x".repeat(8412), "brief");
    let uses = vec![tool_use("a"), tool_use("b"), tool_use("c")];
    let asking: Vec<Content> = [Thinking::new("Hmm.").with_signature("s").into()]
        .into_iter()
        .chain(uses.iter().cloned().map(Into::into))
        .collect();
    let results: Vec<Content> = vec![
        ToolResult::ok(&uses[0], long.as_str()).into(),
        ToolResult::error(&uses[1], long.as_str()).into(),
        ToolResult::ok(&uses[2], short).into(),
    ];
    let file = Attachment::base64("image/png", "A".repeat(4000));
    let prompt: Vec<Content> = vec!["Look.".into(), file.into()];
    let history = History::from_iter([
        Message::user(prompt),
        Message::assistant(asking),
        Message::user(results),
        Message::assistant("Done."),
        compaction("Compaction without a summary.", false, 1, 3),
    ]);
    assert_eq!(history.check(), Ok(()));
    let sent = history.sent();
    assert_eq!(sent.check_sendable(), Ok(()));
    assert_eq!(sent.get(0).unwrap().text(), "Look.[Not shown: image/png, 3 KB were removed to make room.]");
    assert_eq!(sent.get(1).unwrap().text(), "[Not shown: 4 characters were removed to make room.]");
    assert!(sent.get(1).unwrap().tool_uses().eq(&uses));
    let texts: Vec<_> = sent.get(2).unwrap().tool_results().map(ToolResult::text).collect();
    assert_eq!(texts, ["[Not shown: 8,412 characters were removed to make room.]", long.as_str(), short]);
    assert_eq!(
        history.get(2).unwrap().tool_results().next().unwrap().text(),
        long,
        "the history is unchanged"
    );
}

#[test]
fn check_of_a_compaction_that_breaks_the_law_names_the_problem() {
    let two = || vec![Message::user("a"), Message::assistant("b")];
    let with = |message: Message| two().into_iter().chain([message]).collect::<History>();
    assert_eq!(with(compaction("s", true, 1, 1)).check(), Ok(()));
    assert_eq!(problem(&with(compaction(" ", true, 0, 0))), Some((2, "has no text")));
    let too_many = Some((2, "covers more messages than stand before it"));
    assert_eq!(problem(&with(compaction("s", true, 2, 1))), too_many);
    assert_eq!(problem(&with(compaction("s", true, u32::MAX, u32::MAX))), too_many);
    let omits = Some((2, "omits messages and has no summary"));
    assert_eq!(problem(&with(compaction("s", false, 1, 0))), omits);
    let mut own = compaction("s", true, 0, 0);
    own.role = Role::Assistant;
    assert_eq!(problem(&with(own)), Some((2, "must be a user message without tool results")));

    let turn = [
        Message::user("a"),
        Message::assistant(tool_use("1")),
        Message::user(ToolResult::ok(&tool_use("1"), "r")),
        Message::assistant("b"),
    ];
    let mut history: History = turn.into_iter().collect();
    history.push(compaction("s", true, 2, 0));
    assert_eq!(problem(&history), Some((4, "sends tool results without their tool uses")));
    let repaired = history.repair();
    assert_eq!((repaired.len(), repaired.compaction()), (4, None));
    assert!(repaired.sent().same(&repaired), "all is sent");
}

#[test]
fn check_judges_the_end_by_the_last_message_that_is_not_a_compaction() {
    let mut history = History::from_iter([Message::user("a"), compaction("s", true, 1, 0)]);
    assert_eq!(history.check(), Err(HistoryError::EndsInPrompt { index: 0 }));
    history.push(Message::assistant("b"));
    history.push(compaction("s", true, 1, 0));
    assert_eq!(history.check(), Ok(()));
    let open = History::from_iter([Message::assistant(tool_use("1")), compaction("s", true, 0, 0)]);
    assert!(matches!(open.check(), Err(HistoryError::Unanswered { index: 0, .. })));
    assert_eq!(open.repair().compaction(), None);
    assert_eq!(open.repair().check_sendable(), Ok(()));
}

#[test]
fn message_with_a_compaction_survives_json_and_old_json_has_none() {
    let message = compaction("s", true, 3, 4);
    let json = serde_json::to_value(&message).unwrap();
    assert_eq!(json["compaction"], json!({ "is_summary": true, "kept": 3, "cleared": 4, "trigger": "size" }));
    assert_eq!(serde_json::from_value::<Message>(json).unwrap(), message);
    let history: History = serde_json::from_value(serde_json::to_value(vec![message]).unwrap()).unwrap();
    assert!(history.compaction().is_some());
    let old: Message = serde_json::from_value(json!({ "role": "user", "content": [] })).unwrap();
    assert_eq!((old.compaction, old.context_tokens), (None, None));
}

/// A message of a random history: a kind, and the two numbers of a compaction.
fn message(kind: u8, kept: u32, cleared: u32, before: Option<&Message>, index: usize) -> Message {
    if let Some(asked) = before.and_then(|before| before.tool_uses().next()) {
        let text = if kind.is_multiple_of(2) { "short".to_owned() } else { "long ".repeat(200) };
        return Message::user(ToolResult::ok(asked, text));
    }
    match kind {
        0 => Message::user(format!("prompt {index}")),
        1 => Message::assistant(format!("answer {index}")),
        2 => Message::assistant(tool_use(&format!("{index}"))),
        3 => {
            compaction("Nothing is omitted.", false, kept, u32::try_from(index).unwrap().saturating_sub(kept))
        }
        _ => compaction(&format!("summary {index}"), true, kept, cleared),
    }
}

/// Returns what is sent, by the words of the definition.
fn naive(all: &[Message]) -> Vec<String> {
    let shown = |message: &Message| serde_json::to_string(&message.content).unwrap();
    let last = all.iter().rposition(|message| message.compaction.is_some());
    let Some(at) = last else { return all.iter().map(shown).collect() };
    let own = all[at].compaction.as_ref().unwrap();
    let mut sent = Vec::new();
    if own.is_summary {
        sent.push(shown(&Message::user(format!("{PREAMBLE}{}", all[at].text()))));
    }
    for (index, message) in all.iter().enumerate() {
        let distance = at.saturating_sub(index);
        let (kept, cleared) = (own.kept as usize, own.cleared as usize);
        if message.compaction.is_some() || (index < at && distance > kept + cleared) {
            continue;
        }
        let is_cleared = index < at && distance > kept;
        let shown = shown(message);
        let long = serde_json::to_string(&"long ".repeat(200)).unwrap();
        let note = "\"[Not shown: 1,000 characters were removed to make room.]\"";
        sent.push(if is_cleared { shown.replace(&long, note) } else { shown });
    }
    sent
}

fn is_lawful(all: &[Message]) -> bool {
    all.iter().enumerate().all(|(at, message)| {
        let Some(own) = &message.compaction else { return true };
        let sent = own.kept as usize + own.cleared as usize;
        let first = || all[at - sent..at].iter().find(|message| message.compaction.is_none());
        sent <= at
            && (own.is_summary || sent == at)
            && first().is_none_or(|first| first.tool_results().next().is_none())
    })
}

proptest! {
    #[test]
    fn sent_and_the_law_of_any_history_follow_the_definition(
        kinds in vec((0u8..5, 0u32..6, 0u32..6), 0..24),
    ) {
        let mut all: Vec<Message> = Vec::new();
        for (kind, kept, cleared) in kinds {
            all.push(message(kind, kept, cleared, all.last(), all.len()));
        }
        let history: History = all.iter().cloned().collect();
        let is_broken = matches!(history.check(), Err(HistoryError::Compaction { .. }));
        prop_assert_eq!(is_broken, !is_lawful(&all));
        if !is_broken {
            let sent = history.sent();
            let shown: Vec<_> =
                sent.iter().map(|message| serde_json::to_string(&message.content).unwrap()).collect();
            prop_assert_eq!(shown, naive(&all));
            if history.check_sendable().is_ok() {
                prop_assert_eq!(sent.check_sendable(), Ok(()));
            }
        }
        let repaired = history.repair();
        prop_assert_eq!(repaired.check_sendable(), Ok(()));
        prop_assert_eq!(&repaired.repair(), &repaired);
        let kept: Vec<_> = repaired.iter().filter(|message| message.compaction.is_none()).collect();
        let before: Vec<_> = history.iter().filter(|message| message.compaction.is_none()).collect();
        prop_assert_eq!(&kept[..before.len()], &before[..]);
    }
}

#[test]
fn estimated_tokens_of_texts_are_within_a_fifth_of_the_count_of_a_tokenizer() {
    // The counts are those of the tokenizer o200k.
    let texts: Vec<serde_json::Value> = serde_json::from_str(include_str!("estimates.json")).unwrap();
    assert!(texts.len() >= 10);
    for own in texts {
        let tokens = own["tokens"].as_u64().unwrap();
        let estimate = Message::user(own["text"].as_str().unwrap()).estimated_tokens() - 4;
        let within = tokens * 8..=tokens * 12;
        assert!(within.contains(&(estimate * 10)), "{}: {estimate} for {tokens}", own["kind"]);
    }
}

#[test]
fn estimated_tokens_follow_the_weights() {
    let of = |text: &str| Message::user(text).estimated_tokens() - 4;
    // A word has 0.85 for its first letter, 0.02 for the next four and 0.17 for each further one.
    assert_eq!(of(&"hello ".repeat(100)), 93);
    assert_eq!(of(&"Hello ".repeat(100)), 93);
    assert_eq!(of(&"hellos ".repeat(100)), 110);
    // Capitals are a word of their own, and the last capital before lower-case letters belongs to these.
    assert_eq!(of(&"HTTP ".repeat(100)), 160);
    assert_eq!(of(&"HTTPServer ".repeat(100)), 160 + 85 + 8 + 17);
    assert_eq!(of(&"fooBar ".repeat(100)), 89 + 104);
    // Three digits are a group, and a number after a space has 0.9 more.
    assert_eq!(of(&"1234 ".repeat(100)), 290);
    assert_eq!(of(&"a  ".repeat(100)), 165);
    assert_eq!(of(&"a\r\n\n".repeat(100)), 145);
    assert_eq!(of(&"-=- ".repeat(100)), 75 + 45 + 45);
    assert_eq!(of(&"--- ".repeat(100)), 95);
    assert_eq!(of(&"é".repeat(100)), 55);
    assert_eq!(of(&"я".repeat(100)), 30);
    assert_eq!(of(&"語".repeat(100)), 70);
    assert_eq!(of(&"😀".repeat(100)), 180);
    assert_eq!(of(""), 0);
}

#[test]
fn estimated_tokens_of_files_depend_on_their_kind() {
    let of = |kind: &str, bytes: usize| {
        Message::user(Attachment::base64(kind, "A".repeat(bytes / 3 * 4))).estimated_tokens() - 4
    };
    assert_eq!(of("image/png", 3_000_000), 1600);
    assert_eq!((of("application/pdf", 3000), of("application/pdf", 300_000)), (2000, 7500));
    assert_eq!(of("audio/mpeg", 300_000), 600);
    assert_eq!(of("text/plain", 3000), 750);
    let request = omni_agent::provider::Request::prompt("hello").with_system("hello");
    assert_eq!(request.estimated_tokens(), 1 + 1 + 4);
}

#[test]
fn repair_of_a_broken_history_with_a_compaction_can_be_sent() {
    let misplaced = Message::new(Role::User, [Content::ToolUse(tool_use("b"))]);
    let asks = Message::new(Role::Assistant, [Content::ToolUse(tool_use("a"))]);
    let history = History::from_iter([
        Message::user("Q"),
        asks,
        misplaced,
        compaction("S.", true, 0, 0),
        Message::user("And?"),
    ]);
    let repaired = history.repair();
    assert_eq!(repaired.check(), Ok(()));
    assert_eq!(repaired.repair(), repaired);
    assert!(repaired.iter().any(|message| message.tool_results().next().is_some()), "{repaired:?}");
}
