//! Prompts that reach the agent directly, without the session's handle, while the session refuses new prompts.

use omni_agent::{
    ErrorKind,
    agent::{AgentBuilder, Event, WeakAgent},
    run::Prompt,
    session::Session,
    testing::{ScriptedProvider, Step},
};

use crate::{
    support::{Act, ScriptedStore, assert_agree, event, secs, watch},
    watch::{Hooks, Log},
};

const RETURNED: &str = "From the event";

/// Returns an agent whose `handle_event` returns a prompt.
fn agent(provider: &ScriptedProvider) -> AgentBuilder {
    let hooks = Hooks::new().on_event(|_, _| async { Some(Prompt::new(RETURNED)) });
    AgentBuilder::default().model(provider.model()).callbacks(hooks)
}

/// Returns a session with one turn that the store has not saved.
async fn behind(store: &ScriptedStore, agent: AgentBuilder) -> Session {
    store.otherwise(|| Act::Hang);
    let session = Session::builder(store.as_dyn()).agent(agent).unsaved_limit(0).create().await.unwrap();
    session.ask("One").await.unwrap();
    // The agent reports the turn before the session has processed it.
    assert_eq!(session.tree().await.unwrap().len(), 2);
    session
}

/// Waits until the condition holds. Other tasks run in the meantime.
async fn until(holds: impl AsyncFn() -> bool) {
    for _ in 0..1000 {
        if holds().await {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the condition never held");
}

/// Sends an application event, and waits for the error that follows. Returns the prompt in this error and the reason
/// for the error.
async fn carried_back(session: &Session) -> (Prompt, String) {
    let mut events = watch(session).await;
    session.notify(()).await.unwrap();
    let mut returned = None;
    loop {
        match event(&mut events).await.agent() {
            Some(Event::Prompt { prompt: Some(prompt), .. }) => returned = Some(Prompt::clone(prompt)),
            Some(Event::Error { failure, .. }) => return (returned.unwrap(), failure.to_string()),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_of_handle_event_while_the_store_is_behind_is_carried_back() {
    let store = ScriptedStore::new([]);
    let provider = ScriptedProvider::new(["A1", "A2"].map(Step::text));
    let session = behind(&store, agent(&provider)).await;
    for _ in 0..2 {
        let (prompt, reason) = carried_back(&session).await;
        assert_eq!(prompt.content, Prompt::new(RETURNED).content);
        assert!(reason.contains("the store is behind"), "{reason}");
    }
    session.wait_until_idle().await.unwrap();
    assert_eq!((provider.requests().len(), session.tree().await.unwrap().len()), (1, 2));

    store.otherwise(|| Act::Work);
    session.flush(secs(1)).await.unwrap();
    session.notify(()).await.unwrap();
    until(async || session.tree().await.unwrap().len() == 4).await;
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn prompt_of_handle_event_that_is_known_while_the_store_is_behind_is_dropped() {
    let known = || Prompt::new("One").with_id("one");
    let hooks = Hooks::new().on_event(move |_, _| async move { Some(known()) });
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Hang);
    let provider = ScriptedProvider::new(["A1"].map(Step::text));
    let agent = AgentBuilder::default().model(provider.model()).callbacks(hooks);
    let session = Session::builder(store.as_dyn()).agent(agent).unsaved_limit(0).create().await.unwrap();
    session.ask(known()).await.unwrap();
    assert_eq!(session.tree().await.unwrap().len(), 2);
    let before = session.snapshot().await.unwrap();
    session.notify(()).await.unwrap();
    session.wait_until_idle().await.unwrap();
    let after = session.snapshot().await.unwrap();
    assert_eq!(after.agent.prompts, before.agent.prompts);
    assert_eq!(after.agent.last_run, before.agent.last_run, "no run fails");
}

#[tokio::test(start_paused = true)]
async fn prompt_of_handle_event_while_the_session_is_drained_is_carried_back() {
    let store = ScriptedStore::new([]);
    let provider = ScriptedProvider::new(["A1"].map(Step::text));
    let session = Session::builder(store.as_dyn()).agent(agent(&provider)).create().await.unwrap();
    session.ask("One").await.unwrap();
    session.drain();
    let (prompt, reason) = carried_back(&session).await;
    assert_eq!(prompt.content, Prompt::new(RETURNED).content);
    assert!(reason.contains("is being shut down"), "{reason}");
    session.stop(secs(1)).await.unwrap();
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn prompt_by_a_weak_handle_while_the_session_refuses_prompts_is_refused() {
    let log = Log::default();
    let tried = log.clone();
    let hooks = Hooks::new().on_event(move |_, state| {
        let log = tried.clone();
        async move {
            let agent = state.extensions().get::<WeakAgent>().unwrap().upgrade().unwrap();
            let refusals = [agent.prompt("Two").await.map(drop), agent.ask("Two").await.map(drop)];
            for refusal in refusals {
                let error = refusal.unwrap_err();
                assert!(error.to_string().starts_with("the prompt was refused: the s"), "{error}");
                log.push(match error.kind() {
                    ErrorKind::StoreBehind => format!("behind {}", error.member("limit").unwrap()),
                    ErrorKind::Draining => "draining".to_owned(),
                    _ => panic!("{error:?}"),
                });
            }
            None
        }
    });
    let store = ScriptedStore::new([]);
    let provider = ScriptedProvider::new(["A1"].map(Step::text));
    let agent = AgentBuilder::default().model(provider.model()).callbacks(hooks);
    let session = behind(&store, agent).await;
    session.notify(()).await.unwrap();
    until(async || log.all().len() == 2).await;
    session.drain();
    session.notify(()).await.unwrap();
    until(async || log.all().len() == 4).await;
    assert_eq!(log.all(), ["behind 0", "behind 0", "draining", "draining"]);
    assert_eq!(provider.requests().len(), 1);
}
