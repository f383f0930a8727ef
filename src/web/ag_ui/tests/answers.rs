//! Answers to interrupts beside a new message, and answers that come too late.

use serde_json::json;

use super::{Rig, last, streams::LEVELS};
use crate::{session::SessionCommand, testing::Step, tool::Decision};

#[tokio::test(start_paused = true)]
async fn answers_with_a_new_message_are_decided_and_the_message_is_used() {
    for level in LEVELS {
        let asks = Step::tool_use("a", "ask", json!({}));
        let mut rig = Rig::new(level, [asks, Step::text("Fine."), Step::text("A joke.")]).await;
        rig.say("Hi").await;
        let joke = json!({ "id": "u2", "role": "user", "content": "No, a joke" });
        rig.client.messages.push(joke);
        let frames = rig.resume(json!([{ "interruptId": "a", "status": "cancelled" }])).await;
        assert_eq!(last(&frames)["type"], "RUN_FINISHED");
        rig.check_messages().await;
        let texts: Vec<_> = rig.client.messages.iter().map(|message| message["content"].clone()).collect();
        assert!(texts.contains(&json!("No, a joke")) && texts.last() == Some(&json!("A joke.")), "{texts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_to_interrupts_that_are_not_open_change_nothing() {
    for level in LEVELS {
        let asks = Step::tool_use("a", "ask", json!({}));
        let mut rig = Rig::new(level, [asks, Step::text("Fine."), Step::text("More.")]).await;
        rig.say("Hi").await;
        let frames = rig.resume(json!([{ "interruptId": "b", "status": "cancelled" }])).await;
        assert_eq!(last(&frames)["type"], "RUN_FINISHED");
        let view = rig.session.snapshot().await.unwrap();
        assert_eq!(view.agent.pauses.len(), 1, "the open interrupt stays open");
        let turn = view.agent.pauses[0].turn;
        let no = Decision::reject("No.");
        rig.session
            .perform(SessionCommand::Decide { turn, decisions: vec![("a".into(), no)] }, None)
            .await
            .unwrap();
        rig.session.wait_until_idle().await.unwrap();
        rig.client.messages.push(json!({ "id": "u2", "role": "user", "content": "And now?" }));
        let late = json!([{ "interruptId": "a", "status": "resolved", "payload": { "approved": true } }]);
        let frames = rig.resume(late).await;
        assert_eq!(last(&frames)["type"], "RUN_FINISHED");
        rig.check_messages().await;
        assert_eq!(rig.client.messages.last().unwrap()["content"], "More.");
    }
}
