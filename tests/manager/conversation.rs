//! Conversations that are used whether or not they are open.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use omni_agent::{
    Agent, ErrorKind,
    agent::Durable,
    manager::{Conversation, Manager, OpenOptions, Wake, WakeCause},
    run::{Accepted, Prompt, PromptState},
    session::{Mode, SessionAnswer, SessionCommand},
    store::{ConversationId, Labels, MemoryStore},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
};

fn id(name: &str) -> ConversationId {
    ConversationId::new(name).unwrap()
}

/// Returns options whose model repeats the last message.
fn echo() -> OpenOptions {
    let provider = ScriptedProvider::from_fn(|request| {
        let last = request.history.last().map(|message| message.text()).unwrap_or_default();
        Step::text(format!("To {last}"))
    });
    OpenOptions::new(Agent::builder().model(provider.model())).subscribe(None)
}

/// Returns a manager with the stored conversation `a`, which is not open, and the causes for which it was opened.
async fn closed() -> (Manager, Conversation, Arc<Mutex<Vec<String>>>) {
    let causes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&causes);
    let starter = move |wake: &Wake| {
        let user = wake.labels.get("user").unwrap_or_default();
        seen.lock().unwrap().push(format!("{} of {user}: {:?}", wake.id, wake.cause));
        Some(echo())
    };
    let manager = Manager::builder(MemoryStore::new()).starter(starter).build();
    let options = echo().labels(Labels::new([("user", "ann")]).unwrap());
    manager.create_with_id(&id("a"), options).await.unwrap();
    manager.close(&id("a")).await.unwrap();
    let conversation = manager.conversation(&id("a"));
    (manager, conversation, causes)
}

#[tokio::test(start_paused = true)]
async fn ask_of_a_closed_conversation_opens_it_by_the_starter_and_returns_the_answer() {
    let (manager, conversation, causes) = closed().await;
    assert!(conversation.local().is_none());
    let outcome = conversation.ask("One").await.unwrap();
    assert_eq!(outcome.answer.unwrap().text(), "To One");
    assert_eq!(conversation.local().unwrap().id(), conversation.id());
    // The session is still open.
    assert_eq!(conversation.ask("Two").await.unwrap().answer.unwrap().text(), "To Two");
    assert_eq!(*causes.lock().unwrap(), ["a of ann: Command"]);

    manager.close(&id("a")).await.unwrap();
    let texts: Vec<_> = conversation.snapshot().await.unwrap().messages().map(|it| it.text()).collect();
    assert_eq!(texts, ["One", "To One", "Two", "To Two"]);
    assert_eq!(causes.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn prompt_with_a_known_id_is_accepted_once_and_its_outcome_is_found_later() {
    let (_manager, conversation, _) = closed().await;
    let prompt = || Prompt::new("Pay").with_id("p1");
    assert!(matches!(conversation.prompt(prompt()).await.unwrap(), Accepted::Started { .. }));
    assert_eq!(conversation.outcome("p1").await.unwrap().answer.unwrap().text(), "To Pay");
    let again = conversation.prompt(prompt()).await.unwrap();
    assert!(matches!(again, Accepted::Known { state: PromptState::Ended { .. } }), "{again:?}");
    let unknown = conversation.outcome("p2").await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::UnknownPrompt);
}

#[tokio::test(start_paused = true)]
async fn prompt_sent_again_after_the_conversation_was_closed_is_known_if_turns_are_durable() {
    for (level, messages) in [(Durable::Turns, 4), (Durable::Approvals, 2), (Durable::InFlight, 2)] {
        let manager = Manager::builder(MemoryStore::new()).build();
        manager.create_with_id(&id("a"), echo().durable(level)).await.unwrap();
        let conversation =
            manager.conversation(&id("a")).open_with(move |_: &Wake| Some(echo().durable(level)));
        for _ in 0..2 {
            let outcome = conversation.ask(Prompt::new("Pay").with_id("p1")).await.unwrap();
            assert_eq!(outcome.answer.unwrap().text(), "To Pay", "{level:?}");
            manager.close(&id("a")).await.unwrap();
        }
        assert_eq!(conversation.snapshot().await.unwrap().messages().count(), messages, "{level:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn asks_of_many_callers_share_one_session_and_are_answered_in_order() {
    let (_manager, conversation, _) = closed().await;
    let asks = (0..4).map(|number| {
        let conversation = conversation.clone();
        tokio::spawn(
            async move { conversation.ask(format!("{number}")).await.unwrap().answer.unwrap().text() },
        )
    });
    for (number, ask) in asks.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(ask.await.unwrap(), format!("To {number}"));
    }
    assert_eq!(conversation.snapshot().await.unwrap().messages().count(), 8);
}

#[tokio::test(start_paused = true)]
async fn titles_labels_and_stale_decisions_do_not_open_a_conversation() {
    let (manager, conversation, causes) = closed().await;
    let title = SessionCommand::Title { title: Some("Bills".into()) };
    assert_eq!(conversation.perform(title, None).await.unwrap(), SessionAnswer::Done);
    let labels = SessionCommand::Labels { labels: Labels::new([("user", "ben")]).unwrap() };
    conversation.perform(labels, None).await.unwrap();
    let summary = manager.summary(&id("a")).await.unwrap().summary;
    assert_eq!((summary.title.as_deref(), summary.labels.get("user")), (Some("Bills"), Some("ben")));
    let decide = r#"{ "type": "decide", "turn": "1f", "decisions": [["t1", "execute"]] }"#;
    let decided = conversation.perform(serde_json::from_str(decide).unwrap(), Some("ben")).await;
    assert!(decided.unwrap_err().is_conflict());
    assert!(causes.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn other_commands_open_a_conversation() {
    let (_manager, conversation, causes) = closed().await;
    for wait in [false, true] {
        let run = format!(
            r#"{{ "type": "run", "wait": {wait}, "prompt": {{ "content": [{{ "type": "text", "text": "Hi" }}] }} }}"#
        );
        let answer = conversation.perform(serde_json::from_str(&run).unwrap(), None).await.unwrap();
        assert_eq!(matches!(answer, SessionAnswer::Response(_)), wait, "{answer:?}");
        conversation.open().await.unwrap().wait_until_idle().await.unwrap();
    }
    assert_eq!(*causes.lock().unwrap(), ["a of ann: Command"]);
}

#[tokio::test(start_paused = true)]
async fn subscription_opens_a_conversation_and_resumes_after_an_event() {
    let (_manager, conversation, causes) = closed().await;
    let mut events = conversation.subscribe(Mode::Observer).await.unwrap();
    let last = events.last_id();
    conversation.ask("One").await.unwrap();
    assert!(matches!(events.next().await, Some(Update::Event(_))));
    let mut resumed = conversation.resume_from(last, Mode::Observer).await.unwrap();
    assert!(matches!(resumed.next().await, Some(Update::Event(_))));
    assert_eq!(*causes.lock().unwrap(), ["a of ann: Reader"]);
}

#[tokio::test(start_paused = true)]
async fn own_opener_takes_the_place_of_the_starter() {
    let (_manager, conversation, causes) = closed().await;
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&opened);
    let own = conversation.open_with(move |wake: &Wake| {
        assert!(matches!(wake.cause, WakeCause::Command));
        counted.fetch_add(1, Relaxed);
        Some(echo())
    });
    own.ask("One").await.unwrap();
    assert_eq!((opened.load(Relaxed), causes.lock().unwrap().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn conversation_that_can_not_be_opened_says_why() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let kind = |error: omni_agent::Error| (error.kind(), error.to_string());
    let (config, text) = kind(manager.conversation(&id("a")).ask("One").await.unwrap_err());
    assert_eq!(config, ErrorKind::Config);
    assert!(text.contains("ManagerBuilder::starter"), "{text}");

    let refused = manager.conversation(&id("a")).open_with(|_: &Wake| None);
    assert_eq!(refused.ask("One").await.unwrap_err().kind(), ErrorKind::NotFound);
    manager.create_with_id(&id("a"), echo()).await.unwrap();
    manager.close(&id("a")).await.unwrap();
    let error = refused.open().await.unwrap_err();
    assert_eq!((error.kind(), error.status()), (ErrorKind::NotOpened, 503));

    let panicking = refused.open_with(|_: &Wake| panic!("no options"));
    let (internal, text) = kind(panicking.snapshot().await.unwrap_err());
    assert_eq!(internal, ErrorKind::Internal);
    assert!(text.contains("no options"), "{text}");

    manager.delete(&id("a")).await.unwrap();
    let deleted = manager.conversation(&id("a")).open_with(|_: &Wake| Some(echo()));
    assert_eq!(deleted.snapshot().await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn outcome_of_a_run_whose_session_is_closed_is_that_of_the_interrupted_run() {
    let gate = Gate::new();
    let held = gate.clone();
    let options = move || {
        let held = held.clone();
        let provider = ScriptedProvider::from_fn(move |_| Step::new().then_text(["Half"]).gate(&held).stop());
        OpenOptions::new(Agent::builder().model(provider.model())).subscribe(None)
    };
    let manager = Manager::builder(MemoryStore::new()).build();
    manager.create_with_id(&id("a"), options()).await.unwrap();
    let conversation = manager.conversation(&id("a")).open_with(move |_: &Wake| Some(options()));
    let asking = tokio::spawn({
        let conversation = conversation.clone();
        async move { conversation.ask(Prompt::new("One").with_id("p1")).await }
    });
    gate.reached().await;
    manager.close(&id("a")).await.unwrap();
    let outcome = asking.await.unwrap().unwrap();
    assert_eq!(outcome.answer.unwrap().text(), "Half");
}
