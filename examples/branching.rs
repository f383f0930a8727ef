//! A conversation with branches: another response, an edited question, a new first message, and a switch back. Nothing
//! is overwritten.
//!
//! ```sh
//! cargo run --example branching
//! ```
//!
//! The tree is drawn after each step: `*` marks the path, which is the current conversation, and `>` marks its end.
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;

use std::{error::Error, process::ExitCode, time::Duration};

use omni_agent::{
    agent::{Agent, Event, Status},
    message::Role,
    session::{Mode, Session, SessionEvent, SessionSubscription},
    store::MemoryStore,
    subscription::Update,
    tree::Node,
};
use support::{Printer, explain};

#[tokio::main]
async fn main() -> ExitCode {
    match branching().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn branching() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model(
        "Another answer, an edited question and a switch between branches, with the tree drawn after each.",
    )
    .await?;
    let agent = Agent::builder().model(picked.model).system("Answer in one short sentence.");
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
    let events = session.subscribe(Mode::Controller).await?;
    let mut show = Show { session, events, printer: Printer::default() };

    show.printer.line("\n1. Two turns, one after the other.");
    show.session.prompt("Name three mountains.").await?;
    show.run().await?;
    show.session.prompt("Which of them is the highest?").await?;
    show.run().await?;
    show.tree().await?;
    let question = show.last(Role::User).await?;

    show.printer.line("\n2. Regenerate: another answer to the last question, on a new branch.");
    show.session.again(question.id()).start().await?;
    show.run().await?;
    show.tree().await?;

    show.printer.line("\n3. Edit: another question, on a new branch that starts at the same place.");
    show.session.run("Which of them is the lowest?").below(question.parent()).start().await?;
    show.run().await?;
    show.tree().await?;

    show.printer.line("\n4. Edit the first message: that one has nothing above it, so this is a new root.");
    show.session.run("Name three rivers.").below(None).start().await?;
    show.run().await?;
    show.tree().await?;

    show.printer.line(&format!(
        "\n5. Switch: node {} leads to the answer there that was active last.",
        question.id()
    ));
    show.session.navigate(question.id()).await?;
    show.tree().await?;

    show.printer.line("\n6. And on from there. The model sees what is on the path, and nothing else.");
    show.session.prompt("How high is it?").await?;
    show.run().await?;
    show.tree().await?;
    show.session.stop(Duration::from_secs(5)).await?;
    Ok(())
}

struct Show {
    session: Session,
    events: SessionSubscription,
    printer: Printer,
}

impl Show {
    /// Shows the events of a run until the run ends.
    async fn run(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(update) = self.events.next().await {
            let numbered = match update {
                Update::Event(numbered) => numbered,
                // This reader was too slow. If the agent is idle, the run's end is among the missed events.
                Update::Resync(snapshot) if snapshot.agent.status == Status::Idle => return Ok(()),
                Update::Closed(end) => return Err(end.reason.into()),
                _ => continue,
            };
            // The session's other events are not needed here, since `tree` returns the current tree.
            let SessionEvent::Agent(event) = &*numbered.event else { continue };
            self.printer.event(event);
            match &**event {
                Event::Turn { continues: false, .. } => return Ok(()),
                Event::Error { failure, .. } => return Err(failure.clone().into()),
                _ => {}
            }
        }
        Err("the session has ended".into())
    }

    async fn tree(&mut self) -> Result<(), Box<dyn Error>> {
        let tree = self.session.tree().await?;
        self.printer.line(&tree.to_string());
        Ok(())
    }

    /// Returns the last message of this role on the path.
    async fn last(&self, role: Role) -> Result<Node, Box<dyn Error>> {
        let tree = self.session.tree().await?;
        let node = tree.iter().rev().find(|node| node.message().role == role);
        Ok(node.cloned().ok_or("there is no such message")?)
    }
}
