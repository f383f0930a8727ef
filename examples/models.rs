//! The known models with their windows, limits, modalities and prices:
//!
//! ```sh
//! cargo run --example models                         # the crate's models
//! cargo run --example models -- claude               # models whose name contains this
//! cargo run --example models -- claude api.json      # with the models of a file from https://models.dev/api.json
//! ```
//!
//! This example needs neither a key nor a network.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the purpose of the example")]

#[path = "support/pipe.rs"]
mod pipe;

use std::{env, error::Error, fs, path::Path, process::ExitCode};

use omni_agent::{
    error_chain,
    provider::{Catalogue, ModelInfo, Price, Registry},
};

const HELP: &str = "The models that the crate knows, with windows, limits, modalities and prices.

usage: models [WORD ...] [FILE.json ...]

  WORD       only the models whose name contains it
  FILE.json  also the models of a file from https://models.dev/api.json

Windows and longest answers are in thousands of tokens. A question mark stands for an unknown value.
Prices are dollars per million tokens, in/out; a + marks higher prices for long requests.";

fn main() -> ExitCode {
    pipe::quiet_on_broken_pipe();
    match models() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error_chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn models() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{HELP}");
        return Ok(());
    }
    let (files, filters): (Vec<String>, Vec<String>) = arguments
        .into_iter()
        .partition(|argument| Path::new(argument).extension().is_some_and(|end| end == "json"));
    let mut catalogue = Catalogue::clone(Catalogue::built_in());
    for file in files {
        let (imported, skipped) = Catalogue::from_models_dev(&read(&file)?)?;
        for error in &skipped {
            eprintln!("{file}: {error}");
        }
        catalogue.merge(imported);
    }

    // The registry has the models of the registered services, with the names that a program uses. A file may contain
    // models of many more services. `catalogue.iter()` returns all models.
    let registry = Registry::default().with_catalogue(catalogue);
    let chosen = |name: &str| filters.iter().all(|filter| name.contains(filter.as_str()));
    let known = registry.models().filter(|model| chosen(model.name()) && model.info().is_some());
    let known: Vec<_> = known.collect();
    if known.is_empty() {
        return Err(format!("no known model has {} in its name", filters.join(" and ")).into());
    }
    println!("{:<40} {:>6} {:>6} {:<26} {:<5} $ in/out", "model", "window", "answer", "takes", "think");
    for model in known {
        if let Some(info) = model.info() {
            println!("{:<40} {}", shortened(model.name(), 40), row(info));
        }
    }
    Ok(())
}

fn read(file: &str) -> Result<String, Box<dyn Error>> {
    fs::read_to_string(file).map_err(|error| format!("{file} can't be read: {error}").into())
}

/// Returns the text. If it has more than `limit` characters, returns only its beginning.
fn shortened(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    text.chars().take(limit - 1).chain(['…']).collect()
}

fn row(info: &ModelInfo) -> String {
    let tokens = |count: Option<u64>| count.map_or("?".to_owned(), |count| format!("{}k", count / 1000));
    let takes = info
        .input
        .as_ref()
        .map_or("?".to_owned(), |input| input.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    let thinks = match info.thinking {
        Some(true) => "yes",
        Some(false) => "no",
        None => "?",
    };
    let price = info.price.as_ref().map_or("?".to_owned(), price);
    format!(
        "{:>6} {:>6} {takes:<26} {thinks:<5} {price}",
        tokens(info.context_window),
        tokens(info.output_limit)
    )
}

fn price(price: &Price) -> String {
    let rates = &price.rates;
    let more = if price.tiers.is_empty() { "" } else { "+" };
    format!("{}/{}{more}", rates.input, rates.output)
}
