//! The choice of the recorded answer for a request.

use std::fs;

use omni_agent::{
    Agent,
    message::{
        Attachment, Content, History, Message, MessageId, Role, StopReason, Text, ToolResult, ToolUse,
    },
    provider::{Options, ProviderErrorKind, Request},
    testing::{Gate, Recorded, Recording, ScriptedProvider, Step},
    tool_fn,
};
use serde_json::{Value, json};

use crate::{Folder, alone::alone, deltas, lines, recording, refused, replay};

#[tokio::test]
async fn changed_request_fails_and_shows_the_nearest_request_and_the_first_difference() {
    let folder = Folder::new();
    let path = folder.file("capital.jsonl");
    let recorded = recording([Step::text("Oslo."), Step::text("Hello.")], &path).model("small");
    let ask = |country: &str| {
        let question =
            format!("You know much about the countries of the world. What is the capital of {country}?");
        Request::prompt(question).with_system("Be brief.")
    };
    deltas(&recorded, ask("Norway")).await;
    deltas(&recorded, Request::prompt("Say hello.")).await;

    let error = refused(&replay(&path).model("small"), ask("Sweden")).await;
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::InvalidRequest, false));
    let path = path.display();
    assert_eq!(
        error.message,
        format!(
            "the recording {path} has no answer to this request: the nearest request of the file differs at \
             /messages/0/content/0/text: \"…es of the world. What is the capital of Norway?\" was recorded, \
             \"…es of the world. What is the capital of Sweden?\" was sent; record the test again with \
             OMNI_RECORD=record, or add the request with OMNI_RECORD=missing"
        )
    );
}

#[tokio::test]
async fn each_compared_part_of_a_request_is_named_in_the_difference() {
    let folder = Folder::new();
    let path = folder.file("parts.jsonl");
    let options = Options::default().with_max_tokens(100);
    let request = Request::prompt("Hi").with_options(options);
    deltas(&recording([Step::text("Hi.")], &path).model("small"), request.clone()).await;

    let look = tool_fn("look", "Looks.", |_: Value, _| async { Ok("seen") });
    let tools = omni_agent::tool::ToolSet::new().with(look).unwrap();
    let longer = History::from_iter([Message::user("Hi"), Message::assistant("Hi."), Message::user("Bye")]);
    let options = request.options.clone();
    let cases = [
        ("big", request.clone(), "/model: \"small\" was recorded, \"big\" was sent"),
        (
            "small",
            request.clone().with_system("Be brief."),
            "/system: nothing was recorded, \"Be brief.\" was sent",
        ),
        ("small", Request::new(longer).with_options(options), "/messages/1: nothing was recorded, {"),
        (
            "small",
            request.clone().with_tools(tools),
            "/tools: nothing was recorded, [{\"description\":\"Looks.\"",
        ),
        ("small", Request::prompt("Hi"), "/options: {\"max_tokens\":100} was recorded, nothing was sent"),
    ];
    for (model, request, difference) in cases {
        let error = refused(&replay(&path).model(model), request).await;
        assert!(error.message.contains(difference), "{difference}: {error}");
    }
}

#[tokio::test]
async fn parts_of_a_request_that_no_service_receives_are_neither_compared_nor_written() {
    let folder = Folder::new();
    let path = folder.file("private.jsonl");
    let request = |note: &str| {
        let file = Attachment::url("image/png", "https://example.com/a.png");
        let mut file = file.named("a.png");
        file.metadata.insert("note".to_owned(), note.into());
        let message = Message::user([Content::from(file), "What is this?".into()])
            .with_id(MessageId::new(note))
            .with_app_data(json!({ "note": note }));
        let tool_use = ToolUse::new("a", "look", json!({}));
        let mut result = ToolResult::ok(&tool_use, Text::new("A cat."));
        let decision = json!({ "kind": "execute", "by": note, "at": note.len() });
        result.decision = Some(serde_json::from_value(decision).unwrap());
        let mut answer = Message::new(Role::Assistant, [tool_use]);
        answer.ended = Some(Box::new(StopReason::Other(note.to_owned())));
        Request::new(History::from_iter([message, answer, Message::user(Content::from(result))]))
    };
    deltas(&recording([Step::text("A cat.")], &path).model("small"), request("one")).await;
    assert!(!fs::read_to_string(&path).unwrap().contains("one"));
    let (_, error) = deltas(&replay(&path).model("small"), request("two")).await;
    assert_eq!(error, None);
}

#[tokio::test]
async fn equal_requests_are_answered_in_their_order_and_no_further() {
    let folder = Folder::new();
    let path = folder.file("equal.jsonl");
    let answers = ["One.", "Two.", "Three."];
    let recorded = recording(answers.map(Step::text), &path).model("small");
    for _ in answers {
        deltas(&recorded, Request::prompt("Next?")).await;
    }
    let replayed = replay(&path);
    assert_eq!(replayed.unused().unwrap(), 3);
    let model = replayed.model("small");
    for answer in answers {
        assert_eq!(model.generate(Request::prompt("Next?")).await.unwrap().message.text(), answer);
    }
    assert_eq!(replayed.unused().unwrap(), 0);
    let error = refused(&model, Request::prompt("Next?")).await;
    assert!(error.message.contains("sent more than 3 times"), "{error}");
}

#[tokio::test]
async fn parallel_agents_that_finish_in_any_order_record_the_same_file() {
    let folder = Folder::new();
    let mut files = Vec::new();
    for order in [[0, 1, 2], [2, 0, 1]] {
        let path = folder.file(&format!("{}.jsonl", order[0]));
        let gates = [Gate::new(), Gate::new(), Gate::new()];
        let held = gates.clone();
        let service = ScriptedProvider::from_fn(move |request| {
            let text = request.history.last().unwrap().text();
            let number: usize = text.parse().unwrap();
            Step::new().gate(&held[number]).then_text([text]).stop()
        });
        let recorded = Recorded::new(service, &path, Recording::Record);
        let mut asking = Vec::new();
        for number in 0..3 {
            let agent = Agent::builder().model(recorded.model("small")).start().await.unwrap();
            asking.push(tokio::spawn(async move { agent.ask(number.to_string()).await.unwrap() }));
        }
        for gate in &gates {
            gate.reached().await;
        }
        for number in order {
            gates[number].open();
            let done = &mut asking[number];
            done.await.unwrap();
        }
        let mut recorded = lines(&path);
        // Remove the delays, which differ from run to run.
        for line in &mut recorded {
            line["deltas"].as_array_mut().unwrap().iter_mut().for_each(|delta| {
                delta.as_object_mut().unwrap().shift_remove("after");
            });
            line.as_object_mut().unwrap().shift_remove("ended_after");
        }
        files.push(recorded);
    }
    assert_eq!(files[0].len(), 3);
    assert_eq!(files[0], files[1]);
}

#[tokio::test]
async fn ignored_parts_are_neither_written_nor_compared() {
    let folder = Folder::new();
    let path = folder.file("ignored.jsonl");
    let request = |day: &str, session: &str| {
        let labels = Options::default().with_metadata([("session", session), ("app", "test")]);
        Request::prompt("Hi").with_system(format!("Today is {day}.")).with_options(labels)
    };
    let ignored = ["/system", "/options/metadata/session", "/absent/part"];
    let recorded = recording([Step::text("Hi.")], &path).ignoring(ignored).model("small");
    deltas(&recorded, request("Monday", "s-1")).await;
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("Monday") && !text.contains("s-1") && text.contains("\"app\":\"test\""), "{text}");

    let replayed = replay(&path).ignoring(ignored).model("small");
    let (_, error) = deltas(&replayed, request("Tuesday", "s-2")).await;
    assert_eq!(error, None);
    let error = refused(&replay(&path).model("small"), request("Tuesday", "s-2")).await;
    assert!(error.message.contains("/options/metadata/session: nothing was recorded"), "{error}");
}

#[tokio::test]
async fn missing_mode_replays_recorded_requests_and_records_the_others() {
    let folder = Folder::new();
    let path = folder.file("missing.jsonl");
    deltas(&recording([Step::text("One.")], &path).model("small"), Request::prompt("1")).await;

    let service = ScriptedProvider::new([Step::text("Two."), Step::text("Again.")]);
    let missing = Recorded::new(service.clone(), &path, Recording::Missing).model("small");
    for (prompt, answer) in [("2", "Two."), ("1", "One."), ("1", "Again.")] {
        assert_eq!(missing.generate(Request::prompt(prompt)).await.unwrap().message.text(), answer);
    }
    assert_eq!(service.requests().len(), 2);
    let replayed = replay(&path).model("small");
    for (prompt, answer) in [("1", "One."), ("2", "Two."), ("1", "Again.")] {
        assert_eq!(replayed.generate(Request::prompt(prompt)).await.unwrap().message.text(), answer);
    }
}

#[test]
fn mode_that_the_environment_names_is_used() {
    const TEST: &str = "matching::mode_that_the_environment_names_is_used";
    alone(TEST, &[("OMNI_RECORD", "missing")], || assert_eq!(Recording::from_env(), Recording::Missing));
}

#[test]
#[should_panic(expected = "set it to `replay`, `record` or `missing`")]
fn misspelt_mode_in_the_environment_panics_and_names_the_modes() {
    const TEST: &str = "matching::misspelt_mode_in_the_environment_panics_and_names_the_modes";
    alone(TEST, &[("OMNI_RECORD", "recrod")], || panic!("{:?}", Recording::from_env()));
    panic!("set it to `replay`, `record` or `missing`");
}
