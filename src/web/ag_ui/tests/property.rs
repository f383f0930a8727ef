//! Random runs: a client that watches from the start and one that joins at any event see the messages and the state of
//! the session, whichever events they miss.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::{
    AgUiFrame, AgUiRequestedRun, AgUiRunToStream, AgUiStream, AgUiVersion, Client, ClientFileForm, Rig,
    check_messages, omni,
};
use crate::{
    agent::{Event, Status},
    message::TurnId,
    provider::{ProviderError, ProviderErrorKind},
    run::Accepted,
    session::{Mode, SessionAnswer, SessionEvent, SessionSnapshot},
    subscription::{Numbered, Update},
    testing::Step,
    tool::Decision,
};

#[derive(Clone, Debug)]
enum Block {
    Text(Vec<String>),
    Thinking(String),
    Tool { name: &'static str, is_raw: bool },
}

#[derive(Clone, Copy, Debug)]
enum Stop {
    No,
    Interrupt(usize),
    Cancel(usize),
}

#[derive(Clone, Debug)]
struct Script {
    steps: Vec<Vec<Block>>,
    fails: bool,
    /// Whether the calls are numbered anew in each answer.
    repeats_ids: bool,
    stop: Stop,
}

fn block() -> impl Strategy<Value = Block> {
    let piece = prop_oneof![Just(String::new()), "[a-z\"\\\\\n]{1,4}"];
    let tool = prop_oneof![Just("add"), Just("ask"), Just("fail"), Just("absent"), Just("show")];
    prop_oneof![
        3 => prop::collection::vec(piece, 0..4).prop_map(Block::Text),
        1 => "[a-z]{0,3}".prop_map(Block::Thinking),
        3 => (tool, any::<bool>()).prop_map(|(name, is_raw)| Block::Tool { name, is_raw }),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let stop = prop_oneof![
        2 => Just(Stop::No),
        1 => (0..40_usize).prop_map(Stop::Interrupt),
        1 => (0..40_usize).prop_map(Stop::Cancel),
    ];
    let steps = prop::collection::vec(prop::collection::vec(block(), 0..5), 1..4);
    (steps, any::<bool>(), any::<bool>(), stop).prop_map(|(steps, fails, repeats_ids, stop)| Script {
        steps,
        fails,
        repeats_ids,
        stop,
    })
}

fn steps(script: &Script) -> Vec<Step> {
    let mut count = 0;
    let mut steps = Vec::new();
    for (at, blocks) in script.steps.iter().enumerate() {
        let mut step = Step::new();
        if script.repeats_ids {
            count = 0;
        }
        for block in blocks {
            count += 1;
            step = match block {
                Block::Text(pieces) => step.then_text(pieces.clone()),
                Block::Thinking(text) => step.then_thinking(text, "signature"),
                Block::Tool { name, is_raw: true } => step.then_raw_tool_use(&format!("u{count}"), name, &[]),
                Block::Tool { name, .. } => {
                    step.then_tool_use(&format!("u{count}"), name, json!({ "n": count }))
                }
            };
        }
        let is_last = at + 1 == script.steps.len();
        let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "bad");
        steps.push(if is_last && script.fails { step.fail(error) } else { step.stop() });
    }
    steps.push(Step::text("End."));
    steps
}

/// Runs the script. Returns the snapshot before the script and the events that the script causes.
async fn record(script: &Script) -> (SessionSnapshot, Vec<Numbered<SessionEvent>>) {
    let rig = Rig::new(AgUiVersion::V1, steps(script)).await;
    let session = &rig.session;
    let mut updates = session.subscribe(Mode::Controller).await.unwrap();
    let first = (**updates.snapshot().unwrap()).clone();
    session.prompt(crate::run::Prompt::new("Hi").with_id("user")).await.unwrap();
    let mut events = Vec::new();
    while let Some(Update::Event(event)) = updates.next().await {
        let ends = event.event.agent().is_some_and(|event| crate::run::RunOutcome::of(event).is_some());
        if let Some(Event::Status { pauses, .. }) = event.event.agent()
            && let Some(pause) = pauses.first()
        {
            let decision = if events.len() % 2 == 0 { Decision::Execute } else { Decision::reject("No.") };
            // If the run was stopped in the meantime, `resume` fails.
            let _ = session.resume(pause.tool_use.id.clone(), decision).await;
        }
        events.push(event);
        match script.stop {
            Stop::Interrupt(at) if at == events.len() => drop(session.interrupt().await),
            Stop::Cancel(at) if at == events.len() => drop(session.cancel().await),
            _ => {}
        }
        if ends {
            break;
        }
    }
    (first, events)
}

fn fold(view: &SessionSnapshot, events: &[Numbered<SessionEvent>]) -> SessionSnapshot {
    let mut view = view.clone();
    for event in events {
        view.apply(event).unwrap();
    }
    view
}

/// Gives the frames of one event to the client. After each frame, the client's state is the session's state.
fn read(client: &mut Client, frames: &[AgUiFrame], view: &SessionSnapshot) {
    let state = json!({ "mine": 1, "omni": omni(view) });
    for frame in frames {
        client.read_one(frame);
        assert!(client.state == state || matches!(frame, AgUiFrame::RunStarted { .. }), "{frame:?}");
    }
    assert_eq!(client.state, state);
}

/// Returns whether no other event of the same input follows. A session has no snapshot between such events.
fn is_last_of_input(event: &Numbered<SessionEvent>) -> bool {
    match event.event.agent() {
        Some(Event::Status { status, .. }) => *status == Status::Paused,
        event => !matches!(event, Some(Event::Prompt { .. })),
    }
}

/// Reads the events from `from` on, with a new run after each interrupt, and compares the client with the session.
/// `missed` are the first event and the number of events in whose place the client gets a snapshot.
fn replay(
    first: &SessionSnapshot,
    events: &[Numbered<SessionEvent>],
    from: usize,
    missed: &[(usize, usize)],
    level: AgUiVersion,
) {
    let mut client = Client::new(level);
    let mut start = AgUiRunToStream::Join;
    if from == 0 {
        client.messages.push(json!({ "id": "user", "role": "user", "content": "Hi" }));
        let accepted = SessionAnswer::Accepted(Accepted::Started { turn: TurnId::new(1) });
        start = AgUiRunToStream::of(&accepted, Some("user".into()), &first.agent);
    }
    let mut at = from;
    let mut view = fold(first, &events[..at]);
    while at < events.len() {
        let ids = client.messages.iter().map(|message| message["id"].as_str().unwrap().to_owned());
        let run = AgUiRequestedRun {
            thread: "t".to_owned(),
            id: "r".to_owned(),
            level,
            files: ClientFileForm::default(),
            known: ids.collect(),
            state: client.state.as_object().unwrap().clone(),
        };
        let (mut stream, frames) = AgUiStream::begin(run, view.clone(), start);
        client.begin();
        read(&mut client, &frames, &view);
        while !stream.is_ended() {
            let count = missed.iter().find(|(first, _)| *first == at).map(|(_, count)| *count);
            let mut next = (at + count.unwrap_or(1)).min(events.len());
            // A session has no snapshot between an event and the event that reports its cause.
            while count.is_some() && next < events.len() && !is_last_of_input(&events[next - 1]) {
                next += 1;
            }
            let update = match count {
                Some(_) => Update::Resync(Arc::new(fold(&view, &events[at..next]))),
                None => Update::Event(events[at].clone()),
            };
            view = fold(&view, &events[at..next]);
            read(&mut client, &stream.update(&update), &view);
            at = next;
        }
        client.check_ended();
        let is_discarded = |event: &Event| matches!(event, Event::Error { committed: false, .. });
        if at == 0 || !events[at - 1].event.agent().is_some_and(is_discarded) {
            check_messages(&client, &view);
        }
        if view.agent.status != Status::Paused {
            return;
        }
        start = AgUiRunToStream::of(&SessionAnswer::Done, None, &view.agent);
    }
}

/// Runs the script and checks a client that joins at each of its events, and misses events.
fn check(script: &Script, missed: &[(usize, usize)]) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (first, events) = runtime.block_on(record(script));
    for level in [AgUiVersion::V0, AgUiVersion::V1] {
        for from in (0..events.len()).filter(|from| *from == 0 || is_last_of_input(&events[from - 1])) {
            replay(&first, &events, from, missed, level);
        }
    }
}

/// Runs the script and checks clients that miss each series of events, from the start on.
fn check_each_gap(script: &Script) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (first, events) = runtime.block_on(record(script));
    for gap in (0..events.len()).flat_map(|at| (1..=events.len() - at).map(move |count| (at, count))) {
        replay(&first, &events, 0, &[gap], AgUiVersion::V1);
    }
}

#[test]
fn client_that_misses_any_events_of_a_run_with_approvals_sees_its_messages() {
    let text = |text: &str| Block::Text(text.chars().map(String::from).collect());
    let tool = |name, is_raw| Block::Tool { name, is_raw };
    let uses = vec![text("ab"), tool("ask", false), tool("add", true), tool("ask", false), text("c")];
    let steps = vec![uses, vec![Block::Thinking("d".to_owned()), text("ef"), tool("add", false)]];
    check_each_gap(&Script { steps, fails: false, repeats_ids: true, stop: Stop::No });
}

#[test]
fn client_of_an_answer_that_loses_blocks_sees_the_others_in_their_order() {
    let text = |pieces: &[&str]| Block::Text(pieces.iter().map(ToString::to_string).collect());
    let thinking = || Block::Thinking("a".to_owned());
    let tool = Block::Tool { name: "add", is_raw: true };
    // A block without text gets no place in the message, so the blocks after it get other ids.
    let empty = vec![text(&[]), thinking(), text(&["a"])];
    let cut = vec![text(&["a"]), thinking(), tool];
    for (blocks, fails) in [(empty.clone(), false), (empty, true), (cut, true)] {
        check_each_gap(&Script { steps: vec![blocks.clone()], fails, repeats_ids: false, stop: Stop::No });
        check(&Script { steps: vec![blocks], fails, repeats_ids: false, stop: Stop::No }, &[]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn client_that_joins_at_any_event_sees_the_messages_of_the_session(script in script()) {
        check(&script, &[]);
    }

    #[test]
    fn client_that_misses_events_sees_the_messages_of_the_session(
        script in script(),
        missed in prop::collection::vec((0..60_usize, 1..20_usize), 1..6),
    ) {
        check(&script, &missed);
    }
}
