//! A value of a Rust type instead of text: `cargo run --example first_typed`.

mod model;

use omni_agent::Agent;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Cities {
    names: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let agent = Agent::builder().model(model::pick()).start().await?;
    println!("{}", agent.ask_as::<Cities>("Which Norwegian cities have a fjord?").await?.names.join(", "));
    Ok(())
}
