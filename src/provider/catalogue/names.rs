//! Converts ids of models and providers to the ids of their entries in the catalogue.

/// Returns the name under which the catalogue lists the models of this provider.
pub(super) fn listed_as(provider: &str) -> &str {
    match provider {
        "openai_responses" => "openai",
        other => other,
    }
}

/// Returns the name that this crate uses for a provider of models.dev.
pub(super) fn from_models_dev(provider: &str) -> &str {
    match provider {
        "moonshotai" => "moonshot",
        other => other,
    }
}

/// Splits an id such as `deepseek/deepseek-r1:free` at its last colon, if it has one. The suffix names a way of serving
/// the model. At Ollama, the suffix is the model's size, so the id is not split.
///
/// Source: <https://openrouter.ai/docs/guides/routing/model-variants>.
pub(super) fn variant<'a>(provider: &str, id: &'a str) -> Option<(&'a str, &'a str)> {
    if provider.starts_with("ollama") { None } else { id.rsplit_once(':') }
}

/// Returns the id without the suffix of a build (`-2025-08-07`, `-20250929`, `@20250929`, `-latest`) and without the
/// prefix `models/`, which ids in Gemini's lists have. Returns `None` if the id has neither.
pub(super) fn base(id: &str) -> Option<&str> {
    let name = id.strip_prefix("models/").unwrap_or(id);
    let name = name.strip_suffix("-latest").unwrap_or_else(|| undated(name));
    (name != id && !name.is_empty()).then_some(name)
}

fn undated(name: &str) -> &str {
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    if let Some((head, date)) = name.rsplit_once(['-', '@'])
        && digits(date, 8)
    {
        return head;
    }
    let mut parts = name.rsplitn(4, '-');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(day), Some(month), Some(year), Some(head))
            if digits(day, 2) && digits(month, 2) && digits(year, 4) =>
        {
            head
        }
        _ => name,
    }
}

/// Returns the provider and the model's id to which a reseller's id refers, or `None` if the vendor in the id is
/// unknown. For example, `anthropic/claude-opus-4.8` refers to `claude-opus-4-8` of `anthropic`.
pub(super) fn vendor(id: &str) -> Option<(&str, String)> {
    let (vendor, name) = id.split_once('/')?;
    match vendor {
        "anthropic" => Some((vendor, name.replace('.', "-"))),
        "openai" | "google" => Some((vendor, name.to_owned())),
        "moonshotai" => Some(("moonshot", name.to_owned())),
        "z-ai" => Some(("zai", name.to_owned())),
        "qwen" => Some(("alibaba", name.to_owned())),
        _ => None,
    }
}
