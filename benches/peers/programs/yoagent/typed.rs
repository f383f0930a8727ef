//! A value of a Rust type instead of text.

use yoagent::{Agent, provider::ModelConfig};

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Cities {
    names: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut agent = Agent::from_config(ModelConfig::claude_sonnet_5());
    let schema = serde_json::to_value(schemars::schema_for!(Cities))?;
    let cities: Cities = agent.prompt_structured("Which Norwegian cities have a fjord?", schema).await?;
    println!("{}", cities.names.join(", "));
    Ok(())
}
