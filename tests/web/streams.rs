//! The native streams.

use std::time::Duration;

use omni_agent::{
    session::{SessionEvent, SessionSnapshot},
    store::ConversationId,
    subscription::{EventId, Numbered, Update},
    testing::{Gate, Step},
    web::WebLimits,
};
use serde_json::{Value, json};

use crate::support::{App, Frame, Frames, prompt};

/// A client's copy of a conversation.
#[derive(Default)]
pub(crate) struct Client {
    pub(crate) snapshot: Option<SessionSnapshot>,
    pub(crate) position: Option<String>,
}

impl Client {
    pub(crate) fn take(&mut self, frame: &Frame) {
        if frame.event != "conversation" {
            return;
        }
        if let Some(id) = &frame.id {
            self.position = Some(id.clone());
        }
        let update: Update<SessionSnapshot, SessionEvent> =
            serde_json::from_value(frame.data["update"].clone()).unwrap();
        match (&mut self.snapshot, &update) {
            (Some(snapshot), Update::Event(Numbered { id, .. })) if !follows(*id, snapshot.last) => {}
            (Some(snapshot), update) => snapshot.take(update).unwrap(),
            (none, Update::Resync(snapshot)) => *none = Some((**snapshot).clone()),
            (None, update) => panic!("the stream does not begin with a snapshot: {update:?}"),
        }
    }

    /// The state, without the parts that a view omits.
    pub(crate) fn state(&self) -> SessionSnapshot {
        without_history(self.snapshot.clone().unwrap())
    }
}

/// Returns whether the event comes after the last one that was applied.
fn follows(id: EventId, last: EventId) -> bool {
    id.life != last.life || id.number > last.number
}

pub(crate) fn without_history(mut snapshot: SessionSnapshot) -> SessionSnapshot {
    snapshot.agent.state.history = omni_agent::message::History::new();
    snapshot
}

/// Asserts that the client has the state of the conversation.
///
/// A client that has seen everything before an orderly end gets no snapshot of the next life. So it may still have the
/// positions, the step, the prompts and the end of the last run of the life before, without which a new life begins.
pub(crate) async fn assert_current(client: &Client, app: &App, id: &str) {
    let (mut state, now) = (client.state(), now(app, id).await);
    if state.agent.last.life != now.agent.last.life {
        (state.agent.last, state.agent.run, state.agent.step) =
            (now.agent.last, now.agent.run, now.agent.step);
        state.agent.first_turn = now.agent.first_turn;
        state.agent.prompts.clone_from(&now.agent.prompts);
        state.agent.last_run = state.agent.last_run.filter(|_| now.agent.last_run.is_some());
    }
    if state.last.life < now.last.life && now.last.number == 0 {
        state.last = now.last;
    }
    assert_eq!(state, now);
}

pub(crate) async fn now(app: &App, id: &str) -> SessionSnapshot {
    let text = app.get("ann", &format!("/agent/conversations/{id}")).await.text;
    without_history(serde_json::from_str(&text).unwrap())
}

fn script() -> Vec<Step> {
    vec![
        Step::new()
            .then_thinking("Let me see.", "signed")
            .then_text(["I ", "look."])
            .then_tool_use("call-1", "lookup", json!({ "what": "a fact" }))
            .stop(),
        Step::new().then_text(["It ", "is ", "so."]).stop(),
    ]
}

/// Runs a turn with an approval, and returns the frames of an undisturbed stream.
async fn run(app: &App, id: &str, stream: &mut Frames) -> Vec<Frame> {
    let path = format!("/agent/conversations/{id}");
    app.post("ann", &format!("{path}/commands"), prompt("Look")).await;
    let mut frames = stream.until(|frame| frame.data["update"]["event"]["event"]["status"] == "paused").await;
    let turn = &frames.last().unwrap().data["update"]["event"]["event"]["pauses"][0]["turn"];
    let decide = json!({ "type": "decide", "turn": turn, "decisions": [["call-1", "execute"]] });
    app.post("ann", &format!("{path}/commands"), decide).await;
    frames.extend(stream.until(|frame| frame.data["update"]["event"]["outcome"] == "saved").await);
    frames
}

#[tokio::test(start_paused = true)]
async fn stream_begins_with_a_snapshot_and_its_updates_make_the_current_state() {
    let app = App::new(script());
    let id = app.create("ann").await;
    let mut stream = app.stream("ann", &format!("/agent/conversations/{id}/events"), None).await;
    let first = stream.next().await.unwrap();
    assert_eq!(
        (first.event.as_str(), first.data["conversation"].as_str()),
        ("conversation", Some(id.as_str()))
    );
    assert_eq!(first.data["update"]["type"], "resync");
    let mut client = Client::default();
    client.take(&first);
    let frames = run(&app, &id, &mut stream).await;
    for frame in &frames {
        client.take(frame);
    }
    assert_current(&client, &app, &id).await;
    let delta = |frame: &&Frame| frame.data["update"]["event"]["event"]["type"] == "text_delta";
    assert!(frames.iter().filter(delta).all(|frame| frame.id.is_none()), "deltas have no id");
    assert!(frames.iter().filter(|frame| !delta(frame)).any(|frame| frame.id.is_some()));
    assert!(frames.iter().all(|frame| !frame.data.to_string().contains("Secret rules.")));
}

#[tokio::test(start_paused = true)]
async fn stream_that_is_cut_after_any_frame_and_resumed_loses_nothing() {
    let app = App::new(script());
    let id = app.create("ann").await;
    let path = format!("/agent/conversations/{id}/events");
    let mut stream = app.stream("ann", &path, None).await;
    let first = stream.next().await.unwrap();
    let mut frames = vec![first];
    frames.extend(run(&app, &id, &mut stream).await);
    let expected = now(&app, &id).await;
    for cut in 1..=frames.len() {
        let mut client = Client::default();
        for frame in &frames[..cut] {
            client.take(frame);
        }
        let mut resumed = app.stream("ann", &path, client.position.as_deref()).await;
        while client.state() != expected {
            let frame = tokio::time::timeout(Duration::from_mins(1), resumed.next()).await;
            let frame = frame.unwrap_or_else(|_| panic!("cut after {cut}: the state stays behind")).unwrap();
            assert_ne!(frame.data["update"]["type"], "resync", "cut after {cut}: nothing was missing");
            client.take(&frame);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stream_resumed_after_an_orderly_close_needs_a_snapshot_only_if_something_was_missed() {
    for missed in [false, true] {
        let app = App::new(script());
        let id = app.create("ann").await;
        let path = format!("/agent/conversations/{id}/events");
        let mut stream = app.stream("ann", &path, None).await;
        let mut client = Client::default();
        client.take(&stream.next().await.unwrap());
        let mut frames = run(&app, &id, &mut stream).await;
        if missed {
            let saved = frames.iter().position(|frame| frame.data["update"]["event"]["outcome"] == "saved");
            frames.truncate(saved.unwrap());
        }
        for frame in &frames {
            client.take(frame);
        }
        app.manager.close(&ConversationId::new(&id).unwrap()).await.unwrap();

        let mut resumed = app.stream("ann", &path, client.position.as_deref()).await;
        let titled = json!({ "type": "title", "title": "Facts" });
        app.post("ann", &format!("/agent/conversations/{id}/commands"), titled).await;
        let is_titled = |frame: &Frame| frame.data["update"]["event"]["title"] == "Facts";
        let frames = resumed.until(is_titled).await;
        let resyncs = frames.iter().filter(|frame| frame.data["update"]["type"] == "resync").count();
        assert_eq!(resyncs, usize::from(missed));
        for frame in &frames {
            client.take(frame);
        }
        assert_eq!(client.state().tree, now(&app, &id).await.tree);
        assert_eq!(client.state().title.as_deref(), Some("Facts"));
    }
}

#[tokio::test(start_paused = true)]
async fn page_stream_carries_the_list_and_several_conversations() {
    let app = App::new([Step::text("One"), Step::text("Two")]);
    let (a, b) = (app.create("ann").await, app.create("ann").await);
    let path = format!("/agent/events?list=true&watch={a}&watch={b}");
    let mut stream = app.stream("ann", &path, None).await;
    let mut clients = [Client::default(), Client::default()];
    let mut position = None;
    let mut take = |frames: Vec<Frame>, clients: &mut [Client; 2]| {
        for frame in frames {
            position = frame.id.clone().or(position.take());
            let index = usize::from(frame.data["conversation"] == json!(b));
            clients[index].take(&frame);
        }
        position.clone()
    };
    for _ in 0..2 {
        let frames =
            stream.until(|frame| frame.data["update"]["type"] == "resync" && frame.event != "list").await;
        take(frames.into_iter().filter(|frame| frame.event != "list").collect(), &mut clients);
    }
    app.ask("ann", &a, "Hi").await;
    app.ask("ann", &b, "Ho").await;
    let is_done = |id: &str| {
        let id = json!(id);
        move |frame: &Frame| {
            frame.data["conversation"] == id && frame.data["update"]["event"]["outcome"] == "saved"
        }
    };
    // The two runs are over. The stream reports both conversations as saved, in either order.
    let first = stream.until(|frame| is_done(&a)(frame) || is_done(&b)(frame)).await;
    let was_a = first.last().unwrap().data["conversation"] == json!(a);
    take(first, &mut clients);
    let second = stream.until(is_done(if was_a { &b } else { &a })).await;
    let position = take(second, &mut clients).unwrap();
    assert_current(&clients[0], &app, &a).await;
    assert_current(&clients[1], &app, &b).await;
    assert!(position.contains(&a) && position.contains(&b), "{position}");

    app.manager.rename(&ConversationId::new(&a).unwrap(), Some("Renamed")).await.unwrap();
    let mut resumed = app.stream("ann", &path, Some(&position)).await;
    let frames = resumed.until(|frame| frame.data["update"]["event"]["title"] == "Renamed").await;
    for frame in &frames {
        let is_list = frame.event == "list";
        assert!(
            is_list || frame.data["update"]["type"] == "event",
            "missed events, not a snapshot: {frame:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn position_names_a_silent_conversation_after_every_resume() {
    let app = App::new([Step::text("One"), Step::text("Two")]);
    let (a, b) = (app.create("ann").await, app.create("ann").await);
    let path = format!("/agent/events?watch={a}&watch={b}");
    let mut stream = app.stream("ann", &path, None).await;
    let mut position = None;
    for _ in 0..2 {
        position = stream.next().await.unwrap().id;
    }
    // Each time, only the first conversation has news. The second one has sent nothing since the beginning.
    for _ in 0..2 {
        app.ask("ann", &a, "Hi").await;
        let mut resumed = app.stream("ann", &path, position.as_deref()).await;
        let frames = resumed.until(|frame| frame.data["update"]["event"]["outcome"] == "saved").await;
        assert!(frames.iter().all(|frame| frame.data["update"]["type"] == "event"), "{frames:#?}");
        position.clone_from(&frames.last().unwrap().id);
        assert!(position.as_ref().unwrap().contains(&b), "{position:?}");
    }
    // Events of a stream do not contain the positions of conversations that the stream does not watch.
    let only = format!("/agent/events?watch={b}");
    let mut resumed = app.stream("ann", &only, position.as_deref()).await;
    app.manager.rename(&ConversationId::new(&b).unwrap(), Some("Renamed")).await.unwrap();
    let frames = resumed.until(|frame| frame.data["update"]["event"]["title"] == "Renamed").await;
    assert!(frames.iter().all(|frame| !frame.id.as_ref().unwrap().contains(&a)), "{frames:#?}");
}

#[tokio::test(start_paused = true)]
async fn leaving_a_stream_leaves_the_run_running() {
    let gate = Gate::new();
    let app = App::new([Step::new().then_text(["Half"]).gate(&gate).then_text([" done"]).stop()]);
    let id = app.create("ann").await;
    let mut stream = app.stream("ann", &format!("/agent/conversations/{id}/events"), None).await;
    app.post("ann", &format!("/agent/conversations/{id}/commands"), prompt("Hi")).await;
    stream.until(|frame| frame.data["update"]["event"]["event"]["type"] == "text_delta").await;
    drop(stream);
    gate.open();
    app.idle(&id).await;
    assert_eq!(now(&app, &id).await.tree.history().last().unwrap().text(), "Half done");
}

#[tokio::test(start_paused = true)]
async fn stream_ends_with_a_notice_at_its_lifetime_and_when_the_server_drains() {
    let app = App::new([]);
    let id = app.create("ann").await;
    let path = format!("/agent/conversations/{id}/events");
    let mut stream = app.stream("ann", &path, None).await;
    stream.next().await.unwrap();
    let ending = stream.next().await.unwrap();
    assert_eq!((ending.event.as_str(), &ending.data), ("ending", &json!({ "retry_after": 0 })));
    assert!(stream.next().await.is_none());

    let mut stream = app.stream("ann", &path, None).await;
    stream.next().await.unwrap();
    app.web.drain();
    let ending = stream.next().await.unwrap();
    assert_eq!((ending.event.as_str(), &ending.data), ("ending", &json!({ "retry_after": 5 })));
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn streams_beyond_the_limit_are_refused_until_one_is_closed() {
    let app = App::with([], |web| web.limits(WebLimits::default().with_streams_per_principal(2)));
    let (ann, ben) = (app.create("ann").await, app.create("ben").await);
    let path = format!("/agent/conversations/{ann}/events");
    let first = app.stream("ann", &path, None).await;
    let _second = app.stream("ann", "/agent/events?list=true", None).await;
    let refused = app.get("ann", &path).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (429, "too-many-streams"));
    let _other = app.stream("ben", &format!("/agent/conversations/{ben}/events"), None).await;
    drop(first);
    let mut third = app.stream("ann", &path, None).await;
    assert!(third.next().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn position_that_cannot_be_read_is_refused() {
    let app = App::new([]);
    let id = app.create("ann").await;
    for position in ["x", "a:b", ":1-1", "a:1f-x"] {
        let mut request = crate::support::request(
            axum::http::Method::GET,
            "ann",
            &format!("/agent/conversations/{id}/events"),
            None,
        );
        request.headers_mut().insert("last-event-id", position.parse().unwrap());
        assert_eq!(app.answer(request).await.code(), "invalid-position", "{position}");
    }
}

#[tokio::test(start_paused = true)]
async fn list_reports_conversations_that_are_opened_titled_and_deleted() {
    let app = App::new([]);
    let mut stream = app.stream("ann", "/agent/events?list=true", None).await;
    let first = stream.next().await.unwrap();
    assert_eq!((first.event.as_str(), &first.data["update"]["type"]), ("list", &json!("resync")));
    let other = app.create("ben").await;
    let id = app.create("ann").await;
    let conversation = ConversationId::new(&id).unwrap();
    app.manager.close(&conversation).await.unwrap();
    app.manager.rename(&conversation, Some("Plans")).await.unwrap();
    app.manager.delete(&ConversationId::new(&other).unwrap()).await.unwrap();
    app.manager.delete(&conversation).await.unwrap();
    let frames = stream.until(|frame| frame.data["update"]["event"]["type"] == "deleted").await;
    let kinds: Vec<&Value> = frames.iter().map(|frame| &frame.data["update"]["event"]["type"]).collect();
    assert_eq!(kinds, ["opened", "closed", "title", "deleted"]);
    assert!(frames.iter().all(|frame| !frame.data.to_string().contains(&other)));
}
