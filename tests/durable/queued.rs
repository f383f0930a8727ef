//! Tools that waited for others to end when their process died.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use omni_agent::{
    agent::{Agent, Durable, OnUncertain, Recover},
    manager::{Manager, ManagerBuilder, OpenOptions, Sweep},
    message::ToolResult,
    store::{Owner, Store},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Replay, Tool, ToolContext, ToolLimits, tool_fn},
};
use serde_json::{Value, json};

use crate::{
    lives::in_a_life,
    stores::{id, stores},
};

/// An agent that uses the tool `send` four times, one at a time. The second use hangs in the first life.
#[derive(Clone, Default)]
struct Sender {
    /// The uses of all lives.
    sent: Arc<Mutex<Vec<String>>>,
    continues: Arc<AtomicBool>,
}

impl Sender {
    fn options(&self, replay: Replay, on_uncertain: OnUncertain, hangs: &Gate) -> OpenOptions {
        let provider = ScriptedProvider::from_fn(|request| {
            let last = request.history.last();
            let texts = last.map(|message| message.tool_results().map(ToolResult::text));
            match texts.into_iter().flatten().collect::<Vec<_>>() {
                texts if texts.is_empty() => {
                    let uses = |step: Step, id| step.then_tool_use(id, "send", json!({}));
                    ["a", "b", "c", "d"].into_iter().fold(Step::new(), uses).stop()
                }
                texts => Step::text(texts.join("; ")),
            }
        });
        let (own, hangs) = (self.clone(), hangs.clone());
        let send = tool_fn("send", "Sends.", move |_: Value, context: ToolContext| {
            let call =
                format!("{}{}", context.tool_use_id(), if context.is_repeated() { " again" } else { "" });
            let is_last = call == "b" && !own.continues.load(Ordering::SeqCst);
            own.sent.lock().unwrap().push(call.clone());
            let hangs = hangs.clone();
            async move {
                if is_last {
                    hangs.pass().await;
                }
                Ok(format!("sent {call}"))
            }
        });
        let agent = Agent::builder().model(provider.model()).tool(send.with_replay(replay));
        let agent = agent.tool_limits(ToolLimits::default().with_at_once(1));
        let recover = Recover::default().with_on_uncertain(on_uncertain);
        OpenOptions::new(agent).durable(Durable::InFlight).recover(recover).subscribe(None)
    }

    fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().clone()
    }
}

fn manager(store: &Arc<dyn Store>) -> ManagerBuilder {
    Manager::builder(Arc::clone(store)).owner(Owner::new("worker")).sweep(Sweep::off())
}

/// Plays a life that ends while the second tool runs, and one that continues the turn. Returns the last message.
async fn play(store: Arc<dyn Store>, sender: &Sender, replay: Replay, on_uncertain: OnUncertain) -> String {
    let (first, own) = (Arc::clone(&store), sender.clone());
    in_a_life(async move {
        let gate = Gate::new();
        let options = own.options(replay, on_uncertain, &gate);
        let manager = manager(&first).build();
        let opened = manager.create_with_id(&id("a"), options).await.unwrap();
        opened.session.prompt("Send them.").await.unwrap();
        gate.reached().await;
        // The manager is never dropped, because a process that dies runs no destructors.
        std::mem::forget((manager, opened));
    });
    assert_eq!(sender.sent(), ["a", "b"]);
    sender.continues.store(true, Ordering::SeqCst);
    let manager = manager(&store).build();
    let options = sender.options(replay, on_uncertain, &Gate::new());
    let session = manager.open(&id("a"), options).await.unwrap().session;
    if on_uncertain == OnUncertain::Ask {
        let mut running = session.snapshot().await.unwrap();
        while running.agent.pauses.is_empty() {
            tokio::task::yield_now().await;
            running = session.snapshot().await.unwrap();
        }
        let waiting: Vec<_> =
            running.agent.pauses.iter().map(|pause| pause.tool_use.id.to_string()).collect();
        assert_eq!(waiting, ["b?again1"], "the other tools were never started");
        session.resume("b?again1", Decision::Execute).await.unwrap();
    }
    session.wait_until_idle().await.unwrap();
    session.tree().await.unwrap().history().last().unwrap().text()
}

#[tokio::test]
async fn tool_that_waited_when_its_process_died_runs_exactly_once() {
    let cases = [
        (Replay::Never, OnUncertain::Report, vec!["a", "b", "c", "d"]),
        (Replay::Never, OnUncertain::Ask, vec!["a", "b", "b again", "c", "d"]),
        (Replay::Keyed, OnUncertain::Report, vec!["a", "b", "b again", "c", "d"]),
    ];
    for (replay, on_uncertain, expected) in cases {
        for place in stores().await {
            let sender = Sender::default();
            let text = play(Arc::clone(&place.store), &sender, replay, on_uncertain).await;
            assert_eq!(sender.sent(), expected, "{replay:?}, {on_uncertain:?}");
            assert!(text.starts_with("sent a; ") && text.ends_with("; sent c; sent d"), "{text}");
        }
    }
}
