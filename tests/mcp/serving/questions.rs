//! Tool uses that wait for a decision, as questions to the client's user.

use omni_agent::{agent::Status, tool::Decision};
use rmcp::model::{CallToolResponse, InputResponses};
use serde_json::json;

use super::{
    host::{manager, reached},
    person::{Answers, NEW, OLD, Person, ask, connect, done, failure, params, until},
};
use crate::support::soon;

#[tokio::test]
async fn approvals_are_asked_of_the_clients_user() {
    let accept = || Answers::Accept(None);
    for (version, prompt, answers, expected, count) in [
        (OLD, "Delete", accept(), "gone", 1),
        (NEW, "Delete", accept(), "gone", 1),
        (OLD, "Delete both", accept(), "gone, gone", 2),
        (NEW, "Delete both", accept(), "gone, gone", 2),
        (OLD, "Delete", Answers::Decline, "The user did not allow it.", 1),
        (NEW, "Delete", Answers::Decline, "The user did not allow it.", 1),
        (OLD, "Delete", Answers::Nobody, "The user can't be asked: the client can't ask its user.", 0),
        (NEW, "Delete", Answers::Nobody, "The user can't be asked: the client can't ask its user.", 0),
    ] {
        let person = Person::new(version, answers);
        let (client, _serving) = connect(&manager(), person.clone()).await;
        assert_eq!(ask(&client, prompt).await["answer"], expected);
        let questions = person.seen.questions.lock().unwrap().clone();
        assert_eq!(questions.len(), count);
        let is_approval =
            |text: &String| text.starts_with("Allow the tool delete with this input? {\"file\":");
        assert!(questions.iter().all(is_approval), "{questions:?}");
    }
}

#[tokio::test]
async fn question_without_fields_of_its_own_has_one_that_can_also_reject() {
    const DENIED: &str = "The user did not allow it.";
    for (prompt, allowed, denied) in [
        ("Delete", "gone", DENIED),
        ("Confirm", "Accepted(None)", "Declined(\"The user did not allow it.\")"),
    ] {
        for (version, fields, is_allowed) in [
            (OLD, json!({}), true),
            (OLD, json!({ "allow": true }), true),
            (NEW, json!({ "allow": true }), true),
            (OLD, json!({ "allow": false }), false),
            (NEW, json!({ "allow": false }), false),
            (OLD, json!({ "allow": "no" }), false),
        ] {
            let person = Person::new(version, Answers::Accept(Some(fields.clone())));
            let (client, _serving) = connect(&manager(), person.clone()).await;
            let expected = if is_allowed { allowed } else { denied };
            assert_eq!(ask(&client, prompt).await["answer"], expected, "{prompt} {fields}");
            let schema = person.seen.schemas.lock().unwrap().pop().unwrap();
            assert_eq!(schema["required"], json!(["allow"]), "{schema}");
            assert_eq!(schema["properties"]["allow"]["type"], "boolean", "{schema}");
        }
    }
}

#[tokio::test]
async fn client_with_a_long_name_decides() {
    for version in [OLD, NEW] {
        let person = Person::new(version, Answers::Accept(None)).named("x".repeat(300));
        let (client, _serving) = connect(&manager(), person).await;
        assert_eq!(ask(&client, "Delete").await["answer"], "gone");
    }
}

#[tokio::test]
async fn question_about_a_long_input_says_that_it_is_cut() {
    let person = Person::new(OLD, Answers::Decline);
    let (client, _serving) = connect(&manager(), person.clone()).await;
    ask(&client, "Delete much").await;
    let question = person.seen.questions.lock().unwrap().pop().unwrap();
    let expected = "Allow the tool delete with an input of 5011 bytes, of which only the first 4096 bytes are shown \
                    here? {\"file\":\"xxx";
    assert!(question.starts_with(expected) && question.ends_with("xxx…"), "{question}");
}

#[tokio::test(start_paused = true)]
async fn question_without_an_answer_is_withdrawn_after_an_hour() {
    let person = Person::new(OLD, Answers::Never);
    let (client, _serving) = connect(&manager(), person.clone()).await;
    let result = client.call_tool(params("ask", json!({ "prompt": "Delete" }))).await.unwrap();
    let expected = "The user can't be asked: there was no answer within an hour.";
    assert_eq!(done(&result)["answer"], expected);
    until(&person, |seen| *seen.withdrawn.lock().unwrap() == 1).await;
}

#[tokio::test]
async fn form_of_a_running_tool_keeps_its_fields() {
    for version in [OLD, NEW] {
        let person = Person::new(version, Answers::Accept(Some(json!({ "name": "Ann" }))));
        let (client, _serving) = connect(&manager(), person.clone()).await;
        let answer = ask(&client, "Ask").await["answer"].clone();
        assert_eq!(answer, r#"Accepted(Some(Object {"name": String("Ann")}))"#);
        assert_eq!(*person.seen.questions.lock().unwrap(), ["Who?"]);
    }
}

#[tokio::test]
async fn question_is_withdrawn_when_another_client_decides_first() {
    let manager = manager();
    let person = Person::new(OLD, Answers::Never);
    let (client, _serving) = connect(&manager, person.clone()).await;
    let asking = tokio::spawn(async move { ask(&client, "Delete").await });
    until(&person, |seen| !seen.questions.lock().unwrap().is_empty()).await;
    let session = reached(&manager, |agent| agent.status == Status::Paused).await;
    session.resume("call-1", Decision::Execute).await.unwrap();
    assert_eq!(soon(asking).await.unwrap()["answer"], "gone");
    until(&person, |seen| *seen.withdrawn.lock().unwrap() == 1).await;
}

#[tokio::test]
async fn call_that_is_repeated_with_answers_continues_the_same_prompt() {
    let manager = manager();
    let (client, _serving) = connect(&manager, Person::new(NEW, Answers::Never)).await;
    let arguments = json!({ "prompt": "Delete both" });
    let first = soon(client.call_tool_once(params("ask", arguments.clone()))).await.unwrap();
    let CallToolResponse::InputRequired(asked) = first else { panic!("{first:?}") };
    let keys: Vec<_> = asked.input_requests.unwrap().into_keys().collect();
    assert_eq!(keys, ["call-1", "call-2"]);
    let state = asked.request_state.unwrap();
    let again = |answers: InputResponses| {
        params("ask", arguments.clone()).with_request_state(state.clone()).with_input_responses(answers)
    };
    // One answer is missing, one is invalid, and one belongs to no question.
    let some = [("call-1", json!({ "action": "accept" })), ("call-2", json!(7)), ("call-9", json!({}))];
    let some = some.map(|(key, answer)| (key.to_owned(), answer));
    let second = soon(client.call_tool_once(again(some.into()))).await.unwrap();
    let CallToolResponse::InputRequired(asked) = second else { panic!("{second:?}") };
    assert_eq!(asked.input_requests.unwrap().into_keys().collect::<Vec<_>>(), ["call-2"]);
    // Another client decides meanwhile, and the run ends.
    let session = reached(&manager, |agent| agent.status == Status::Paused).await;
    session.resume("call-2", Decision::reject("No.")).await.unwrap();
    session.wait_until_idle().await.unwrap();
    let late = [("call-2".to_owned(), json!({ "action": "accept" }))];
    let third = soon(client.call_tool_once(again(late.into()))).await.unwrap();
    let CallToolResponse::Complete(result) = third else { panic!("{third:?}") };
    assert_eq!(done(&result)["answer"], "gone, No.");
}

#[tokio::test]
async fn forged_state_reaches_nothing() {
    let manager = manager();
    let (client, _serving) = connect(&manager, Person::new(NEW, Answers::Never)).await;
    let asked = soon(client.call_tool_once(params("ask", json!({ "prompt": "Delete" })))).await.unwrap();
    let CallToolResponse::InputRequired(asked) = asked else { panic!("{asked:?}") };
    let state: serde_json::Value = serde_json::from_str(&asked.request_state.unwrap()).unwrap();
    let with = |member: &str, value: serde_json::Value| {
        let mut forged = state.clone();
        forged[member] = value;
        forged.to_string()
    };
    let answers = || InputResponses::from([("call-1".to_owned(), json!({ "action": "accept" }))]);
    let forged = [
        ("nonsense".to_owned(), "the request state is invalid"),
        (with("more", json!(1)), "the request state is invalid"),
        (with("conversation", json!("other")), "there is no such conversation"),
        (with("prompt", json!("another")), "does not contain the prompt any more"),
    ];
    for (state, expected) in forged {
        let params = params("ask", json!({ "prompt": "Delete" }));
        let params = params.with_request_state(state).with_input_responses(answers());
        let refused = failure(&soon(client.call_tool(params)).await.unwrap());
        assert!(refused.contains(expected), "{refused}");
    }
    // The turn that the state names is not in flight, so the question is asked again and nothing is decided.
    let turn = json!("00000000000000000000000000000000");
    let params = params("ask", json!({ "prompt": "Delete" }));
    let params = params.with_request_state(with("turn", turn)).with_input_responses(answers());
    let again = soon(client.call_tool_once(params)).await;
    assert!(!matches!(again, Ok(CallToolResponse::Complete(ref result)) if result.is_error == Some(false)));
    reached(&manager, |agent| agent.status == Status::Paused && agent.pauses.len() == 1).await;
}
