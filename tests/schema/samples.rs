//! Commands and answers of every kind, and samples that the schemas reject.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    agent::{Compact, Event},
    manager::{Activity, Presence},
    message::{Purpose, RequestEnd, Timestamp, ToolResult, ToolUse, TurnId, Usage, UsageRow, UsageSum},
    provider::{Options, OutputSchema, StopReason, ThinkingMode, UnsupportedAttachment},
    run::{Accepted, Failure, Next, Prompt, PromptState, RunAt, RunOutcome, RunSpec},
    session::{SavedPart, SessionAnswer, SessionCommand, SessionEvent, StoreReport},
    store::{ConversationId, Filter, Found, Hit, Labels, Listing, Owner, Page, Summary, custom::Version},
    tool::Decision,
    tree::NodeId,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{COMMANDS, UPDATES};

fn prompt() -> Prompt {
    let options = Options::default()
        .with_output(OutputSchema::of::<Vec<String>>())
        .with_thinking(ThinkingMode::Budget(100))
        .with_timeout(Duration::from_millis(1_500))
        .with_unsupported_attachment(UnsupportedAttachment::Placeholder)
        .with_folder("/tmp");
    let decided = ToolResult::error(&ToolUse::new("t", "look", json!({})), "No.");
    Prompt::new(vec![omni_agent::message::Content::from("Hi"), decided.into()])
        .with_id("p1")
        .at(Next::Step)
        .with_options(options)
        .with_max_steps(3)
        .with_turn_timeout(Duration::from_secs(9))
        .with_app_data(json!([1, null]))
}

fn session_commands() -> Vec<SessionCommand> {
    let node = NodeId::new(7).unwrap();
    let turn = "00112233445566778899aabbccddeeff".parse().unwrap();
    let decide = |decision| SessionCommand::Decide { turn, decisions: vec![("t".into(), decision)] };
    let run = |at, prompt: Prompt| SessionCommand::Run(RunSpec::new(at, prompt));
    vec![
        run(RunAt::Head, prompt()),
        run(RunAt::Again(node), Prompt::default()),
        run(RunAt::Instead(node), prompt()),
        run(RunAt::Below(Some(node)), prompt()),
        run(RunAt::Below(None), prompt()),
        SessionCommand::Run(RunSpec::new(RunAt::Head, "Hi").with_wait(true)),
        SessionCommand::Model { model: "test:other".into() },
        SessionCommand::Unstage { id: "p1".into() },
        decide(Decision::Execute),
        decide(Decision::reject("No.")),
        decide(Decision::ExecuteWith(Value::Null)),
        decide(Decision::Provide(ToolResult::ok(&ToolUse::new("t", "look", json!({})), "Seen."))),
        SessionCommand::Compact(Compact::summary().with_focus("names")),
        SessionCommand::Compact(Compact::clear()),
        SessionCommand::Compact(Compact::undo()),
        SessionCommand::Cancel,
        SessionCommand::Interrupt,
        SessionCommand::Navigate { node: Some(node) },
        SessionCommand::Navigate { node: None },
        SessionCommand::Title { title: Some("A title".into()) },
        SessionCommand::Title { title: None },
        SessionCommand::Labels { labels: user() },
        SessionCommand::Labels { labels: Labels::default() },
        SessionCommand::Omit { node, block: 1 },
        SessionCommand::Restore { node, block: 1 },
        SessionCommand::Erase { node },
    ]
}

/// Checks the commands, and that there is one of each kind.
fn check_all<T: Serialize + DeserializeOwned>(name: &str, commands: &[T]) {
    let mut tags = COMMANDS.tags(name);
    for command in commands {
        let json = COMMANDS.take(name, command);
        tags.remove(json["type"].as_str().unwrap());
    }
    assert!(tags.is_empty(), "no sample of {tags:?}");
}

#[test]
fn every_command_fits_the_schema() {
    check_all("SessionCommand", &session_commands());
}

/// Returns variants of the JSON. In each variant, one member is removed, or one member or item is replaced. Output
/// schemas and data of the application are not changed.
fn damaged(json: &Value) -> Vec<Value> {
    let parts: Vec<(Value, &Value)> = match json {
        Value::Object(members) => members.iter().map(|(name, part)| (json!(name), part)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(at, part)| (json!(at), part)).collect(),
        _ => Vec::new(),
    };
    let replaced = |at: &Value, part: Value| {
        let mut whole = json.clone();
        match at.as_str() {
            Some(name) => whole[name] = part,
            None => whole[usize::try_from(at.as_u64().unwrap()).unwrap()] = part,
        }
        whole
    };
    let mut all = Vec::new();
    for (at, part) in parts {
        if ["schema", "app_data"].iter().any(|free| at == *free) {
            continue;
        }
        if let Some(name) = at.as_str() {
            let mut whole = json.clone();
            whole.as_object_mut().unwrap().shift_remove(name);
            all.push(whole);
        }
        let other =
            [json!(null), json!(true), json!(7), json!(-7), json!(0.5), json!("x"), json!({ "x": 1 })];
        all.extend(other.into_iter().chain(damaged(part)).map(|part| replaced(&at, part)));
    }
    all
}

#[test]
fn damaged_commands_fit_the_schema_exactly_if_the_crate_reads_them() {
    fn check<T: Serialize + DeserializeOwned>(name: &str, commands: &[T]) {
        let (mut right, mut wrong) = (0, 0);
        for json in commands.iter().flat_map(|command| damaged(&serde_json::to_value(command).unwrap())) {
            let (fits, read) = (COMMANDS.check(name, &json), serde_json::from_value::<T>(json.clone()));
            assert_eq!(fits.is_ok(), read.is_ok(), "{:?}, {:?}: {json:#}", fits.err(), read.err());
            if fits.is_ok() { right += 1 } else { wrong += 1 }
        }
        assert!(right > 10 && wrong > 40, "{name}: {right} fit, {wrong} do not");
    }
    check("SessionCommand", &session_commands());
}

#[test]
fn every_answer_fits_the_schema() {
    let outcomes = [
        RunOutcome::Stopped { stop_reason: StopReason::Other("odd".to_owned()) },
        RunOutcome::Cancelled,
        RunOutcome::Failed { failure: Failure::TimeLimit { limit: Duration::from_millis(1_500) } },
    ];
    let ended = outcomes.into_iter().map(|outcome| PromptState::Ended { outcome });
    let states = ended.chain([
        PromptState::Staged,
        PromptState::InFlight { turn: TurnId::default() },
        PromptState::Returned,
    ]);
    let known = states.map(|state| Accepted::Known { state });
    let accepted = known.chain([
        Accepted::Started { turn: TurnId::default() },
        Accepted::Staged { id: "p1".into(), ahead: 2 },
    ]);
    let answers = accepted
        .map(SessionAnswer::Accepted)
        .chain([SessionAnswer::Prompt { prompt: Arc::new(prompt()) }, SessionAnswer::Done]);
    for answer in answers {
        COMMANDS.take("SessionAnswer", &answer);
    }
}

fn user() -> Labels {
    Labels::new([("user", "ann")]).unwrap()
}

/// The JSON of lists, searches and sums, which is read and written with the same types.
#[test]
fn lists_and_their_results_fit_the_schema() {
    let id = ConversationId::new("support-42").unwrap();
    let mut summary = Summary::new(id, Version::new(3), Timestamp(7));
    for listing in [
        Listing::default(),
        Filter::with(user()).without("archived").into(),
        Page::first(20).from(40).into(),
        (Filter::default(), Page::first(20).after(&summary)).into(),
    ] {
        COMMANDS.take("Listing", &listing);
    }
    let hits = vec![Hit::title(summary.clone())];
    summary.title = Some("Plans".to_owned());
    summary.labels = user();
    summary.owner = Some(Owner::new("a").at("10.0.0.7:80"));
    summary.damage = Some("The file is cut.".to_owned());
    COMMANDS.take("Summary", &summary);
    COMMANDS.take("Found", &Found::new(hits));
    for presence in
        [Presence::Stored, Presence::Waiting, Presence::Elsewhere, Presence::Open(Activity::Queued)]
    {
        COMMANDS.take("Presence", &presence);
    }
    let mut sum = UsageSum::new(Some("model-7".to_owned()));
    COMMANDS.take("UsageSum", &sum);
    sum.add(3, Usage::default().with_cost(0.25));
    COMMANDS.take("UsageSum", &sum);
    COMMANDS.take("UsageSum", &UsageSum::new(None));
    for listing in [json!(7), json!({ "page": {} }), json!({ "filter": { "labels": { "Tenant": "acme" } } })]
    {
        assert!(COMMANDS.check("Listing", &listing).is_err(), "fits the schema: {listing:#}");
        assert!(serde_json::from_value::<Listing>(listing.clone()).is_err(), "is read: {listing:#}");
    }
}

#[test]
fn rare_events_fit_the_schema() {
    let error = || "The disk is full.".to_owned();
    let row =
        UsageRow::new(RequestEnd::Lost, Usage::default().with_cost(0.25)).with_purpose(Purpose::Summary);
    for event in [
        SessionEvent::ModelFallback { saved: "old".into(), fallback: "new".into() },
        SessionEvent::Agent(Arc::new(Event::Resumed {
            turn: TurnId::default(),
            lives: 2,
            uncertain: vec!["call-1".into()],
        })),
        SessionEvent::Usage(Arc::new(row.with_at(Timestamp::now()).with_step(3))),
        SessionEvent::Store(StoreReport::Failed {
            what: SavedPart::Record,
            error: error(),
            retry_in: Duration::from_millis(200),
        }),
        SessionEvent::Store(StoreReport::Lost { error: error() }),
    ] {
        UPDATES.take("SessionEvent", &event);
    }
}

/// Clients may write these commands, although the crate itself would write other JSON for them.
#[test]
fn commands_without_members_that_have_defaults_fit_the_schema() {
    for command in [
        json!({ "type": "run" }),
        json!({ "type": "run", "at": "head", "prompt": { "content": [] }, "wait": false }),
        json!({ "type": "navigate", "node": null, "note": "an unknown member" }),
        json!({ "type": "title" }),
        json!({ "type": "run", "prompt": { "id": null, "content": [], "options": { "max_tokens": null }, "new": 1 } }),
        json!({ "type": "decide", "turn": "0".repeat(32), "decisions": [["t", { "provide": {
            "tool_use_id": "t", "name": "look", "content": [{ "type": "text", "text": "Seen." }]
        } }]] }),
    ] {
        COMMANDS.check("SessionCommand", &command).unwrap();
        serde_json::from_value::<SessionCommand>(command).unwrap();
    }
}

#[test]
fn wrong_samples_of_commands_fail_in_the_schema_and_in_the_crate() {
    let prompt = |prompt: Value| json!({ "type": "run", "prompt": prompt });
    let options = |options: Value| prompt(json!({ "content": [], "options": options }));
    let decide =
        |decision: Value| json!({ "type": "decide", "turn": "0".repeat(32), "decisions": [["t", decision]] });
    let labels = |labels: Value| json!({ "type": "labels", "labels": labels });
    for command in [
        json!(null),
        json!("cancel"),
        json!({}),
        json!({ "type": "erase_all" }),
        json!({ "type": "prompt" }),
        json!({ "type": "run", "at": "end" }),
        json!({ "type": "run", "at": { "above": 7 } }),
        json!({ "type": "run", "at": { "again": null } }),
        json!({ "type": "run", "wait": "yes" }),
        json!({ "type": "unstage", "id": 7 }),
        prompt(json!("Hi")),
        prompt(json!({})),
        prompt(json!({ "content": "Hi" })),
        prompt(json!({ "content": [{ "type": "text" }] })),
        prompt(json!({ "content": [{ "text": "Hi" }] })),
        prompt(json!({ "content": [{ "type": "video", "url": "https://example.com" }] })),
        prompt(json!({ "content": [{ "type": "attachment", "media_type": "image/png", "source": "x" }] })),
        prompt(json!({ "content": [], "next": "never" })),
        prompt(json!({ "content": [], "max_steps": -1 })),
        prompt(json!({ "content": [], "max_steps": 4_294_967_296_u64 })),
        prompt(json!({ "content": [], "turn_timeout": 9 })),
        prompt(json!({ "content": [], "turn_timeout": { "secs": 9 } })),
        options(json!({ "thinking": "much" })),
        options(json!({ "thinking": { "effort": "extreme" } })),
        options(json!({ "thinking": { "effort": "low", "budget": 7 } })),
        options(json!({ "tool_choice": { "tool": null } })),
        options(json!({ "stop_sequences": "END" })),
        options(json!({ "output": { "name": "x", "schema": 7 } })),
        decide(json!("approve")),
        decide(json!({ "reject": 7 })),
        decide(json!({ "reject": "No.", "execute_with": {} })),
        json!({ "type": "decide", "turn": "not hexadecimal", "decisions": [["t", "execute"]] }),
        json!({ "type": "decide", "turn": "0".repeat(32), "decisions": [["t"]] }),
        json!({ "type": "decide", "decisions": [["t", "execute"]] }),
        json!({ "type": "run", "at": { "again": 0 } }),
        json!({ "type": "run", "at": { "again": "7" } }),
        json!({ "type": "erase", "node": 1.5 }),
        json!({ "type": "title", "title": 7 }),
        labels(json!({ "Tenant": "acme" })),
        labels(json!({ "tenant": "" })),
        labels(json!({ "tenant": "a\u{7}b" })),
        labels(json!({ "tenant": "x".repeat(129) })),
        labels(json!({ "tenant": null })),
        labels(json!({ (String::from("n").repeat(33)): "acme" })),
    ] {
        assert!(COMMANDS.check("SessionCommand", &command).is_err(), "fits the schema: {command:#}");
        assert!(serde_json::from_value::<SessionCommand>(command.clone()).is_err(), "is read: {command:#}");
    }
}

#[test]
fn wrong_ids_of_conversations_fail_in_the_schema_and_in_the_crate() {
    let long = "x".repeat(129);
    let wrong = ["", ".a", "a.", "a/b", "a b", "é", "con", "COM7", "Lpt0.txt", "nul.", &long];
    let right = ["a", "a.b", "console", "com10", "con-1", "a~b_c", "lpt", &long[1..]];
    for (ids, fits) in [(&wrong[..], false), (&right[..], true)] {
        for id in ids {
            let json = json!(id);
            assert_eq!(COMMANDS.check("ConversationId", &json).is_ok(), fits, "{id:?}");
            assert_eq!(serde_json::from_value::<ConversationId>(json).is_ok(), fits, "{id:?}");
        }
    }
}

#[test]
fn wrong_samples_of_updates_fail() {
    let event = |event: Value| json!({ "type": "event", "id": "a0-7", "event": event });
    let agent = |inner: Value| event(json!({ "type": "agent", "event": inner }));
    let right = [
        agent(json!({ "type": "status", "status": "busy" })),
        event(json!({ "type": "title", "title": null })),
        json!({ "type": "closed", "reason": "idle", "snapshot": null }),
    ];
    for update in right {
        UPDATES.check("SessionUpdate", &update).unwrap();
    }
    for update in [
        json!([]),
        json!({ "type": "event", "id": "a0-7" }),
        json!({ "type": "event", "id": "A0-7", "event": { "type": "title", "title": null } }),
        json!({ "type": "event", "id": "a0-07", "event": { "type": "title", "title": null } }),
        json!({ "type": "event", "id": 7, "event": { "type": "title", "title": null } }),
        json!({ "type": "resync" }),
        json!({ "type": "resync", "snapshot": null }),
        json!({ "type": "resync", "snapshot": {} }),
        json!({ "type": "closed", "snapshot": null }),
        json!({ "type": "closed", "reason": "bored", "snapshot": null }),
        event(json!({ "type": "status", "status": "busy" })),
        event(json!({ "type": "title" })),
        event(json!({ "type": "tree", "nodes": [], "head": null, "cursors": [] })),
        event(json!({ "type": "tree", "nodes": [], "head": 0, "moved": false, "cursors": [] })),
        event(json!({ "type": "tree", "nodes": [], "head": 1, "moved": false, "cursors": [[1]] })),
        event(json!({ "type": "tree", "nodes": [], "head": 1, "moved": false, "cursors": [[1, 2, 3]] })),
        event(json!({ "type": "store", "outcome": "saved", "what": "tree" })),
        event(json!({ "type": "labels", "labels": { "tenant": 7 } })),
        event(json!({ "type": "erased", "nodes": [1], "head": null })),
        agent(json!({ "type": "status", "status": "asleep" })),
        agent(json!({ "type": "text_delta", "index": 0 })),
        agent(json!({ "type": "text_delta", "index": -1, "delta": "a" })),
        agent(json!({ "type": "tool_use_end", "index": 0, "content": { "id": "t", "name": "look" } })),
        agent(json!({ "type": "tool_end", "tool_use_id": "t", "is_error": "yes" })),
        agent(json!({ "type": "turn", "continues": false })),
        agent(json!({ "type": "step_start", "step": 1, "message_id": null })),
        agent(json!({ "type": "prompt", "id": "p1", "state": { "state": "lost" } })),
        agent(json!({ "type": "prompt", "id": "", "state": { "state": "returned" } })),
        agent(json!({ "type": "tool_result", "result": {
            "tool_use_id": "t", "name": "look", "content": [{ "type": "thinking", "text": "Hm." }], "is_error": false
        } })),
    ] {
        assert!(UPDATES.check("SessionUpdate", &update).is_err(), "fits the schema: {update:#}");
    }
}
