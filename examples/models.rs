//! The models that are known, with their windows, limits, modalities and prices:
//!
//! ```sh
//! cargo run --example models                         # what the crate knows
//! cargo run --example models -- claude               # those with a name like that
//! cargo run --example models -- claude api.json      # and what a file from https://models.dev/api.json knows
//! ```
//!
//! Needs no key and no network.

use std::{env, error::Error, fs, path::Path};

use omni_agent::provider::{Catalogue, ModelInfo, Price, Registry};

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the purpose of the example")]
fn main() -> Result<(), Box<dyn Error>> {
    let (files, filters): (Vec<String>, Vec<String>) = env::args()
        .skip(1)
        .partition(|argument| Path::new(argument).extension().is_some_and(|end| end == "json"));
    let mut catalogue = Catalogue::clone(Catalogue::built_in());
    for file in files {
        let imported = Catalogue::from_models_dev(&fs::read_to_string(&file)?)?;
        for skipped in &imported.skipped {
            let model = skipped.model.as_deref().unwrap_or("*");
            eprintln!("{file}: {}:{model} is skipped: {}", skipped.provider, skipped.reason);
        }
        catalogue.merge(imported.catalogue);
    }

    // The models of the services that can be reached, under the names by which a program asks for them. A file
    // may know many more services: `catalogue.iter()` has all.
    let registry = Registry::default().with_catalogue(catalogue);
    println!(
        "{:<42} {:>9} {:>9}  {:<26} {:<5} $ per million tokens",
        "model", "window", "answer", "takes", "think"
    );
    for model in registry.models() {
        let chosen = filters.iter().all(|filter| model.name().contains(filter.as_str()));
        if let Some(info) = model.info().filter(|_| chosen) {
            println!("{:<42} {}", model.name(), row(info));
        }
    }
    Ok(())
}

fn row(info: &ModelInfo) -> String {
    let tokens = |count: Option<u64>| count.map_or("?".to_owned(), |count| count.to_string());
    let takes = info.input.map_or("?".to_owned(), |input| input.to_string());
    let thinks = match info.thinking {
        Some(true) => "yes",
        Some(false) => "no",
        None => "?",
    };
    let price = info.price.as_ref().map_or("?".to_owned(), price);
    format!(
        "{:>9} {:>9}  {takes:<26} {thinks:<5} {price}",
        tokens(info.context_window),
        tokens(info.output_limit)
    )
}

fn price(price: &Price) -> String {
    let rates = &price.rates;
    let cached = rates.cache_read.map(|read| format!(", {read} cached")).unwrap_or_default();
    let tiers = price.tiers.iter().map(|tier| {
        format!("; above {} tokens {} in, {} out", tier.above, tier.rates.input, tier.rates.output)
    });
    format!("{} in, {} out{cached}{}", rates.input, rates.output, tiers.collect::<String>())
}
