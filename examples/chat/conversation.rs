//! Opens the conversation, and closes it. Reports messages that could not be saved.

use std::{
    error::Error,
    fmt::Write as _,
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentBuilder, Config},
    manager::Manager,
    session::Session,
    store::{ConversationId, FileSystemStore, Labels, MemoryStore, Page, Store},
    tree::NodeId,
};

use super::{tool::run_command, trace::TRACE};
use crate::support::{self, Flag, Folder, Picked, STORE, ago, dim, first_words, total_line};

const SESSION: Flag =
    Flag { name: "--session", value: "ID", help: "continue this stored conversation, or create it" };

#[cfg(feature = "mcp")]
const MCP: Flag =
    Flag { name: "--mcp", value: "COMMAND", help: "use the tools of this MCP server; may be repeated" };

#[cfg(feature = "mcp")]
pub const FLAGS: &[Flag] = &[SESSION, STORE, TRACE, MCP];
#[cfg(not(feature = "mcp"))]
pub const FLAGS: &[Flag] = &[SESSION, STORE, TRACE];

/// A conversation and its folder.
pub struct Conversation {
    pub session: Session,
    store: Arc<dyn Store>,
    /// The folder, unless it is temporary.
    folder: Option<Folder>,
}

impl Conversation {
    /// Returns the parts that the commands about all conversations use.
    pub fn shelf(&self) -> Shelf {
        let folder = self.folder.as_ref().map(|folder| folder.path().display().to_string());
        Shelf { session: self.session.clone(), store: Arc::clone(&self.store), folder }
    }
}

/// Opens the conversation that the command line names. If it does not exist, creates it. Without a name, creates a new
/// conversation.
pub async fn open(picked: Picked) -> Result<Conversation, Box<dyn Error>> {
    #[cfg(feature = "mcp")]
    let commands: Vec<String> = picked.values(&MCP).map(str::to_owned).collect();
    let (id, place) = (picked.value(&SESSION), picked.value(&STORE));
    let folder = match (id, place) {
        (None, None) => None,
        _ => Some(Folder::given_or_of_the_user(place)?),
    };
    // Without a folder, the conversation is kept in memory. All commands still work, but nothing is stored.
    let store: Arc<dyn Store> = match &folder {
        Some(folder) => Arc::new(FileSystemStore::open(folder.path()).await?),
        None => Arc::new(MemoryStore::new()),
    };
    let builder = || Session::builder(Arc::clone(&store));
    let session = match id.map(ConversationId::new).transpose()? {
        None => builder().agent(fresh(&picked)).create().await?,
        Some(id) => match builder().agent(common(&picked)).open(id.clone()).await {
            Ok(session) => {
                if picked.is_named {
                    // The stored model is kept, unless the command line names another model.
                    session
                        .configure(move |config| {
                            (config.model, config.settings.options) = (picked.model, picked.options);
                            Ok(())
                        })
                        .await?;
                }
                session
            }
            Err(error) if error.is_not_found() => {
                match builder().agent(fresh(&picked)).create_with_id(id.clone()).await {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
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
    #[cfg(feature = "mcp")]
    {
        let mut servers = Vec::new();
        for command in commands {
            let name = use_server(&session, &command, &servers).await?;
            servers.push(name);
        }
    }
    Ok(Conversation { session, store, folder })
}

/// Starts an MCP server, and adds its tools to the session. Each use of them needs an approval. Returns the server's
/// name, which differs from the names of `others`.
#[cfg(feature = "mcp")]
async fn use_server(session: &Session, command: &str, others: &[String]) -> Result<String, Box<dyn Error>> {
    let mut words = command.split_whitespace();
    let program = words.next().ok_or("`--mcp` needs a command")?;
    let stem = std::path::Path::new(program).file_stem().unwrap_or_default().to_string_lossy();
    let stem: String =
        stem.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect();
    let mut names = std::iter::once(stem.clone()).chain((2..).map(|number| format!("{stem}{number}")));
    let name = names.find(|name| !others.contains(name)).expect("there are more names than servers");
    let client = omni_agent::mcp::McpClient::stdio(program).args(words).name(&name).approve_all();
    let client = client.connect().await?;
    let found = client.tools().await?;
    let names = found.tools.iter().map(|tool| {
        // This hint comes from the server and may be wrong, so every use needs an approval nevertheless.
        let reads = found.hints.get(tool.name()).is_some_and(|hints| hints.read_only == Some(true));
        format!("{}{}", tool.name(), if reads { " (only reads)" } else { "" })
    });
    let names: Vec<String> = names.collect();
    show(&format!("[{}: {}]", client.name(), names.join(", ")));
    for tool in &found.skipped {
        show(&format!("[{}: {} can't be used: {}]", client.name(), tool.name, tool.reason));
    }
    let tools = found.tools;
    session
        .configure(move |config| {
            config.tools = std::mem::take(&mut config.tools).extended(tools)?;
            Ok(())
        })
        .await?;
    client.follow(session);
    Ok(name)
}

/// Returns an agent builder with the parts of an agent that are not stored with a conversation.
fn common(picked: &Picked) -> AgentBuilder {
    Agent::builder().model(picked.model.clone()).registry(support::models()).tool(run_command()).max_steps(20)
}

/// Returns an agent builder that also has the parts that are stored. It is only for new conversations, because in a
/// stored conversation these parts would replace the stored ones.
fn fresh(picked: &Picked) -> AgentBuilder {
    common(picked)
        .options(picked.options.clone())
        .system("You are a helpful assistant in a terminal. Be brief.")
}

/// Shows a remark. Ignores a closed output, so that the conversation is still saved.
pub fn show(text: &str) {
    let _ = writeln!(io::stdout(), "{}", dim(text));
}

/// The stored conversations and the one of the chat.
#[derive(Clone)]
pub struct Shelf {
    session: Session,
    store: Arc<dyn Store>,
    folder: Option<String>,
}

impl Shelf {
    /// Returns a list of the stored conversations.
    pub async fn list(self) -> Result<String, omni_agent::Error> {
        let mut text = String::new();
        // Saving runs in the background, so the last turn may not be stored yet.
        if let Err(error) = self.session.flush(Duration::from_secs(1)).await {
            let _ = writeln!(text, "{error}");
        }
        let listed = self.store.list(&Page::first(20).into()).await?;
        for found in &listed {
            let here = if found.id == *self.session.id() { '>' } else { ' ' };
            let title = found.damage.as_deref().or(found.title.as_deref()).unwrap_or("untitled");
            let _ = writeln!(text, "{here} {}  {title}  ({})", found.id, ago(found.updated));
        }
        if listed.is_empty() {
            text.push_str("[no stored conversations yet]");
        }
        Ok(text)
    }

    /// Copies the messages up to the one with this number, or up to the end, into a new conversation. Returns how to
    /// continue there.
    pub async fn fork(self, number: String) -> Result<String, Box<dyn Error + Send + Sync>> {
        let folder = self.folder.ok_or("This conversation is not stored; name it with --session ID.")?;
        let node = match number.as_str() {
            "" => self.session.tree().await?.head().ok_or("There is no message yet.")?,
            number => number.parse().ok().and_then(NodeId::new).ok_or("Missing number: see /tree.")?,
        };
        // The manager copies what is stored, and saving runs in the background.
        self.session.flush(Duration::from_secs(5)).await?;
        let manager = Manager::builder(self.store).build();
        let id = manager.fork(self.session.id(), node, Labels::default()).await?;
        Ok(format!("[copied; to continue there: --session {id} --store {folder}]"))
    }
}

/// Switches the model of the conversation. Without a name, returns the name of the current model.
pub async fn set_model(session: Session, name: String) -> Result<String, Box<dyn Error + Send + Sync>> {
    if name.is_empty() {
        let model = session.state().await?.config().model.to_string();
        return Ok(format!("[{model}; change it with /model PROVIDER:ID]"));
    }
    let model = support::model_named(&name).map_err(|error| error.to_string())?;
    if let Some(variable) = support::missing_key(&model) {
        return Err(format!("{variable} is not set, and {model} needs its key").into());
    }
    let known = if model.info().is_some() { "" } else { "; the catalogue does not know it" };
    let chosen = format!("[the model is now {model}{known}]");
    let edit = |config: &mut Config| {
        config.model = model;
        Ok(())
    };
    session.configure(edit).await?;
    Ok(chosen)
}

/// Ends the session. Shows the messages that could not be saved, and how to open the conversation again.
pub async fn close(conversation: Conversation) -> Result<(), Box<dyn Error>> {
    let Conversation { session, folder, .. } = conversation;
    // Interrupts an active run and saves unsaved turns within this time.
    let stopped = session.stop(Duration::from_secs(5)).await;
    // The session may have ended earlier, for example because another process has taken over the conversation.
    let end = session.ended().await;
    let last = end.snapshot.ok_or(end.reason.clone())?;
    for node in last.unsaved.iter().filter_map(|id| last.tree.node(*id)) {
        show(&format!("not saved: {}: {}", node.message().role, first_words(&node.message().text(), 10_000)));
    }
    if let Some(total) = total_line(&last.used) {
        show(&total);
    }
    let id = session.id();
    // A prompt that failed leaves no message, but it is stored too.
    let is_untouched = last.tree.is_empty() && last.title.is_none() && last.agent.last_run.is_none();
    match folder {
        // An untouched conversation was never stored.
        Some(_) if is_untouched => {}
        Some(folder) => {
            let folder = folder.path().display();
            show(&format!("[stored in {folder}; to continue: --session {id} --store {folder}]"));
        }
        None => show("[not stored; to store a conversation, name it: --session ID]"),
    }
    stopped?;
    if last.unsaved.is_empty() { Ok(()) } else { Err(end.reason.into()) }
}
