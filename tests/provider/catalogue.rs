//! The built-in catalogue, and how a model is found in a catalogue.

use std::collections::BTreeSet;

use omni_agent::provider::{Catalogue, Modality, ModelInfo, Price, Registry};

#[test]
fn built_in_contains_models_of_every_service() {
    let catalogue = Catalogue::built_in();
    for provider in [
        "alibaba",
        "anthropic",
        "google",
        "groq",
        "moonshot",
        "ollama-cloud",
        "openai",
        "openai_responses",
        "opencode",
        "openrouter",
        "zai",
    ] {
        assert!(catalogue.models_of(provider).count() >= 2, "{provider}");
    }
    assert_eq!(catalogue.iter().count(), catalogue.len());
}

#[test]
fn built_in_numbers_are_plausible() {
    for (provider, info) in Catalogue::built_in().iter() {
        let name = format!("{provider}:{}", info.id);
        for tokens in [info.context_window, info.output_limit].into_iter().flatten() {
            assert!((8_000..=2_000_000).contains(&tokens), "{name}: {tokens}");
        }
        assert!(info.output_limit <= info.context_window, "{name}");
        assert!(info.input.as_ref().is_none_or(|input| input.contains(&Modality::Text)), "{name}");
        let Some(price) = &info.price else { continue };
        let all = price.tiers.values().chain([&price.rates]);
        for rates in all {
            assert!(rates.input <= rates.output && rates.output <= 100.0, "{name}");
            assert!(rates.cache_read.is_none_or(|read| read <= rates.input), "{name}");
        }
        assert!(price.tiers.keys().is_sorted(), "{name}");
    }
}

/// Returns the names of the kinds of content, in the order of the set.
pub(crate) fn words(kinds: Option<&BTreeSet<Modality>>) -> String {
    let names: Vec<&str> = kinds.into_iter().flatten().map(|modality| modality.as_str()).collect();
    names.join(" ")
}

#[test]
fn built_in_entry_is_read_completely() {
    let info = Catalogue::built_in().get("anthropic", "claude-opus-5").unwrap();
    let expected = (Some(1_000_000), Some(128_000), Some(true), Some(true), Some(true));
    assert_eq!(
        (info.context_window, info.output_limit, info.thinking, info.tools, info.structured_output),
        expected
    );
    assert_eq!(words(info.input.as_ref()), "text image pdf");
    assert_eq!(
        (info.name.as_deref(), info.release_date.as_deref()),
        (Some("Claude Opus 5"), Some("2026-07-24"))
    );
    let rates = &info.price.as_ref().unwrap().rates;
    assert_eq!((rates.input, rates.output), (5.0, 25.0));
    assert_eq!(
        (rates.cache_read, rates.cache_write, rates.cache_write_long),
        (Some(0.5), Some(6.25), Some(10.0))
    );
}

#[test]
fn built_in_has_the_models_of_the_autumn_with_a_price_only_if_models_dev_has_one() {
    let catalogue = Catalogue::built_in();
    for (provider, id, price) in [
        ("anthropic", "claude-opus-5-5", Some((4.0, 20.0, 0.2, 5.0))),
        ("anthropic", "claude-fable-5-1", Some((10.0, 50.0, 0.25, 12.5))),
        ("anthropic", "claude-fable-5-2", None),
        ("anthropic", "claude-haiku-5-5", Some((0.1, 0.5, 0.01, 0.125))),
        ("openai", "gpt-6-sol", Some((2.0, 10.0, 0.2, 2.5))),
        ("openai", "gpt-6-luna", Some((0.1, 0.5, 0.01, 0.125))),
        ("openai_responses", "gpt-6.1-sol", Some((2.0, 10.0, 0.1, 2.5))),
        ("zai", "glm-5.3-flash", Some((0.15, 0.5, 0.03, 0.0))),
    ] {
        let info = catalogue.find(provider, id).unwrap_or_else(|| panic!("{id} is not found"));
        assert_eq!(info.thinking, Some(true), "{id}");
        assert!(info.context_window.is_some_and(|tokens| tokens >= 1_000_000), "{id}");
        let found = info.price.as_ref().map(|price| {
            let rates = &price.rates;
            (rates.input, rates.output, rates.cache_read.unwrap(), rates.cache_write.unwrap())
        });
        assert_eq!(found, price, "{id}");
    }
    // A tier applies to longer prompts.
    let luna = catalogue.find("openai", "gpt-6-luna").unwrap();
    assert_eq!(luna.price.as_ref().unwrap().rates_for(300_000).input.to_string(), "0.2");
    let haiku = catalogue.find("anthropic", "claude-haiku-5-5").unwrap();
    assert_eq!(haiku.price.as_ref().unwrap().rates_for(100_001).output.to_string(), "2.5");
}

#[test]
fn find_of_a_dated_build_returns_the_model_without_its_date() {
    let catalogue = Catalogue::built_in();
    for (provider, id, expected) in [
        ("openai", "gpt-5-2025-08-07", "gpt-5"),
        ("openai_responses", "gpt-5-mini-2025-08-07", "gpt-5-mini"),
        ("anthropic", "claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("anthropic", "claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        ("alibaba", "qwen-plus-latest", "qwen-plus"),
        ("google", "models/gemini-2.5-pro", "gemini-2.5-pro"),
    ] {
        let found = catalogue.find(provider, id).unwrap_or_else(|| panic!("{id} is not found"));
        assert_eq!(&found, catalogue.get(provider, expected).unwrap(), "{id}");
        assert!(catalogue.get(provider, id).is_none(), "{id}");
    }
}

#[test]
fn find_of_an_unknown_model_returns_none() {
    let catalogue = Catalogue::built_in();
    for (provider, id) in [
        ("openai", "gpt-5-2025"),
        ("openai", "gpt-5-turbo"),
        ("openai", "gpt-5-123456789"),
        ("openai", "-latest"),
        ("openai", ""),
        ("nobody", "gpt-5"),
        ("ollama-cloud", "gpt-oss:7b"),
        ("openrouter", "nobody/gpt-5"),
        ("openrouter", "openai/gpt-nothing"),
        ("openrouter", ":free"),
    ] {
        assert_eq!(catalogue.find(provider, id), None, "{provider}:{id}");
    }
}

#[test]
fn find_of_a_resellers_id_returns_the_vendors_model_without_a_price() {
    let catalogue = Catalogue::built_in();
    for (provider, id, vendor, expected) in [
        ("openrouter", "anthropic/claude-opus-4.6", "anthropic", "claude-opus-4-6"),
        ("openrouter", "openai/gpt-5-2025-08-07", "openai", "gpt-5"),
        ("openrouter", "moonshotai/kimi-k3", "moonshot", "kimi-k3"),
        ("opencode", "anthropic/claude-opus-5", "anthropic", "claude-opus-5"),
    ] {
        let found = catalogue.find(provider, id).unwrap_or_else(|| panic!("{id} is not found"));
        let original = catalogue.get(vendor, expected).unwrap();
        let mut unpriced = ModelInfo::clone(original);
        unpriced.price = None;
        assert_eq!(*found, unpriced, "{id}");
        assert!(original.price.is_some());
    }
}

#[test]
fn find_of_a_variant_returns_the_model_with_the_variants_price() {
    let catalogue = Catalogue::built_in();
    let id = "anthropic/claude-opus-4.8";
    assert!(catalogue.find("openrouter", id).unwrap().price.is_some());
    let free = catalogue.find("openrouter", &format!("{id}:free")).unwrap();
    assert_eq!((free.context_window, &free.price), (Some(1_000_000), &Some(Price::new(0.0, 0.0))));
    let fast = catalogue.find("openrouter", &format!("{id}:nitro")).unwrap();
    assert_eq!((fast.context_window, &fast.price), (Some(1_000_000), &None));
}

#[test]
fn insert_replaces_and_merge_adds_whole_entries() {
    let mut catalogue = Catalogue::empty();
    assert!(catalogue.is_empty());
    assert!(catalogue.insert("own", ModelInfo::new("a").with_context_window(1)).is_none());
    let replaced = catalogue.insert("own", ModelInfo::new("a").with_output_limit(2)).unwrap();
    assert_eq!(replaced.context_window, Some(1));
    let mut other = Catalogue::empty();
    other.insert("own", ModelInfo::new("a").with_tools(true));
    other.insert("own", ModelInfo::new("b"));
    other.insert("openai_responses", ModelInfo::new("gpt-next"));
    catalogue.merge(other);
    assert_eq!(**catalogue.get("own", "a").unwrap(), ModelInfo::new("a").with_tools(true));
    let all: Vec<_> = catalogue.iter().map(|(provider, info)| (provider, info.id.as_str())).collect();
    assert_eq!(all, [("openai", "gpt-next"), ("own", "a"), ("own", "b")]);
    assert!(catalogue.get("openai_responses", "gpt-next").is_some());
    assert_eq!(format!("{catalogue:?}"), r#"{"openai": ["gpt-next"], "own": ["a", "b"]}"#);
}

#[test]
fn takes_follows_the_known_modalities() {
    let sees = ModelInfo::new("m").with_input([Modality::Text, Modality::Image]);
    let reads = ModelInfo::new("m").with_input([Modality::Text]);
    let unknown = ModelInfo::new("m");
    for (media_type, by_seeing, by_reading) in [
        ("image/png", true, false),
        ("IMAGE/PNG; q=1", true, false),
        ("application/pdf", true, false),
        ("audio/wav", false, false),
        ("video/mp4", false, false),
        ("text/plain", true, true),
        ("application/json", true, true),
        ("", true, true),
    ] {
        assert_eq!(
            (sees.takes(media_type), reads.takes(media_type)),
            (by_seeing, by_reading),
            "{media_type}"
        );
        assert!(unknown.takes(media_type), "{media_type}");
    }
    assert_eq!(format!("{:?}", sees.input.unwrap()), "{Text, Image}");
}

#[cfg(feature = "http")]
#[test]
fn models_of_the_default_registry_are_the_known_models_of_its_providers() {
    let registry = Registry::default();
    let names: Vec<String> = registry.models().map(|model| model.name().to_owned()).collect();
    for expected in
        ["anthropic:claude-opus-5", "openai:gpt-5", "openai_responses:gpt-5", "google:gemini-2.5-pro"]
    {
        assert!(names.iter().any(|name| name == expected), "{expected}");
    }
    assert!(registry.models().all(|model| model.info().is_some_and(|info| info.id == **model.id())));
    assert!(registry.model("openai:gpt-of-next-week").unwrap().info().is_none());
}

#[test]
fn models_of_an_empty_registry_are_empty() {
    assert_eq!(Registry::empty().models().count(), 0);
    assert_eq!(Registry::empty().catalogue().len(), Catalogue::built_in().len());
}
