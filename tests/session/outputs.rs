//! Answers that must fit an output schema. A rejected answer is neither in the tree nor in the store.

use omni_agent::{message::Usage, testing::Step};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::support::{ScriptedStore, created, id, scripted, secs};

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct City {
    name: String,
}

#[tokio::test(start_paused = true)]
async fn ask_as_repeated_answer_is_stored_without_the_rejected_answer() {
    let store = ScriptedStore::new([]);
    let answer = |text: &str, output: u64| {
        Step::new().usage(Usage::default().with_output(output)).then_text([text]).stop()
    };
    let oslo = r#"{"name": "Oslo"}"#;
    let steps = [answer("Oslo", 1), answer(oslo, 10), Step::text("Hello.")];
    let session = created(&store, "talk", scripted(steps)).await;
    assert_eq!(session.ask_as::<City>("A city?").await.unwrap(), City { name: "Oslo".into() });
    assert_eq!(session.ask("Hi").await.unwrap().text(), "Hello.");
    session.flush(secs(1)).await.unwrap();
    let stored = store.beneath().load(&id("talk")).await.unwrap();
    let texts: Vec<String> = stored.nodes.iter().map(|node| node.message().text()).collect();
    assert_eq!(texts, ["A city?", oslo, "Hi", "Hello."]);
    let usage = stored.nodes[1].usage().unwrap();
    assert_eq!(usage.output, 11, "the usage of the rejected answer is counted");
    assert!(stored.state.settings.options.output().is_none());
}
