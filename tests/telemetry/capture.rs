//! Content in spans, which the application has to ask for.

use omni_agent::{
    Agent,
    message::Attachment,
    provider::{ProviderError, ProviderErrorKind},
    telemetry::{self, AlreadyConfigured, Capture, CapturedContent, TelemetrySettings},
    testing::{ScriptedProvider, Step},
};

use super::{
    alone::{alone, paused},
    collector::Collector,
    scenario::{self, SECRETS},
    tree::Node,
};

fn play(capture: Capture) -> (Collector, Vec<Node>) {
    let collector = Collector::install();
    telemetry::configure(TelemetrySettings::new().with_capture(capture)).unwrap();
    paused(scenario::play());
    let spans = collector.spans();
    (collector, spans)
}

/// Returns the values of an attribute, in order of the spans.
fn values<'a>(spans: &'a [Node], name: &str) -> Vec<&'a str> {
    spans.iter().filter_map(|span| span.attributes.get(name)).map(String::as_str).collect()
}

fn shown(collector: &Collector) -> Vec<&'static str> {
    let recorded = collector.recorded();
    SECRETS.iter().copied().filter(|secret| recorded.contains(secret)).collect()
}

#[test]
fn capture_of_messages_records_prompts_and_responses_but_neither_keys_nor_the_system_prompt() {
    const TEST: &str =
        "capture::capture_of_messages_records_prompts_and_responses_but_neither_keys_nor_the_system_prompt";
    alone(TEST, &[], || {
        let (collector, spans) = play(Capture::new().with_messages());
        assert_eq!(
            shown(&collector),
            ["prompt-4f21", "staged-77aa", "answer-1e5d", "input-6c30", "output-b844"]
        );
        let inputs = values(&spans, "gen_ai.input.messages");
        assert_eq!(inputs[0], r#"[{"role":"user","parts":[{"type":"text","content":"prompt-4f21"}]}]"#);
        let answer = |reason: &str| {
            let parts = r#"[{"type":"text","content":"answer-1e5d"}]"#;
            format!(r#"[{{"role":"assistant","parts":{parts},"finish_reason":"{reason}"}}]"#)
        };
        // The last response was cancelled, and its part so far is recorded.
        let outputs = values(&spans, "gen_ai.output.messages");
        assert_eq!(outputs[1..], [answer("stop"), answer("error")]);
        assert!(outputs[0].ends_with(r#","finish_reason":"tool_call"}]"#), "{}", outputs[0]);
        let tool_use =
            r#"{"type":"tool_call","id":"call-1","name":"weather","arguments":{"city":"input-6c30"}}"#;
        assert!(outputs[0].contains(tool_use), "{}", outputs[0]);
        let result = r#"{"role":"tool","parts":[{"type":"tool_call_response","id":"call-1","#;
        assert!(inputs[1].contains(result), "{}", inputs[1]);
        assert_eq!(values(&spans, "gen_ai.tool.call.arguments"), [""; 0]);
    });
}

#[test]
fn capture_of_a_response_that_breaks_off_records_the_inputs_of_its_tool_uses() {
    const TEST: &str = "capture::capture_of_a_response_that_breaks_off_records_the_inputs_of_its_tool_uses";
    alone(TEST, &[], || {
        let collector = Collector::install();
        telemetry::configure(TelemetrySettings::new().with_capture(Capture::new().with_messages())).unwrap();
        paused(async {
            let step = Step::new()
                .then_raw_tool_use("call-1", "weather", &["{\"city\":", "\"Oslo\"}"])
                .then_raw_tool_use("call-2", "weather", &["{\"ci"])
                .fail(ProviderError::new(ProviderErrorKind::Transport, "the connection was lost"));
            let provider = ScriptedProvider::new([step]);
            let agent = Agent::builder().model(provider.model()).start().await.unwrap();
            agent.ask("Where?").await.unwrap_err();
        });
        let whole = r#"{"type":"tool_call","id":"call-1","name":"weather","arguments":{"city":"Oslo"}}"#;
        let cut = r#"{"type":"tool_call","id":"call-2","name":"weather","arguments":"{\"ci"}"#;
        let expected = format!(r#"[{{"role":"assistant","parts":[{whole},{cut}],"finish_reason":"error"}}]"#);
        assert_eq!(values(&collector.spans(), "gen_ai.output.messages"), [expected]);
    });
}

#[test]
fn capture_of_attachments_records_their_modality_and_not_their_data() {
    const TEST: &str = "capture::capture_of_attachments_records_their_modality_and_not_their_data";
    alone(TEST, &[], || {
        let collector = Collector::install();
        telemetry::configure(TelemetrySettings::new().with_capture(Capture::new().with_messages())).unwrap();
        paused(async {
            let prompt = [
                Attachment::base64("image/png", "AAAA"),
                Attachment::url("application/pdf", "https://example.com/x.pdf"),
            ];
            let provider = ScriptedProvider::new([Step::text("Seen.")]);
            let agent = Agent::builder().model(provider.model()).start().await.unwrap();
            agent.ask(prompt).await.unwrap();
        });
        let image =
            r#"{"type":"blob","mime_type":"image/png","modality":"image","content":"","omitted_bytes":4}"#;
        let paper = r#"{"type":"uri","mime_type":"application/pdf","modality":"document","uri":"https://example.com/x.pdf"}"#;
        let expected = format!(r#"[{{"role":"user","parts":[{image},{paper}]}}]"#);
        assert_eq!(values(&collector.spans(), "gen_ai.input.messages"), [expected]);
    });
}

#[test]
fn capture_of_tools_records_inputs_outputs_and_declarations_alone() {
    const TEST: &str = "capture::capture_of_tools_records_inputs_outputs_and_declarations_alone";
    alone(TEST, &[], || {
        let (collector, spans) = play(Capture::new().with_tools());
        assert_eq!(shown(&collector), ["input-6c30", "output-b844"]);
        assert_eq!(values(&spans, "gen_ai.tool.call.arguments"), [r#"{"city":"input-6c30"}"#; 2]);
        assert_eq!(values(&spans, "gen_ai.tool.call.result"), ["output-b844"; 2]);
        assert!(values(&spans, "gen_ai.tool.definitions")[0].contains(r#""name":"weather""#));
    });
}

#[test]
fn capture_of_the_system_prompt_records_it_alone() {
    const TEST: &str = "capture::capture_of_the_system_prompt_records_it_alone";
    alone(TEST, &[], || {
        let (collector, spans) = play(Capture::new().with_system_prompt());
        assert_eq!(shown(&collector), ["system-90bc"]);
        let system = values(&spans, "gen_ai.system_instructions");
        assert_eq!(system, [r#"[{"type":"text","content":"system-90bc"}]"#; 3]);
    });
}

#[test]
fn capture_with_redaction_records_the_redacted_text_cut_at_16_kib() {
    const TEST: &str = "capture::capture_with_redaction_records_the_redacted_text_cut_at_16_kib";
    alone(TEST, &[], || {
        let capture =
            Capture::new().with_messages().with_tools().with_redaction(|content, text| match content {
                CapturedContent::InputMessages => text.replace("prompt-4f21", "***"),
                // Each of these letters has two bytes, and one of them crosses the limit. The text is cut before this
                // letter.
                CapturedContent::ToolInput => format!("a{}", "ä".repeat(10_000)),
                CapturedContent::ToolOutput => panic!("a redaction fails"),
                _ => text,
            });
        let (collector, spans) = play(capture);
        assert!(!collector.recorded().contains("prompt-4f21"));
        assert!(values(&spans, "gen_ai.input.messages")[0].contains(r#""content":"***""#));
        let inputs = values(&spans, "gen_ai.tool.call.arguments");
        assert_eq!(inputs.iter().map(|input| input.len()).collect::<Vec<_>>(), [16 * 1024 - 1; 2]);
        assert_eq!(values(&spans, "gen_ai.tool.call.result"), [""; 0]);
    });
}

#[test]
fn configure_a_second_time_is_refused() {
    const TEST: &str = "capture::configure_a_second_time_is_refused";
    alone(TEST, &[], || {
        telemetry::configure(TelemetrySettings::new()).unwrap();
        let AlreadyConfigured { .. } = telemetry::configure(TelemetrySettings::new()).unwrap_err();
    });
}
