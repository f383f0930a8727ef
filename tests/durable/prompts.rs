//! Prompts with ids, whose senders died: each prompt is sent again, runs once, and has one outcome in all lives.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::poll;
use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, AgentCallbacks, Durable, Recover, RecoveryDecision, State, TurnDecision},
    provider::StopReason,
    run::{Accepted, Prompt, PromptState, Response, RunOutcome},
    session::{Session, SessionBuilder},
    store::{MemoryStore, Owner, Store, custom::Change},
    testing::{Gate, ScriptedProvider, Step},
    tree::NodeId,
};

use crate::{
    lives::in_a_life,
    stores::{id, stores},
};

/// A conversation that outlives its processes. Its model answers when the gate lets it pass.
#[derive(Clone)]
struct Talk {
    store: Arc<dyn Store>,
    level: Durable,
    gate: Gate,
    requests: Arc<AtomicUsize>,
}

impl Talk {
    fn new(level: Durable) -> Self {
        Self::on(Arc::new(MemoryStore::new()), level)
    }

    fn on(store: Arc<dyn Store>, level: Durable) -> Self {
        Self { store, level, gate: Gate::new(), requests: Arc::default() }
    }

    fn agent(&self) -> omni_agent::agent::AgentBuilder {
        let (gate, requests) = (self.gate.clone(), Arc::clone(&self.requests));
        let provider = ScriptedProvider::from_fn(move |_| {
            requests.fetch_add(1, Ordering::SeqCst);
            Step::new().gate(&gate).then_text(["Done."]).stop()
        });
        Agent::builder().model(provider.model())
    }

    fn builder(&self) -> SessionBuilder {
        let builder = Session::builder(Arc::clone(&self.store)).owner(Owner::new("worker"));
        builder.agent(self.agent()).durable(self.level)
    }

    /// Runs work in a process that opens the conversation, and is killed when the work is done.
    fn life<T, F>(&self, work: impl FnOnce(Session, Self) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        self.life_of(self.builder(), work)
    }

    fn life_of<T, F>(
        &self,
        builder: SessionBuilder,
        work: impl FnOnce(Session, Self) -> F + Send + 'static,
    ) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let own = self.clone();
        in_a_life(async move {
            let session = builder.open_or_create(id("a")).await.unwrap();
            let result = work(session.clone(), own).await;
            // The process dies with its session.
            std::mem::forget(session);
            result
        })
    }

    /// Lets the model answer this many requests.
    fn answer(&self, requests: usize) {
        (0..requests).for_each(|_| self.gate.open());
    }

    /// Waits until the store has a turn in flight.
    async fn recorded(&self) {
        while self.store.turn(&id("a")).await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    }

    async fn version(&self) -> u64 {
        self.store.summary(&id("a")).await.unwrap().version.get()
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn order() -> Prompt {
    Prompt::new("Order it.").with_id("order")
}

fn second() -> Prompt {
    Prompt::new("And a second one.").with_id("second")
}

fn stopped() -> RunOutcome {
    RunOutcome::Stopped { stop_reason: StopReason::Stop }
}

fn node(number: u64) -> Option<NodeId> {
    NodeId::new(number)
}

async fn state(session: &Session, prompt: Prompt) -> PromptState {
    match session.prompt(prompt).await.unwrap() {
        Accepted::Known { state } => state,
        other => panic!("{other:?}"),
    }
}

/// Returns the outcome of a prompt and the last node of its run.
async fn outcome(session: &Session, prompt: &str) -> (RunOutcome, Option<NodeId>) {
    let ended = session.outcome(prompt).await.unwrap();
    (ended.outcome, ended.through)
}

/// Returns when the session waits for the outcomes for which it was asked, because it answers commands in order.
async fn waits(session: &Session) {
    session.title().await.unwrap();
}

fn is_unknown(result: &Result<omni_agent::session::PromptOutcome, Error>) -> bool {
    matches!(&result, Err(error) if error.kind() == ErrorKind::UnknownPrompt)
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_sent_again_after_each_kill_runs_once_and_has_one_outcome() {
    for place in stores().await {
        let talk = Talk::on(Arc::clone(&place.store), Durable::InFlight);
        talk.life(async |session, talk| {
            let mut sent = Box::pin(session.prompt(order()));
            // The reply is lost.
            drop(poll!(&mut sent));
            drop(sent);
            talk.gate.reached().await;
            talk.recorded().await;
        });
        talk.life(async |session, talk| {
            assert!(matches!(state(&session, order()).await, PromptState::InFlight { .. }));
            let waiting = tokio::spawn(async move { outcome(&session, "order").await });
            talk.gate.reached().await;
            assert!(!waiting.is_finished());
            talk.answer(1);
            assert_eq!(waiting.await.unwrap(), (stopped(), node(2)));
        });
        talk.life(async |session, talk| {
            assert_eq!(state(&session, order()).await, PromptState::Ended { outcome: stopped() });
            assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
            talk.answer(1);
            session.ask("Thank you.").await.unwrap();
        });
        talk.life(async |session, _| {
            assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
            assert_eq!(session.tree().await.unwrap().len(), 4);
        });
        assert_eq!(talk.requests(), 3, "one for each life in which a run was active");
    }
}

#[test]
fn staged_prompt_of_an_earlier_life_has_its_own_outcome() {
    let talk = Talk::new(Durable::InFlight);
    talk.life(async |session, _| {
        session.prompt(order()).await.unwrap();
        session.prompt(second()).await.unwrap();
    });
    talk.life(async |session, talk| {
        assert_eq!(state(&session, second()).await, PromptState::Staged);
        let last = session.clone();
        let waiting = tokio::spawn(async move { outcome(&last, "second").await });
        talk.answer(1);
        assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
        assert!(!waiting.is_finished());
        talk.answer(1);
        assert_eq!(waiting.await.unwrap(), (stopped(), node(4)));
    });
    talk.life(async |session, _| {
        assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
        assert_eq!(outcome(&session, "second").await, (stopped(), node(4)));
    });
}

#[test]
fn cancelled_prompt_has_its_outcome_and_a_staged_one_can_be_sent_again() {
    for level in [Durable::Approvals, Durable::InFlight] {
        let talk = Talk::new(level);
        talk.life(async |session, _| {
            session.prompt(order()).await.unwrap();
            session.prompt(second()).await.unwrap();
            let (mut first, mut last) = (pin!(outcome(&session, "order")), pin!(session.outcome("second")));
            assert!(poll!(&mut first).is_pending() && poll!(&mut last).is_pending());
            waits(&session).await;
            session.cancel().await.unwrap();
            assert_eq!(first.await, (RunOutcome::Cancelled, None));
            assert!(is_unknown(&last.await));
        });
        talk.life(async |session, talk| {
            assert_eq!(outcome(&session, "order").await, (RunOutcome::Cancelled, None));
            assert!(is_unknown(&session.outcome("second").await));
            talk.answer(1);
            assert!(matches!(session.prompt(second()).await.unwrap(), Accepted::Started { .. }));
            assert_eq!(outcome(&session, "second").await, (stopped(), node(2)));
        });
    }
}

#[test]
fn outcome_of_a_withdrawn_or_unknown_prompt_is_an_error() {
    for level in [Durable::Turns, Durable::InFlight] {
        let talk = Talk::new(level);
        talk.life(async |session, _| {
            let error = session.outcome("order").await.unwrap_err();
            assert!(error.is_not_found() && error.to_string().contains("order"), "{error}");
            session.prompt(order()).await.unwrap();
            session.prompt(second()).await.unwrap();
            let mut waiting = pin!(session.outcome("second"));
            assert!(poll!(&mut waiting).is_pending());
            waits(&session).await;
            session.unstage("second").await.unwrap();
            assert!(is_unknown(&waiting.await));
        });
    }
}

#[test]
fn outcome_at_turns_is_known_within_one_life_alone() {
    let talk = Talk::new(Durable::Turns);
    talk.life(async |session, talk| {
        let before = talk.version().await;
        session.prompt(order()).await.unwrap();
        let waiting = tokio::spawn({
            let session = session.clone();
            async move { outcome(&session, "order").await }
        });
        talk.answer(2);
        assert_eq!(waiting.await.unwrap(), (stopped(), node(2)));
        session.ask("Thank you.").await.unwrap();
        assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
        session.flush(Duration::from_secs(10)).await.unwrap();
        let stored = talk.store.load(&id("a")).await.unwrap();
        let writes = stored.version.get() - before;
        assert_eq!((writes, stored.last_run), (2, None), "one write for each turn, as without ids");
    });
    talk.life(async |session, _| assert!(is_unknown(&session.outcome("order").await)));
}

#[test]
fn prompt_at_approvals_is_known_in_later_lives_if_its_turn_was_committed() {
    let talk = Talk::new(Durable::Approvals);
    talk.life(async |session, talk| {
        session.prompt(order()).await.unwrap();
        talk.gate.reached().await;
    });
    talk.life(async |session, talk| {
        assert!(is_unknown(&session.outcome("order").await), "the turn was lost");
        talk.answer(1);
        assert!(matches!(session.prompt(order()).await.unwrap(), Accepted::Started { .. }));
        assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
    });
    talk.life(async |session, _| {
        assert_eq!(state(&session, order()).await, PromptState::Ended { outcome: stopped() });
        assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
    });
}

/// Adds a turn to each run.
struct GoesOn;

#[async_trait]
impl AgentCallbacks for GoesOn {
    async fn handle_turn(&mut self, _: &Response, state: &mut State) -> TurnDecision {
        match state.step() {
            1 => TurnDecision::Continue("Go on.".into()),
            _ => TurnDecision::Stop,
        }
    }
}

#[test]
fn prompt_whose_run_was_killed_between_turns_ends_with_the_committed_turn() {
    let talk = Talk::new(Durable::Approvals);
    let builder = talk.builder().agent(talk.agent().callbacks(GoesOn));
    talk.life_of(builder, async |session, talk| {
        session.prompt(order()).await.unwrap();
        talk.answer(1);
        while talk.requests() < 2 {
            tokio::task::yield_now().await;
        }
        session.flush(Duration::from_secs(10)).await.unwrap();
        assert!(matches!(state(&session, order()).await, PromptState::InFlight { .. }));
    });
    talk.life(async |session, _| assert_eq!(outcome(&session, "order").await, (stopped(), node(2))));
}

#[test]
fn prompt_whose_run_continues_has_the_last_node_of_the_run() {
    for level in [Durable::Approvals, Durable::InFlight] {
        let talk = Talk::new(level);
        let builder = talk.builder().agent(talk.agent().callbacks(GoesOn));
        talk.answer(1);
        talk.life_of(builder, async |session, talk| {
            session.prompt(order()).await.unwrap();
            while talk.requests() < 2 {
                tokio::task::yield_now().await;
            }
            session.cancel().await.unwrap();
            assert_eq!(outcome(&session, "order").await, (RunOutcome::Cancelled, node(2)));
        });
        talk.life(async |session, _| {
            assert_eq!(outcome(&session, "order").await, (RunOutcome::Cancelled, node(2)));
        });
    }
}

/// Callbacks that add a turn to each run, and whose `handle_event` waits at the gate.
struct Held(Gate);

#[async_trait]
impl AgentCallbacks for Held {
    async fn handle_turn(&mut self, response: &Response, state: &mut State) -> TurnDecision {
        GoesOn.handle_turn(response, state).await
    }

    async fn handle_event(&mut self, _: Box<dyn std::any::Any + Send>, _: &mut State) -> Option<Prompt> {
        self.0.pass().await;
        None
    }
}

/// Commits the first turn of a prompt whose run continues, and stages another prompt while `handle_event` waits at the
/// gate between the two turns.
async fn stage_between_turns(session: &Session, talk: &Talk, held: &Gate) {
    session.prompt(order()).await.unwrap();
    talk.gate.reached().await;
    session.notify(()).await.unwrap();
    talk.answer(1);
    held.reached().await;
    session.prompt(second()).await.unwrap();
}

#[test]
fn prompt_ends_with_its_turn_if_another_is_staged_while_handle_event_runs_between_turns() {
    for level in [Durable::Turns, Durable::Approvals, Durable::InFlight] {
        for is_killed in [false, true] {
            let (talk, held) = (Talk::new(level), Gate::new());
            let builder = talk.builder().agent(talk.agent().callbacks(Held(held.clone())));
            talk.life_of(builder, async move |session, talk| {
                stage_between_turns(&session, &talk, &held).await;
                let mut waiting = pin!(outcome(&session, "order"));
                assert!(poll!(&mut waiting).is_pending());
                waits(&session).await;
                assert!(poll!(&mut waiting).is_pending());
                held.open();
                assert_eq!(waiting.await, (stopped(), node(2)), "{level:?}");
                talk.gate.reached().await;
                if !is_killed {
                    session.cancel().await.unwrap();
                    assert_eq!(outcome(&session, "second").await, (RunOutcome::Cancelled, None));
                    assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
                }
            });
            if level > Durable::Turns {
                talk.life(async move |session, _| {
                    assert_eq!(outcome(&session, "order").await, (stopped(), node(2)), "{level:?}");
                });
            }
        }
    }
}

#[test]
fn prompt_that_was_staged_between_turns_ends_the_prompt_of_the_last_turn_after_a_kill() {
    let (talk, held) = (Talk::new(Durable::InFlight), Gate::new());
    let builder = talk.builder().agent(talk.agent().callbacks(Held(held.clone())));
    talk.life_of(builder, async move |session, talk| stage_between_turns(&session, &talk, &held).await);
    talk.life(async |session, talk| {
        assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
        talk.answer(1);
        assert_eq!(outcome(&session, "second").await, (stopped(), node(4)));
        assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
    });
}

#[test]
fn outcome_of_a_session_that_ends_is_found_after_it_is_opened_again() {
    let talk = Talk::new(Durable::InFlight);
    talk.life(async |session, talk| {
        session.prompt(order()).await.unwrap();
        let ending = session.clone();
        let waiting = tokio::spawn(async move { ending.outcome("order").await });
        talk.gate.reached().await;
        session.stop(Duration::from_secs(10)).await.unwrap();
        // The interrupted run has kept nothing, so it was cancelled. The outcome may be known before the end.
        match waiting.await.unwrap() {
            Ok(ended) => assert_eq!(ended.outcome, RunOutcome::Cancelled),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Ended, "{error:?}"),
        }
        let again = talk.builder().open(id("a")).await.unwrap();
        assert_eq!(outcome(&again, "order").await, (RunOutcome::Cancelled, None));
        std::mem::forget(again);
    });
}

#[test]
fn erasing_keeps_the_outcomes_of_prompts_and_no_erased_text() {
    for level in [Durable::Approvals, Durable::InFlight] {
        let talk = Talk::new(level);
        talk.life(async |session, talk| {
            talk.answer(2);
            session.prompt(order()).await.unwrap();
            session.outcome("order").await.unwrap();
            session.ask("My secret.").await.unwrap();
            session.prompt("Another secret.").await.unwrap();
            session.cancel().await.unwrap();
            session.flush(Duration::from_secs(10)).await.unwrap();
            let before = talk.version().await;
            session.erase(node(3).unwrap()).await.unwrap();
            // The process is killed when the store has erased the messages.
            assert_eq!(talk.version().await, before + 1, "the outcomes need no other write");
            let stored = talk.store.load(&id("a")).await.unwrap();
            assert!(!serde_json::to_string(&stored).unwrap().contains("secret"));
            assert_eq!(stored.last_run.unwrap().outcome, RunOutcome::Cancelled);
        });
        talk.life(async |session, _| {
            assert_eq!(state(&session, order()).await, PromptState::Ended { outcome: stopped() });
            assert_eq!(outcome(&session, "order").await, (stopped(), node(2)));
            session.erase(node(1).unwrap()).await.unwrap();
        });
        talk.life(async |session, _| assert_eq!(outcome(&session, "order").await, (stopped(), None)));
    }
}

#[test]
fn last_32_prompts_of_a_conversation_are_known() {
    let talk = Talk::new(Durable::InFlight);
    talk.answer(33);
    talk.life(async |session, _| {
        for number in 1..=33 {
            session.prompt(Prompt::new("Again.").with_id(format!("p{number}"))).await.unwrap();
            session.outcome(format!("p{number}")).await.unwrap();
        }
    });
    talk.life(async |session, _| {
        assert!(is_unknown(&session.outcome("p1").await));
        for number in 2..=33 {
            let ended = outcome(&session, &format!("p{number}")).await;
            assert_eq!(ended, (stopped(), node(2 * number)));
        }
    });
}

#[test]
fn reused_id_of_a_forgotten_prompt_has_the_outcome_of_the_new_prompt() {
    let talk = Talk::new(Durable::InFlight);
    let numbered = |number: u64| Prompt::new("Again.").with_id(format!("p{number}"));
    talk.answer(33);
    talk.life(async move |session, talk| {
        for number in 1..=33 {
            session.prompt(numbered(number)).await.unwrap();
            session.outcome(format!("p{number}")).await.unwrap();
        }
        session.prompt(numbered(34)).await.unwrap();
        let again = session.prompt(numbered(1)).await.unwrap();
        assert!(matches!(again, Accepted::Staged { .. }), "{again:?}");
        let mut waiting = pin!(session.outcome("p1"));
        assert!(poll!(&mut waiting).is_pending());
        waits(&session).await;
        assert!(poll!(&mut waiting).is_pending());
        talk.answer(1);
        assert_eq!(outcome(&session, "p34").await, (stopped(), node(68)));
        assert!(poll!(&mut waiting).is_pending());
    });
    talk.life(async move |session, talk| {
        assert!(matches!(state(&session, numbered(1)).await, PromptState::InFlight { .. }));
        let mut waiting = pin!(outcome(&session, "p1"));
        assert!(poll!(&mut waiting).is_pending());
        talk.answer(1);
        assert_eq!(waiting.await, (stopped(), node(70)));
    });
    talk.life(async |session, _| assert_eq!(outcome(&session, "p1").await, (stopped(), node(70))));
}

#[test]
fn prompt_of_a_turn_that_is_dropped_or_given_up_has_this_outcome() {
    let unreadable = |talk: &Talk| {
        talk.life(async |session, talk| {
            session.prompt(order()).await.unwrap();
            let stored = talk.store.load(&id("a")).await.unwrap();
            let mut record = stored.turn.unwrap().record;
            record.core = "not a state".into();
            let commit = omni_agent::store::custom::Commit::new(stored.head).with_turn(record);
            let write = omni_agent::store::custom::Write::on(stored.version);
            talk.store.write(&id("a"), &write, &Change::Commit(commit)).await.unwrap();
        });
    };
    let talk = Talk::new(Durable::InFlight);
    unreadable(&talk);
    let discard = Recover::default().with_decision(RecoveryDecision::Discard);
    talk.life_of(talk.builder().recover(discard), async |session, _| {
        assert_eq!(outcome(&session, "order").await, (RunOutcome::Discarded, None));
        session.flush(Duration::from_secs(10)).await.unwrap();
    });
    talk.life(async |session, _| {
        assert_eq!(outcome(&session, "order").await, (RunOutcome::Discarded, None));
    });

    let talk = Talk::new(Durable::InFlight);
    talk.life(async |session, _| session.prompt(order()).await.unwrap());
    for _ in 0..5 {
        talk.life(async |_, _| {});
    }
    for _ in 0..2 {
        talk.life(async |session, _| {
            assert_eq!(outcome(&session, "order").await, (RunOutcome::Abandoned, None));
            let ended = PromptState::Ended { outcome: RunOutcome::Abandoned };
            assert_eq!(state(&session, order()).await, ended);
        });
    }
}

#[test]
fn id_of_a_prompt_adds_no_write() {
    for (level, writes) in [(Durable::Turns, 1), (Durable::Approvals, 1), (Durable::InFlight, 2)] {
        for prompt in [Prompt::new("Order it."), order()] {
            let talk = Talk::new(level);
            talk.answer(1);
            talk.life(async move |session, talk| {
                let before = talk.version().await;
                session.ask(prompt).await.unwrap();
                session.flush(Duration::from_secs(10)).await.unwrap();
                assert_eq!(talk.version().await - before, writes, "{level:?}");
            });
        }
    }
}
