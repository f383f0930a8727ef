//! Compactions of long conversations.

use omni_agent::{
    Agent,
    agent::CompactionPolicy,
    message::Usage,
    provider::ModelInfo,
    testing::{ScriptedProvider, Step},
};

use super::{
    alone::{alone, paused},
    collector::Collector,
};

#[test]
fn compaction_has_a_span_for_its_request_and_an_event_with_sizes_alone() {
    const TEST: &str = "compaction::compaction_has_a_span_for_its_request_and_an_event_with_sizes_alone";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let full = Step::new().usage(Usage::default().with_input(900)).then_text(["One."]).stop();
            let provider = ScriptedProvider::new([full, Step::text("SECRET"), Step::text("Two.")]);
            let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
            let agent = Agent::builder()
                .model(provider.model().with_info(info))
                .compaction(CompactionPolicy::default().with_kept_turns(1));
            let agent = agent.start().await.unwrap();
            agent.ask("First").await.unwrap();
            agent.ask("Second").await.unwrap();
        });
        let names = collector.spans().into_iter().map(|span| span.name);
        let names: Vec<_> = names.filter(|name| name != "attempt").collect();
        let chat = "chat scripted";
        assert_eq!(names, ["invoke_agent", chat, "invoke_agent", chat, chat]);
        let recorded = collector.recorded();
        assert!(recorded.contains("omni.tokens_before") && recorded.contains("900"), "{recorded}");
        assert!(!recorded.contains("SECRET"), "{recorded}");
    });
}
