//! Catalogues read from files that have the same shape as models.dev's `api.json`.

use std::error::Error;

use omni_agent::provider::{
    Catalogue, CatalogueError, Effort, ModelInfo, Options, Request,
    custom::{AnthropicMessages, Dialect, GoogleGemini, OllamaChat, OpenAiResponses},
};
use serde_json::{Value, json};

use crate::catalogue::words;

fn read(file: &Value) -> (Catalogue, Vec<CatalogueError>) {
    Catalogue::from_models_dev(&file.to_string()).unwrap()
}

/// Imports a file with this one entry and returns its model.
fn entry(entry: &Value) -> ModelInfo {
    let (catalogue, skipped) = read(&json!({"p": {"models": {"m": entry}}}));
    assert!(skipped.is_empty(), "{entry}: {skipped:?}");
    ModelInfo::clone(catalogue.get("p", "m").unwrap())
}

/// Imports a file with this invalid entry and returns the reason why the entry was skipped.
fn reason(entry: &Value) -> String {
    let (catalogue, skipped) = read(&json!({"p": {"models": {"m": entry, "good": {}}}}));
    assert_eq!(catalogue.len(), 1, "{entry}");
    let [CatalogueError::Entry { provider, model, reason, .. }] = &skipped[..] else { panic!("{skipped:?}") };
    assert_eq!((provider.as_str(), model.as_deref()), ("p", Some("m")));
    reason.clone()
}

#[test]
fn from_models_dev_of_a_real_entry_reads_everything_known() {
    let file = json!({"google": {
        "id": "google", "env": ["GEMINI_API_KEY"], "npm": "@ai-sdk/google", "name": "Google",
        "doc": "https://ai.google.dev/gemini-api/docs/pricing",
        "models": {"gemini-x": {
            "id": "gemini-x", "name": "Gemini X", "family": "gemini", "attachment": true, "reasoning": true,
            "reasoning_options": [{"type": "effort", "values": ["low", "high"]}],
            "tool_call": true, "structured_output": true, "temperature": true, "knowledge": "2025-01",
            "release_date": "2026-02-19", "last_updated": "2026-02-19",
            "modalities": {"input": ["text", "image", "video", "smell"], "output": ["text", "image"]},
            "open_weights": false,
            "limit": {"context": 1_048_576, "input": 900_000, "output": 65_536},
            "cost": {"input": 2, "output": 12.5, "cache_read": 0.2, "cache_write": 3, "reasoning": 13,
                "tiers": [{"input": 4, "output": 18, "cache_read": 0.4, "tier": {"type": "context", "size": 300_000}}],
                "context_over_200k": {"input": 99, "output": 99}},
            "experimental": {"modes": {}}}}}});
    let (catalogue, skipped) = read(&file);
    assert!(skipped.is_empty(), "{skipped:?}");
    let info = catalogue.get("google", "gemini-x").unwrap();
    assert_eq!((info.id.as_str(), info.name.as_deref()), ("gemini-x", Some("Gemini X")));
    assert_eq!(
        (info.context_window, info.input_limit, info.output_limit),
        (Some(1_048_576), Some(900_000), Some(65_536))
    );
    assert_eq!(words(info.input.as_ref()), "text image video");
    assert_eq!(words(info.output.as_ref()), "text image");
    assert_eq!((info.thinking, info.tools, info.structured_output), (Some(true), Some(true), Some(true)));
    assert_eq!(
        (info.knowledge_cutoff.as_deref(), info.release_date.as_deref()),
        (Some("2025-01"), Some("2026-02-19"))
    );
    let price = info.price.as_ref().unwrap();
    assert_eq!((price.rates.input, price.rates.output, price.rates.reasoning), (2.0, 12.5, Some(13.0)));
    assert_eq!((price.rates.cache_read, price.rates.cache_write), (Some(0.2), Some(3.0)));
    assert_eq!(price.tiers.len(), 1);
    let (above, rates) = price.tiers.first_key_value().unwrap();
    assert_eq!((*above, rates.input, rates.cache_read), (300_000, 4.0, Some(0.4)));
}

#[test]
fn from_models_dev_of_missing_members_leaves_them_unknown() {
    assert_eq!(entry(&json!({})), ModelInfo::new("m"));
    let nulls = json!({"name": null, "reasoning": null, "limit": null, "cost": null, "modalities": null});
    assert_eq!(entry(&nulls), ModelInfo::new("m"));
    let zeros = json!({"limit": {"context": 0, "output": 0}, "cost": {"input": 1}, "modalities": {}});
    assert_eq!(entry(&zeros), ModelInfo::new("m"));
}

#[test]
fn from_models_dev_of_older_shapes_is_read() {
    let info = entry(&json!({"tool_call": {"supported": false}, "limit": {"context": 1e6},
        "cost": {"input": 1, "output": 2, "context_over_200k": {"input": 3, "output": 4}}}));
    assert_eq!((info.tools, info.context_window), (Some(false), Some(1_000_000)));
    let price = info.price.unwrap();
    let tier = price.tiers.first_key_value();
    assert_eq!(tier.map(|(above, rates)| (*above, rates.output)), Some((200_000, 4.0)));
}

#[test]
fn from_models_dev_of_tiers_by_another_measure_skips_them() {
    let by = |tier: Value| json!({"input": 1, "output": 1, "tier": tier});
    let price = entry(&json!({"cost": {"input": 1, "output": 2, "tiers": [
        by(json!({"type": "context", "size": 9})), by(json!({"type": "hour", "size": 3})),
        by(json!({"size": 5})), by(json!({"type": "context"})), {"input": 1, "output": 1}]}}));
    let bounds: Vec<u64> = price.price.unwrap().tiers.into_keys().collect();
    assert_eq!(bounds, [5, 9]);
}

#[test]
fn from_models_dev_of_a_bad_entry_keeps_the_rest_and_reports_the_fault() {
    for (bad, says) in [
        (json!(7), "it is no object"),
        (json!({"reasoning": "yes"}), "`reasoning`: invalid type"),
        (json!({"limit": 3}), "`limit`: expected an object"),
        (json!({"limit": {"context": "big"}}), "`limit.context`: invalid type"),
        (json!({"limit": {"output": -1}}), "`limit.output`: expected a number of tokens"),
        (json!({"limit": {"output": 1e300}}), "`limit.output`: expected a number of tokens"),
        (json!({"cost": {"input": -1, "output": 1}}), "`cost.input`: expected dollars"),
        (json!({"cost": {"input": 1, "output": 1, "tiers": {}}}), "`cost.tiers`: expected an array"),
        (json!({"cost": {"input": 1, "output": 1, "tiers": [1]}}), "`cost.tiers`: expected objects"),
        (
            json!({"cost": {"input": 1, "output": 1, "tiers": [{"input": "", "output": 1, "tier": {"size": 1}}]}}),
            "`cost.tiers.input`: invalid type",
        ),
        (json!({"modalities": {"input": "text"}}), "`modalities.input`: invalid type"),
        (json!({"tool_call": {"supported": 1}}), "`tool_call.supported`: invalid type"),
        (json!({"traits": []}), "`traits`: expected an object"),
        (json!({"traits": {"chat": {}}}), "`traits`: unknown field `chat`"),
        (json!({"traits": {"openai": true}}), "`traits`: invalid type"),
        (json!({"traits": {"messages": {"thinks": true}}}), "`traits`: unknown field `thinks`"),
        (json!({"traits": {"messages": {"thinking": "much"}}}), "`traits`: unknown variant `much`"),
    ] {
        let reason = reason(&bad);
        assert!(reason.starts_with(says), "{bad}: {reason}");
    }
}

#[test]
fn from_models_dev_of_a_provider_without_models_reports_it() {
    let (catalogue, skipped) = read(&json!({"a": {"models": {"m": {}}}, "b": {"name": "B"}, "c": 3}));
    let named = |error: &CatalogueError| match error {
        CatalogueError::Entry { provider, model, .. } => (provider.clone(), model.clone()),
        other => panic!("{other}"),
    };
    let skipped: Vec<_> = skipped.iter().map(named).collect();
    assert_eq!(skipped, [("b".to_owned(), None), ("c".to_owned(), None)]);
    assert_eq!(catalogue.len(), 1);
}

#[test]
fn from_models_dev_of_invalid_json_reports_the_place() {
    let error = Catalogue::from_models_dev("{\"a\": {\n  \"models\": oops}}").unwrap_err();
    assert!(matches!(&error, CatalogueError::Json(_)));
    assert!(error.to_string().contains("line 2 column 13"), "{error}");
    assert!(error.source().is_none());
}

#[test]
fn from_models_dev_of_another_shape_reports_the_expected_one() {
    for (json, expected) in [
        ("[]", "an object of providers"),
        ("{}", "providers with models"),
        (r#"{"name": "settings", "version": 3}"#, "providers with models"),
        (r#"{"a": {"models": {}}}"#, "providers with models"),
    ] {
        let error = Catalogue::from_models_dev(json).unwrap_err();
        assert!(
            matches!(&error, CatalogueError::Shape { expected: reported, .. } if *reported == expected),
            "{json}: {error}"
        );
        assert!(error.to_string().contains("models.dev"), "{error}");
    }
}

#[test]
fn from_models_dev_maps_providers_and_their_cache_prices_and_modalities() {
    let model = json!({"modalities": {"input": ["text"]}, "cost": {"input": 1, "output": 2, "cache_write": 1.25,
        "tiers": [{"input": 4, "output": 8, "tier": {"size": 10}}]}});
    let models = json!({"models": {"m": model}});
    let (catalogue, _) = read(
        &json!({"moonshotai": models, "anthropic": models, "openrouter": models, "ollama-cloud": models}),
    );
    let get = |provider| catalogue.get(provider, "m").unwrap();
    assert!(catalogue.get("moonshotai", "m").is_none());
    assert_eq!(get("moonshot").price.as_ref().unwrap().rates.cache_write_long, None);
    let price = get("anthropic").price.as_ref().unwrap();
    assert_eq!((price.rates.cache_write_long, price.tiers[&10].cache_write_long), (Some(2.0), Some(8.0)));
    let claude =
        json!({"models": {"m": model, "claude-opus-4-8": model, "anthropic/claude-opus-4.8": model}});
    let (resold, _) = read(&json!({"opencode": claude, "openrouter": claude}));
    let long =
        |provider, id| resold.get(provider, id).unwrap().price.as_ref().unwrap().rates.cache_write_long;
    assert_eq!(long("opencode", "claude-opus-4-8"), Some(2.0));
    assert_eq!(long("openrouter", "anthropic/claude-opus-4.8"), Some(2.0));
    assert_eq!(long("opencode", "m"), None);
    assert!(get("openrouter").takes("application/pdf") && !get("openrouter").takes("image/png"));
    assert!(!get("ollama-cloud").takes("application/pdf"));
}

#[test]
fn from_models_dev_of_traits_changes_how_options_are_sent() {
    let traits = json!({
        "messages": {"thinking": "adaptive"},
        "openai": {"efforts": ["low", "high"]},
        "gemini": {"thinking": {"levels": ["low", "high"]}},
        "ollama": {"levels": true},
    });
    let request = |info| {
        let options = Options::default().with_thinking(Effort::Medium);
        let mut request = Request::prompt("Hi").with_options(options).with_model_info(info);
        request.model = "m".into();
        request
    };
    let body = |format: &dyn Dialect, member: &str| {
        let body = format.encode(&request(entry(&json!({"traits": traits})))).unwrap().body;
        Value::Object(body).pointer(member).cloned()
    };
    assert_eq!(body(&AnthropicMessages::default(), "/output_config/effort"), Some(json!("medium")));
    assert_eq!(body(&OpenAiResponses::openai(), "/reasoning/effort"), Some(json!("high")));
    assert_eq!(
        body(&GoogleGemini::default(), "/generationConfig/thinkingConfig/thinkingLevel"),
        Some(json!("high"))
    );
    assert_eq!(body(&OllamaChat::default(), "/think"), Some(json!("medium")));
    let plain = AnthropicMessages::default().encode(&request(entry(&json!({})))).unwrap().body;
    assert_eq!(plain["thinking"]["type"], "enabled");
}
