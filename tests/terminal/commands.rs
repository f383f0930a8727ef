//! Commands.

use omni_agent::testing::{Gate, Step};

use crate::support::{Talk, scripted};

#[tokio::test(start_paused = true)]
async fn unknown_command_is_reported_and_the_chat_continues() {
    let mut talk = Talk::start(&scripted([Step::text("Hello")]).await);
    talk.type_line("/frobnicate now");
    talk.sees("/frobnicate is not a command; /help lists them.\n> ").await;
    talk.type_line("Hi");
    talk.sees("Hello").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn branch_switches_between_versions_of_an_answer() {
    let mut talk = Talk::start(&scripted([Step::text("Red"), Step::text("Blue"), Step::text("Green")]).await);
    talk.type_line("A colour?");
    talk.sees("Red").await;
    talk.sees("> ").await;
    talk.type_line("/regenerate");
    talk.sees("Blue").await;
    talk.sees("> ").await;
    talk.type_line("/branch");
    talk.sees("  2 assistant: Red\n> 3 assistant: Blue\n").await;
    talk.type_line("/branch 2");
    talk.sees("1 user: A colour?\n2 assistant: Red\n").await;
    talk.type_line("/edit A cold colour?");
    talk.sees("Green").await;
    talk.sees("> ").await;
    talk.type_line("/branch");
    talk.sees("> 5 assistant: Green\n").await;
    talk.type_line("/tree");
    talk.sees("4 user: A cold colour?").await;
    talk.type_line("/branch seven");
    talk.sees("Missing node number").await;
    talk.type_line("/goto 77");
    talk.sees("the tree has no node 77").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn title_cost_and_tools_show_the_state() {
    let mut talk = Talk::start(&scripted([]).await);
    talk.type_line("/title");
    talk.sees("[untitled;").await;
    talk.type_line("/title Colours");
    talk.type_line("/title");
    talk.sees("Colours\n").await;
    talk.type_line("/cost");
    talk.sees("[nothing was used yet]").await;
    talk.type_line("/tools");
    talk.sees("this chat\n  weather: Tells the weather.\n  delete: Deletes a file.\n").await;
    talk.type_line("/regenerate");
    talk.sees("You have not sent a message here yet.").await;
    talk.type_line("/edit");
    talk.sees("Missing text: /edit TEXT").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_prompt_is_sent_again() {
    use omni_agent::{ProviderError, ProviderErrorKind};
    let failure = Step::error(ProviderError::new(ProviderErrorKind::Auth, "the key is wrong"));
    let mut talk = Talk::start(&scripted([failure, Step::text("Hello")]).await);
    talk.type_line("Hi");
    talk.sees("error: ").await;
    talk.sees("the key is wrong").await;
    talk.sees("[no response to \"Hi\"; /again sends it again]").await;
    talk.type_line("/again");
    talk.sees("Hello").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn compaction_is_shown_and_undone() {
    let mut talk = Talk::start(&scripted(["One", "Two", "Three", "Counting."].map(Step::text)).await);
    for (prompt, answer) in [("1", "One"), ("2", "Two"), ("3", "Three")] {
        talk.type_line(prompt);
        talk.sees(answer).await;
        talk.sees("> ").await;
    }
    talk.type_line("/compact the numbers");
    talk.sees("Counting.]").await;
    talk.sees("> ").await;
    talk.type_line("/undo");
    talk.sees("[all messages are sent again]").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn compaction_is_refused_or_interrupted() {
    let gate = Gate::new();
    let steps = [Step::text("One"), Step::text("Two"), Step::text("Three"), Step::new().gate(&gate).hang()];
    let mut talk = Talk::start(&scripted(steps).await);
    talk.type_line("/compact");
    talk.sees("compact").await;
    talk.sees("> ").await;
    for (prompt, answer) in [("1", "One"), ("2", "Two"), ("3", "Three")] {
        talk.type_line(prompt);
        talk.sees(answer).await;
        talk.sees("> ").await;
    }
    talk.type_line("/compact");
    gate.reached().await;
    talk.interrupt();
    talk.sees("> ").await;
    talk.type_line("/tree");
    talk.sees("6 assistant: Three").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn own_command_replaces_one_of_the_chat_and_is_in_the_help() {
    let session = scripted([]).await;
    let mut talk = Talk::with(&session, |chat| {
        chat.command("/tools", "shows no tools", async |_| Ok::<_, String>("none\x1b[2J".to_owned())).command(
            "/twice",
            "repeats",
            async |text: String| {
                if text.is_empty() { Err("Missing text: /twice TEXT") } else { Ok(format!("{text} {text}")) }
            },
        )
    });
    talk.type_line("/tools");
    talk.sees("none\u{fffd}[2J\n").await;
    talk.type_line("/twice again");
    talk.sees("again again\n").await;
    talk.type_line("/twice");
    talk.sees("Missing text: /twice TEXT").await;
    talk.type_line("/help");
    talk.sees("/twice          repeats").await;
    talk.end_input().await.0.unwrap();
}
