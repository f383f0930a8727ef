//! An approval that waits in the store: `cargo run --example first_durable --features sqlite -- FILE`.
//! The first run asks and ends. The second run, perhaps on another day, approves and continues.

mod model;

use std::time::Duration;

use omni_agent::agent::{Agent, Durable, FollowTarget, RunStep};
use omni_agent::manager::{Manager, OpenOptions};
use omni_agent::store::{Filter, Page, SqliteStore};
use omni_agent::{Decision, Tool, tool};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "approvals.sqlite".to_owned());
    let pay =
        tool!("send_euros", "Sends euros.", async |to: String, euros: u32| Ok(format!("{to} got {euros}")));
    let agent = Agent::builder().model(model::pick()).tool(pay.needs_approval());
    let options = OpenOptions::new(agent).durable(Durable::Approvals);
    let manager = Manager::builder(SqliteStore::open(file).await?).build();
    if let Some(approval) = manager.pending_approvals(&Filter::default(), Page::default()).await?.pop() {
        manager.decide(&approval.id, Decision::Execute, Some("ann")).await?;
        let session = manager.open(&approval.id.conversation, options).await?.session;
        let mut run = session.follow(FollowTarget::Turn(approval.id.turn)).await?;
        println!("{}", run.response().await?.text());
    } else {
        let session = manager.create(options).await?.session;
        let mut run = session.run("Please send_euros 20 to \"Ann\".").follow().await?;
        while let Some(step) = run.next().await? {
            let RunStep::Pause(pause) = step else { continue };
            println!("{} {} waits", pause.tool_use.name, pause.tool_use.input);
            break;
        }
    }
    Ok(manager.hand_over(Duration::from_secs(10)).await?)
}
