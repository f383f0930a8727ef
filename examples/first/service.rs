//! A web service with a login, in which each user sees only the own conversations.
//!
//! ```sh
//! cargo run --example first_service --features web
//! token=$(curl -s localhost:8080/login --json '{"user": "ann", "password": "fjord"}')
//! curl localhost:8080/agent/conversations -H "Authorization: Bearer $token" --json '{}'
//! ```

mod model;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Json, Router, extract::State, http::StatusCode, http::request::Parts, routing::post};
use omni_agent::access::{Permissions, Principal, StartRequest};
use omni_agent::store::{Labels, MemoryStore};
use omni_agent::web::{Access, Challenge, Web};
use omni_agent::{Agent, Manager, async_trait, manager::OpenOptions};

/// The users by their tokens. Your own service keeps them in a database.
#[derive(Clone, Default)]
struct Logins(Arc<Mutex<HashMap<String, String>>>);

#[derive(serde::Deserialize)]
struct Credentials {
    user: String,
    password: String,
}

/// Returns a token. Your own service compares the hash of the password.
async fn login(State(logins): State<Logins>, Json(given): Json<Credentials>) -> Result<String, StatusCode> {
    if !matches!((&*given.user, &*given.password), ("ann", "fjord") | ("ben", "ocean")) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let token = format!("{:032x}", rand::random::<u128>());
    logins.0.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), given.user);
    Ok(token)
}

/// A conversation belongs to the user whose label it has, so users do not see those of others.
impl Permissions for Logins {}

#[async_trait]
impl Access for Logins {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        let header = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or(Challenge::bearer())?;
        let user = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(token).cloned();
        let user = user.ok_or(Challenge::bearer())?;
        let labels = Labels::new([("user", &*user)]).map_err(|_| Challenge::bearer())?;
        Principal::new(user, labels).map_err(|_| Challenge::bearer())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let logins = Logins::default();
    let agents = |_: &Principal, _: &StartRequest| {
        Ok::<_, omni_agent::Error>(OpenOptions::new(Agent::builder().model(model::pick())))
    };
    let manager = Manager::builder(MemoryStore::new()).build();
    let web = Web::builder(manager, logins.clone(), agents).build();
    let app = Router::new().route("/login", post(login)).with_state(logins).nest("/agent", web.router());
    let port = std::env::var("PORT").unwrap_or_else(|_| "8080".to_owned());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
