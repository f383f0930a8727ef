//! Where the conversation is kept: opening it, and leaving it with nothing lost unseen.

use std::{error::Error, sync::Arc, time::Duration};

use omni_agent::{
    agent::{Agent, AgentBuilder},
    session::{Session, SessionError},
    store::{ConversationId, FileSystemStore, MemoryStore, Store, StoreError},
};

use super::tool::{AskFirst, run_command};
use crate::support::{self, Flag, Folder, Picked, Printer, STORE, first_words};

const SESSION: Flag =
    Flag { name: "--session", value: "ID", help: "go on with this conversation, or begin it and keep it" };

pub const FLAGS: &[Flag] = &[SESSION, STORE];

/// A conversation and its place.
pub struct Conversation {
    pub session: Session,
    pub store: Arc<dyn Store>,
    /// The folder, if it outlives the process.
    folder: Option<Folder>,
}

impl Conversation {
    /// Whether something was said that will be gone.
    pub async fn is_lost_at_the_end(&self) -> Result<bool, SessionError> {
        Ok(self.folder.is_none() && !self.session.tree().await?.is_empty())
    }
}

/// The conversation that the command line names, which may be there or not; else a new one.
pub async fn open(picked: Picked, printer: &mut Printer) -> Result<Conversation, Box<dyn Error>> {
    let (id, place) = (picked.value(&SESSION), picked.value(&STORE));
    let folder = match (id, place) {
        (None, None) => None,
        _ => Some(Folder::given_or_of_the_user(place)?),
    };
    // Everything works in memory too. It is only not there any more afterwards.
    let store: Arc<dyn Store> = match &folder {
        Some(folder) => Arc::new(FileSystemStore::open(folder.path()).await?),
        None => Arc::new(MemoryStore::new()),
    };
    let builder = || Session::builder(Arc::clone(&store));
    let session = match id.map(ConversationId::new).transpose()? {
        None => builder().agent(fresh(&picked)).create().await?,
        Some(id) => match builder().agent(common(&picked)).open(id.clone()).await {
            Ok(session) => {
                greet(&session, picked, printer).await?;
                session
            }
            Err(SessionError::Store(StoreError::NotFound { .. })) => {
                match builder().agent(fresh(&picked)).create_with_id(id.clone()).await {
                    Err(SessionError::Store(StoreError::AlreadyExists { .. })) => {
                        return Err(
                            format!("another chat has just begun {id}; start again to join it").into()
                        );
                    }
                    created => created?,
                }
            }
            Err(error) => return Err(error.into()),
        },
    };
    Ok(Conversation { session, store, folder })
}

/// What is not stored with a conversation.
fn common(picked: &Picked) -> AgentBuilder {
    Agent::builder()
        .model(picked.model.clone())
        .registry(support::models())
        .tool(run_command())
        .callbacks(AskFirst)
        .max_steps(20)
}

/// What is: given again, it would take the place of what was stored.
fn fresh(picked: &Picked) -> AgentBuilder {
    common(picked)
        .options(picked.options.clone())
        .system("You are a helpful assistant in a terminal. Be brief.")
}

/// Says where a stored conversation goes on.
async fn greet(session: &Session, picked: Picked, printer: &mut Printer) -> Result<(), SessionError> {
    if picked.is_named {
        // The stored model wins, unless the user wants another one.
        session
            .configure(move |config| {
                (config.model, config.options) = (picked.model, picked.options);
                Ok(())
            })
            .await?;
    }
    let (tree, state) = (session.tree().await?, session.state().await?);
    let title = session.title().await?.unwrap_or_else(|| "untitled".into());
    printer.note(&format!("[{title}: {} messages, with {}]", tree.len(), state.config().model));
    show_end(session, printer).await
}

/// Shows the end of the path, for those who come from somewhere else.
pub async fn show_end(session: &Session, printer: &mut Printer) -> Result<(), SessionError> {
    let tree = session.tree().await?;
    // Results of tools have no words.
    let last: Vec<_> = tree.iter().rev().filter(|node| !node.message().text().is_empty()).take(2).collect();
    for node in last.into_iter().rev() {
        let message = node.message();
        printer.note(&format!("{} {}: {}", node.id(), message.role, first_words(&message.text(), 200)));
    }
    Ok(())
}

/// Ends the session, and says what could not be saved and how to come back.
pub async fn close(conversation: Conversation, printer: &mut Printer) -> Result<(), Box<dyn Error>> {
    let Conversation { session, folder, .. } = conversation;
    // Cancels what goes on, and saves what is unsaved, within this time.
    let stopped = session.stop(Duration::from_secs(5)).await;
    // It may also have ended before, by itself: so does one that lost its place in the store to another.
    let end = session.ended().await;
    let last = end.snapshot.ok_or(end.reason.clone())?;
    for node in last.unsaved.iter().filter_map(|id| last.tree.node(*id)) {
        printer.line(&format!("not saved: {}: {}", node.message().role, node.message().text()));
    }
    let id = session.id();
    match folder {
        // What nobody talked in was never written.
        Some(_) if last.tree.is_empty() && last.title.is_none() => {}
        Some(folder) => {
            let folder = folder.path().display();
            printer.note(&format!("[kept in {folder}; to come back: --session {id} --store {folder}]"));
        }
        None => printer.note("[not kept; to keep a conversation, give it an id: --session ID]"),
    }
    stopped?;
    if last.unsaved.is_empty() { Ok(()) } else { Err(end.reason.into()) }
}
