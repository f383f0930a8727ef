//! Calls and clients that end before the agent has answered.

use omni_agent::{agent::Status, tool::Decision};
use rmcp::model::CallToolResponse;
use serde_json::json;

use super::{
    host::{manager, reached},
    person::{Answers, NEW, OLD, Person, ask_in, call, connect, done, failure, params},
};
use crate::support::soon;

#[tokio::test]
async fn cancelled_call_interrupts_the_run_and_keeps_its_steps() {
    for version in [OLD, NEW] {
        let manager = manager();
        let (client, _serving) = connect(&manager, Person::new(version, Answers::Decline)).await;
        let peer = client.peer().clone();
        let calling = tokio::spawn(async move {
            peer.call_tool(params("ask", json!({ "prompt": "Look, then go on for ever" }))).await
        });
        let session = reached(&manager, |agent| !agent.partial.is_empty() && agent.step == 2).await;
        // The library cancels a call whose future is dropped.
        calling.abort();
        soon(session.wait_until_idle()).await.unwrap();
        let tree = session.tree().await.unwrap();
        let last = tree.history().iter().last().unwrap().text();
        assert_eq!((tree.history().len(), last.as_str()), (4, "And on"));
    }
}

#[tokio::test]
async fn failed_prompt_is_an_error_and_its_work_is_read_later() {
    for version in [OLD, NEW] {
        let manager = manager();
        let (client, _serving) = connect(&manager, Person::new(version, Answers::Decline)).await;
        let failed = failure(&call(&client, "ask", json!({ "prompt": "Look, then fail" })).await);
        let expected = "the model is down. The conversation contains the work that was done before";
        assert!(failed.contains(expected), "{failed}");
        let session = reached(&manager, |agent| agent.status == Status::Idle).await;
        let read = done(&call(&client, "read", json!({ "conversation": session.id() })).await);
        let texts: Vec<_> = read["messages"].as_array().unwrap().iter().map(|line| &line["text"]).collect();
        assert_eq!(texts, ["Look, then fail", "", "Half"]);
    }
}

#[tokio::test]
async fn call_that_is_repeated_after_its_run_has_failed_is_an_error() {
    let manager = manager();
    let (client, _serving) = connect(&manager, Person::new(NEW, Answers::Never)).await;
    let ask = params("ask", json!({ "prompt": "Delete, then fail" }));
    let first = soon(client.call_tool_once(ask.clone())).await.unwrap();
    let CallToolResponse::InputRequired(asked) = first else { panic!("{first:?}") };
    let session = reached(&manager, |agent| agent.status == Status::Paused).await;
    session.resume("call-1", Decision::Execute).await.unwrap();
    session.wait_until_idle().await.unwrap();
    let again =
        soon(client.call_tool_once(ask.with_request_state(asked.request_state.unwrap()))).await.unwrap();
    let CallToolResponse::Complete(result) = again else { panic!("{again:?}") };
    assert!(failure(&result).contains("the model is down. The conversation contains"), "{result:?}");
}

#[tokio::test]
async fn client_that_dies_in_mid_turn_interrupts_its_run() {
    for version in [OLD, NEW] {
        let manager = manager();
        let (client, serving) = connect(&manager, Person::new(version, Answers::Decline)).await;
        let peer = client.peer().clone();
        tokio::spawn(
            async move { peer.call_tool(params("ask", json!({ "prompt": "Go on for ever" }))).await },
        );
        let session = reached(&manager, |agent| !agent.partial.is_empty()).await;
        drop(client);
        soon(serving).await.unwrap().unwrap();
        assert_eq!(session.status().await.unwrap(), Status::Idle);
    }
}

#[tokio::test]
async fn cancelled_call_whose_prompt_waits_leaves_the_run_of_another_client_alone() {
    let manager = manager();
    let (one, _first) = connect(&manager, Person::new(NEW, Answers::Decline)).await;
    let (two, _second) = connect(&manager, Person::new(NEW, Answers::Decline)).await;
    let peer = one.peer().clone();
    let running =
        tokio::spawn(
            async move { peer.call_tool(params("ask", json!({ "prompt": "Go on for ever" }))).await },
        );
    let session = reached(&manager, |agent| !agent.partial.is_empty()).await;
    let conversation = json!(session.id());
    let peer = two.peer().clone();
    let arguments = json!({ "conversation": conversation, "prompt": "Hello" });
    let waiting = tokio::spawn(async move { peer.call_tool(params("ask", arguments)).await });
    reached(&manager, |agent| agent.staged.len() == 1).await;
    waiting.abort();
    reached(&manager, |agent| agent.staged.is_empty() && agent.status == Status::Busy).await;
    // The second client stops the run. The first client gets the text that was written so far.
    let stopped = done(&call(&two, "stop", json!({ "conversation": conversation })).await);
    assert_eq!(stopped, json!({ "stopped": true }));
    let result = soon(running).await.unwrap().unwrap();
    assert_eq!(done(&result)["answer"], "And on");
    assert_eq!(done(&result)["stop_reason"], "interrupted");
}

#[tokio::test]
async fn prompts_of_two_clients_are_answered_in_their_order() {
    let manager = manager();
    let (one, _first) = connect(&manager, Person::new(OLD, Answers::Accept(None))).await;
    let person = Person::new(NEW, Answers::Decline);
    let (two, _second) = connect(&manager, person.clone()).await;
    let conversation = super::person::ask(&one, "Hello").await["conversation"].clone();
    let first = ask_in(&one, &conversation, "Delete");
    let second = ask_in(&two, &conversation, "Look");
    let (first, second) = tokio::join!(first, second);
    assert_eq!((&first["answer"], &second["answer"]), (&json!("gone"), &json!("Seen.")));
    assert!(person.seen.questions.lock().unwrap().is_empty());
}

#[tokio::test]
async fn prompt_that_a_cancelled_run_did_not_use_is_an_error_result() {
    let manager = manager();
    let (one, _first) = connect(&manager, Person::new(NEW, Answers::Decline)).await;
    let peer = one.peer().clone();
    let running =
        tokio::spawn(
            async move { peer.call_tool(params("ask", json!({ "prompt": "Go on for ever" }))).await },
        );
    let session = reached(&manager, |agent| !agent.partial.is_empty()).await;
    let (peer, arguments) = (one.peer().clone(), json!({ "conversation": session.id(), "prompt": "Hello" }));
    let waiting = tokio::spawn(async move { peer.call_tool(params("ask", arguments)).await });
    reached(&manager, |agent| agent.staged.len() == 1).await;
    session.cancel().await.unwrap();
    let unused = failure(&soon(waiting).await.unwrap().unwrap());
    assert!(unused.contains("the prompt was not used"), "{unused}");
    let cancelled = failure(&soon(running).await.unwrap().unwrap());
    assert!(cancelled.contains("the run was cancelled"), "{cancelled}");
}
