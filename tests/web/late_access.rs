//! A principal whose access ends while its request waits: for the rest of its body, for a place among the open sessions, or
//! for an opening of the conversation.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, to_bytes},
    http::{Method, Request, request::Parts},
};
use futures_util::stream;
use omni_agent::{
    access::{Action, Permissions, Principal},
    async_trait,
    manager::{Manager, ManagerEvent, ManagerSnapshot, Titles},
    store::{ConversationId, Filter, Labels, MemoryStore},
    subscription::Update,
    testing::{Gate, Step},
    web::{Access, Challenge},
};
use serde_json::json;
use tokio::sync::oneshot;

use crate::{
    faulty::FaultyStore,
    support::{App, Users, labels, problem, prompt, request},
    table::routes,
};

/// The users of the tests, of whom Ann can lose her access.
#[derive(Clone, Default)]
struct Losing {
    is_signed_out: Arc<AtomicBool>,
    is_refused: Arc<AtomicBool>,
    /// The actions that are left to everyone, unless all are.
    left: Arc<Mutex<Option<&'static [Action]>>>,
}

impl Permissions for Losing {
    fn permits(&self, principal: &Principal, action: Action, labels: &Labels) -> bool {
        let is_refused = principal.name() == "ann" && self.is_refused.load(Ordering::Relaxed);
        let is_left = self.left.lock().unwrap().is_none_or(|left| left.contains(&action));
        Users.permits(principal, action, labels) && !is_refused && is_left
    }
}

#[async_trait]
impl Access for Losing {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        let principal = Users.principal(request).await?;
        let is_out = principal.name() == "ann" && self.is_signed_out.load(Ordering::Relaxed);
        if is_out { Err(Challenge::bearer()) } else { Ok(principal) }
    }
}

/// How Ann loses her access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The conversation goes to Ben.
    GivenAway,
    /// The session of the user ends.
    SignedOut,
    /// The application permits nothing any more.
    Refused,
}

impl Loss {
    async fn happen(self, app: &App, access: &Losing, id: &str) {
        match self {
            Self::GivenAway => {
                app.manager.set_labels(&ConversationId::new(id).unwrap(), labels("ben")).await.unwrap();
            }
            Self::SignedOut => access.is_signed_out.store(true, Ordering::Relaxed),
            Self::Refused => access.is_refused.store(true, Ordering::Relaxed),
        }
    }
}

fn manager() -> Manager {
    Manager::builder(MemoryStore::new()).titles(Titles::Off).build()
}

/// Replaces the body of a request by one that arrives when the gate is opened. The receiver hears when it is read.
async fn delayed(
    request: Request<Body>,
    gate: oneshot::Receiver<()>,
) -> (Request<Body>, oneshot::Receiver<()>) {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    let (read, is_read) = oneshot::channel();
    let body = stream::once(async move {
        read.send(()).unwrap();
        gate.await.unwrap();
        Ok::<_, Infallible>(bytes)
    });
    (Request::from_parts(parts, Body::from_stream(body)), is_read)
}

#[tokio::test(start_paused = true)]
async fn access_that_ends_while_the_body_arrives_is_missing_on_every_route() {
    let mut checked = 0;
    for route in routes() {
        for loss in [Loss::GivenAway, Loss::SignedOut, Loss::Refused] {
            if route.body("").is_none() || (loss == Loss::GivenAway && !route.is_of_a_conversation()) {
                continue;
            }
            let access = Losing::default();
            let app = App::guarded(manager(), access.clone(), [Step::text("Never.")], |web| web);
            let id = app.create("ann").await;
            let (open, gate) = oneshot::channel();
            let (request, is_read) = delayed(route.request("ann", &id), gate).await;
            let answer = async {
                is_read.await.expect("the route reads its body");
                loss.happen(&app, &access, &id).await;
                open.send(()).unwrap();
            };
            let (answer, ()) = tokio::join!(app.send(request), answer);
            let expected = match loss {
                Loss::SignedOut => (401, "unauthenticated"),
                _ if route.is_of_a_conversation() => (404, "not-found"),
                _ => (403, "forbidden"),
            };
            let (status, code) = problem(answer).await;
            assert_eq!((status, code.as_str()), expected, "{route:?} {loss:?}");
            let left = app.get("boss", &format!("/agent/conversations/{id}")).await.json();
            assert_eq!(
                (&left["title"], &left["tree"]["nodes"]),
                (&json!(null), &json!([])),
                "{route:?} {loss:?}"
            );
            assert_eq!(app.manager.list(Filter::default()).await.unwrap().len(), 1);
            assert!(app.provider.requests().is_empty(), "{route:?} {loss:?}");
            checked += 1;
        }
    }
    assert!(checked >= 14, "{checked}");
}

#[tokio::test(start_paused = true)]
async fn access_that_ends_while_a_request_waits_for_a_place_is_missing_on_every_route() {
    let mut waited = 0;
    for route in routes().into_iter().filter(crate::table::Entry::is_of_a_conversation) {
        for loss in [Loss::GivenAway, Loss::Refused] {
            let (access, busy) = (Losing::default(), Gate::new());
            let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).max_open(1).build();
            let script = [Step::new().gate(&busy).then_text(["Ben's answer."]).stop(), Step::text("Never.")];
            let app = App::guarded(manager, access.clone(), script, |web| web.models(["m"]));
            let ann = app.create("ann").await;
            let ben = app.create("ben").await;
            app.post("ben", &format!("/agent/conversations/{ben}/commands"), prompt("Wait")).await;
            busy.reached().await;
            let request = route.request("ann", &ann);
            let answer = app.send(request);
            tokio::pin!(answer);
            // Either the request waits for a place, or it needs none.
            let mut events = app.manager.subscribe();
            let early = tokio::select! {
                biased;
                early = &mut answer => Some(early),
                () = async { while !is_waiting(events.next().await.as_ref(), &ann) {} } => None,
            };
            if early.is_some() {
                continue;
            }
            loss.happen(&app, &access, &ann).await;
            busy.open();
            let (status, code) = problem(answer.await).await;
            assert_eq!((status, code.as_str()), (404, "not-found"), "{route:?} {loss:?}");
            assert_eq!(app.provider.requests().len(), 1, "{route:?} {loss:?}");
            waited += 1;
        }
    }
    assert!(waited >= 20, "{waited}");
}

#[tokio::test(start_paused = true)]
async fn access_that_ends_while_the_conversation_opens_is_missing_for_commands_without_a_session() {
    let turn = "0".repeat(32);
    let left: [(&[Action], _); 2] = [(&[], (404, "not-found")), (&[Action::Read], (403, "forbidden"))];
    for command in [
        json!("delete"),
        json!({ "type": "title", "title": "Mine" }),
        json!({ "type": "labels", "labels": { "user": "ben" } }),
        json!({ "type": "decide", "turn": turn, "decisions": [["t1", "execute"]] }),
    ] {
        for (actions, expected) in left {
            let (access, store, loaded) = (Losing::default(), FaultyStore::default(), Gate::new());
            let manager = Manager::builder(store.clone()).titles(Titles::Off).build();
            let app = App::guarded(manager, access.clone(), [], |web| web);
            let id = app.create("ann").await;
            let path = format!("/agent/conversations/{id}");
            let before = app.get("boss", &path).await.json();
            app.manager.close(&ConversationId::new(&*id).unwrap()).await.unwrap();
            store.load_slowly(&loaded);
            let opening = app.send(request(Method::GET, "boss", &path, None));
            let sent = match command.as_str() {
                Some(_) => request(Method::DELETE, "boss", &path, None),
                None => request(Method::POST, "boss", &format!("{path}/commands"), Some(command.clone())),
            };
            let answer = app.send(sent);
            tokio::pin!(opening, answer);
            tokio::select! {
                biased;
                _ = &mut opening => panic!("the conversation opens slowly"),
                () = loaded.reached() => {}
            }
            // The time is paused, so it passes only when the command waits.
            tokio::time::timeout(Duration::from_millis(1), &mut answer).await.unwrap_err();
            *access.left.lock().unwrap() = Some(actions);
            loaded.open();
            let (answer, _) = tokio::join!(answer, opening);
            let (status, code) = problem(answer).await;
            assert_eq!((status, code.as_str()), expected, "{command}");
            *access.left.lock().unwrap() = None;
            let after = app.get("boss", &path).await.json();
            assert_eq!(
                (&after["title"], &after["labels"]),
                (&before["title"], &before["labels"]),
                "{command}"
            );
        }
    }
}

fn is_waiting(update: Option<&Update<ManagerSnapshot, ManagerEvent>>, id: &str) -> bool {
    let Some(Update::Event(event)) = update else { panic!("{update:?}") };
    matches!(&*event.event, ManagerEvent::Waiting { id: waiting } if waiting.as_str() == id)
}
