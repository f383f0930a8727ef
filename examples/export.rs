//! Copies conversations between folders, SQLite files and PostgreSQL, and to and from JSON files.
//!
//! ```sh
//! cargo run --example export                                    # a demonstration in a temporary folder
//! cargo run --example export -- conversations backup            # copies all conversations of a folder
//! cargo run --example export -- conversations talk.json --id holiday
//! cargo run --example export -- talk.json conversations --id holiday-again
//! cargo run --features sqlite,postgres --example export -- app.sqlite postgres://ada@db.example.com/app
//! ```
//!
//! Nothing is overwritten, and existing conversations do not change. If a copy is interrupted, run the command again.

#[path = "support/pipe.rs"]
mod pipe;

use std::{env, error::Error, fs, path::Path, process::ExitCode, sync::Arc};

use omni_agent::{
    error_chain,
    message::Message,
    store::{
        ConversationId, FileSystemStore, Store, copy,
        custom::{Change, Commit, StoredState, Write},
        export_json, import_json, import_json_with_settings,
    },
    tree::Tree,
};

const HELP: &str = "Copies conversations from one place to another, without overwriting any.

usage: export FROM TO [--id ID] [--with-settings]

FROM and TO are folders, .sqlite files, postgres:// URLs, or a .json file with one conversation. `--id` names the
conversation to write to a .json file, or the id under which one is imported. An import takes messages and title;
`--with-settings` takes the model, system prompt and options too, for a file that you trust. Without arguments, the
example shows itself in a temporary folder.";

#[tokio::main]
async fn main() -> ExitCode {
    pipe::quiet_on_broken_pipe();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error_chain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut words: Vec<String> = env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return Ok(());
    }
    let id = match words.iter().position(|word| word == "--id") {
        Some(at) if at + 1 < words.len() => {
            let id = words.drain(at..at + 2).nth(1);
            id.map(ConversationId::new).transpose()?
        }
        Some(_) => return Err("--id needs an id".into()),
        None => None,
    };
    let given = words.len();
    words.retain(|word| word != "--with-settings");
    let with_settings = words.len() < given;
    match &words[..] {
        [] => show().await,
        [from, to] if is_json(from) => {
            let json = fs::read_to_string(from).map_err(|error| format!("{from} can't be read: {error}"))?;
            let store = open(to).await?;
            let id = if with_settings {
                import_json_with_settings(&*store, &json, id).await?
            } else {
                import_json(&*store, &json, id).await?
            };
            println!("imported {id}");
            Ok(())
        }
        [from, to] if is_json(to) => {
            let id = id.ok_or("which conversation? Name it with --id")?;
            let json = export_json(&*open_existing(from).await?, &id).await?;
            fs::write(to, json).map_err(|error| format!("{to} can't be written: {error}"))?;
            println!("exported {id}");
            Ok(())
        }
        [from, to] => copy_all(&*open_existing(from).await?, &*open(to).await?).await,
        _ => Err(format!("two places are needed, FROM and TO\n\n{HELP}").into()),
    }
}

fn is_json(place: &str) -> bool {
    has_ending(place, "json")
}

fn has_ending(place: &str, ending: &str) -> bool {
    Path::new(place).extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending))
}

/// Opens a store, and fails if the file or folder does not exist, because `open` would create it.
async fn open_existing(place: &str) -> Result<Arc<dyn Store>, Box<dyn Error>> {
    if !is_url(place) && !Path::new(place).exists() {
        return Err(format!("{place} does not exist").into());
    }
    open(place).await
}

fn is_url(place: &str) -> bool {
    place.starts_with("postgres://") || place.starts_with("postgresql://")
}

/// Opens the store at a location: the URL of a database, an SQLite file, or a folder.
async fn open(place: &str) -> Result<Arc<dyn Store>, Box<dyn Error>> {
    if is_url(place) {
        #[cfg(feature = "postgres")]
        return Ok(Arc::new(omni_agent::store::PostgresStore::open(place).await?));
        #[cfg(not(feature = "postgres"))]
        return Err("PostgreSQL needs the feature `postgres`: cargo run --features postgres …".into());
    }
    if ["sqlite", "db"].iter().any(|ending| has_ending(place, ending)) {
        #[cfg(feature = "sqlite")]
        return Ok(Arc::new(omni_agent::store::SqliteStore::open(place).await?));
        #[cfg(not(feature = "sqlite"))]
        return Err("SQLite needs the feature `sqlite`: cargo run --features sqlite …".into());
    }
    Ok(Arc::new(FileSystemStore::open(place).await?))
}

async fn copy_all(from: &dyn Store, to: &dyn Store) -> Result<(), Box<dyn Error>> {
    let copied = copy(from, to, |done, all| {
        // Shows the progress after every 100 conversations and at the end.
        if done % 100 == 0 || done == all {
            eprint!("\r{done} of {all}");
        }
    })
    .await;
    eprintln!();
    println!("{} copied, {} there already", copied.copied, copied.unchanged);
    for (id, error) in &copied.failed {
        println!("{id}: {error}");
    }
    match copied.stopped {
        Some(error) => Err(error.into()),
        None if copied.failed.is_empty() => Ok(()),
        None => Err(format!("{} could not be copied", copied.failed.len()).into()),
    }
}

/// Demonstrates all functions with a new conversation.
async fn show() -> Result<(), Box<dyn Error>> {
    let folder = env::temp_dir().join(format!("omni-agent-export-{}", ConversationId::generate()));
    let (from, to) = (folder.join("conversations"), folder.join("backup"));
    let (from, to) = (FileSystemStore::open(from).await?, FileSystemStore::open(to).await?);
    let id = ConversationId::new("holiday")?;
    let state = StoredState::default().with_title("Holiday");
    let version = from.write(&id, &Write::first(), &Change::create(state)).await?;
    let (mut tree, before) = (Tree::new(), Tree::new());
    tree.push(Message::user("Where shall we go?"));
    tree.push(Message::assistant("To the mountains."));
    let commit = Commit::from(tree.changes_since(&before).ok_or("the tree only grew")?);
    from.write(&id, &Write::on(version), &Change::Commit(commit)).await?;

    copy_all(&from, &to).await?;
    let json = export_json(&to, &id).await?;
    println!("{json}");
    let again = import_json(&to, &json, Some(ConversationId::new("holiday-again")?)).await?;
    println!("imported {again}");
    fs::remove_dir_all(folder)?;
    Ok(())
}
