//! A rival process. It opens conversations, sends prompts, and prints which turns are saved.

use std::{
    env,
    io::{Write as _, stdin, stdout},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use omni_agent::{
    Error, ErrorKind,
    agent::Agent,
    manager::{Manager, OpenOptions, Titles},
    store::{ConversationId, Owner, StoreError},
    testing::{ScriptedProvider, Step},
};

use crate::{arena::conversations, place::Place};

/// The environment variables that contain the name and the store of a rival.
const NAME: &str = "OMNI_RIVAL";
const PLACE: &str = "OMNI_RIVAL_PLACE";

/// The maximum number of prompts that a rival sends before it closes a conversation.
const PROMPTS: u64 = 4;

/// How long a rival waits for the answer of a conversation before it gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// Starts a rival with this name.
pub(crate) fn spawn(name: &str, place: &Place) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "rival::rival_process", "--nocapture", "--test-threads=1"]);
    command.env(NAME, name).env(PLACE, place.address());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn tell(what: &str) {
    let mut out = stdout().lock();
    // The process that reads the output may already have ended.
    let _ = writeln!(out, "{what}").and_then(|()| out.flush());
}

/// The main loop of a rival. In a normal test run, this function does nothing.
#[tokio::test]
async fn rival_process() {
    let (Ok(name), Ok(place)) = (env::var(NAME), env::var(PLACE)) else {
        return;
    };
    // The parent process ends the rival by closing the rival's input. The input is also closed if the parent process
    // dies.
    let over = Arc::new(AtomicBool::new(false));
    thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let _ = stdin().read_line(&mut String::new());
            over.store(true, Ordering::Relaxed);
        }
    });
    let store = Place::at(&place).store().await;
    let owner = Owner::new(&name).at(format!("process {}", std::process::id()));
    let manager = Manager::builder(store).owner(owner).titles(Titles::Off).build();
    tell("");
    let mut opened = 0;
    while !over.load(Ordering::Relaxed) {
        let id = conversations()[rand::random_range(0..conversations().len())].clone();
        match visit(&manager, &id, &name, opened).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::OpenElsewhere => {
                assert_ne!(error.owner().unwrap().name, name, "the conversation is open here, not elsewhere");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) if is_of_others(&error) => tell(&format!("failed {id} {error}")),
            Err(error) => tell(&format!("broken {id} {error:?}")),
        }
        opened += 1;
    }
    // Unsaved turns have already been reported, so the only requirement is that the shutdown does not hang.
    let _ = manager.shutdown(PATIENCE).await;
}

/// Returns whether another rival may have caused the error, either because that rival was faster or because it is
/// frozen and holds a lock.
fn is_of_others(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::StoreUnreachable => !matches!(error.store_error(), Some(StoreError::Full { .. })),
        ErrorKind::Ended => error.member("reason") == Some(&"lost_place".into()),
        // Another rival has taken the conversation over, before the end of a run was stored.
        ErrorKind::Unsaved => error.member("nodes") == Some(&0.into()),
        _ => false,
    }
}

/// Opens a conversation, sends prompts, and prints which turns were saved.
async fn visit(manager: &Manager, id: &ConversationId, name: &str, number: u64) -> Result<(), Error> {
    let parrot = ScriptedProvider::from_fn(|request| {
        Step::text(format!("re: {}", request.history.last().map(|said| said.text()).unwrap_or_default()))
    });
    let start = OpenOptions::new(Agent::builder().model(parrot.model()));
    let session = manager.open(id, start).await?.session;
    tell(&format!("open {id}"));
    for line in 0..rand::random_range(1..=PROMPTS) {
        let text = format!("{name}/{number} {line}");
        let said = async {
            session.ask(text.as_str()).await?;
            session.flush(PATIENCE).await
        };
        match said.await {
            Ok(()) => tell(&format!("safe {id} {text}")),
            Err(error) => {
                tell(&format!("lost {id} {error}"));
                break;
            }
        }
    }
    manager.close(id).await
}
