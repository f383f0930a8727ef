use super::*;
use crate::provider::dialect::EffortWords;

/// Each id, followed by the facts about this id that differ from the facts about unknown models.
const EXPECTED: &str = include_str!("expected.txt");

const fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn described(id: &str) -> [String; 4] {
    let ModelTraits { messages: m, openai: o, gemini: g, .. } = ModelTraits::of(id);
    let words = EffortWords::OPENAI.narrowed(o);
    let sampling = [None, Some("none"), Some("low")].map(|effort| yes(o.takes_sampling(effort))).join(",");
    let thinking = match &g.thinking {
        GeminiThinking::None => "none".to_owned(),
        GeminiThinking::Budget { min, max, off } => format!("{min}-{max} off:{}", yes(*off)),
        GeminiThinking::Levels(levels) => {
            let levels: Vec<_> = levels.iter().map(|level| format!("{level:?}").to_lowercase()).collect();
            levels.join(",")
        }
    };
    [
        format!(
            "  messages: {:?} {:?} {:?} forced:{} structured:{} bound:{}",
            m.thinking,
            m.off,
            m.sampling,
            yes(m.forced_tools),
            yes(m.structured_output),
            yes(m.bound_thinking),
        ),
        format!(
            "  openai: reasons:{} {},{},{},{},{},{} max:{} sampling:{sampling} stop:{} tools:{:?} long:{}",
            yes(o.reasons()),
            words.off.unwrap_or("-"),
            words.minimal,
            words.low,
            words.medium,
            words.high,
            words.max,
            yes(o.max_in_responses),
            yes(o.stop),
            o.chat_tools,
            yes(o.keeps_long(id)),
        ),
        format!(
            "  gemini: {thinking} signed:{} beside:{} sampling:{}",
            yes(g.signed_calls),
            yes(g.schema_beside_tools),
            yes(g.sampling),
        ),
        format!("  messages: needs thinking:{}", yes(m.needs_thinking)),
    ]
}

#[test]
fn rules_many_ids_give_the_recorded_facts() {
    let unknown = described("some-model");
    let mut found = String::new();
    for id in EXPECTED.lines().filter(|line| !line.starts_with(' ')) {
        found.push_str(id);
        found.push('\n');
        for line in described(id).iter().filter(|line| !unknown.contains(line)) {
            found.push_str(line);
            found.push('\n');
        }
    }
    assert_eq!(found, EXPECTED);
}

#[test]
fn rules_gpt_oss_has_levels_in_ollama() {
    for id in ["gpt-oss:20b", "gpt-oss:120b-cloud", "openai/gpt-oss-120b", "GPT-OSS"] {
        assert!(ModelTraits::of(id).ollama.levels, "{id}");
    }
    assert!(!ModelTraits::of("gpt-5").ollama.levels);
}

#[test]
fn rules_each_rule_is_first_for_some_id() {
    let ids: Vec<&str> = EXPECTED.lines().filter(|line| !line.starts_with(' ')).collect();
    let used: Vec<*const ModelTraits> =
        ids.iter().map(|id| std::ptr::from_ref(ModelTraits::of(id))).collect();
    for (family, rule) in
        RULES.families.iter().flat_map(|family| family.rules.iter().map(move |rule| (family, rule)))
    {
        let name = family.contains.as_ref().or(family.starts.first());
        assert!(
            used.contains(&std::ptr::from_ref(&rule.value)),
            "{name:?} {:?} {:?}",
            rule.words,
            rule.since
        );
    }
}

#[test]
fn changed_members_replace_those_of_the_rules() {
    let changes =
        serde_json::json!({"messages": {"off": "never"}, "gemini": {"thinking": {"levels": ["low"]}}});
    let found = ModelTraits::changed("claude-opus-4-8", changes.as_object().unwrap()).unwrap();
    let mut expected = ModelTraits::of("claude-opus-4-8").clone();
    expected.messages.off = AnthropicThinkingOff::Never;
    expected.gemini.thinking = GeminiThinking::Levels(vec![Effort::Low]);
    assert_eq!(found, expected);
}
