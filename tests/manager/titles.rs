//! Generated titles.

use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentCallbacks, State, TurnDecision},
    manager::{Manager, OpenOptions, Shutdown, TitleGenerator, Titles},
    message::{Attachment, Content, History, Message},
    provider::{ProviderError, ProviderErrorKind, StopReason},
    run::{Prompt, Response},
    session::Session,
    store::{Listing, MemoryStore, Store},
    subscription::{EndReason, Update},
    testing::{Gate, ScriptedProvider, Step},
    tree::NodeId,
};

use tokio::time::Instant;

use crate::support::{CommandedStore, Feed, alone, create, id, in_time, parrot, scripted, secs, settle};

fn with(titles: Titles) -> Manager {
    Manager::builder(Arc::new(MemoryStore::new())).titles(titles).idle_shutdown(None).build()
}

async fn title(session: &Session) -> Option<String> {
    settle().await;
    session.title().await.unwrap().map(|title| title.to_string())
}

/// Returns the heuristic title of a conversation whose first prompt is `first`.
async fn heuristic(first: impl Into<Prompt>) -> Option<String> {
    let manager = with(Titles::Heuristic);
    let session = create(&manager, "talk", parrot()).await;
    session.ask(first).await.unwrap();
    title(&session).await
}

// ---- the heuristic ----

#[tokio::test(start_paused = true)]
async fn heuristic_uses_the_first_text_with_collapsed_white_space() {
    assert_eq!(heuristic("Where to?").await.unwrap(), "Where to?");
    assert_eq!(heuristic("  Where \n\n\t to,\u{a0} \r\nthen?  ").await.unwrap(), "Where to, then?");
    let fifty = "12345 789 12345 789 12345 789 12345 789 12345 7890";
    assert_eq!(fifty.len(), 50);
    assert_eq!(heuristic(fifty).await.unwrap(), fifty);
}

#[tokio::test(start_paused = true)]
async fn heuristic_cuts_a_long_text_at_a_word() {
    let text = "Could you please tell me which of the islands is the nicest one to visit in spring?";
    assert_eq!(heuristic(text).await.unwrap(), "Could you please tell me which of the islands is…");
    // The text is one character longer than the limit.
    let text = "12345 789 12345 789 12345 789 12345 789 12345 78901";
    assert_eq!(heuristic(text).await.unwrap(), "12345 789 12345 789 12345 789 12345 789 12345…");
}

#[tokio::test(start_paused = true)]
async fn heuristic_cuts_no_character_in_two_and_keeps_no_control_character() {
    // Each of these is one character for a reader: an accent, a flag, a skin tone, a family of four.
    for letter in ["e\u{301}", "🇩🇪", "👍🏽", "👨‍👩‍👧‍👦"] {
        let title = heuristic(format!("a{}", letter.repeat(60))).await.unwrap();
        let kept = (50 - 1) / letter.chars().count();
        assert_eq!(title, format!("a{}…", letter.repeat(kept)));
    }
    assert_eq!(heuristic("Is \u{1b}[31mthis\u{0}red?\u{7}").await.unwrap(), "Is [31mthis red?");
    let endless = heuristic("\u{301}".repeat(80)).await.unwrap();
    assert_eq!(endless.chars().count(), 51);
}

#[tokio::test(start_paused = true)]
async fn heuristic_cuts_one_long_word_and_counts_characters() {
    let long = heuristic("a".repeat(80)).await.unwrap();
    assert_eq!(long, format!("{}…", "a".repeat(50)));
    let wide = heuristic("語".repeat(80)).await.unwrap();
    assert_eq!(wide, format!("{}…", "語".repeat(50)));
    let words = heuristic("öäü🙂 ".repeat(30)).await.unwrap();
    assert_eq!(words, format!("{}…", ["öäü🙂"; 10].join(" ")));
}

#[tokio::test(start_paused = true)]
async fn heuristic_after_a_failed_run_names_a_conversation_with_kept_work() {
    let error = || ProviderError::new(ProviderErrorKind::Auth, "no");
    let manager = with(Titles::Heuristic);
    let steps = [Step::error(error()), Step::new().then_text(["Half"]).fail(error())];
    let session = create(&manager, "talk", scripted(steps)).await;
    session.ask("First").await.unwrap_err();
    assert_eq!(title(&session).await, None, "nothing was kept");
    session.ask("Second").await.unwrap_err();
    assert_eq!(title(&session).await.unwrap(), "Second");
}

#[tokio::test(start_paused = true)]
async fn heuristic_without_a_text_waits_for_the_next_turn() {
    let manager = with(Titles::Heuristic);
    let session = create(&manager, "talk", parrot()).await;
    let image = Content::Attachment(Attachment::base64("image/png", "AAAA"));
    session.ask(Prompt::from(image)).await.unwrap();
    assert_eq!(title(&session).await, None);
    session.ask("What is it?").await.unwrap();
    assert_eq!(title(&session).await.unwrap(), "What is it?");
}

/// Callbacks that continue the run once, after its first turn.
struct ContinuesOnce;

#[async_trait]
impl AgentCallbacks for ContinuesOnce {
    async fn handle_turn(&mut self, response: &Response, _: &mut State) -> TurnDecision {
        if response.text() == "One." { TurnDecision::Continue("Go on".into()) } else { TurnDecision::Stop }
    }
}

#[tokio::test(start_paused = true)]
async fn title_is_made_after_the_first_turn_while_the_run_continues() {
    let gate = Gate::new();
    let provider =
        ScriptedProvider::new([Step::text("One."), Step::new().gate(&gate).then_text(["Two."]).stop()]);
    let manager = with(Titles::Heuristic);
    let agent = Agent::builder().model(provider.model()).callbacks(ContinuesOnce);
    let session = create(&manager, "talk", agent).await;
    session.prompt("Where to?").await.unwrap();
    gate.reached().await;
    assert_eq!(title(&session).await.unwrap(), "Where to?");
    session.cancel().await.unwrap();
}

// ---- by a model ----

/// Returns the title that is made from this answer of a model.
async fn by_model(answer: Step) -> Option<String> {
    let provider = ScriptedProvider::new([answer]);
    let manager = with(Titles::Model(provider.model()));
    let session = create(&manager, "talk", parrot()).await;
    session.ask("Where to?").await.unwrap();
    tokio::time::sleep(secs(600)).await;
    title(&session).await
}

#[tokio::test(start_paused = true)]
async fn model_receives_the_conversation_and_its_answer_is_cleaned_up() {
    let provider = ScriptedProvider::new([Step::text("A Trip to Lisbon")]);
    let manager = with(Titles::Model(provider.model()));
    let session = create(&manager, "talk", parrot()).await;
    session.ask("Where to?").await.unwrap();
    assert_eq!(title(&session).await.unwrap(), "A Trip to Lisbon");
    let shown = provider.last_request().unwrap().history.last().unwrap().text();
    assert!(shown.contains("Where to?") && shown.contains("re: Where to?"), "{shown}");

    let answers = [
        "\"A Trip to Lisbon\"",
        "“A Trip to Lisbon”",
        "«A Trip to Lisbon»",
        "A Trip to Lisbon.",
        "\"A Trip to Lisbon\".",
        "\"A Trip to Lisbon.\"",
        "Title: A Trip to Lisbon",
        "Title: \"A Trip to Lisbon\"",
        "**Title:** A Trip to Lisbon",
        "**A Trip to Lisbon**",
        "# A Trip to Lisbon",
        "\n\n  A Trip to Lisbon\n",
        "Title:\nA Trip to Lisbon",
        "A Trip to Lisbon\n\nThis title says what it is about.",
        "A  Trip\tto   Lisbon",
        "<think>\nA trip.\n</think>\n\nA Trip to Lisbon",
        "\n<THINK></Think>**A Trip to Lisbon**",
    ];
    for answer in answers {
        assert_eq!(by_model(Step::text(answer)).await.as_deref(), Some("A Trip to Lisbon"), "{answer:?}");
    }
    let endless = by_model(Step::text("word ".repeat(1000))).await.unwrap();
    assert!(endless.chars().count() <= 101 && endless.ends_with('…'), "{endless}");
}

#[tokio::test(start_paused = true)]
async fn model_gives_no_usable_answer_no_title() {
    let unfinished = "<think>\nThe user asks about a trip";
    for answer in ["", "   ", "\n\n", "\"\"", "...", "Title:", unfinished, "<think>A trip.</think>\n"] {
        assert_eq!(by_model(Step::text(answer)).await, None, "{answer:?}");
    }
    let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "no");
    assert_eq!(by_model(Step::error(error)).await, None);
    let cut_off = Step::new().then_text(["A Trip to"]).stop_with(StopReason::Length);
    assert_eq!(by_model(cut_off).await, None);
    assert_eq!(by_model(Step::new().then_text(["Half"]).panic("mid-stream")).await, None);
    assert_eq!(by_model(Step::new().then_text(["Half"]).hang()).await, None);
    assert_eq!(by_model(Step::new().hang()).await, None);
}

#[tokio::test(start_paused = true)]
async fn model_fails_it_is_asked_again_after_the_next_turn() {
    let failures: [fn() -> Step; 4] = [
        || Step::text(""),
        || Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no")),
        || Step::new().then_text(["Half"]).panic("mid-stream"),
        || Step::new().then_text(["Half"]).hang(),
    ];
    for failure in failures {
        let provider = ScriptedProvider::new([failure(), Step::text("A Trip")]);
        let manager = with(Titles::Model(provider.model()));
        let session = create(&manager, "talk", parrot()).await;
        session.ask("Where to?").await.unwrap();
        tokio::time::sleep(secs(600)).await;
        assert_eq!((title(&session).await, provider.requests().len()), (None, 1));
        session.ask("And then?").await.unwrap();
        assert_eq!(title(&session).await.as_deref(), Some("A Trip"));
    }
}

#[tokio::test(start_paused = true)]
async fn model_fails_three_times_the_title_is_heuristic() {
    let provider = ScriptedProvider::new((0..3).map(|_| Step::text("")));
    let manager = with(Titles::Model(provider.model()));
    let session = create(&manager, "talk", parrot()).await;
    for turn in 1..=10 {
        session.ask("Where to?").await.unwrap();
        let expected = (turn >= 3).then_some("Where to?");
        assert_eq!(title(&session).await.as_deref(), expected);
        assert_eq!(provider.requests().len(), turn.min(3));
    }
    // A model that answers again gives the next title.
    let provider = ScriptedProvider::new([Step::text(""), Step::text("A Trip"), Step::text("Another")]);
    let manager = with(Titles::Model(provider.model()));
    let session = create(&manager, "talk", parrot()).await;
    for expected in [None, Some("A Trip"), Some("Another")] {
        session.ask("Where to?").await.unwrap();
        assert_eq!(title(&session).await.as_deref(), expected);
        session.set_title(None).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn model_receives_an_answer_without_its_reasoning() {
    for (answer, shown) in [
        ("<think>Rivers?</think>\nThe Tagus", "Assistant: \nThe Tagus"),
        ("<think>Rivers?", ""),
        ("The tag <think>Rivers?</think>", "Assistant: The tag <think>Rivers?</think>"),
    ] {
        let titles = ScriptedProvider::new([Step::text("Rivers")]);
        let manager = with(Titles::Model(titles.model()));
        let session = create(&manager, "talk", scripted([Step::text(answer)])).await;
        session.ask("<think> is a tag?").await.unwrap();
        assert_eq!(title(&session).await.as_deref(), Some("Rivers"));
        let asked = titles.last_request().unwrap().history.last().unwrap().text();
        assert_eq!(asked, format!("User: <think> is a tag?\n\n{shown}"));
    }
}

// ---- generators of the application ----

/// The behaviour of a custom generator for one call.
enum Make {
    Title(&'static str),
    None,
    Error,
    Panic,
    Hang,
    Wait(Gate, &'static str),
}

struct Own {
    script: Mutex<Vec<Make>>,
    lengths: Mutex<Vec<usize>>,
}

impl Own {
    fn new(script: impl IntoIterator<Item = Make>) -> Arc<Self> {
        let mut script: Vec<_> = script.into_iter().collect();
        script.reverse();
        Arc::new(Self { script: Mutex::new(script), lengths: Mutex::default() })
    }

    /// Returns the lengths of the histories that the generator received.
    fn asked(&self) -> Vec<usize> {
        self.lengths.lock().unwrap().clone()
    }
}

#[async_trait]
impl TitleGenerator for Own {
    async fn generate(&self, history: &History) -> Result<Option<String>, Box<dyn Error + Send + Sync>> {
        self.lengths.lock().unwrap().push(history.len());
        let next = self.script.lock().unwrap().pop();
        match next.expect("the generator was called once too often") {
            Make::Title(title) => Ok(Some(title.into())),
            Make::None => Ok(None),
            Make::Error => Err("no".into()),
            Make::Panic => panic!("the generator broke"),
            Make::Hang => std::future::pending().await,
            Make::Wait(gate, title) => {
                gate.pass().await;
                Ok(Some(title.into()))
            }
        }
    }
}

/// Returns a session with a custom generator that follows this script.
async fn own(script: impl IntoIterator<Item = Make>) -> (Manager, Session, Arc<Own>) {
    let own = Own::new(script);
    let manager = with(Titles::Own(Arc::clone(&own) as _));
    let session = create(&manager, "talk", parrot()).await;
    (manager, session, own)
}

#[tokio::test(start_paused = true)]
async fn custom_generator_is_called_only_after_the_first_finished_turn() {
    let own = Own::new([Make::Title("Mine")]);
    let manager = with(Titles::Own(Arc::clone(&own) as _));
    let provider = ScriptedProvider::new([
        Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no")),
        Step::new().then_text(["Half"]).hang(),
        Step::text("One."),
        Step::text("Two."),
    ]);
    let mut feed = Feed::of(&manager);
    let session = create(&manager, "talk", Agent::builder().model(provider.model())).await;
    session.ask("Fails").await.unwrap_err();
    session.prompt("Is cancelled").await.unwrap();
    settle().await;
    session.cancel().await.unwrap();
    settle().await;
    assert_eq!(own.asked(), [0; 0]);
    session.ask("Hi").await.unwrap();
    assert_eq!(title(&session).await.unwrap(), "Mine");
    session.ask("Again").await.unwrap();
    settle().await;
    assert_eq!(own.asked(), [2]);
    let news = feed.news().await;
    assert_eq!(news.iter().filter(|news| news.contains("titled")).count(), 1, "{news:?}");
    assert_eq!(feed.view.open[0].title.as_deref(), Some("Mine"));
}

#[tokio::test(start_paused = true)]
async fn custom_generator_fails_it_is_called_again_after_the_next_turn() {
    let script = [Make::None, Make::Error, Make::Panic, Make::Title(" \n"), Make::Title("Mine")];
    let (_manager, session, own) = own(script).await;
    for turn in 1..=4 {
        session.ask("Hi").await.unwrap();
        assert_eq!(title(&session).await, None);
        assert_eq!(own.asked().len(), turn);
    }
    session.ask("Hi").await.unwrap();
    assert_eq!(title(&session).await.unwrap(), "Mine");
    assert_eq!(own.asked(), [2, 4, 6, 8, 10]);
}

#[tokio::test(start_paused = true)]
async fn custom_generator_hangs_it_is_called_again_in_the_end() {
    let (_manager, session, own) = own([Make::Hang, Make::Title("Mine")]).await;
    session.ask("Hi").await.unwrap();
    settle().await;
    session.ask("Meanwhile").await.unwrap();
    settle().await;
    assert_eq!(own.asked().len(), 1, "only one title is made at a time");
    tokio::time::sleep(Duration::from_hours(1)).await;
    session.ask("Later").await.unwrap();
    assert_eq!(title(&session).await.unwrap(), "Mine");
}

#[tokio::test(start_paused = true)]
async fn titles_off_generates_no_title() {
    let manager = with(Titles::Off);
    let session = create(&manager, "talk", parrot()).await;
    session.ask("Hi").await.unwrap();
    assert_eq!(title(&session).await, None);
}

// ---- titles set by the user ----

#[tokio::test(start_paused = true)]
async fn title_from_the_options_is_kept() {
    let own = Own::new([]);
    let manager = with(Titles::Own(Arc::clone(&own) as _));
    let opened = manager.create(OpenOptions::new(parrot()).title("By hand")).await.unwrap();
    opened.session.ask("Hi").await.unwrap();
    assert_eq!(title(&opened.session).await.unwrap(), "By hand");
    assert_eq!(own.asked(), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn title_set_by_the_user_wins_every_race() {
    // The user sets the title before a title is generated, through the session or through the manager.
    for through_manager in [false, true] {
        let (manager, session, made) = own([]).await;
        rename(&manager, &session, through_manager, Some("By hand")).await;
        session.ask("Hi").await.unwrap();
        assert_eq!(title(&session).await.unwrap(), "By hand");
        assert_eq!(made.asked(), [0; 0]);
    }
    // The user sets the title while a title is being generated, or afterwards.
    for (through_manager, after) in [(false, false), (true, false), (false, true), (true, true)] {
        let gate = Gate::new();
        let (manager, session, _) = own([Make::Wait(gate.clone(), "Made")]).await;
        session.ask("Hi").await.unwrap();
        in_time(gate.reached()).await;
        if after {
            gate.open();
            assert_eq!(title(&session).await.unwrap(), "Made");
        }
        rename(&manager, &session, through_manager, Some("By hand")).await;
        gate.open();
        assert_eq!(title(&session).await.unwrap(), "By hand");
        session.ask("Again").await.unwrap();
        assert_eq!(title(&session).await.unwrap(), "By hand");
    }
    // The user sets the title at the same moment at which the generated title is ready.
    for _ in 0..20 {
        let gate = Gate::new();
        let (manager, session, _) = own([Make::Wait(gate.clone(), "Made")]).await;
        session.ask("Hi").await.unwrap();
        in_time(gate.reached()).await;
        gate.open();
        manager.rename(session.id(), Some("By hand")).await.unwrap();
        assert_eq!(title(&session).await.unwrap(), "By hand");
    }
}

async fn rename(manager: &Manager, session: &Session, through_manager: bool, title: Option<&str>) {
    if through_manager {
        manager.rename(session.id(), title).await.unwrap();
    } else {
        session.set_title(title).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn title_set_by_the_user_while_the_conversation_is_closed_wins() {
    // A generated title is not applied if its session has ended. It is not applied to the next session of the
    // conversation either.
    let gate = Gate::new();
    let (manager, session, made) = own([Make::Wait(gate.clone(), "Made")]).await;
    session.ask("Hi").await.unwrap();
    in_time(gate.reached()).await;
    manager.close(session.id()).await.unwrap();
    manager.rename(session.id(), Some("By hand")).await.unwrap();
    let again = manager.open(session.id(), alone(parrot())).await.unwrap().session;
    gate.open();
    assert_eq!(title(&again).await.unwrap(), "By hand");
    again.ask("Again").await.unwrap();
    assert_eq!(title(&again).await.unwrap(), "By hand");
    assert_eq!(made.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn title_is_cleared_another_is_made_after_the_next_turn() {
    for through_manager in [false, true] {
        let (manager, session, made) = own([Make::Title("One"), Make::Title("Two")]).await;
        session.ask("Hi").await.unwrap();
        assert_eq!(title(&session).await.unwrap(), "One");
        rename(&manager, &session, through_manager, None).await;
        assert_eq!(title(&session).await, None);
        session.ask("Again").await.unwrap();
        assert_eq!(title(&session).await.unwrap(), "Two");
        assert_eq!(made.asked(), [2, 4]);
    }
}

#[tokio::test(start_paused = true)]
async fn untitled_conversation_opened_again_gets_a_title() {
    let store = CommandedStore::default();
    let untitled = store.manager().titles(Titles::Off).build();
    let session = create(&untitled, "talk", parrot()).await;
    session.ask("The first words").await.unwrap();
    untitled.close(session.id()).await.unwrap();
    let manager = store.manager().build();
    let session = manager.open(&id("talk"), alone(parrot())).await.unwrap().session;
    assert_eq!(title(&session).await, None, "no title is made before a turn");
    session.ask("Some more").await.unwrap();
    assert_eq!(title(&session).await.unwrap(), "The first words");
    manager.close(session.id()).await.unwrap();
    assert_eq!(store.beneath().summary(&id("talk")).await.unwrap().title.unwrap(), "The first words");
}

#[tokio::test(start_paused = true)]
async fn session_ends_while_a_title_is_made_the_next_session_is_unaffected() {
    let gate = Gate::new();
    let (manager, session, _) = own([Make::Wait(gate.clone(), "Made"), Make::Title("Anew")]).await;
    session.ask("Hi").await.unwrap();
    in_time(gate.reached()).await;
    manager.close(session.id()).await.unwrap();
    let again = manager.open(session.id(), alone(parrot())).await.unwrap().session;
    // The next session generates its own title.
    again.ask("Again").await.unwrap();
    assert_eq!(title(&again).await.unwrap(), "Anew");
    gate.open();
    assert_eq!(title(&again).await.unwrap(), "Anew");
    let messages: Vec<Message> =
        again.tree().await.unwrap().history().iter().map(|m| (**m).clone()).collect();
    assert_eq!(messages.len(), 4);
}

// ---- ends ----

/// Returns a manager, its store, and the gate at which the generation of the first title waits.
async fn waiting_title(idle_shutdown: Option<Duration>) -> (Manager, CommandedStore, Gate) {
    let (store, gate) = (CommandedStore::default(), Gate::new());
    let own = Own::new([Make::Wait(gate.clone(), "Made")]);
    let manager = store.manager().titles(Titles::Own(own as _)).idle_shutdown(idle_shutdown).max_open(1);
    let manager = manager.build();
    let session = create(&manager, "talk", parrot()).await;
    session.ask("Hi").await.unwrap();
    in_time(gate.reached()).await;
    (manager, store, gate)
}

async fn stored_title(store: &CommandedStore) -> Option<String> {
    store.beneath().summary(&id("talk")).await.unwrap().title
}

#[tokio::test(start_paused = true)]
async fn close_or_shutdown_while_a_title_is_made_waits_for_it() {
    for shutdown in [false, true] {
        let (manager, store, gate) = waiting_title(None).await;
        let ending = tokio::spawn(async move {
            if shutdown {
                manager.shutdown(Shutdown::within(secs(10)).with_grace(secs(10))).await.unwrap();
            } else {
                manager.close(&id("talk")).await.unwrap();
            }
        });
        tokio::time::sleep(secs(5)).await;
        assert!(!ending.is_finished());
        gate.open();
        in_time(ending).await.unwrap();
        assert_eq!(stored_title(&store).await.as_deref(), Some("Made"));
    }
}

#[tokio::test(start_paused = true)]
async fn close_or_shutdown_while_a_title_hangs_ends_within_its_deadline_with_everything_saved() {
    for shutdown in [false, true] {
        let (manager, store, _gate) = waiting_title(None).await;
        let begun = Instant::now();
        let limit = if shutdown {
            in_time(manager.shutdown(Shutdown::within(secs(10)).with_grace(secs(10)))).await.unwrap();
            secs(10)
        } else {
            in_time(manager.close(&id("talk"))).await.unwrap();
            secs(30)
        };
        assert!(begun.elapsed() <= limit, "{:?}", begun.elapsed());
        assert_eq!(stored_title(&store).await, None);
        assert_eq!(store.beneath().load(&id("talk")).await.unwrap().nodes.len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_while_the_session_of_a_hanging_title_ends_waits_no_longer_for_it() {
    let (manager, store, _gate) = waiting_title(None).await;
    let session = manager.get(&id("talk")).unwrap();
    let begun = Instant::now();
    let ending = tokio::spawn(async move { manager.shutdown(secs(80)).await });
    settle().await;
    assert!(!ending.is_finished(), "the title may still be set");
    session.stop(secs(1)).await.unwrap();
    ending.await.unwrap().unwrap();
    assert!(begun.elapsed() < secs(2), "{:?}", begun.elapsed());
    assert_eq!(stored_title(&store).await, None);
}

#[tokio::test(start_paused = true)]
async fn close_in_the_first_turn_stores_the_kept_messages_with_a_title() {
    let store = CommandedStore::default();
    let manager = store.manager().build();
    let session = create(&manager, "talk", scripted([Step::new().then_text(["Half"]).hang()])).await;
    session.prompt("Where to?").await.unwrap();
    settle().await;
    in_time(manager.close(session.id())).await.unwrap();
    assert_eq!(store.beneath().load(&id("talk")).await.unwrap().nodes.len(), 2);
    assert_eq!(stored_title(&store).await.as_deref(), Some("Where to?"));
}

#[tokio::test(start_paused = true)]
async fn session_unused_while_its_title_is_made_ends_afterwards() {
    // The session has to end for one of two reasons: its idle shutdown, or another conversation that waits for room.
    for idle_shutdown in [Some(Duration::ZERO), None] {
        let (manager, store, gate) = waiting_title(idle_shutdown).await;
        let session = manager.get(&id("talk")).unwrap();
        let other = manager.clone();
        let other = tokio::spawn(async move {
            if idle_shutdown.is_none() {
                in_time(other.create_with_id(&id("other"), alone(parrot()))).await.unwrap();
            }
        });
        tokio::time::sleep(secs(5)).await;
        assert!(session.end().is_none());
        gate.open();
        assert_eq!(in_time(session.ended()).await.reason, EndReason::Idle);
        assert_eq!(stored_title(&store).await.as_deref(), Some("Made"));
        other.await.unwrap();
    }
}

// ---- erasures ----

/// Names a conversation by its first message.
struct FirstText;

#[async_trait]
impl TitleGenerator for FirstText {
    async fn generate(&self, history: &History) -> Result<Option<String>, Box<dyn Error + Send + Sync>> {
        Ok(history.iter().next().map(|message| message.text()))
    }
}

#[tokio::test(start_paused = true)]
async fn erase_removes_a_title_of_each_kind_from_list_store_and_search() {
    let by_model = ScriptedProvider::new([Step::text("My secret")]);
    for titles in [Titles::Heuristic, Titles::Model(by_model.model()), Titles::Own(Arc::new(FirstText))] {
        let store = Arc::new(MemoryStore::new());
        let manager = Manager::builder(store.clone()).titles(titles).idle_shutdown(None).build();
        let session = create(&manager, "talk", parrot()).await;
        session.ask("My secret").await.unwrap();
        assert_eq!(title(&session).await.as_deref(), Some("My secret"));
        let named = create(&manager, "named", parrot()).await;
        manager.rename(&id("named"), Some("The secret")).await.unwrap();
        named.ask("My secret").await.unwrap();
        for session in [&session, &named] {
            session.erase(NodeId::new(1).unwrap()).await.unwrap();
        }
        settle().await;
        assert_eq!((title(&session).await, title(&named).await.as_deref()), (None, Some("The secret")));
        let found = store.search(&"secret".parse().unwrap(), &Listing::default()).await.unwrap().hits;
        let found: Vec<_> = found.iter().map(|hit| hit.conversation.id.as_str()).collect();
        assert_eq!(found, ["named"]);
        assert_eq!(store.load(&id("talk")).await.unwrap().state.title, None);
        assert_eq!(store.summary(&id("talk")).await.unwrap().title, None);
        let open = manager.list_open();
        assert_eq!(open.iter().filter(|open| open.title.is_some()).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn erase_removes_a_derived_title_from_the_events_of_the_manager() {
    let manager = with(Titles::Heuristic);
    let before = manager.subscribe().last_id();
    let session = create(&manager, "talk", parrot()).await;
    session.ask("My secret").await.unwrap();
    assert_eq!(title(&session).await.as_deref(), Some("My secret"));
    let update = in_time(manager.resume_from(before).next()).await;
    assert!(matches!(update, Some(Update::Event(_))), "the events are still in memory");
    session.erase(NodeId::new(1).unwrap()).await.unwrap();
    let Some(Update::Resync(truth)) = in_time(manager.resume_from(before).next()).await else {
        panic!("earlier events are removed")
    };
    assert_eq!(truth.open[0].title, None);
}

#[tokio::test(start_paused = true)]
async fn erase_drops_a_title_that_a_model_is_making() {
    let gate = Gate::new();
    let answers = [Step::new().gate(&gate).then_text(["My secret"]).stop(), Step::text("Again")];
    let manager = with(Titles::Model(ScriptedProvider::new(answers).model()));
    let session = create(&manager, "talk", parrot()).await;
    session.ask("My secret").await.unwrap();
    gate.reached().await;
    session.erase(NodeId::new(1).unwrap()).await.unwrap();
    gate.open();
    assert_eq!(title(&session).await, None);
    session.ask("Hello").await.unwrap();
    assert_eq!(title(&session).await.as_deref(), Some("Again"));
}
