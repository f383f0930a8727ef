//! Types of other crates in public signatures. A new major version of such a crate requires a new major version of this
//! crate, so there must be a reason for each type. The test compares this list with the code:
//!
//! | type | reason |
//! | --- | --- |
//! | `axum::Router` | the routes of `web`, which an application nests into its own router |
//! | `axum::http::HeaderValue` | the challenge of a request without authentication |
//! | `axum::http::Method` | the methods of the routes of `web` |
//! | `axum::http::StatusCode` | the status of a problem that an application reports |
//! | `axum::http::request::Parts` | the request that an application authenticates |
//! | `axum::response::IntoResponse` | a problem is a response in the application's own routes, too |
//! | `bytes::Bytes` | the bytes of a response, which `Framer` reads without a copy |
//! | `futures_core::Stream` | the common trait of streams: answers of providers, subscriptions, text |
//! | `opentelemetry::metrics::Meter` | makes the instruments of `OtelRecorder` (feature `otel-metrics`) |
//! | `schemars::JsonSchema` | derives the schemas of tool inputs and outputs, and of updates and commands |
//! | `serde::Deserialize` | messages, events and snapshots can be read from JSON |
//! | `serde::Serialize` | messages, events and snapshots can be written as JSON |
//! | `serde::de::DeserializeOwned` | tool inputs and typed answers are parsed into Rust types |
//! | `serde_json::Error` | the cause if a models.dev catalogue is not valid JSON |
//! | `serde_json::Map` | JSON objects with ordered keys |
//! | `serde_json::Value` | JSON of tools, schemas and providers |
//! | `tokio::io::AsyncRead` | the input of a client that `AcpAgent::serve` serves |
//! | `tokio::io::AsyncWrite` | the output to a client that `AcpAgent::serve` serves |
//! | `tokio::sync::mpsc::Sender` | progress reports of a tool outside an agent |
//! | `tokio::sync::oneshot::Receiver` | the answer to a backend's question for permission |
//! | `tokio_util::sync::CancellationToken` | cancels a tool call outside an agent |

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Adds the source files below the folder to `found`, except those that only the crate's own tests compile.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = ["simulation", "/tests"].iter().any(|part| path.to_str().unwrap().contains(part));
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            found.push(path);
        }
    }
}

/// Returns the names of the dependencies as they appear in code.
fn dependencies(root: &Path) -> BTreeSet<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let names = section.lines().filter_map(|line| line.split_once(" = "));
    names.map(|(name, _)| name.replace('-', "_")).collect()
}

/// Splits code into names and single other characters.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let end = if is_word(first) { rest.find(|c| !is_word(c)) } else { Some(first.len_utf8()) };
        let (token, after) = rest.split_at(end.unwrap_or(rest.len()));
        if !token.trim().is_empty() {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

/// Adds the names that a `use` declaration imports, with their full paths.
fn imports(tokens: &mut std::slice::Iter<'_, &str>, prefix: &str, found: &mut BTreeMap<String, String>) {
    let (mut path, mut name) = (prefix.to_owned(), String::new());
    while let Some(token) = tokens.next() {
        match *token {
            ":" | "self" => {}
            "{" => imports(tokens, &path, found),
            "as" => (*tokens.next().unwrap()).clone_into(&mut name),
            "," | "}" | ";" => {
                if !name.is_empty() {
                    found.insert(std::mem::take(&mut name), path.clone());
                }
                prefix.clone_into(&mut path);
                if *token != "," {
                    return;
                }
            }
            segment => {
                path = if path.is_empty() { segment.to_owned() } else { format!("{path}::{segment}") };
                segment.clone_into(&mut name);
            }
        }
    }
}

/// Removes comments and the module `tests`.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The parts of the code that are public: signatures, public fields, variants, traits and implementations of traits.
fn public_parts(code: &str, types: &BTreeSet<String>) -> Vec<String> {
    let mut parts = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let start = line.trim_start();
        let indent = line.len() - start.len();
        // The whole body of an enum or a trait is public, except the bodies of provided methods, which are recognised
        // by their deeper indentation.
        let is_body = start.starts_with("pub enum ") || start.starts_with("pub trait ");
        if start.starts_with("pub use ") || !(start.starts_with("pub ") || start.starts_with("impl")) {
            continue;
        }
        let mut part = start.to_owned();
        let mut last = start;
        while !(last.ends_with('{')
            || last.ends_with(';')
            || last.ends_with(',')
                && part.matches('(').count() == part.matches(')').count()
                && !is_body
                && indent > 0
            || last.ends_with('}'))
        {
            let Some(next) = lines.next() else { break };
            last = next.trim();
            part.push_str(last);
        }
        if is_body && last.ends_with('{') {
            for next in lines.by_ref() {
                if next.starts_with(&format!("{}}}", " ".repeat(indent))) {
                    break;
                }
                let depth = next.len() - next.trim_start().len() - indent;
                if depth == 4 || depth == 8 && !next.contains('=') && !next.contains('.') {
                    part.push_str(next);
                }
            }
        }
        // An `impl` of a trait is listed with its trait if the type is public. The methods of other `impl` blocks are
        // found by their own `pub`.
        let of = part.rsplit(" for ").next().unwrap();
        let is_trait = start.starts_with("impl") && part.contains(" for ") && types.contains(tokens(of)[0]);
        // The fields of a tuple struct are public only if they are marked `pub`.
        if start.starts_with("pub struct ") && !part.contains("(pub ") && part.ends_with(';') {
            part.truncate(part.find('(').unwrap_or(part.len()));
        }
        if start.starts_with("pub ") || is_trait {
            parts.push(part);
        }
    }
    parts
}

/// Returns the names of public structs and enums.
fn public_types(text: &str) -> impl Iterator<Item = String> {
    let items = text
        .lines()
        .filter_map(|line| line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum ")));
    items.map(|item| tokens(item)[0].to_owned())
}

/// Adds the types of dependencies in the public parts of a file to `found`.
fn types_in(
    text: &str,
    types: &BTreeSet<String>,
    dependencies: &BTreeSet<String>,
    found: &mut BTreeSet<String>,
) {
    let mut imported = BTreeMap::new();
    for import in text.split("\nuse ").skip(1) {
        let import = &import[..=import.find(';').unwrap()];
        imports(&mut tokens(import).iter(), "", &mut imported);
    }
    for part in public_parts(text, types) {
        let tokens = tokens(&part);
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let mut path = imported.get(*token).map_or((*token).to_owned(), Clone::clone);
            let is_path = at >= 2 && tokens[at - 1] == ":" && tokens[at - 2] == ":";
            let is_name = at >= 1 && ["struct", "enum", "trait", "fn", "type"].contains(&tokens[at - 1]);
            while tokens.get(at + 1..at + 3) == Some(&[":", ":"])
                && tokens.get(at + 3).is_some_and(|next| *next != "<")
            {
                at += 3;
                path = format!("{path}::{}", tokens[at]);
            }
            at += 1;
            let krate = path.split("::").next().unwrap();
            let is_type = path.rsplit("::").next().unwrap().starts_with(char::is_uppercase);
            if !is_path && !is_name && is_type && path.contains("::") && dependencies.contains(krate) {
                found.insert(path);
            }
        }
    }
}

#[test]
fn types_of_other_crates_in_public_signatures_are_listed_with_their_reasons() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    let dependencies = dependencies(root);
    let mut found = BTreeSet::new();
    let texts: Vec<_> = files.iter().map(|path| code(&fs::read_to_string(path).unwrap())).collect();
    let types = texts.iter().flat_map(|text| public_types(text)).collect();
    for text in &texts {
        types_in(text, &types, &dependencies, &mut found);
    }

    let rows = include_str!("external_types.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
    let listed: BTreeSet<_> = rows.map(|row| row.split('`').next().unwrap().to_owned()).collect();
    assert_eq!(found, listed, "the list at the head of this file differs from the code");
}
