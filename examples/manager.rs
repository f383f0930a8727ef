//! Several conversations at once, within limits, with a table of their activity.
//!
//! ```sh
//! cargo run --example manager
//! cargo run --example manager -- --store conversations   # then look at the files in the folder
//! printf 'Why is the sky blue?\nWhat is a prime?\n' | cargo run --example manager
//! ```
//!
//! At most four conversations are open, and at most two of them are busy. The other conversations are `waiting` to be
//! opened or `queued` for a request. If a conversation waits to be opened, an idle conversation without controllers is
//! closed. The closed conversation stays in the store.
//!
//! Each conversation has the label `user`. At the end, the conversations and the usage of each user are listed.
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;
#[path = "manager/table.rs"]
mod table;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use omni_agent::{
    agent::{Agent, Event, Status},
    manager::{Manager, OpenOptions, OpenedSession, Shutdown},
    message::Timestamp,
    session::SessionEvent,
    store::{ConversationId, FileSystemStore, Filter, Labels},
    subscription::Update,
};
use support::{Folder, explain};
use table::Screen;

type BoxError = Box<dyn Error + Send + Sync>;

const QUESTIONS: [&str; 6] = [
    "Why is the sky blue?",
    "Name three mountains in Africa.",
    "What is a good name for a grey cat?",
    "Is a tomato a fruit?",
    "What rhymes with orange?",
    "How many legs has a spider, and why would it want so many of them?",
];

#[tokio::main]
async fn main() -> ExitCode {
    match conversations().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn conversations() -> Result<(), BoxError> {
    let picked = support::pick_model_with(
        "Several conversations at once, within limits, with a table of their activity.",
        &[support::STORE],
    )
    .await
    .map_err(|error| error.to_string())?;
    let questions = support::prompts(&picked.words, &QUESTIONS);
    let folder = Folder::given_or_temporary(picked.value(&support::STORE))?;
    let store = Arc::new(FileSystemStore::open(folder.path()).await?);
    let manager = Manager::builder(store).registry(support::models()).max_open(4).max_turns(2).build();
    let agent = || Agent::builder().model(picked.model.clone()).system("Be brief.");
    let (screen, table) = table::show(manager.subscribe());

    screen.note(&format!("1. Conversations at once: {}; at most four open, two busy.", questions.len()));
    let mut tasks = tokio::task::JoinSet::new();
    for (question, user) in questions.into_iter().zip(["ann", "ben"].into_iter().cycle()) {
        let labelled = OpenOptions::new(agent()).labels(Labels::new([("user", user)])?);
        tasks.spawn(begin(manager.clone(), labelled, question, screen.clone()));
    }
    let mut ids = Vec::new();
    while let Some(begun) = tasks.join_next().await {
        ids.push(begun??);
    }
    let id = ids.first().ok_or("there is nothing to say")?;

    screen.note("2. One conversation gets a title by hand and is closed.");
    manager.rename(id, Some("The one that was first")).await?;
    manager.close(id).await?;

    screen.note("3. It is opened again: from the store, and for a second caller while it runs.");
    let opened = manager.open(id, agent()).await?;
    let again = manager.open(id, agent()).await?;
    screen.note(&format!("   started: {}, then {}", opened.started, again.started));
    drop(again);
    say(opened, "And what did I ask you first?", &screen).await?;

    screen.note("4. Shutdown during a run. The run has a second to finish, and is then interrupted.");
    let opened = manager.open(id, agent()).await?;
    opened.session.prompt("Count from 1 to 500.").await?;
    let ended =
        manager.shutdown(Shutdown::within(Duration::from_secs(10)).with_grace(Duration::from_secs(1))).await;
    drop(screen);
    // The table's task ends with the manager's feed, so everything is shown before the list below.
    table.await?;
    match &ended {
        Ok(()) => println!("\nShut down; everything is saved:"),
        Err(error) => {
            println!("\nShut down, but {error}:");
            for (id, error) in error.sessions() {
                println!("  {id}: {}", explain(&error));
            }
            println!("The store's list:");
        }
    }
    for user in ["ann", "ben"] {
        let of_user = Filter::with(Labels::new([("user", user)])?);
        let used = manager.used(&of_user, Timestamp(0)..Timestamp::now()).await?;
        let (requests, tokens) =
            used.iter().fold((0, 0), |(all, tokens), sum| (all + sum.requests, tokens + sum.usage.total()));
        println!("  {user}: {requests} requests, {tokens} tokens");
        for listed in manager.list(of_user).await? {
            let title = listed.summary.title.as_deref().unwrap_or("untitled");
            println!("    {}  {title}", table::short(&listed.summary.id));
        }
    }
    Ok(ended?)
}

/// Asks two questions in a new conversation. Then the controller is dropped, so the manager can close the conversation
/// when another one needs its place.
async fn begin(
    manager: Manager,
    options: OpenOptions,
    question: String,
    screen: Screen,
) -> Result<ConversationId, BoxError> {
    // `create` waits while too many conversations are open.
    let opened = manager.create(options).await?;
    let id = opened.session.id().clone();
    let opened = say(opened, &question, &screen).await?;
    say(opened, "Say that in other words.", &screen).await?;
    Ok(id)
}

/// Sends a prompt and shows the response until its turn is saved.
async fn say(mut opened: OpenedSession, prompt: &str, screen: &Screen) -> Result<OpenedSession, BoxError> {
    let events = opened.subscription.as_mut().ok_or("a subscription comes with it, if none is refused")?;
    opened.session.prompt(prompt).await?;
    while let Some(update) = events.next().await {
        let numbered = match update {
            Update::Event(numbered) => numbered,
            // This reader was too slow. The snapshot contains the text that it missed.
            Update::Resync(snapshot) => {
                let missed = snapshot.agent.messages().last().map(|message| message.text());
                screen.words(opened.session.id(), &missed.unwrap_or_default());
                if snapshot.agent.status == Status::Idle {
                    break;
                }
                continue;
            }
            Update::Closed(end) => return Err(end.reason.into()),
            _ => continue,
        };
        match &*numbered.event {
            SessionEvent::Agent(event) => match &**event {
                Event::TextDelta { delta, .. } => screen.words(opened.session.id(), delta),
                Event::Error { failure, .. } => return Err(failure.clone().into()),
                _ => {}
            },
            SessionEvent::Tree(_) => break,
            _ => {}
        }
    }
    opened.session.wait_until_idle().await?;
    Ok(opened)
}
