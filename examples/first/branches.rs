//! A conversation with branches in a SQLite file:
//! `cargo run --example first_branches --features sqlite -- FILE`.

mod model;

use std::time::Duration;

use omni_agent::{Agent, Session, store::SqliteStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "conversations.sqlite".to_owned());
    let agent = Agent::builder().model(model::pick());
    let session = Session::builder(SqliteStore::open(file).await?).agent(agent).create().await?;
    session.ask("Plan a weekend in Lisbon.").await?;
    let tree = session.tree().await?;
    let question = tree.roots().next().ok_or("the tree is empty")?.id();

    // Another answer to the same question, then another question in its place. All branches are kept.
    session.again(question).response().await?;
    session.run("Plan a weekend in Porto.").instead_of(question).response().await?;
    // Back on the first branch, at the answer that was active last.
    session.navigate(question).await?;
    session.ask("What does it cost?").await?;

    println!("{}", session.tree().await?);
    Ok(session.stop(Duration::from_secs(10)).await?)
}
