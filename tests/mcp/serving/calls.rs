//! The four tools, with clients of both generations of the protocol.

use omni_agent::store::Labels;
use serde_json::{Value, json};

use super::{
    host::{manager, served, session},
    person::{Answers, NEW, OLD, Person, ask, ask_in, call, connect, connect_to, done, failure},
};

#[tokio::test]
async fn tools_of_both_generations_ask_list_read_and_stop() {
    for version in [OLD, NEW] {
        let manager = manager();
        let person = Person::new(version, Answers::Decline);
        let (client, _serving) = connect(&manager, person.clone()).await;
        let tools = client.list_all_tools().await.unwrap();
        let names: Vec<_> = tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["ask", "list", "read", "stop"]);
        assert!(tools.iter().all(|tool| tool.output_schema.is_some()));

        let first = ask(&client, "Look").await;
        assert_eq!((&first["answer"], &first["stop_reason"]), (&json!("Seen."), &json!("stop")));
        assert_eq!(*person.seen.reports.lock().unwrap(), ["Running look"]);
        let conversation = &first["conversation"];
        // The history has four messages before the second prompt.
        assert_eq!(ask_in(&client, conversation, "Count").await["answer"], "5");

        // The list is read from the store.
        session(&manager, conversation.as_str().unwrap()).flush(crate::support::LIMIT).await.unwrap();
        let second = ask(&client, "Hello").await["conversation"].clone();
        session(&manager, second.as_str().unwrap()).flush(crate::support::LIMIT).await.unwrap();
        let page = done(&call(&client, "list", json!({ "limit": 1 })).await);
        let rest = done(&call(&client, "list", json!({ "limit": 5, "after": page["next"] })).await);
        let listed = [&page, &rest].map(|page| page["conversations"][0]["conversation"].clone());
        assert_eq!((listed, &rest["next"]), ([second, conversation.clone()], &Value::Null));

        let read = done(&call(&client, "read", json!({ "conversation": conversation, "last": 4 })).await);
        let expected = json!([
            { "role": "assistant", "text": "", "tools": ["look"] },
            { "role": "assistant", "text": "Seen." },
            { "role": "user", "text": "Count" },
            { "role": "assistant", "text": "5" },
        ]);
        assert_eq!(
            (&read["messages"], &read["omitted"], &read["status"]),
            (&expected, &json!(1), &json!("idle"))
        );
        let stopped = done(&call(&client, "stop", json!({ "conversation": conversation })).await);
        assert_eq!(stopped, json!({ "stopped": false }));
        client.cancel().await.unwrap();
    }
}

#[tokio::test]
async fn schemas_of_the_tools_are_simple() {
    fn check(schema: &Value) {
        match schema {
            Value::Object(members) => {
                assert!(!members.contains_key("$schema"), "{schema}");
                // A member of a message can have this name too.
                assert!(!members.get("type").is_some_and(Value::is_array), "{schema}");
                members.values().for_each(check);
            }
            Value::Array(values) => values.iter().for_each(check),
            other => assert!(!other.is_null() && other != "null"),
        }
    }
    let (client, _serving) = connect(&manager(), Person::new(OLD, Answers::Decline)).await;
    for tool in client.list_all_tools().await.unwrap() {
        check(&json!(tool.input_schema));
        check(&json!(tool.output_schema));
    }
}

#[tokio::test]
async fn arguments_that_a_client_adds_are_ignored() {
    let (client, _serving) = connect(&manager(), Person::new(OLD, Answers::Decline)).await;
    let with = |mut arguments: Value| {
        let own = json!({ "toolCallId": "1", "sessionId": "2", "action": "sendMessage", "chatInput": "Hi" });
        arguments.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        arguments
    };
    let asked = done(&call(&client, "ask", with(json!({ "prompt": "Hello", "conversation": null }))).await);
    assert_eq!(asked["answer"], "You said: Hello");
    let conversation = json!({ "conversation": asked["conversation"] });
    for (tool, arguments) in [("list", json!({})), ("read", conversation.clone()), ("stop", conversation)] {
        done(&call(&client, tool, with(arguments)).await);
    }
}

#[tokio::test]
async fn arguments_that_are_blank_or_whole_floats_are_read_as_meant() {
    let manager = manager();
    let (client, _serving) = connect(&manager, Person::new(OLD, Answers::Decline)).await;
    for blank in ["", " "] {
        let asked = json!({ "prompt": "Count", "conversation": blank, "conversationId": blank });
        let asked = done(&call(&client, "ask", asked).await);
        assert_eq!(asked["answer"], "1", "each call begins a conversation");
        let conversation = asked["conversation"].as_str().unwrap();
        session(&manager, conversation).flush(crate::support::LIMIT).await.unwrap();
        let read = json!({ "conversation": conversation, "last": 1.0 });
        assert_eq!(done(&call(&client, "read", read).await)["messages"].as_array().unwrap().len(), 1);
    }
    for (limit, found) in [(json!(1.0), 1), (json!(20.0), 2)] {
        let listed = done(&call(&client, "list", json!({ "limit": limit, "after": "" })).await);
        assert_eq!(listed["conversations"].as_array().unwrap().len(), found, "{listed}");
    }
    for (tool, arguments, expected) in [
        ("ask", json!({ "prompt": "" }), "the prompt is empty"),
        ("list", json!({ "limit": 1.5 }), "invalid type"),
        ("list", json!({ "limit": -1.0 }), "invalid"),
        ("list", json!({ "limit": 1e300 }), "invalid"),
        ("read", json!({ "conversation": "" }), "conversation"),
    ] {
        let refused = failure(&call(&client, tool, arguments).await);
        assert!(refused.contains(expected), "{tool}: {refused}");
    }
}

#[tokio::test]
async fn answer_names_the_conversation_in_its_content_too() {
    let (client, _serving) = connect(&manager(), Person::new(NEW, Answers::Decline)).await;
    let result = call(&client, "ask", json!({ "prompt": "Hello" })).await;
    let texts: Vec<_> = result.content.iter().map(|block| block.as_text().unwrap().text.clone()).collect();
    let conversation = done(&result)["conversation"].as_str().unwrap().to_owned();
    assert_eq!(texts, ["You said: Hello".to_owned(), format!("[conversation: {conversation}]")]);
}

#[tokio::test]
async fn failed_run_is_an_error_result_with_its_reason() {
    let manager = manager();
    let (client, _serving) = connect(&manager, Person::new(OLD, Answers::Decline)).await;
    let conversation = ask(&client, "Hello").await["conversation"].clone();
    let failed = json!({ "prompt": "Fail", "conversation": conversation });
    let failed = failure(&call(&client, "ask", failed).await);
    assert!(failed.contains("the model is down"), "{failed}");
    let read = done(&call(&client, "read", json!({ "conversation": conversation })).await);
    let last = &read["messages"][2];
    assert_eq!((&last["role"], &last["text"]), (&json!("user"), &json!("Fail")), "{read}");
    assert!(last["ended"].as_str().unwrap().contains("the model is down"), "{read}");
}

#[tokio::test]
async fn conversation_without_the_servers_labels_looks_like_none() {
    let manager = manager();
    let labels = |user| Labels::new([("user", user)]).unwrap();
    let person = || Person::new(NEW, Answers::Decline);
    let (ann, _one) = connect_to(served(&manager).labels(labels("ann")), person()).await;
    let (ben, _two) = connect_to(served(&manager).labels(labels("ben")), person()).await;
    let conversation = ask(&ann, "Hello").await["conversation"].clone();
    session(&manager, conversation.as_str().unwrap()).flush(crate::support::LIMIT).await.unwrap();
    assert_eq!(done(&call(&ben, "list", json!({})).await)["conversations"], json!([]));
    for (tool, arguments) in [
        ("ask", json!({ "conversation": conversation, "prompt": "Hello" })),
        ("read", json!({ "conversation": conversation })),
        ("stop", json!({ "conversation": conversation })),
    ] {
        assert_eq!(failure(&call(&ben, tool, arguments).await), "there is no such conversation", "{tool}");
    }
}
