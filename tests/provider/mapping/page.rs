//! Generates `docs/services.md`: one table for all services, and one table for each service.

use std::fmt::Write as _;

use omni_agent::provider::{Provider as _, http::Endpoint};
use serde_json::Value;

use super::{
    change::changes,
    rows::{Row, rows},
};

/// The models that are shown for each service. A service has several models if it needs different requests for them.
const MODELS: [(&str, &[&str]); 12] = [
    ("anthropic", &["claude-opus-4-7", "claude-haiku-4-5"]),
    ("openai", &["gpt-5.1", "gpt-6-luna", "gpt-4.1"]),
    ("openai_responses", &["gpt-5.1", "gpt-6-luna", "gpt-4.1"]),
    ("google", &["gemini-3-pro-preview", "gemini-2.5-flash"]),
    ("ollama", &["qwen3", "gpt-oss:20b"]),
    ("ollama-cloud", &["gpt-oss:120b", "deepseek-v4-pro"]),
    ("openrouter", &["openai/gpt-5.1", "anthropic/claude-sonnet-4.6"]),
    ("groq", &["openai/gpt-oss-120b", "qwen/qwen3-32b"]),
    ("moonshot", &["kimi-k2.5", "kimi-k2.6"]),
    ("zai", &["glm-5.3", "glm-4.7"]),
    ("alibaba", &["qwen3-max", "qwen3.7-max", "qwq-plus"]),
    ("opencode", &["kimi-k2.5", "claude-opus-4-7", "gpt-5.1", "gemini-3-pro-preview"]),
];

/// How a service handles an option.
enum Treatment {
    /// The option is sent as intended, with these changes to the body.
    Sent(Vec<String>),
    /// A similar setting is sent with these changes, and these warnings report it.
    Near(Vec<String>, Vec<String>),
    /// The option is omitted, and these warnings report it.
    Reported(Vec<String>),
    /// Nothing changes and nothing needs to be reported.
    Silent,
    /// The request fails with this error before anything is sent.
    Refused(String),
}

impl Treatment {
    fn of(endpoint: &Endpoint, row: &Row) -> Self {
        let without = endpoint.preview(&row.without).unwrap().1;
        let with = match endpoint.preview(&row.with) {
            Ok((_, with)) => with,
            Err(error) => return Self::Refused(error.to_string()),
        };
        let changes = changes(&Value::Object(without.body), &Value::Object(with.body));
        match (changes.is_empty(), with.warnings.is_empty()) {
            (true, true) => Self::Silent,
            (true, false) => Self::Reported(with.warnings),
            (false, true) => Self::Sent(changes),
            (false, false) => Self::Near(changes, with.warnings),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Sent(_) => "yes",
            Self::Near(..) => "nearest",
            Self::Reported(_) => "reported",
            Self::Silent => "as is",
            Self::Refused(_) => "error",
        }
    }

    fn cell(&self) -> String {
        let cell = match self {
            Self::Sent(changes) => changes.join("<br>"),
            Self::Near(changes, warnings) => {
                format!("{}<br>warning: {}", changes.join("<br>"), warnings.join("; "))
            }
            Self::Reported(warnings) => format!("warning: {}", warnings.join("; ")),
            Self::Silent => "no change".to_owned(),
            Self::Refused(error) => format!("error: {error}"),
        };
        cell.replace('|', "\\|").replace('\n', " ")
    }
}

pub(crate) fn page() -> String {
    let endpoints = Endpoint::all();
    let names: Vec<&str> = endpoints.iter().map(omni_agent::provider::Provider::name).collect();
    assert_eq!(names, MODELS.map(|(name, _)| name), "MODELS must list each service");
    let services: Vec<_> = endpoints.iter().zip(MODELS.map(|(_, models)| models)).collect();
    let mut page = String::from(HEAD);
    overview(&mut page, &services);
    for (endpoint, models) in &services {
        service(&mut page, endpoint, models);
    }
    page
}

fn line(page: &mut String, cells: impl IntoIterator<Item = String>) {
    for cell in cells {
        write!(page, "| {cell} ").unwrap();
    }
    page.push_str("|\n");
}

fn head(page: &mut String, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    let rule = vec!["---".to_owned(); cells.len()];
    line(page, cells);
    line(page, rule);
}

/// Writes the table with one word for each option and service.
fn overview(page: &mut String, services: &[(&Endpoint, &[&str])]) {
    let first = [String::new()];
    head(
        page,
        first.into_iter().chain(services.iter().map(|(endpoint, _)| format!("`{}`", endpoint.name()))),
    );
    let columns: Vec<Vec<Row>> = services.iter().map(|(_, models)| rows(models[0])).collect();
    for number in 0..columns[0].len() {
        let words = services.iter().zip(&columns);
        let words =
            words.map(|((endpoint, _), rows)| Treatment::of(endpoint, &rows[number]).word().to_owned());
        line(page, [columns[0][number].name.to_owned()].into_iter().chain(words));
    }
}

/// Writes the section of one service with the changes to the body for each option.
fn service(page: &mut String, endpoint: &Endpoint, models: &[&str]) {
    write!(page, "\n## `{}`\n\n", endpoint.name()).unwrap();
    let columns: Vec<Vec<Row>> = models.iter().map(|model| rows(model)).collect();
    for (model, rows) in models.iter().zip(&columns) {
        let (url, preview) = endpoint.preview(&rows[0].without).unwrap();
        let body = Value::Object(preview.body);
        writeln!(page, "- `{model}`: `POST {url}` with `{body}`").unwrap();
    }
    page.push('\n');
    head(page, [String::new()].into_iter().chain(models.iter().map(|model| format!("`{model}`"))));
    for number in 0..columns[0].len() {
        let cells = columns.iter().map(|rows| Treatment::of(endpoint, &rows[number]).cell());
        line(page, [columns[0][number].name.to_owned()].into_iter().chain(cells));
    }
}

const HEAD: &str = "\
# Services and options

This page shows what each service receives for each option and each kind of attachment. The tables are generated from the
endpoints, and a test keeps them up to date. `Endpoint::preview` shows the same for any request. The limits of a single
model, such as missing support for images, are applied earlier, from the catalogue's information about the model.

| word | treatment of the option |
| --- | --- |
| yes | The option is sent as intended. |
| nearest | The nearest available setting is sent, and a warning reports it. |
| reported | The option is omitted, and a warning reports it. |
| as is | Nothing changes: the service behaves so by default, or the option is handled by this crate alone. |
| error | The request fails before anything is sent. An attachment becomes a placeholder if requested. |

Warnings are part of the answer's message data, of the events and of the log.

";
