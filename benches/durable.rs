//! The time that durable turns add, and 100,000 approvals that wait in one database: listing 50 at a time, and deciding.
//!
//! The first figures are the median wall times of turns of one session, from the prompt until the turn is saved. The
//! model answers at once. In each turn, it calls a tool that must not run twice: once, or 16 times for results of
//! 32 KiB each. Each write waits for the disk. The level `Approvals` records nothing in these turns, because no tool use
//! waits.
//!
//! Each approval is the tool use of a turn in flight in its own conversation, and each of 1,000 users has 100 of them.
//! Each figure for a list is the median of calls of `Manager::pending_approvals`, one after another. The list "from the
//! middle" continues after the middle one of all approvals. The decisions are calls of `Manager::decide` about
//! conversations that are not open, and each write waits for the disk, as by default. The databases are small enough
//! for the operating system's cache. While they are filled, writes do not wait for the disk if the store supports this.
#![allow(clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[allow(dead_code)]
mod databases;
#[allow(dead_code)]
mod support;

fn main() {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    approvals::main();
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod approvals {
    use std::{
        fs,
        hint::black_box,
        sync::Arc,
        time::{Duration, Instant},
    };

    use futures_util::{StreamExt, stream};
    use omni_agent::{
        ToolError,
        agent::{Agent, Durable},
        manager::{Approval, Manager},
        message::{Message, Role, ToolUse, TurnId},
        run::PendingUse,
        session::Session,
        store::{
            ConversationId, FileSystemStore, Filter, Labels, Page, Store,
            custom::{Change, Commit, StoredState, TurnRecord, Write},
        },
        testing::{ScriptedProvider, Step},
        tool::{Decision, ToolContext, tool_fn},
    };
    use serde_json::{Value, json};

    use super::{
        databases,
        support::{head, median, on_this_thread, row, size},
    };

    /// The number of concurrent writes while the database is filled.
    const AT_ONCE: usize = 16;
    const USERS: usize = 1_000;

    pub(super) fn main() {
        let folder = std::env::temp_dir().join(format!("omni-agent-bench-{}", ConversationId::generate()));
        on_this_thread(async {
            let (subjects, _server) = databases::subjects(&folder).await;
            let files = FileSystemStore::builder(folder.join("files")).exclusive().open();
            let files: Arc<dyn Store> = Arc::new(files.await.expect("the folder is free"));
            for (uses, len) in [(1, 5), (16, 32 * 1024)] {
                levels("the file system", &files, uses, len).await;
                for databases::Subject { name, store, .. } in &subjects {
                    levels(name, store, uses, len).await;
                }
            }
            for databases::Subject { name, store, quick, .. } in &subjects {
                measure(name, store, &**quick).await;
            }
        });
        fs::remove_dir_all(&folder).expect("the benchmark's folder can be removed");
    }

    /// Measures turns with this number of tool uses, whose results have this length, at each level.
    async fn levels(name: &str, store: &Arc<dyn Store>, uses: usize, len: usize) {
        head(&format!("a turn with tool uses ({uses}, with {len} bytes each), saved to {name}"));
        let noted: Arc<str> = "noted, and ".chars().cycle().take(len).collect::<String>().into();
        let mut least = None;
        for level in [Durable::Turns, Durable::Approvals, Durable::InFlight] {
            let mut figures = Vec::new();
            let provider = ScriptedProvider::from_fn(move |request| {
                let has_result = |message: &Arc<Message>| message.tool_results().next().is_some();
                if request.history.last().is_some_and(has_result) {
                    Step::text("Done.")
                } else {
                    (0..uses)
                        .fold(Step::new(), |step, call| {
                            step.then_tool_use(&format!("call {call}"), "note", json!({ "text": "milk" }))
                        })
                        .stop()
                }
            });
            let noted = Arc::clone(&noted);
            let tool = tool_fn("note", "Notes.", move |_: Value, _: ToolContext| {
                let noted = noted.to_string();
                async move { Ok::<_, ToolError>(noted) }
            });
            let agent = Agent::builder().model(provider.model()).tool(tool);
            let builder = Session::builder(Arc::clone(store)).agent(agent).durable(level);
            let session = builder.create().await.expect("the id is free");
            for _ in 0..size(if uses == 1 { 300 } else { 60 }, 3) {
                let begun = Instant::now();
                session.ask("Note milk, please.").await.expect("the model answers");
                session.flush(Duration::from_secs(30)).await.expect("the store works");
                figures.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            session.stop(Duration::from_secs(30)).await.expect("the store works");
            let time = median(figures);
            let added = time - *least.get_or_insert(time);
            row(&format!("{level:?}: median"), format!("{time:.2} ms ({added:+.2} ms)"), "");
        }
    }

    async fn measure(name: &str, store: &Arc<dyn Store>, quick: &dyn Store) {
        let approvals = size(100_000, 200);
        head(&format!("{approvals} waiting approvals in {name}"));
        let leaving = stream::iter(0..approvals).map(|number| leave(quick, number));
        leaving.buffer_unordered(AT_ONCE).collect::<()>().await;

        let manager = Manager::builder(Arc::clone(store)).build();
        let (all, of_one) = (Filter::default(), Filter::with(user(7)));
        let first = list("first page of 50", &manager, &all, Page::first(50)).await;
        assert_eq!(first.len(), approvals.min(50));
        let half = Page::first(1).from(approvals / 2);
        let middle = manager.pending_approvals(&all, half).await.expect("the list is read");
        list("page of 50 from the middle", &manager, &all, Page::first(50).after(&middle[0])).await;
        list("first page of 50 of one user", &manager, &of_one, Page::first(50)).await;

        let mut figures = Vec::new();
        for approval in &first {
            let begun = Instant::now();
            manager.decide(&approval.id, Decision::Execute, Some("ann")).await.expect("it waits");
            figures.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        row("decide: median", format!("{:.2} ms", median(figures)), "");
    }

    fn user(number: usize) -> Labels {
        Labels::new([("tenant", "acme"), ("user", &format!("user-{}", number % USERS))])
            .expect("valid labels")
    }

    /// Stores a conversation whose turn waits for a decision.
    async fn leave(store: &dyn Store, number: usize) {
        let id = ConversationId::generate();
        let state = StoredState::default().with_labels(user(number));
        let version =
            store.write(&id, &Write::first(), &Change::create(state)).await.expect("the id is free");
        let tool_use =
            ToolUse::new(format!("call_{number}"), "send_money", json!({ "to": "ann", "amount": 20 }));
        let turn: TurnId = format!("{:032x}", number + 1).parse().expect("an id");
        let record = TurnRecord::new(1, turn, r#"{"phase":"paused","step":1}"#)
            .with_append(vec![
                Message::user("Send 20 euros to Ann, please.").into(),
                Message::new(Role::Assistant, [tool_use.clone()]).into(),
            ])
            .with_waiting(vec![
                PendingUse::new(TurnId::default(), tool_use).with_reason("needs approval".into()),
            ]);
        let commit = Commit::new(None).with_usage([]).with_turn(record);
        store
            .write(&id, &Write::on(version), &Change::Commit(commit))
            .await
            .expect("there is no other writer");
    }

    async fn list(what: &str, manager: &Manager, filter: &Filter, page: Page) -> Vec<Approval> {
        let (mut figures, mut listed) = (Vec::new(), Vec::new());
        for _ in 0..size(20, 2) {
            let begun = Instant::now();
            listed = manager.pending_approvals(filter, page.clone()).await.expect("the list is read");
            figures.push(begun.elapsed().as_secs_f64() * 1e3);
            black_box(&listed);
        }
        row(&format!("{what}: first"), format!("{:.1} ms", figures[0]), "");
        row(&format!("{what}: median"), format!("{:.1} ms", median(figures)), "≤ 5 ms");
        listed
    }
}
