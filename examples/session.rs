//! A conversation that outlives its process: two turns, the end, and on from there by its id.
//!
//! ```sh
//! cargo run --example session
//! cargo run --example session -- --store conversations   # and look into the folder
//! ```
//!
//! A session is an agent with an identity, a tree of messages and a store. It saves each turn beside the
//! conversation; nothing waits for the disk but `flush` and `stop`.
//!
//! The store here is a folder, whose files can be looked at. An application on one machine is better off with `SqliteStore`
//! (feature `sqlite`), which takes the place of `FileSystemStore` below and changes nothing else.

#![allow(clippy::print_stderr, reason = "this talks to the terminal")]

#[path = "support/support.rs"]
mod support;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use omni_agent::{
    agent::Agent,
    session::Session,
    store::{FileSystemStore, Page, Store},
};
use support::{Folder, Printer, ago, explain};

#[tokio::main]
async fn main() -> ExitCode {
    match session().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn session() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model_with(
        "A conversation that is stored, stopped and loaded again by its id.",
        &[support::STORE],
    )
    .await?;
    let prompts = support::prompts(
        &picked.words,
        &["My name is Ada, and I like mountains.", "Name three of them.", "What is my name?"],
    );
    let (today, another_day) = prompts.split_at(prompts.len().min(2));
    let mut printer = Printer::default();
    let folder = Folder::given_or_temporary(picked.value(&support::STORE))?;
    let store: Arc<dyn Store> = Arc::new(FileSystemStore::open(folder.path()).await?);

    printer.line("\n1. A new conversation. It gets an id that nobody else has.");
    let agent = Agent::builder().model(picked.model.clone()).options(picked.options).system("Be brief.");
    let session = Session::builder(Arc::clone(&store)).agent(agent).title("Mountains").create().await?;
    let id = session.id().clone();
    printer.note(&format!("[{id}]"));
    talk(&session, today, &mut printer).await?;
    // Cancels what goes on and waits for what is unsaved. What is not safe by the deadline would be the error.
    session.stop(Duration::from_secs(5)).await?;
    printer.note("[stopped; everything is saved]");

    printer.line("\n2. What the store has, without reading a whole conversation.");
    for conversation in store.list(Page::default()).await? {
        let title = conversation.title.as_deref().unwrap_or("untitled");
        printer.line(&format!("{}  {title}  ({})", conversation.id, ago(conversation.updated)));
    }

    printer.line("\n3. On from there. All it takes is the id.");
    // System prompt and options come from the store, and so does the model if the registry knows its name. A model
    // at an address of its own is one that no registry knows: so it is given too. Tools and callbacks are never
    // stored; an agent that has some gets them again here.
    let agent = Agent::builder().model(picked.model).registry(support::models());
    let session = Session::builder(store).agent(agent).open(id).await?;
    let state = session.state().await?;
    printer.note(&format!(
        "[{} messages; model {}; system prompt {:?}]",
        state.history().len(),
        state.config().model,
        state.config().system.as_deref().unwrap_or_default()
    ));
    talk(&session, another_day, &mut printer).await?;
    printer.line(&format!("\n{}", session.tree().await?));
    session.stop(Duration::from_secs(5)).await?;
    Ok(())
}

async fn talk(session: &Session, prompts: &[String], printer: &mut Printer) -> Result<(), Box<dyn Error>> {
    for prompt in prompts {
        printer.line(&format!("> {prompt}"));
        let response = session.ask(prompt.as_str()).await?;
        printer.line(&response.text());
    }
    Ok(())
}
