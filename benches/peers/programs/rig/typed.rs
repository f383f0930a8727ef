//! A value of a Rust type instead of text.

use rig::prelude::*;
use rig::providers::openai::{GPT_5_2, OpenAI};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Cities {
    names: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let agent = AgentBuilder::new(OpenAI::from_env()?.completion(GPT_5_2)).build();
    let response = agent.prompt_typed::<Cities>("Which Norwegian cities have a fjord?").await?;
    println!("{}", response.output.names.join(", "));
    Ok(())
}
