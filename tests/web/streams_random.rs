//! Native streams that are cut at any point and resumed, with random runs: the client never misses anything.

use std::time::Duration;

use axum::http::StatusCode;
use omni_agent::testing::Step;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};

use crate::{
    streams::{Client, assert_current},
    support::{App, Frame, prompt},
};

/// An action of a client between two reads of the stream.
#[derive(Clone, Debug)]
enum Action {
    /// Sends a prompt to one of the two conversations. The answer has this number of words.
    Prompt {
        second: bool,
        words: usize,
        thinks: bool,
        uses_tool: bool,
    },
    /// Decides on the tool use that waits.
    Decide {
        second: bool,
        rejects: bool,
    },
    /// Cancels the run, which discards its messages.
    Cancel {
        second: bool,
    },
    Title {
        second: bool,
        number: u8,
    },
    /// Reads up to this number of frames.
    Read(usize),
    /// Cuts the stream and resumes it after the last position.
    Cut,
    /// Closes a conversation. When it is opened again, its earlier positions are unknown.
    Close {
        second: bool,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (any::<bool>(), 0..40_usize, any::<bool>(), any::<bool>()).prop_map(
            |(second, words, thinks, uses_tool)| Action::Prompt { second, words, thinks, uses_tool }
        ),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(second, rejects)| Action::Decide { second, rejects }),
        1 => any::<bool>().prop_map(|second| Action::Cancel { second }),
        1 => (any::<bool>(), any::<u8>()).prop_map(|(second, number)| Action::Title { second, number }),
        6 => (0..30_usize).prop_map(Action::Read),
        4 => Just(Action::Cut),
        1 => any::<bool>().prop_map(|second| Action::Close { second }),
    ];
    proptest::collection::vec(action, 1..25)
}

/// The client: its copies of both conversations, and its stream.
struct Page<'a> {
    app: &'a App,
    ids: [String; 2],
    clients: [Client; 2],
    position: Option<String>,
    stream: crate::support::Frames,
}

impl Page<'_> {
    fn take(&mut self, frame: &Frame) {
        if frame.event != "conversation" {
            return;
        }
        if let Some(id) = &frame.id {
            self.position = Some(id.clone());
        }
        let index = usize::from(frame.data["conversation"] == json!(self.ids[1]));
        self.clients[index].take(frame);
    }

    async fn cut(&mut self) {
        let [a, b] = &self.ids;
        let path = format!("/agent/events?watch={a}&watch={b}");
        self.stream = self.app.stream("ann", &path, self.position.as_deref()).await;
    }

    /// Reads up to `count` frames, as long as there are any.
    async fn read(&mut self, count: usize) -> usize {
        for read in 0..count {
            match tokio::time::timeout(Duration::from_millis(10), self.stream.next()).await {
                Ok(Some(frame)) => self.take(&frame),
                Ok(None) => panic!("the stream has ended"),
                Err(_) => return read,
            }
        }
        count
    }

    async fn send(&self, second: bool, command: Value) -> StatusCode {
        let path = format!("/agent/conversations/{}/commands", self.ids[usize::from(second)]);
        self.app.post("ann", &path, command).await.status
    }

    async fn perform(&mut self, action: &Action) {
        match *action {
            Action::Prompt { second, words, thinks, uses_tool } => {
                let mut step = Step::new();
                if thinks {
                    step = step.then_thinking("Let me see.", "signed");
                }
                step = step.then_text((0..words).map(|number| format!("word{number} ")));
                if uses_tool {
                    step = step.then_tool_use("call", "lookup", json!({ "what": "a fact" }));
                }
                self.app.provider.push(step.stop());
                self.send(second, prompt("Go on")).await;
            }
            Action::Decide { second, rejects } => {
                let decision = if rejects { json!({ "reject": "No." }) } else { json!("execute") };
                let id = &self.ids[usize::from(second)];
                let snapshot = self.app.get("ann", &format!("/agent/conversations/{id}")).await.json();
                let pause = &snapshot["agent"]["pauses"][0]["turn"];
                let turn = pause.as_str().map_or_else(|| "0".repeat(32), str::to_owned);
                let command = json!({ "type": "decide", "turn": turn, "decisions": [["call", decision]] });
                self.send(second, command).await;
            }
            Action::Cancel { second } => {
                self.send(second, json!({ "type": "cancel" })).await;
            }
            Action::Title { second, number } => {
                self.send(second, json!({ "type": "title", "title": format!("Title {number}") })).await;
            }
            Action::Read(count) => {
                self.read(count).await;
            }
            Action::Cut => self.cut().await,
            Action::Close { second } => {
                let id = omni_agent::store::ConversationId::new(&self.ids[usize::from(second)]).unwrap();
                self.app.manager.close(&id).await.unwrap();
                // The stream of a closed conversation ends with it, so the client opens another one.
                self.cut().await;
            }
        }
    }
}

async fn check(actions: &[Action]) {
    let app = App::new([]);
    let ids = [app.create("ann").await, app.create("ann").await];
    let path = format!("/agent/events?watch={}&watch={}", ids[0], ids[1]);
    let stream = app.stream("ann", &path, None).await;
    let mut page = Page { app: &app, ids, clients: Default::default(), position: None, stream };
    for action in actions {
        page.perform(action).await;
    }
    // Let every run end or pause. Then the client reads the remaining frames, and is cut off once in between.
    tokio::time::sleep(Duration::from_secs(1)).await;
    page.read(7).await;
    page.cut().await;
    while page.read(1000).await > 0 {}
    for (client, id) in page.clients.iter().zip(&page.ids) {
        assert_current(client, &app, id).await;
    }
}

#[test]
fn fold_of_a_stream_that_is_cut_and_resumed_at_random_is_the_snapshot() {
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&actions(), |actions| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(check(&actions));
        Ok(())
    });
    outcome.unwrap();
}
