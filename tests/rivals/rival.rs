//! What each process does: opens conversations, says something in them, and tells what is safe.

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
    agent::Agent,
    manager::{Manager, ManagerError, OpenOptions, Titles},
    session::SessionError,
    store::{ConversationId, Owner, StoreError},
    subscription::EndReason,
    testing::{ScriptedProvider, Step},
};

use crate::{arena::conversations, place::Place};

/// What a rival is told by its environment.
const NAME: &str = "OMNI_RIVAL";
const PLACE: &str = "OMNI_RIVAL_PLACE";

/// What it says at most before it lets another have the conversation.
const PROMPTS: u64 = 4;

/// How long a conversation may take to answer before the rival gives up on it.
const PATIENCE: Duration = Duration::from_mins(1);

/// Starts a process under this name.
pub(crate) fn spawn(name: &str, place: &Place) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "rival::lives", "--nocapture", "--test-threads=1"]);
    command.env(NAME, name).env(PLACE, place.address());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn tell(what: &str) {
    let mut out = stdout().lock();
    // Whoever listened may be gone.
    let _ = writeln!(out, "{what}").and_then(|()| out.flush());
}

/// A rival's part; in the run of all tests there is nothing to do.
#[tokio::test]
async fn lives() {
    let (Ok(name), Ok(place)) = (env::var(NAME), env::var(PLACE)) else {
        return;
    };
    // Whoever runs the fight ends it by closing the input, also when it dies itself.
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
            Err(ManagerError::OpenElsewhere { owner, .. }) => {
                assert_ne!(owner.name, name, "it is not elsewhere");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) if is_of_others(&error) => tell(&format!("failed {id} {error}")),
            Err(error) => tell(&format!("broken {id} {error:?}")),
        }
        opened += 1;
    }
    // What could not be saved was told; nothing hangs.
    let _ = manager.shutdown(Duration::ZERO, PATIENCE).await;
}

/// Whether another rival can have brought this about: it came first, or stands still with what is needed in its hands.
fn is_of_others(error: &ManagerError) -> bool {
    match error {
        ManagerError::Store(error) | ManagerError::Session(SessionError::Store(error)) => {
            matches!(error, StoreError::Busy { .. } | StoreError::Unreachable { .. })
        }
        ManagerError::Session(SessionError::Ended(reason)) => *reason == EndReason::LostPlace,
        _ => false,
    }
}

/// Opens a conversation, speaks, and tells of what is saved.
async fn visit(manager: &Manager, id: &ConversationId, name: &str, number: u64) -> Result<(), ManagerError> {
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
