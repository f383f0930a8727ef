//! A conversation that survives its process. It has two turns, is stopped, and is continued by its id.
//!
//! ```sh
//! cargo run --example session
//! cargo run --example session -- --store conversations   # then look at the files in the folder
//! ```
//!
//! A session is an agent with an id, a tree of messages and a store. The session saves each turn in the background.
//! Only `flush` and `stop` wait for the disk.
//!
//! The store is a folder, so that you can look at its files. For an application on one machine, use `SqliteStore`
//! (feature `sqlite`). It can replace `FileSystemStore` below without other changes.
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use omni_agent::{
    agent::Agent,
    session::Session,
    store::{FileSystemStore, Listing, Store},
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

    printer.line("\n1. A new conversation with a unique id.");
    let agent = Agent::builder().model(picked.model.clone()).options(picked.options).system("Be brief.");
    let session = Session::builder(Arc::clone(&store)).agent(agent).title("Mountains").create().await?;
    let id = session.id().clone();
    printer.note(&format!("[{id}]"));
    talk(&session, today, &mut printer).await?;
    // Interrupts an active run and waits for unsaved turns. Turns that are not saved by the deadline are reported as an
    // error.
    session.stop(Duration::from_secs(5)).await?;
    printer.note("[stopped; everything is saved]");

    printer.line("\n2. The store's list, which reads no whole conversation.");
    for conversation in store.list(&Listing::default()).await? {
        let title = conversation.title.as_deref().unwrap_or("untitled");
        printer.line(&format!("{}  {title}  ({})", conversation.id, ago(conversation.updated)));
    }

    printer.line("\n3. Continued by its id.");
    // The system prompt and the options come from the store. The model also comes from the store if the registry knows
    // its name. The model is given here too, because no registry knows a model at a custom address. Tools and callbacks
    // are never stored, so an agent that has them needs them again here.
    let agent = Agent::builder().model(picked.model).registry(support::models());
    let session = Session::builder(store).agent(agent).open(id).await?;
    let state = session.state().await?;
    printer.note(&format!(
        "[{} messages; model {}; system prompt {:?}]",
        state.history().len(),
        state.config().model,
        state.config().settings.system.as_deref().unwrap_or_default()
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
