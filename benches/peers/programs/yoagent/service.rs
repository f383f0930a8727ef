//! A web service with a login, in which each user sees only the own conversations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{FromRequestParts, Path, State};
use axum::http::{StatusCode, request::Parts};
use axum::routing::{get, post};
use axum::{Json, Router, body::Body};
use futures_util::channel::mpsc;
use yoagent::provider::ModelConfig;
use yoagent::{Agent, AgentEvent, AgentMessage, StreamDelta};

#[derive(Default)]
struct Data {
    tokens: HashMap<String, String>,
    conversations: HashMap<(String, String), Vec<AgentMessage>>,
}

#[derive(Clone, Default)]
struct App(Arc<Mutex<Data>>);

impl App {
    fn data(&self) -> MutexGuard<'_, Data> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn messages(&self, user: User, id: String) -> Result<Vec<AgentMessage>, StatusCode> {
        self.data().conversations.get(&(user.0, id)).cloned().ok_or(StatusCode::NOT_FOUND)
    }
}

#[derive(Clone)]
struct User(String);

impl FromRequestParts<App> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, StatusCode> {
        let header = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
        app.data().tokens.get(token).cloned().map(Self).ok_or(StatusCode::UNAUTHORIZED)
    }
}

#[derive(serde::Deserialize)]
struct Credentials {
    user: String,
    password: String,
}

async fn login(State(app): State<App>, Json(given): Json<Credentials>) -> Result<String, StatusCode> {
    if !matches!((&*given.user, &*given.password), ("ann", "fjord") | ("ben", "ocean")) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let token = format!("{:032x}", rand::random::<u128>());
    app.data().tokens.insert(token.clone(), given.user);
    Ok(token)
}

async fn create(State(app): State<App>, user: User) -> String {
    let id = format!("{:032x}", rand::random::<u128>());
    app.data().conversations.insert((user.0, id.clone()), Vec::new());
    id
}

async fn list(State(app): State<App>, user: User) -> Json<Vec<String>> {
    let data = app.data();
    Json(data.conversations.keys().filter(|(owner, _)| *owner == user.0).map(|(_, id)| id.clone()).collect())
}

async fn read(
    State(app): State<App>,
    user: User,
    Path(id): Path<String>,
) -> Result<Json<Vec<AgentMessage>>, StatusCode> {
    app.messages(user, id).map(Json)
}

async fn prompt(
    State(app): State<App>,
    user: User,
    Path(id): Path<String>,
    text: String,
) -> Result<Body, StatusCode> {
    let history = app.messages(user.clone(), id.clone())?;
    let (pieces, body) = mpsc::unbounded();
    tokio::spawn(async move {
        let mut agent = Agent::from_config(ModelConfig::claude_sonnet_5()).with_messages(history);
        let mut events = agent.prompt(text).await;
        while let Some(event) = events.recv().await {
            if let AgentEvent::MessageUpdate { delta: StreamDelta::Text { delta }, .. } = event {
                let _ = pieces.unbounded_send(Ok::<_, std::io::Error>(delta));
            }
        }
        agent.finish().await;
        app.data().conversations.insert((user.0, id), agent.messages().to_vec());
    });
    Ok(Body::from_stream(body))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let router = Router::new()
        .route("/login", post(login))
        .route("/conversations", post(create).get(list))
        .route("/conversations/{id}", get(read).post(prompt))
        .with_state(App::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    Ok(axum::serve(listener, router).await?)
}
