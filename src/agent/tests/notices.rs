//! Application events: `notify` and `handle_event`.

use crate::{
    agent::{
        AgentCallbacks, Event, Failure, Prompt, PromptState, Response, RunOutcome, State, Status,
        ToolDecision, TurnDecision,
    },
    provider::StopReason,
    run::ErrorKind,
    testing::{Gate, Step},
    tool::Decision,
};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, failed, noting, reached, turns},
    support::{names, returned, scripted},
};

/// Returns callbacks whose `handle_event` logs an event that is a number, and returns an event that is a text as a
/// prompt.
fn note_or_prompt(log: &Log<u32>) -> Hooks {
    let log = log.clone();
    Hooks::new().on_event(move |event, _| match event.downcast::<u32>() {
        Ok(number) => {
            log.push(*number);
            None
        }
        Err(event) => event.downcast::<&'static str>().ok().map(|text| Prompt::new(*text)),
    })
}

#[tokio::test(start_paused = true)]
async fn notify_idle_agent_reaches_handle_event_in_order() {
    let (provider, builder) = scripted([]);
    let log = Log::default();
    let agent = Watched::start(builder.callbacks(note_or_prompt(&log))).await;
    for number in 0..5_u32 {
        agent.agent.notify(number).await.unwrap();
    }
    agent.agent.wait_until_idle().await.unwrap();
    assert_eq!(log.all(), [0, 1, 2, 3, 4]);
    assert!(provider.requests().is_empty());
    agent.check().await;
}

#[tokio::test(start_paused = true)]
async fn handle_event_prompt_starts_a_run() {
    let (_, builder) = scripted([Step::text("Done.")]);
    let mut agent = Watched::start(builder.callbacks(note_or_prompt(&Log::default()))).await;
    agent.agent.notify("The build is red.").await.unwrap();
    let events = agent.end().await;
    assert_eq!(names(&events)[..2], ["status(busy)", "message(user)"]);
    assert_eq!(agent.history().await, ["user: The build is red.", "assistant: Done."]);
}

#[tokio::test(start_paused = true)]
async fn notify_busy_agent_waits_for_the_end_of_the_turn() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().gate(&gate).then_text(["One"]).stop()]);
    let log = Log::default();
    let mut agent = Watched::start(builder.callbacks(note_or_prompt(&log))).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    agent.agent.notify(1_u32).await.unwrap();
    tokio::task::yield_now().await;
    assert!(log.all().is_empty());
    gate.open();
    agent.end().await;
    agent.agent.wait_until_idle().await.unwrap();
    assert_eq!(log.all(), [1]);
}

#[tokio::test(start_paused = true)]
async fn notify_paused_agent_waits_too() {
    let (_, builder) = scripted([Step::tool_use("a", "look", json!({})), Step::text("One")]);
    let log = Log::default();
    let hooks = note_or_prompt(&log).deciding([("look", ToolDecision::Pause(Value::Null))]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    agent.agent.prompt("Hi").await.unwrap();
    agent.until("pause").await;
    agent.agent.notify(1_u32).await.unwrap();
    assert_eq!(agent.agent.status().await.unwrap(), Status::Paused);
    assert!(log.all().is_empty());
    agent.agent.resume("a", Decision::Execute).await.unwrap();
    agent.agent.wait_until_idle().await.unwrap();
    assert_eq!(log.all(), [1]);
}

#[tokio::test(start_paused = true)]
async fn handle_event_between_two_turns_of_a_run_does_not_end_it() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_text(["One"]).stop();
    let (provider, builder) = scripted([first, Step::text("Two")]);
    let log = Log::default();
    let hooks = note_or_prompt(&log).continuing(["More"]);
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    agent.agent.notify(1_u32).await.unwrap();
    gate.open();
    agent.until("turn(continue)").await;
    agent.until("message(user)").await;
    assert_eq!(log.all(), [1], "handled when the first turn was over");
    agent.end().await;
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn handle_event_prompt_between_two_turns_starts_the_next_turn() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_text(["One"]).stop();
    let (_, builder) = scripted([first, Step::text("Two")]);
    let mut hooks = note_or_prompt(&Log::default());
    let mut go_on = true;
    hooks = hooks.on_turn(move |_, _| {
        if std::mem::take(&mut go_on) {
            crate::agent::TurnDecision::continue_with("More")
        } else {
            crate::agent::TurnDecision::Stop
        }
    });
    let mut agent = Watched::start(builder.max_steps(1).callbacks(hooks)).await;
    agent.agent.prompt(Prompt::new("Hi").with_max_steps(9)).await.unwrap();
    reached(&gate).await;
    agent.agent.notify("Mail for you.").await.unwrap();
    gate.open();
    let events = agent.end().await;
    assert_eq!(turns(&events).len(), 2);
    assert_eq!(turns(&events)[1].step, 1, "the prompt starts a new step count");
    let history = agent.history().await;
    assert_eq!(history, ["user: Hi", "assistant: One", "user: Mail for you.", "assistant: Two"]);
}

/// Callbacks whose `handle_event` logs the event and then waits at the gate.
struct Held(Gate, Log<&'static str>);

#[async_trait]
impl AgentCallbacks for Held {
    async fn handle_event(&mut self, event: Box<dyn std::any::Any + Send>, _: &mut State) -> Option<Prompt> {
        let text = *event.downcast::<&'static str>().unwrap();
        self.1.push(text);
        self.0.pass().await;
        text.starts_with('!').then(|| Prompt::new(text))
    }
}

/// Callbacks that continue after the first turn, and whose `handle_event` waits at the gate before it returns the prompt
/// in the event.
struct GoesOn(Gate, bool);

#[async_trait]
impl AgentCallbacks for GoesOn {
    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        if std::mem::replace(&mut self.1, true) {
            TurnDecision::Stop
        } else {
            TurnDecision::continue_with("More")
        }
    }

    async fn handle_event(&mut self, event: Box<dyn std::any::Any + Send>, _: &mut State) -> Option<Prompt> {
        self.0.pass().await;
        event.downcast::<Prompt>().ok().map(|prompt| *prompt)
    }
}

/// Returns an agent that runs `handle_event` after the first turn of the prompt `a`, and the gate at which
/// `handle_event` waits.
async fn between_turns(event: impl std::any::Any + Send) -> (Watched, Gate) {
    let (gate, held) = (Gate::new(), Gate::new());
    let first = Step::new().gate(&gate).then_text(["One"]).stop_with(StopReason::StopSequence);
    let (_, builder) = scripted([first, Step::new().hang()]);
    let mut agent = Watched::start(builder.callbacks(GoesOn(held.clone(), false))).await;
    agent.agent.prompt(Prompt::new("A").with_id("a")).await.unwrap();
    reached(&gate).await;
    agent.agent.notify(event).await.unwrap();
    gate.open();
    agent.until("turn(continue)").await;
    reached(&held).await;
    (agent, held)
}

/// Returns the outcome of the prompt with this id.
fn outcome(agent: &Watched, id: &str) -> RunOutcome {
    let known = agent.view.prompts.iter().find(|known| known.id.as_str() == id).unwrap();
    match &known.state {
        PromptState::Ended { outcome } => outcome.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_that_starts_the_next_turn_after_handle_event_ends_the_prompt_in_flight() {
    let next = || Prompt::new("B").with_id("b");
    for is_returned in [false, true] {
        let (mut agent, held) =
            if is_returned { between_turns(next()).await } else { between_turns(()).await };
        if !is_returned {
            agent.agent.prompt(next()).await.unwrap();
        }
        held.open();
        let events = agent.until("message(user)").await;
        let expected = ["prompt(staged)", "prompt(ended)", "prompt(in_flight)", "message(user)"];
        assert_eq!(names(&events), expected);
        let stopped = RunOutcome::Stopped { stop_reason: StopReason::StopSequence };
        assert_eq!(outcome(&agent, "a"), stopped);
        agent.agent.cancel().await.unwrap();
        agent.end().await;
        assert_eq!((outcome(&agent, "a"), outcome(&agent, "b")), (stopped, RunOutcome::Cancelled));
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_whose_run_ends_between_two_turns_ends_with_its_run() {
    for is_interrupted in [false, true] {
        let (mut agent, _) = between_turns(()).await;
        agent.agent.prompt(Prompt::new("B").with_id("b")).await.unwrap();
        if is_interrupted {
            agent.agent.interrupt().await.unwrap();
        } else {
            agent.agent.cancel().await.unwrap();
        }
        let events = agent.end().await;
        assert_eq!(outcome(&agent, "a"), RunOutcome::Cancelled);
        assert_eq!(returned(&events)[0].content, "B".into());
    }
    let (mut agent, held) = between_turns(Prompt::new(" ")).await;
    held.open();
    let (failure, _) = failed(&agent.end().await);
    assert_eq!(outcome(&agent, "a"), RunOutcome::Failed { failure });
}

#[tokio::test(start_paused = true)]
async fn prompt_while_handle_event_runs_is_accepted_at_once_and_runs_after_it() {
    let (provider, builder) = scripted([Step::text("One"), Step::text("Two")]);
    let gate = Gate::new();
    let mut agent = Watched::start(builder.callbacks(Held(gate.clone(), Log::default()))).await;
    agent.agent.notify("!Mail").await.unwrap();
    reached(&gate).await;
    assert_eq!(agent.agent.status().await.unwrap(), Status::Idle);
    let accepted = agent.agent.prompt("Hi").await.unwrap();
    assert!(matches!(accepted, crate::agent::Accepted::Started { .. }));
    assert_eq!(names(&agent.until("message(user)").await), ["status(busy)", "message(user)"]);
    assert!(provider.requests().is_empty());
    gate.open();
    agent.end().await;
    let history = agent.history().await;
    assert_eq!(history, ["user: Hi", "assistant: One", "user: !Mail", "assistant: Two"]);
}

/// Returns an agent whose `handle_event` returns a prompt while a run is active and another prompt is staged.
async fn crowded(steps: impl IntoIterator<Item = Step>) -> Watched {
    let (_, builder) = scripted(steps);
    let gate = Gate::new();
    let agent = Watched::start(builder.callbacks(Held(gate.clone(), Log::default()))).await;
    agent.agent.notify("!Mail").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt("Hi").await.unwrap();
    agent.agent.prompt(Prompt::new("And this").with_max_steps(7)).await.unwrap();
    gate.open();
    agent
}

#[tokio::test(start_paused = true)]
async fn handle_event_prompt_while_another_is_staged_runs_after_it() {
    let mut agent = crowded([Step::text("One"), Step::text("Two"), Step::text("Three")]).await;
    let events = agent.end().await;
    assert_eq!(turns(&events).len(), 3);
    let history = agent.history().await;
    let said = ["user: Hi", "assistant: One", "user: And this", "assistant: Two", "user: !Mail"];
    assert_eq!((&history[..5], history.len()), (&said.map(String::from)[..], 6));
}

#[tokio::test(start_paused = true)]
async fn handle_event_prompt_behind_a_staged_prompt_is_carried_back_with_it() {
    let gate = Gate::new();
    let mut agent = crowded([Step::new().gate(&gate).hang()]).await;
    reached(&gate).await;
    agent.agent.cancel().await.unwrap();
    let events = agent.end().await;
    let staged: Vec<_> =
        returned(&events).iter().map(|prompt| (prompt.content.clone(), prompt.max_steps)).collect();
    assert_eq!(staged, [("And this".into(), Some(7)), ("!Mail".into(), None)]);
}

#[tokio::test(start_paused = true)]
async fn cancel_while_handle_event_runs_drops_it_and_handles_the_next() {
    let (_, builder) = scripted([]);
    let (gate, log) = (Gate::new(), Log::default());
    let warnings = super::logged::Log::default();
    let _guard = warnings.listen();
    let agent = Watched::start(builder.callbacks(Held(gate.clone(), log.clone()))).await;
    agent.agent.notify("first").await.unwrap();
    agent.agent.notify("second").await.unwrap();
    reached(&gate).await;
    agent.agent.cancel().await.unwrap();
    reached(&gate).await;
    assert_eq!(warnings.text().matches("an application event is dropped").count(), 1, "{}", warnings.text());
    gate.open();
    agent.agent.wait_until_idle().await.unwrap();
    assert_eq!(log.all(), ["first", "second"]);
    agent.check().await;
}

#[tokio::test(start_paused = true)]
async fn cancel_or_interrupt_before_handle_event_begins_is_refused_and_the_event_is_handled() {
    for interrupt in [false, true] {
        let log = Log::default();
        let agent = Watched::start(scripted([]).1.callbacks(note_or_prompt(&log))).await;
        // The agent receives both commands at the same time, so it does not poll `handle_event` between them.
        let (noted, stopped) = tokio::join!(agent.agent.notify(1_u32), async {
            if interrupt { agent.agent.interrupt().await } else { agent.agent.cancel().await }
        });
        noted.unwrap();
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Idle);
        agent.agent.wait_until_idle().await.unwrap();
        assert_eq!(log.all(), [1]);
        agent.check().await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_of_a_run_before_handle_event_begins_event_handled_after_it() {
    let log = Log::default();
    let mut agent = Watched::start(scripted([]).1.callbacks(note_or_prompt(&log))).await;
    let handle = agent.agent.clone();
    let (noted, prompted, cancelled) =
        tokio::join!(handle.notify(1_u32), handle.prompt("Hi"), handle.cancel());
    noted.unwrap();
    prompted.unwrap();
    cancelled.unwrap();
    assert_eq!(names(&agent.end().await).last().unwrap(), "cancelled");
    handle.wait_until_idle().await.unwrap();
    assert_eq!(log.all(), [1]);
}

#[tokio::test(start_paused = true)]
async fn cancel_while_the_commit_channel_is_full_event_handled_later() {
    let (sender, mut receiver) = futures_channel::mpsc::channel(0);
    let log = Log::default();
    let builder = scripted([]).1.callbacks(note_or_prompt(&log));
    let agent = builder.commit_channel(sender).start().await.unwrap();
    for _ in 0..3 {
        agent.set_state(|_| Ok(())).await.unwrap();
    }
    agent.notify(1_u32).await.unwrap();
    assert_eq!(agent.cancel().await.unwrap_err().kind(), ErrorKind::Idle);
    assert!(log.all().is_empty(), "the event waits for room");
    while log.all().is_empty() {
        futures_util::StreamExt::next(&mut receiver).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(log.all(), [1]);
}

#[tokio::test(start_paused = true)]
async fn handle_event_unusable_prompt_is_an_error_event_and_the_agent_survives() {
    let (_, builder) = scripted([Step::text("Hello")]);
    let mut agent = Watched::start(builder.callbacks(note_or_prompt(&Log::default()))).await;
    agent.agent.notify(" ").await.unwrap();
    let event = agent.next().await;
    let Event::Error { failure: Failure::Callback { callback, message }, .. } = &*event else {
        panic!("{event:?}");
    };
    assert_eq!(callback, "handle_event");
    assert!(message.contains("empty"), "{message}");
    agent.run("Hi").await;
}

#[tokio::test(start_paused = true)]
async fn handle_event_edits_the_configuration() {
    let (provider, builder) = scripted([Step::text("Hello")]);
    let hooks = Hooks::new().on_event(|_, state| {
        state.config_mut().settings.system = Some("Be kind.".into());
        None
    });
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.agent.notify(()).await.unwrap();
    agent.agent.wait_until_idle().await.unwrap();
    let events = agent.run("Hi").await;
    assert_eq!(names(&events)[0], "status(busy)", "an edit in handle_event emits no event");
    assert_eq!(provider.requests()[0].system.as_deref(), Some("Be kind."));
}

#[tokio::test(start_paused = true)]
async fn notify_with_a_full_queue_is_an_error() {
    let (_, builder) = scripted([]);
    let (gate, log) = (Gate::new(), Log::default());
    let agent = Watched::start(builder.callbacks(Held(gate.clone(), log.clone()))).await;
    agent.agent.notify("held").await.unwrap();
    reached(&gate).await;
    let limit = loop {
        match agent.agent.notify("waits").await {
            Ok(()) => assert!(log.all().len() == 1),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Backlog);
                break usize::try_from(error.member("queued").unwrap().as_u64().unwrap()).unwrap();
            }
        }
    };
    (0..=limit).for_each(|_| gate.open());
    agent.agent.wait_until_idle().await.unwrap();
    assert_eq!(log.all().len(), limit + 1, "no accepted event is lost");
}

#[tokio::test(start_paused = true)]
async fn notify_survives_a_run_that_fails() {
    use crate::provider::{ProviderError, ProviderErrorKind};
    let gate = Gate::new();
    let broken = Step::new().gate(&gate).fail(ProviderError::new(ProviderErrorKind::Auth, "no"));
    let (_, builder) = scripted([broken]);
    let log = Log::default();
    let mut agent = Watched::start(builder.callbacks(note_or_prompt(&log))).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    agent.agent.notify(1_u32).await.unwrap();
    gate.open();
    failed(&agent.end().await);
    agent.agent.wait_until_idle().await.unwrap();
    assert_eq!(log.all(), [1]);
}
