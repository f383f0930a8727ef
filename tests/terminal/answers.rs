//! Answers, tool calls, queued prompts and interrupts.

use omni_agent::{
    Prompt,
    message::Role,
    testing::{Gate, Step},
};
use serde_json::json;

use crate::support::{Talk, scripted};

#[tokio::test(start_paused = true)]
async fn answer_in_pieces_is_shown_once_as_it_arrives() {
    let gate = Gate::new();
    let step = Step::new().then_text(["Hel", "lo, "]).gate(&gate).then_text(["world."]).stop();
    let session = scripted([step]).await;
    let mut talk = Talk::start(&session);
    talk.type_line("Hi");
    talk.sees("Hello, ").await;
    gate.open();
    talk.sees("world.").await;
    talk.sees("> ").await;
    let (ended, shown) = talk.end_input().await;
    ended.unwrap();
    assert_eq!(shown.matches("Hello").count(), 1, "{shown}");
    assert_eq!(shown.matches("world").count(), 1, "{shown}");
}

#[tokio::test(start_paused = true)]
async fn tool_call_is_shown_with_input_and_result() {
    let step = Step::tool_use("call-1", "weather", json!({ "city": "Oslo" }));
    let mut talk = Talk::start(&scripted([step, Step::text("It is sunny.")]).await);
    talk.type_line("Weather?");
    talk.sees("→ weather {\"city\":\"Oslo\"}\n← weather: Sun in Oslo.\nIt is sunny.\n").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn control_characters_of_models_and_tools_are_replaced() {
    let hostile = "\x1b]0;owned\x07\u{9b}2J\u{202e}\r\x7f";
    let steps = [
        Step::new()
            .then_text([hostile])
            .then_tool_use("call-1", "weather", json!({ "city": hostile }))
            .stop(),
        Step::tool_use("call-2", "delete", json!({ "path": hostile })),
        Step::text("Done."),
    ];
    let mut talk = Talk::start(&scripted(steps).await);
    talk.type_line("Go");
    talk.sees("or edit PATH? ").await;
    talk.type_line("/title \x1b[2J");
    talk.type_line("/title");
    talk.type_line("y");
    talk.sees("Done.").await;
    let (ended, shown) = talk.end_input().await;
    ended.unwrap();
    let is_bad = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
    assert!(!shown.contains(is_bad), "{shown:?}");
    assert!(shown.contains("\u{fffd}]0;owned\u{fffd}"), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn line_during_a_run_is_queued_and_can_be_taken_back() {
    let gate = Gate::new();
    let steps = [Step::new().then_text(["One"]).gate(&gate).stop(), Step::text("Two")];
    let mut talk = Talk::start(&scripted(steps).await);
    talk.type_line("First");
    talk.sees("One").await;
    talk.type_line("Second");
    talk.sees("[queued: Second;").await;
    talk.type_line("Third");
    talk.sees("[queued: Third;").await;
    talk.type_line("/queue");
    talk.sees("1. Second\n2. Third\n").await;
    talk.type_line("/unqueue");
    talk.sees("[taken back: Third]").await;
    gate.open();
    talk.sees("Two").await;
    talk.sees("> ").await;
    talk.type_line("/queue");
    talk.sees("[nothing waits]").await;
    let session = talk.session.clone();
    talk.end_input().await.0.unwrap();
    let tree = session.tree().await.unwrap();
    let asked =
        tree.iter().filter(|node| node.message().role == Role::User).map(|node| node.message().text());
    assert_eq!(asked.collect::<Vec<_>>(), ["First", "Second"]);
}

#[tokio::test(start_paused = true)]
async fn interrupt_during_a_run_keeps_the_answer_so_far() {
    let mut talk =
        Talk::start(&scripted([Step::new().then_text(["Once upon"]).hang(), Step::text("Again")]).await);
    talk.type_line("Tell");
    talk.sees("Once upon").await;
    talk.interrupt();
    talk.sees("[interrupted; the response so far is kept]").await;
    talk.sees("> ").await;
    talk.type_line("Go on");
    talk.sees("Again").await;
    let session = talk.session.clone();
    talk.end_input().await.0.unwrap();
    let tree = session.tree().await.unwrap();
    assert!(tree.iter().any(|node| node.message().text() == "Once upon"));
}

#[tokio::test(start_paused = true)]
async fn run_of_another_client_is_shown_and_can_be_interrupted() {
    let session = scripted([Step::new().then_text(["Hello"]).hang()]).await;
    let mut talk = Talk::start(&session);
    talk.sees("> ").await;
    session.prompt("From elsewhere").await.unwrap();
    talk.sees("Hello").await;
    talk.interrupt();
    talk.sees("[interrupted;").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn chat_during_a_run_shows_the_answer_so_far() {
    let gate = Gate::new();
    let session = scripted([Step::new().then_text(["Half"]).gate(&gate).then_text([" done"]).stop()]).await;
    session.prompt("Go").await.unwrap();
    gate.reached().await;
    let mut talk = Talk::start(&session);
    talk.sees("Half").await;
    gate.open();
    talk.sees(" done").await;
    let (ended, shown) = talk.end_input().await;
    ended.unwrap();
    assert_eq!(shown.matches("Half").count(), 1, "{shown}");
}

#[tokio::test(start_paused = true)]
async fn first_prompt_is_sent_at_the_beginning() {
    let session = scripted([Step::text("Hello")]).await;
    let talk = Talk::with(&session, |chat| chat.first(Prompt::new("Hi")));
    let (ended, shown) = talk.end_input().await;
    ended.unwrap();
    assert!(shown.contains("Hello\n"), "{shown}");
}
