//! Pipes, closed outputs, and the ends of a chat.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use futures_util::stream;
use omni_agent::{
    Error, ErrorKind, ProviderError, ProviderErrorKind,
    terminal::{Chat, Entry},
    testing::Step,
    tool::Decision,
};
use serde_json::json;

use crate::support::{Talk, scripted};

fn failure() -> Step {
    Step::error(ProviderError::new(ProviderErrorKind::Auth, "the key is wrong"))
}

#[tokio::test(start_paused = true)]
async fn piped_lines_wait_for_the_answers_and_are_shown() {
    let session = scripted([Step::text("One"), Step::text("Two")]).await;
    let talk = Talk::with(&session, Chat::piped);
    for line in ["First", "", "Second", "/title Numbers"] {
        talk.type_line(line);
    }
    let (ended, shown) = talk.end_input().await;
    ended.unwrap();
    let places = ["> First\n", "One\n", "> Second\n", "Two\n", "> /title Numbers\n"]
        .map(|text| shown.find(text).expect(text));
    assert!(places.is_sorted(), "{shown}");
    assert!(!shown.contains("queued"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn piped_chat_whose_last_run_fails_returns_the_failure() {
    for (steps, fails) in [([Step::text("One"), failure()], true), ([failure(), Step::text("Two")], false)] {
        let session = scripted(steps).await;
        let talk = Talk::with(&session, Chat::piped);
        talk.type_line("First");
        talk.type_line("Second");
        let (ended, shown) = talk.end_input().await;
        assert!(shown.contains("error: "), "{shown}");
        assert_eq!(ended.err().map(|error| error.kind()), fails.then_some(ErrorKind::Failed), "{shown}");
    }
}

/// Returns the answer of a model in more pieces than the chat may lag behind.
fn long() -> Step {
    Step::new().then_text(["word "; 400])
}

#[tokio::test(start_paused = true)]
async fn piped_chat_misses_the_end_of_the_last_run_it_returns_what_the_run_returned() {
    let delete = || Step::tool_use("d", "delete", json!({ "path": "a.txt" }));
    let fails = long().fail(ProviderError::new(ProviderErrorKind::Auth, "the key is wrong"));
    let cases = [([Step::text("One"), delete(), fails], true), ([failure(), delete(), long().stop()], false)];
    for (steps, is_error) in cases {
        let session = scripted(steps).await;
        let own = session.clone();
        let talk = Talk::with(&session, |chat| {
            // The chat reads no event while its command runs.
            let chat = chat.piped().command("/allow", "allows it, and waits", move |_| {
                let own = own.clone();
                async move {
                    let pause = own.snapshot().await?.agent.pauses[0].tool_use.id.clone();
                    own.resume(pause, Decision::Execute).await?;
                    own.wait_until_idle().await?;
                    Ok::<_, Error>("allowed".to_owned())
                }
            });
            chat.after_run(|| "a run is over".to_owned())
        });
        for line in ["First", "Second", "/allow"] {
            talk.type_line(line);
        }
        let (ended, shown) = talk.end_input().await;
        assert!(shown.contains("[some output was skipped]"), "{shown}");
        assert!(shown.contains("the key is wrong"), "{shown}");
        assert_eq!(shown.matches("a run is over").count(), 2, "{shown}");
        assert_eq!(ended.err().map(|error| error.kind()), is_error.then_some(ErrorKind::Failed), "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn piped_chat_misses_events_after_an_earlier_failure_it_returns_no_error() {
    let session = scripted([failure()]).await;
    session.ask("Before").await.unwrap_err();
    let named = session.clone();
    let mut talk = Talk::with(&session, |chat| {
        chat.piped().command("/names", "gives many titles", move |_| {
            let named = named.clone();
            async move {
                for number in 0..400 {
                    named.set_title(Some(&number.to_string())).await?;
                }
                Ok::<_, Error>("named".to_owned())
            }
        })
    });
    talk.type_line("/names");
    talk.sees("[some output was skipped]").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn typed_chat_whose_last_run_fails_returns_no_error() {
    let mut talk = Talk::start(&scripted([failure()]).await);
    talk.type_line("Hi");
    talk.sees("the key is wrong").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn second_interrupt_while_idle_ends_the_chat() {
    let mut talk = Talk::start(&scripted([]).await);
    talk.interrupt();
    talk.sees("[press Ctrl-C again to end the chat]\n> ").await;
    // A line in between starts again.
    talk.type_line("/cost");
    talk.interrupt();
    talk.sees("[press Ctrl-C again to end the chat]\n> ").await;
    talk.interrupt();
    talk.ended().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn end_of_the_input_waits_for_the_run() {
    let session = scripted([Step::new().wait(Duration::from_mins(1)).then_text(["Late"]).stop()]).await;
    let talk = Talk::start(&session);
    talk.type_line("Hi");
    let (ended, shown) = talk.end_input().await;
    ended.unwrap();
    assert!(shown.contains("Late\n"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn end_of_the_session_ends_the_chat_with_its_reason() {
    let session = scripted([]).await;
    let mut talk = Talk::start(&session);
    talk.sees("> ").await;
    session.stop(Duration::from_secs(1)).await.unwrap();
    let error = talk.ended().await.0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ended);
}

/// An output that is closed after the first writes.
struct Closing(u32);

impl Write for Closing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn closed_output_ends_the_chat_without_an_error() {
    for writes in 0..8 {
        let session = scripted([Step::new().then_text(["One", "Two", "Three"]).hang()]).await;
        // The input never ends.
        let input = stream::iter([Entry::Line("Hi".to_owned())]);
        let input = futures_util::StreamExt::chain(input, stream::pending());
        let chat = Chat::new(&session).input(input).output(Closing(writes));
        let ended = tokio::time::timeout(Duration::from_mins(1), chat.run()).await;
        // All writes up to the last word of the answer: the note on `/help`, the prompt, and three pieces.
        match ended {
            Ok(ended) => ended.unwrap(),
            Err(_) => assert!(writes >= 5, "the chat goes on after {writes} writes"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn text_after_each_run_is_shown() {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let session = scripted([Step::text("One"), Step::text("Two")]).await;
    let mut talk = Talk::with(&session, |chat| {
        chat.after_run(|| format!("run {} is over", RUNS.fetch_add(1, Ordering::Relaxed) + 1))
    });
    talk.type_line("First");
    talk.sees("One").await;
    talk.sees("run 1 is over\n> ").await;
    talk.type_line("Second");
    talk.sees("run 2 is over\n> ").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn later_chat_shows_the_end_of_the_conversation() {
    let session = scripted([Step::text("Hello"), failure()]).await;
    let mut talk = Talk::start(&session);
    talk.type_line("Hi");
    talk.sees("Hello").await;
    talk.sees("> ").await;
    talk.type_line("More");
    talk.sees("[no response to \"More\"").await;
    talk.end_input().await.0.unwrap();
    let mut later = Talk::start(&session);
    later.sees("1 user: Hi\n2 assistant: Hello\n").await;
    later.sees("[no response to \"More\"").await;
    later.end_input().await.0.unwrap();
}
