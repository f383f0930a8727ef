//! A chat with a tool in the terminal: `cargo run --example first_terminal`. Type `/help`.

mod model;

use omni_agent::{Agent, Session, store::MemoryStore, terminal, tool};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let weather = tool!("weather", "Tells the weather.", async |city: String| Ok(format!("Sun in {city}.")));
    let agent = Agent::builder().model(model::pick()).tool(weather);
    Ok(terminal::chat(&Session::builder(MemoryStore::new()).agent(agent).create().await?).await?)
}
