//! Labels, the usage ledger, and the end of the last run.

use std::time::Duration;

use omni_agent::{
    Agent, ErrorKind,
    agent::{AgentCallbacks, ErrorDecision, State, SubAgent},
    message::{Purpose, RequestEnd, Usage},
    provider::{ProviderError, ProviderErrorKind},
    run::{Failure, Prompt, RunOutcome},
    session::Session,
    store::{Filter, Labels, MemoryStore, Page, Store},
    testing::{Gate, ScriptedProvider, Step},
};

use crate::{
    support::{failing, held, id, scripted},
    watch::{Watched, answered, reached},
};

fn labels(user: &str) -> Labels {
    Labels::new([("tenant", "acme"), ("user", user)]).unwrap()
}

fn spending(text: &str, input: u64) -> Step {
    let usage = Usage::default().with_input(input).with_output(1).with_cost(0.5);
    Step::new().then_text([text]).usage(usage).stop()
}

/// Returns the rows of the ledger, oldest first: how each request ended, and its prompt tokens.
async fn rows(session: &Session, store: &dyn Store) -> Vec<(RequestEnd, u64)> {
    answered(session.flush(Duration::from_secs(10))).await.unwrap();
    let rows = store.usage(session.id(), &Page::default()).await.unwrap();
    rows.into_iter().rev().map(|row| (row.end, row.usage.input)).collect()
}

#[tokio::test(start_paused = true)]
async fn labels_of_a_new_conversation_are_stored_and_can_be_replaced() {
    let store = MemoryStore::new();
    let agent = scripted([Step::text("A1"), Step::text("A2")]);
    let builder = Session::builder(store.clone()).labels(labels("ann")).agent(agent);
    let mut session = Watched::start(builder).await;
    assert_eq!(session.view.labels, labels("ann"));
    session.ask("Q1").await;
    assert_eq!(store.load(session.session.id()).await.unwrap().state.labels, labels("ann"));
    session.session.set_labels(labels("ben")).await.unwrap();
    session.check().await;
    assert_eq!(session.view.labels, labels("ben"));
    session.ask("Q2").await;
    session.session.stop(Duration::from_secs(5)).await.unwrap();
    let listed = store.list(&Filter::with(labels("ben")).into()).await.unwrap();
    assert_eq!(listed.len(), 1);

    let builder = Session::builder(store).labels(labels("eve")).agent(scripted([]));
    let opened = builder.open(session.session.id().clone()).await.unwrap();
    assert_eq!(opened.labels().await.unwrap(), labels("ben"), "a stored conversation keeps its labels");
}

#[tokio::test(start_paused = true)]
async fn ledger_contains_every_request_whose_usage_is_known() {
    let store = MemoryStore::new();
    let gate = Gate::new();
    let late = Step::new().usage(Usage::default().with_input(8)).then_text(["Half"]).gate(&gate).hang();
    let agent = scripted([spending("A1", 1), failing(), spending("A2", 2), late]);
    let mut session = Watched::start(Session::builder(store.clone()).agent(agent)).await;
    session.ask("Q1").await;
    assert_eq!(rows(&session.session, &store).await, [(RequestEnd::Answered, 1)]);
    assert!(session.session.ask("Q2").await.is_err());
    session.ask("Q3").await;
    session.session.prompt("Q4").await.unwrap();
    reached(&gate).await;
    answered(session.session.cancel()).await.unwrap();
    session.rest().await;
    let expected = [(RequestEnd::Answered, 1), (RequestEnd::Answered, 2), (RequestEnd::Cancelled, 8)];
    assert_eq!(rows(&session.session, &store).await, expected);
    session.check().await;
    assert_eq!((session.view.used.input, session.view.tree.usage().input), (11, 3));
    let stored = store.load(session.session.id()).await.unwrap();
    assert_eq!((stored.used.usage, stored.used.requests), (session.view.used, 3));
    let row = &store.usage(session.session.id(), &Page::first(1).from(2)).await.unwrap()[0];
    assert_eq!((row.step, row.turn.is_some(), row.model.is_some()), (Some(1), true, true));
    let rows = store.usage(session.session.id(), &Page::default()).await.unwrap();
    let answer = &session.view.tree.history().get(1).unwrap().id;
    assert_eq!(&rows[2].message, answer, "the row names the message of the response");
    let partial = session.view.agent.last_run.as_ref().unwrap();
    assert!(rows[0].message.is_some() && partial.unanswered.iter().all(|asked| asked.id != rows[0].message));
    session.session.stop(Duration::from_secs(5)).await.unwrap();
    let opened =
        Session::builder(store).agent(scripted([])).open(session.session.id().clone()).await.unwrap();
    assert_eq!(opened.snapshot().await.unwrap().used, session.view.used);
}

#[tokio::test(start_paused = true)]
async fn ledger_has_one_row_for_each_request_of_a_discarded_run() {
    struct Again;
    #[async_trait::async_trait]
    impl AgentCallbacks for Again {
        async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
            ErrorDecision::Retry
        }
    }
    let store = MemoryStore::new();
    let usage = |input| Usage::default().with_input(input);
    let broken = |input| {
        let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "down");
        Step::new().usage(usage(input)).then_text(["A"]).fail(error)
    };
    let steps = [
        broken(1),
        broken(2),
        Step::new().usage(usage(4)).then_tool_use("a", "unknown", serde_json::json!({})).stop(),
        Step::new().usage(usage(8)).then_text(["Half"]).hang(),
        Step::new().usage(usage(16)).then_text(["Half"]).hang(),
    ];
    let agent = scripted(steps).callbacks(Again);
    let mut session = Watched::start(Session::builder(store.clone()).agent(agent)).await;
    session.session.prompt("Q1").await.unwrap();
    // The session's sum of usage grows with each request, not only at the end of the turn.
    while session.view.used.input != 1 {
        session.next().await;
    }
    while session.view.used.input != 3 {
        session.next().await;
    }
    while session.view.used.input != 7 {
        session.next().await;
    }
    while session.view.agent.partial.is_empty() {
        session.next().await;
    }
    session.check().await;
    answered(session.session.cancel()).await.unwrap();
    session.rest().await;
    let expected =
        [(RequestEnd::Void, 1), (RequestEnd::Void, 2), (RequestEnd::Answered, 4), (RequestEnd::Cancelled, 8)];
    assert_eq!(rows(&session.session, &store).await, expected);
    session.session.prompt("Q2").await.unwrap();
    while session.view.agent.partial.is_empty() {
        session.next().await;
    }
    answered(session.session.interrupt()).await.unwrap();
    session.rest().await;
    assert_eq!(rows(&session.session, &store).await[4..], [(RequestEnd::Interrupted, 16)]);
    let all = store.usage(session.session.id(), &Page::default()).await.unwrap();
    let steps: Vec<_> = all.iter().rev().map(|row| row.step.unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4, 1]);
    let stored = store.load(session.session.id()).await.unwrap();
    assert_eq!((stored.used.usage, stored.used.requests), (session.view.used, 5));
}

#[tokio::test(start_paused = true)]
async fn conversation_whose_first_prompt_failed_exists_and_shows_the_prompt() {
    for id_is_given in [false, true] {
        let store = MemoryStore::new();
        let builder = Session::builder(store.clone()).agent(scripted([failing(), Step::text("A1")]));
        let session = if id_is_given {
            builder.create_with_id(id("given")).await.unwrap()
        } else {
            builder.create().await.unwrap()
        };
        assert!(session.ask(Prompt::new("Anyone?").with_id("p1")).await.is_err());
        answered(session.flush(Duration::from_secs(5))).await.unwrap();
        let stored = store.load(session.id()).await.unwrap();
        assert_eq!((stored.nodes.len(), stored.head), (1, None));
        session.stop(Duration::from_secs(5)).await.unwrap();

        let opened = Session::builder(store.clone()).agent(scripted([Step::text("A1")]));
        let opened = opened.open(session.id().clone()).await.unwrap();
        let end = opened.snapshot().await.unwrap().agent.last_run.unwrap();
        assert!(matches!(end.outcome, RunOutcome::Failed { .. }), "{end:?}");
        assert_eq!(end.unanswered[0].text(), "Anyone?");
        assert!(!end.is_complete());
        // The prompt can be sent again. After its answer, no prompt is left without an answer.
        opened.again(stored.nodes[0].id()).response().await.unwrap();
        answered(opened.flush(Duration::from_secs(5))).await.unwrap();
        let stored = store.load(session.id()).await.unwrap();
        assert_eq!((stored.nodes.len(), stored.last_run), (2, None));
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_keeps_its_prompts_outside_the_tree() {
    let store = MemoryStore::new();
    let gate = Gate::new();
    let agent = scripted([Step::text("A1"), held(&gate, "A2")]);
    let mut session = Watched::start(Session::builder(store.clone()).agent(agent)).await;
    session.ask("Q1").await;
    session.session.prompt("Q2").await.unwrap();
    reached(&gate).await;
    session.session.prompt(Prompt::new("Q3").with_id("p3")).await.unwrap();
    answered(session.session.cancel()).await.unwrap();
    session.rest().await;
    answered(session.session.flush(Duration::from_secs(5))).await.unwrap();
    let stored = store.load(session.session.id()).await.unwrap();
    let end = stored.last_run.unwrap();
    assert_eq!((&end.outcome, stored.nodes.len()), (&RunOutcome::Cancelled, 2));
    assert_eq!((end.unanswered[0].text(), end.staged.len()), ("Q2".to_owned(), 1));
    assert_eq!(session.view.agent.last_run.as_deref(), Some(&end));
    assert_eq!(stored.head.map(omni_agent::tree::NodeId::get), Some(2), "the stored head is no prompt");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_keeps_labels_ledger_and_last_run_over_a_restart() {
    let file = std::env::temp_dir()
        .join(format!("records-{}.sqlite", omni_agent::store::ConversationId::generate()));
    let store = omni_agent::store::SqliteStore::open(&file).await.unwrap();
    let agent = scripted([spending("A1", 5), failing()]);
    let session = Session::builder(store.clone()).labels(labels("ann")).agent(agent).create().await.unwrap();
    session.ask("Q1").await.unwrap();
    assert!(session.ask("Q2").await.is_err());
    session.stop(Duration::from_secs(5)).await.unwrap();
    let view = session.end().unwrap().snapshot.unwrap();
    drop(store);
    let store = omni_agent::store::SqliteStore::open(&file).await.unwrap();
    let opened = Session::builder(store).agent(scripted([])).open(session.id().clone()).await.unwrap();
    let snapshot = opened.snapshot().await.unwrap();
    assert_eq!((&snapshot.labels, &snapshot.used), (&view.labels, &view.used));
    assert_eq!(snapshot.agent.last_run, view.agent.last_run);
    assert_eq!(snapshot.agent.last_run.unwrap().unanswered[0].text(), "Q2");
    drop(opened.stop(Duration::from_secs(5)).await);
    for ending in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{ending}", file.display()));
    }
}

#[tokio::test(start_paused = true)]
async fn title_beyond_the_limit_is_refused_and_changes_nothing() {
    let long = "x".repeat(1025);
    let builder = || Session::builder(MemoryStore::new()).agent(scripted([]));
    let refused = builder().title(long.as_str()).create().await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.member("length"), refused.member("limit")),
        (ErrorKind::InvalidTitle, Some(&1025.into()), Some(&1024.into())),
        "{refused:?}"
    );
    let session = builder().title("Short").create().await.unwrap();
    assert_eq!(session.set_title(Some(&long)).await.unwrap_err().kind(), ErrorKind::InvalidTitle);
    assert_eq!(session.suggest_title(&long, None).await.unwrap_err().kind(), ErrorKind::InvalidTitle);
    assert_eq!(session.title().await.unwrap().as_deref(), Some("Short"));
    session.set_title(Some(&long[1..])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ledger_contains_a_cost_without_tokens() {
    let store = MemoryStore::new();
    let cost = Step::new()
        .usage(Usage::default().with_cost(0.25))
        .then_text(["Half"])
        .fail(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
    let session = Session::builder(store.clone()).agent(scripted([cost])).create().await.unwrap();
    assert!(session.ask("Q1").await.is_err());
    answered(session.flush(Duration::from_secs(10))).await.unwrap();
    let rows = store.usage(session.id(), &Page::default()).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.usage.cost).collect::<Vec<_>>(), [Some(0.25)]);
    let used = session.snapshot().await.unwrap().used;
    assert_eq!(store.load(session.id()).await.unwrap().used.usage, used);
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_sub_agent_are_rows_of_the_session_of_its_parent() {
    let low = ScriptedProvider::new([spending("Found.", 4)]).model();
    let search = SubAgent::new("search", "Searches.", move |_| Agent::builder().model(low.clone()));
    let call = Step::new().usage(Usage::default().with_input(1));
    let call = call.then_tool_use("a", "search", serde_json::json!({ "task": "Go." })).stop();
    let agent =
        Agent::builder().model(ScriptedProvider::new([call, spending("Done.", 2)]).model()).tool(search);
    let store = MemoryStore::new();
    let session = Session::builder(store.clone()).agent(agent).create().await.unwrap();
    let response = session.ask("Go").await.unwrap();
    session.flush(Duration::from_secs(9)).await.unwrap();
    let rows = store.usage(session.id(), &Page::default()).await.unwrap();
    let rows: Vec<_> = rows.iter().rev().map(|row| (row.purpose, row.usage.input, row.turn)).collect();
    let turn = response.turn;
    let (own, below) = (Purpose::Answer, Purpose::SubAgent);
    assert_eq!(rows, [(own, 1, turn), (below, 4, turn), (own, 2, turn)]);
    assert_eq!((response.usage.input, session.snapshot().await.unwrap().used), (7, response.usage));
}
