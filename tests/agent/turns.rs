//! A run from its prompt to its end.

use omni_agent::testing::Step;

use crate::support::{names, run_events, scripted};

#[tokio::test(start_paused = true)]
async fn prompt_simple_answer_events_in_order() {
    let (_, builder) = scripted([Step::text("Hello!")]);
    let agent = builder.start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    assert_eq!(
        names(&run_events(&mut events).await),
        [
            "status(busy)",
            "message(user)",
            "text_start",
            "text_delta",
            "text_end",
            "message(assistant)",
            "step",
            "status(idle)",
            "turn(stop)"
        ]
    );
    assert_eq!(agent.state().await.unwrap().history().len(), 2);
}
