use serde_json::json;

use super::{AgUiVersion, Rig};
use crate::testing::Step;

#[tokio::test(start_paused = true)]
async fn long_texts_results_and_snapshots_stay_below_the_limit_of_the_client() {
    for level in [AgUiVersion::V0, AgUiVersion::V1] {
        let control = "\u{1}".repeat(3 << 20);
        let mut steps: Vec<_> = (0..4)
            .map(|n| {
                Step::new()
                    .then_text([control.clone()])
                    .then_tool_use(&format!("u{n}"), "add", json!({ "n": n }))
                    .stop()
            })
            .collect();
        steps.push(Step::tool_use("a", "ask", json!({})));
        let mut rig = Rig::new(level, steps).await;
        let frames = rig.say("Hi").await;
        assert_eq!(super::last(&frames)["outcome"]["type"], "interrupt");
        // The snapshot before the interrupt keeps all messages, in a shorter form.
        assert_eq!(rig.client.messages.iter().filter(|message| message["role"] != "activity").count(), 14);
    }
}
