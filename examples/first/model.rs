//! The model of the first programs. In your own program, pass a name instead:
//! `.model("anthropic:claude-sonnet-4-6")`.

#[path = "../support/support.rs"]
mod support;

use omni_agent::Model;

/// Returns the model that the variable `MODEL` names, such as `ollama:qwen3`. Without the variable, returns an offline demo, which is not an LLM.
pub fn pick() -> Model {
    let name = std::env::var("MODEL").unwrap_or_else(|_| "demo:parrot".to_owned());
    support::model_named(&name).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        std::process::exit(1)
    })
}
