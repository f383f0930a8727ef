//! Logins with OAuth 2.1. The authorization server belongs to the tests, and the protected server is a served manager.

mod renewals;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::{OriginalUri, Query, State},
    http::{HeaderMap, HeaderValue, StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use omni_agent::{
    ToolContext,
    access::{Permissions, Principal, StartRequest},
    async_trait,
    manager::{Manager, OpenOptions},
    mcp::{McpClient, McpError, McpLogin, TokenStore, Tokens},
    message::ToolUse,
    serve::mcp::{ServerInfo, router},
    store::{Labels, MemoryStore},
    testing::Gate,
    tool::{ToolLimits, ToolSet},
    web::{Access, Challenge, Web},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    serving::host::agent,
    support::{free_port, set, soon, until},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The address of the application.
pub const CALLBACK: &str = "http://127.0.0.1:1/callback";

/// The behaviour of the authorization server, and what it has seen.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "servers deviate in several ways at once")]
struct Behaviour {
    url: String,
    /// The proof keys by code.
    codes: BTreeMap<String, String>,
    valid: BTreeSet<String>,
    /// The kinds of grants that were used.
    grants: Vec<String>,
    registered: usize,
    issued: usize,
    /// The time in seconds for which a token is valid.
    life: Option<u64>,
    /// Whether the answers lack what clients can know, and have numbers as texts.
    is_terse: bool,
    refuses_registration: bool,
    /// The secret of each registration, which each request for tokens must contain.
    secret: Option<&'static str>,
    /// Whether tokens are answered with the status 201.
    creates: bool,
    /// Whether requests with a resource are refused.
    refuses_resource: bool,
    /// The permissions that the requests for tokens have named.
    scopes: Vec<Option<String>>,
    /// The paths to which requests for tokens were sent.
    asked: Vec<String>,
    /// Whether the address for tokens has moved from `/token` to `/new/token`.
    has_moved: bool,
    /// How often metadata was requested.
    discoveries: usize,
    /// The code with which renewals are refused. If it is empty, the answer has no code.
    refuses_renewal: Option<&'static str>,
    /// Whether a renewal leaves the earlier tokens valid.
    keeps_tokens: bool,
    /// The issuer that the metadata names. `None` names the server.
    issuer: Option<String>,
    /// The address of the login that the metadata names. `None` names an address of the server.
    authorization: Option<&'static str>,
    /// The methods for proof keys that the metadata names.
    methods: Option<Value>,
    /// If set, a request whose token is invalid is answered when two of them have arrived.
    pair: Option<Arc<tokio::sync::Barrier>>,
    /// If set, new tokens are valid at once, but are sent only when this gate opens.
    issuing: Option<Gate>,
}

type Shared = Arc<Mutex<Behaviour>>;

async fn register(State(server): State<Shared>, Json(request): Json<Value>) -> Response {
    let mut server = server.lock().unwrap();
    if server.refuses_registration {
        let error = json!({ "error": "invalid_client_metadata", "error_description": "not today" });
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    server.registered += 1;
    assert_eq!(request["redirect_uris"], json!([CALLBACK]));
    if server.is_terse {
        let registered =
            json!({ "client_id": format!("client-{}", server.registered), "redirect_uris": null });
        return (StatusCode::CREATED, Json(registered)).into_response();
    }
    let method = if server.secret.is_some() { "client_secret_post" } else { "none" };
    let registered = json!({
        "client_secret": server.secret, "client_id": format!("client-{}", server.registered), "client_name": request["client_name"], "redirect_uris": [CALLBACK],
        "token_endpoint_auth_method": method,
    });
    (StatusCode::CREATED, Json(registered)).into_response()
}

async fn token(State(server): State<Shared>, OriginalUri(uri): OriginalUri, body: String) -> Response {
    // A form has the syntax of a query.
    let query = format!("/?{body}").parse().unwrap();
    let Query(form) = Query::<BTreeMap<String, String>>::try_from_uri(&query).unwrap();
    let (answer, issuing) = {
        let mut server = server.lock().unwrap();
        server.asked.push(uri.path().to_owned());
        if server.has_moved && uri.path() == "/token" {
            return StatusCode::NOT_FOUND.into_response();
        }
        (granted(&mut server, &form), server.issuing.clone())
    };
    if let Some(issuing) = issuing {
        issuing.pass().await;
    }
    answer
}

fn granted(server: &mut Behaviour, form: &BTreeMap<String, String>) -> Response {
    let refused = |error: &str| (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response();
    server.grants.push(form["grant_type"].clone());
    // The resource is required in each request for a token (RFC 8707, section 2).
    let resources = ["mcp", "echo", "closed"].map(|path| format!("{}/{path}", server.url));
    let is_right = form
        .get("resource")
        .map_or(server.refuses_resource, |resource| resources.contains(resource) && !server.refuses_resource);
    server.scopes.push(form.get("scope").cloned());
    if !is_right {
        return refused("invalid_target");
    }
    if server.secret.is_some_and(|secret| form.get("client_secret").is_none_or(|sent| sent != secret)) {
        let missing = json!({ "message": "Required parameter: client_secret" });
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(missing)).into_response();
    }
    match &*form["grant_type"] {
        "authorization_code" => {
            let Some(challenge) = server.codes.remove(&form["code"]) else { return refused("invalid_grant") };
            if URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"])) != challenge {
                return refused("invalid_grant");
            }
        }
        _ if form["refresh_token"] != format!("renew-{}", server.issued) => return refused("invalid_grant"),
        _ => {
            if server.refuses_renewal == Some("") {
                let refusal =
                    json!({ "error_code": "refresh_token_not_found", "msg": "Invalid Refresh Token" });
                return (StatusCode::BAD_REQUEST, Json(refusal)).into_response();
            }
            if let Some(code) = server.refuses_renewal {
                return refused(code);
            }
        }
    }
    server.issued += 1;
    let number = server.issued;
    if !server.keeps_tokens {
        server.valid.clear();
    }
    server.valid.insert(format!("secret-{number}"));
    let mut tokens = json!({
        "access_token": format!("secret-{number}"), "refresh_token": format!("renew-{number}"),
        "token_type": "Bearer",
    });
    if let Some(life) = server.life {
        tokens["expires_in"] = life.into();
    }
    if server.is_terse {
        tokens["expires_in"] = "3600".into();
        tokens.as_object_mut().unwrap().remove("token_type");
    }
    (if server.creates { StatusCode::CREATED } else { StatusCode::OK }, Json(tokens)).into_response()
}

async fn metadata(State(server): State<Shared>, OriginalUri(uri): OriginalUri) -> Json<Value> {
    let mut server = server.lock().unwrap();
    server.discoveries += 1;
    let url = server.url.clone();
    // Only the metadata of the refused request names the second authorization server.
    let other = format!("{url}/other");
    let issuer = if uri.path().ends_with("/other") { &other } else { &url };
    Json(if uri.path().contains("protected-resource") {
        json!({ "resource": format!("{url}/mcp"), "authorization_servers": [url] })
    } else if uri.path() == "/elsewhere" {
        json!({ "resource": format!("{url}/closed"), "authorization_servers": [other], "scopes_supported": ["all"] })
    } else {
        json!({
            "issuer": server.issuer.as_ref().unwrap_or(issuer),
            "authorization_endpoint": server.authorization.map_or(format!("{issuer}/authorize"), str::to_owned),
            "token_endpoint": format!("{issuer}{}/token", if server.has_moved { "/new" } else { "" }), "registration_endpoint": format!("{url}/register"),
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": server.methods.clone().unwrap_or(json!(["S256"])),
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "authorization_response_iss_parameter_supported": true,
            "token_endpoint_auth_methods_supported": server.secret.map(|_| ["client_secret_post"]),
        })
    })
}

/// Like [`echo`], for valid tokens. The server names its metadata and the permissions only when it refuses a message.
async fn closed(State(server): State<Shared>, headers: HeaderMap, request: Json<Value>) -> Response {
    let url = server.lock().unwrap().url.clone();
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if token.is_some_and(|token| server.lock().unwrap().valid.contains(token)) {
        return echo(headers, request).await;
    }
    let challenge = format!(r#"Bearer resource_metadata="{url}/elsewhere", scope="read write""#);
    (StatusCode::UNAUTHORIZED, [("www-authenticate", challenge)]).into_response()
}

/// A server whose only answer to a request for its tools contains the token of the request.
async fn echo(headers: HeaderMap, Json(request): Json<Value>) -> Response {
    let id = &request["id"];
    let answer = match request["method"].as_str() {
        Some("initialize") => {
            let server = json!({ "name": "echo", "version": "1" });
            let result = json!({
                "protocolVersion": "2025-06-18", "capabilities": { "tools": {} }, "serverInfo": server,
            });
            json!({ "jsonrpc": "2.0", "id": id, "result": result })
        }
        Some("tools/list") => {
            let text = format!("not for {}", headers["authorization"].to_str().unwrap());
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32603, "message": text } })
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(answer).into_response()
}

/// Accepts the tokens that are valid at the authorization server.
struct Bearers(Shared);

impl Permissions for Bearers {}

#[async_trait]
impl Access for Bearers {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        let (challenge, pair) = {
            let server = self.0.lock().unwrap();
            let token = request.headers.get("authorization").and_then(|value| value.to_str().ok());
            let token = token.and_then(|token| token.strip_prefix("Bearer "));
            if token.is_some_and(|token| server.valid.contains(token)) {
                return Ok(Principal::new("ann", Labels::new([("user", "ann")]).unwrap()).unwrap());
            }
            let metadata = format!("{}/.well-known/oauth-protected-resource/mcp", server.url);
            (format!("Bearer resource_metadata=\"{metadata}\""), server.pair.clone())
        };
        if let Some(pair) = pair {
            pair.wait().await;
        }
        Err(Challenge::new(HeaderValue::try_from(challenge).unwrap()))
    }
}

/// Starts both servers at one address.
async fn start(behaviour: Behaviour) -> Shared {
    let address = format!("127.0.0.1:{}", free_port());
    let server = Arc::new(Mutex::new(Behaviour { url: format!("http://{address}"), ..behaviour }));
    let agents = |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(OpenOptions::new(agent()));
    let manager = Manager::builder(MemoryStore::new()).build();
    let web = Web::builder(manager, Bearers(Arc::clone(&server)), agents).build();
    let app = Router::new()
        .route("/register", post(register))
        .route("/token", post(token))
        .route("/other/token", post(token))
        .route("/new/token", post(token))
        .route("/.well-known/oauth-protected-resource/mcp", get(metadata))
        .route("/.well-known/oauth-authorization-server", get(metadata))
        .route("/.well-known/oauth-authorization-server/other", get(metadata))
        .route("/elsewhere", get(metadata))
        .route("/closed", post(closed).get(async || StatusCode::METHOD_NOT_ALLOWED))
        .with_state(Arc::clone(&server))
        .route("/echo", post(echo).get(async || StatusCode::METHOD_NOT_ALLOWED))
        .nest("/mcp", router(&web, ServerInfo::new("served", "1.0.0")));
    let listener = tokio::net::TcpListener::bind(&address).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    server
}

fn url(server: &Shared) -> String {
    format!("{}/mcp", server.lock().unwrap().url)
}

/// A token store in memory. If `is_broken` is set, its operations fail.
#[derive(Default)]
pub struct Kept {
    tokens: Mutex<Option<Tokens>>,
    is_broken: Mutex<bool>,
    renewing: Arc<tokio::sync::Mutex<()>>,
    /// The number of renewals that have begun.
    begun: AtomicUsize,
}

impl Kept {
    fn check(&self) -> Result<(), BoxError> {
        if *self.is_broken.lock().unwrap() { Err("the disk is full".into()) } else { Ok(()) }
    }
}

#[async_trait]
impl TokenStore for Kept {
    async fn load(&self) -> Result<Option<Tokens>, BoxError> {
        self.check()?;
        Ok(self.tokens.lock().unwrap().clone())
    }

    async fn save(&self, tokens: Tokens) -> Result<(), BoxError> {
        self.check()?;
        *self.tokens.lock().unwrap() = Some(tokens);
        Ok(())
    }

    async fn clear(&self) -> Result<(), BoxError> {
        *self.tokens.lock().unwrap() = None;
        Ok(())
    }

    async fn lock(&self) -> Result<Box<dyn Send>, BoxError> {
        self.check()?;
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Arc::clone(&self.renewing).lock_owned().await))
    }
}

async fn begin(server: &Shared, store: &Arc<Kept>) -> Result<McpLogin, McpError> {
    soon(McpLogin::builder(url(server), CALLBACK).client_name("Tests").begin(Arc::clone(store))).await
}

/// Acts as the user's browser: agrees at the authorization server, and returns the address of the application to which
/// the browser is sent.
fn agree(server: &Shared, login: &McpLogin) -> String {
    agree_at(server, login, "", "/mcp")
}

/// Agrees at the authorization server with this path, for the resource with this path.
fn agree_at(server: &Shared, login: &McpLogin, issuer: &str, resource: &str) -> String {
    let (address, query) = login.url().split_once('?').unwrap();
    let issuer = format!("{}{issuer}", server.lock().unwrap().url);
    assert_eq!(address, format!("{issuer}/authorize"));
    let query: BTreeMap<_, _> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    assert_eq!(query["code_challenge_method"], "S256");
    assert!(query["client_id"].starts_with("client-"), "{query:?}");
    let mut server = server.lock().unwrap();
    let escaped = |text: &str| text.replace(':', "%3A").replace('/', "%2F");
    let resource = (!server.refuses_resource).then(|| escaped(&format!("{}{resource}", server.url)));
    assert_eq!(query.get("resource").copied(), resource.as_deref());
    let code = format!("code-{}", query["state"]);
    server.codes.insert(code.clone(), query["code_challenge"].to_owned());
    format!("{CALLBACK}?code={code}&state={}&iss={}", query["state"], escaped(&issuer))
}

/// Logs in, and returns the store with the tokens.
async fn logged_in(server: &Shared) -> Arc<Kept> {
    let store = Arc::<Kept>::default();
    let login = begin(server, &store).await.unwrap();
    soon(login.finish(&agree(server, &login))).await.unwrap();
    store
}

async fn connect(server: &Shared, store: &Arc<Kept>) -> Result<McpClient, McpError> {
    soon(McpClient::http(url(server)).name("it").tokens(Arc::clone(store)).connect()).await
}

async fn ask(client: &McpClient) -> String {
    ask_with(&set(client).await).await
}

async fn ask_with(tools: &ToolSet) -> String {
    let tool_use = ToolUse::new("call-1", "it__ask", json!({ "prompt": "Hello" }));
    soon(tools.run(&tool_use, ToolContext::detached("call-1"), &ToolLimits::default())).await.text()
}

fn grants(server: &Shared) -> Vec<String> {
    server.lock().unwrap().grants.clone()
}

#[tokio::test]
async fn login_registers_with_a_proof_key_and_its_tokens_connect() {
    let server = start(Behaviour::default()).await;
    let store = logged_in(&server).await;
    assert_eq!(server.lock().unwrap().registered, 1);
    let client = connect(&server, &store).await.unwrap();
    assert!(ask(&client).await.starts_with("You said: Hello"));
    assert_eq!(grants(&server), ["authorization_code"]);
    // The tokens survive as JSON, and are not shown.
    let tokens = store.tokens.lock().unwrap().clone().unwrap();
    let text = serde_json::to_string(&tokens).unwrap();
    assert!(text.contains("secret-1") && !format!("{tokens:?}{client:?}").contains("secret"));
    *store.tokens.lock().unwrap() = Some(serde_json::from_str(&text).unwrap());
    assert!(ask(&connect(&server, &store).await.unwrap()).await.starts_with("You said: Hello"));
}

#[tokio::test]
async fn token_that_has_expired_is_renewed_and_saved() {
    let server = start(Behaviour { life: Some(0), ..Behaviour::default() }).await;
    let store = logged_in(&server).await;
    server.lock().unwrap().life = Some(3600);
    let client = connect(&server, &store).await.unwrap();
    assert!(ask(&client).await.starts_with("You said: Hello"));
    assert_eq!(grants(&server), ["authorization_code", "refresh_token"]);
    let saved = serde_json::to_string(&store.tokens.lock().unwrap().clone().unwrap()).unwrap();
    assert!(saved.contains("secret-2") && saved.contains("renew-2"), "{saved}");
}

#[tokio::test]
async fn login_with_terse_answers_of_the_authorization_server_works() {
    let server = start(Behaviour { is_terse: true, ..Behaviour::default() }).await;
    let store = logged_in(&server).await;
    let client = connect(&server, &store).await.unwrap();
    assert!(ask(&client).await.starts_with("You said: Hello"));
    server.lock().unwrap().valid.clear();
    assert!(ask(&client).await.starts_with("You said: Hello"));
    assert_eq!(grants(&server), ["authorization_code", "refresh_token"]);
    // The tokens expire in an hour, as the text says.
    let saved = serde_json::to_value(store.tokens.lock().unwrap().clone().unwrap()).unwrap().to_string();
    assert!(saved.contains("3600"), "{saved}");
}

#[tokio::test]
async fn token_that_the_server_rejects_is_renewed_once() {
    let server = start(Behaviour::default()).await;
    let store = logged_in(&server).await;
    let client = connect(&server, &store).await.unwrap();
    server.lock().unwrap().valid.clear();
    assert!(ask(&client).await.starts_with("You said: Hello"));
    assert_eq!(grants(&server), ["authorization_code", "refresh_token"]);
}

#[tokio::test]
async fn clients_that_renew_the_same_tokens_at_the_same_time_take_turns() {
    let behaviour = Behaviour { life: Some(0), keeps_tokens: true, ..Behaviour::default() };
    let server = start(behaviour).await;
    let store = logged_in(&server).await;
    server.lock().unwrap().life = Some(3600);
    let renewing = Arc::clone(&store.renewing).lock_owned().await;
    let both_wait = async {
        until("both clients find the tokens expired", || store.begun.load(Ordering::Relaxed) == 2).await;
        drop(renewing);
    };
    let (one, two, ()) = tokio::join!(connect(&server, &store), connect(&server, &store), both_wait);
    for client in [one.unwrap(), two.unwrap()] {
        assert!(ask(&client).await.starts_with("You said: Hello"));
    }
    // The client that waited uses the renewed tokens.
    assert_eq!(grants(&server), ["authorization_code", "refresh_token"]);
}

/// Ends the validity of all tokens. The next two requests are then refused together.
fn revoke(server: &Shared) {
    let mut server = server.lock().unwrap();
    server.valid.clear();
    server.pair = Some(Arc::new(tokio::sync::Barrier::new(2)));
}

#[tokio::test]
async fn calls_of_one_client_whose_tokens_were_revoked_renew_them_once() {
    let server = start(Behaviour::default()).await;
    let store = logged_in(&server).await;
    let client = connect(&server, &store).await.unwrap();
    let tools = set(&client).await;
    revoke(&server);
    let (one, two) = tokio::join!(ask_with(&tools), ask_with(&tools));
    assert!(one.starts_with("You said: Hello") && two.starts_with("You said: Hello"), "{one} {two}");
    assert_eq!(grants(&server), ["authorization_code", "refresh_token"]);
}

/// The server accepts a renewal token once, so the new tokens must be saved even if nobody waits for them.
#[tokio::test]
async fn renewal_of_a_client_that_is_closed_is_saved() {
    let server = start(Behaviour::default()).await;
    let store = logged_in(&server).await;
    let client = connect(&server, &store).await.unwrap();
    let tools = set(&client).await;
    let issuing = Gate::new();
    {
        let mut server = server.lock().unwrap();
        server.valid.clear();
        server.issuing = Some(issuing.clone());
    }
    let call = tokio::spawn(async move { ask_with(&tools).await });
    soon(issuing.reached()).await;
    call.abort();
    let closed = tokio::spawn(async move { client.close().await });
    soon(closed).await.unwrap();
    issuing.open();
    let is_saved =
        || format!("{:?}", serde_json::to_string(&*store.tokens.lock().unwrap())).contains("renew-2");
    until("the new tokens are saved", is_saved).await;
    server.lock().unwrap().issuing = None;
    assert!(ask(&connect(&server, &store).await.unwrap()).await.starts_with("You said: Hello"));
}

#[tokio::test]
async fn calls_of_two_clients_whose_tokens_were_revoked_renew_them_once() {
    let server = start(Behaviour::default()).await;
    let store = logged_in(&server).await;
    let clients = [connect(&server, &store).await.unwrap(), connect(&server, &store).await.unwrap()];
    let tools = [set(&clients[0]).await, set(&clients[1]).await];
    revoke(&server);
    let (one, two) = tokio::join!(ask_with(&tools[0]), ask_with(&tools[1]));
    assert!(one.starts_with("You said: Hello") && two.starts_with("You said: Hello"), "{one} {two}");
    assert_eq!(grants(&server), ["authorization_code", "refresh_token"]);
}

#[tokio::test]
async fn client_of_an_earlier_login_uses_the_tokens_of_the_next_login() {
    let server = start(Behaviour::default()).await;
    let store = logged_in(&server).await;
    let client = connect(&server, &store).await.unwrap();
    let login = begin(&server, &store).await.unwrap();
    soon(login.finish(&agree(&server, &login))).await.unwrap();
    assert!(ask(&client).await.starts_with("You said: Hello"));
    // The connection can't renew the tokens of the second login, which registered another client id.
    server.lock().unwrap().valid.clear();
    let error = soon(client.tools()).await.unwrap_err();
    assert!(matches!(error, McpError::Unauthorized { .. }), "{error:?}");
    assert!(ask(&client).await.starts_with("You said: Hello"));
    assert_eq!(grants(&server), ["authorization_code", "authorization_code", "refresh_token"]);
}

#[tokio::test]
async fn tokens_do_not_appear_in_the_errors_of_a_client() {
    let server = start(Behaviour { life: Some(0), ..Behaviour::default() }).await;
    let store = logged_in(&server).await;
    server.lock().unwrap().life = Some(3600);
    let echo = McpClient::http(url(&server).replace("/mcp", "/echo")).version("2025-06-18");
    let client = soon(echo.tokens(Arc::clone(&store)).connect()).await.unwrap();
    // The token was renewed after the client was made.
    let error = soon(client.tools()).await.unwrap_err().to_string();
    assert!(error.contains("not for Bearer [secret]") && !error.contains("secret-"), "{error}");
}

#[tokio::test]
async fn login_shows_no_secrets_of_the_servers_url() {
    for url in ["http://user:hunter2-a@127.0.0.1:9/mcp?key=hunter2-b#hunter2-c", "hunter2 is no URL"] {
        let login = McpLogin::builder(url, CALLBACK);
        assert!(!format!("{login:?}").contains("hunter2"), "{login:?}");
        let error = soon(login.begin(Arc::<Kept>::default())).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error} {error:?}");
    }
    let server = start(Behaviour::default()).await;
    let url = format!("{}?key=hunter2-hunter2", url(&server));
    let login = soon(McpLogin::builder(url, CALLBACK).begin(Arc::<Kept>::default())).await.unwrap();
    let error = soon(login.finish(CALLBACK)).await.unwrap_err();
    let shown = format!("{login:?} {error} {error:?}");
    assert!(shown.contains("127.0.0.1") && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn renewal_that_is_refused_asks_for_a_login() {
    for code in ["invalid_grant", "invalid_request", "unauthorized_client", "invalid_client", ""] {
        for life in [None, Some(0)] {
            let behaviour = Behaviour { refuses_renewal: Some(code), life, ..Behaviour::default() };
            let server = start(behaviour).await;
            let store = logged_in(&server).await;
            server.lock().unwrap().valid.clear();
            let error = connect(&server, &store).await.unwrap_err();
            assert!(matches!(error, McpError::Unauthorized { .. }), "{code} {life:?}: {error:?}");
            assert!(error.to_string().contains("log in with `McpLogin`"), "{error}");
        }
    }
}

#[tokio::test]
async fn renewal_that_fails_for_a_while_asks_for_no_login() {
    let code = Some("temporarily_unavailable");
    let server = start(Behaviour { refuses_renewal: code, ..Behaviour::default() }).await;
    let store = logged_in(&server).await;
    server.lock().unwrap().valid.clear();
    let error = connect(&server, &store).await.unwrap_err();
    assert!(matches!(error, McpError::Unreachable { .. }), "{error:?}");
    server.lock().unwrap().refuses_renewal = None;
    assert!(ask(&connect(&server, &store).await.unwrap()).await.starts_with("You said: Hello"));
}

#[tokio::test]
async fn client_without_tokens_is_told_to_log_in() {
    let server = start(Behaviour::default()).await;
    for error in [
        connect(&server, &Arc::default()).await.unwrap_err(),
        soon(McpClient::http(url(&server)).name("it").connect()).await.unwrap_err(),
    ] {
        assert!(matches!(error, McpError::Unauthorized { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn address_of_another_login_is_refused_and_the_own_one_still_works() {
    let server = start(Behaviour::default()).await;
    let store = Arc::<Kept>::default();
    let login = begin(&server, &store).await.unwrap();
    let other = begin(&server, &store).await.unwrap();
    let error = soon(login.finish(&agree(&server, &other))).await.unwrap_err();
    assert!(error.to_string().contains("the address belongs to another login"), "{error}");
    assert!(grants(&server).is_empty() && store.tokens.lock().unwrap().is_none());
    let own = agree(&server, &login);
    soon(login.finish(&own)).await.unwrap();
    // The code and the state can be used only once.
    let again = soon(login.finish(&own)).await.unwrap_err();
    assert!(again.to_string().contains("already finished"), "{again}");
}

#[tokio::test]
async fn login_at_a_server_whose_metadata_names_another_issuer_is_refused() {
    let issuer = Some("http://127.0.0.1:2".to_owned());
    let server = start(Behaviour { issuer, ..Behaviour::default() }).await;
    let error = begin(&server, &Arc::default()).await.unwrap_err();
    assert!(matches!(error, McpError::LoginFailed { .. }), "{error:?}");
    assert_eq!(server.lock().unwrap().registered, 0);
}

#[tokio::test]
async fn address_with_the_issuer_of_another_server_is_refused() {
    let server = start(Behaviour::default()).await;
    let store = Arc::<Kept>::default();
    let login = begin(&server, &store).await.unwrap();
    let own = agree(&server, &login);
    let (own_code, issuer) = own.split_once("&iss=").unwrap();
    for other in [own_code.to_owned(), format!("{own_code}&iss={issuer}5")] {
        let error = soon(login.finish(&other)).await.unwrap_err();
        assert!(matches!(error, McpError::LoginFailed { .. }), "{error:?}");
    }
    assert!(grants(&server).is_empty() && store.tokens.lock().unwrap().is_none());
    soon(login.finish(&own)).await.unwrap();
}

#[tokio::test]
async fn code_of_another_login_fails_without_its_proof_key() {
    let server = start(Behaviour::default()).await;
    let store = Arc::<Kept>::default();
    let login = begin(&server, &store).await.unwrap();
    let other = begin(&server, &store).await.unwrap();
    let (own, stolen) = (agree(&server, &login), agree(&server, &other));
    let state_and_issuer = own.split_once("state=").unwrap().1;
    let code = stolen.split_once("code=").unwrap().1.split_once('&').unwrap().0;
    let error =
        soon(login.finish(&format!("{CALLBACK}?code={code}&state={state_and_issuer}"))).await.unwrap_err();
    assert!(matches!(error, McpError::LoginFailed { .. }), "{error:?}");
    assert!(store.tokens.lock().unwrap().is_none());
}

#[tokio::test]
async fn login_that_the_user_refuses_fails_with_the_reason() {
    let server = start(Behaviour::default()).await;
    let login = begin(&server, &Arc::default()).await.unwrap();
    let refused = format!("{CALLBACK}?error=access_denied&error_description=No+thanks");
    // Without the state of the login, somebody else may have made the address.
    for state in ["", "&state=x"] {
        let error = soon(login.finish(&format!("{refused}{state}"))).await.unwrap_err();
        assert!(error.to_string().contains("the address belongs to another login"), "{error}");
    }
    let state = login.url().split('&').find(|pair| pair.starts_with("state=")).unwrap();
    let error = soon(login.finish(&format!("{refused}&{state}"))).await.unwrap_err();
    assert!(error.to_string().contains("it was refused with `access_denied`: No thanks"), "{error}");
    for nonsense in ["", "nonsense", CALLBACK] {
        assert!(
            matches!(soon(login.finish(nonsense)).await, Err(McpError::LoginFailed { .. })),
            "{nonsense}"
        );
    }
}

#[tokio::test]
async fn login_at_an_address_that_is_not_a_web_page_is_refused() {
    for address in
        ["javascript:alert(1)//", "file:///etc/passwd", "data:text/html,hi", "ftp://example.com/", "HTTPS"]
    {
        let server = start(Behaviour { authorization: Some(address), ..Behaviour::default() }).await;
        let error = begin(&server, &Arc::default()).await.unwrap_err();
        assert!(matches!(error, McpError::LoginFailed { .. }), "{error:?}");
        assert!(error.to_string().contains("is not an `https` URL"), "{error}");
        assert_eq!(server.lock().unwrap().registered, 0);
    }
    let server =
        start(Behaviour { authorization: Some("https://example.com/login"), ..Behaviour::default() }).await;
    let login = begin(&server, &Arc::default()).await.unwrap();
    assert!(login.url().starts_with("https://example.com/login?"), "{}", login.url());
}

#[tokio::test]
async fn login_without_proof_keys_is_refused() {
    for methods in [Value::Null, json!([]), json!(["plain"])] {
        let server = start(Behaviour { methods: Some(methods), ..Behaviour::default() }).await;
        let error = begin(&server, &Arc::default()).await.unwrap_err();
        assert!(error.to_string().contains("does not support proof keys"), "{error}");
        assert_eq!(server.lock().unwrap().registered, 0);
    }
}

/// Microsoft Entra needs the three settings.
#[tokio::test]
async fn login_at_a_server_that_deviates_works_with_the_settings_for_it() {
    for named in [true, false] {
        let behaviour = Behaviour {
            methods: Some(Value::Null),
            refuses_resource: true,
            life: Some(0),
            ..Behaviour::default()
        };
        let server = start(behaviour).await;
        let store = Arc::<Kept>::default();
        let login = McpLogin::builder(url(&server), CALLBACK).scopes(["read", "write"]);
        let login = login.assume_proof_keys().without_resource();
        let login = if named { login.renew_with_scopes() } else { login };
        let login = soon(login.begin(Arc::clone(&store))).await.unwrap();
        soon(login.finish(&agree(&server, &login))).await.unwrap();
        server.lock().unwrap().life = Some(3600);
        assert!(ask(&connect(&server, &store).await.unwrap()).await.starts_with("You said: Hello"));
        let renewed = named.then(|| "read write".to_owned());
        assert_eq!(server.lock().unwrap().scopes, [None, renewed]);
    }
    let behaviour = Behaviour { methods: Some(json!(["plain"])), ..Behaviour::default() };
    let login = McpLogin::builder(url(&start(behaviour).await), CALLBACK).assume_proof_keys();
    let error = soon(login.begin(Arc::<Kept>::default())).await.unwrap_err();
    assert!(error.to_string().contains("does not support proof keys"), "{error}");
}

#[tokio::test]
async fn login_uses_the_metadata_and_the_scope_of_the_refused_request() {
    let server = start(Behaviour::default()).await;
    let closed = url(&server).replace("/mcp", "/closed");
    let error = soon(McpClient::http(&closed).connect()).await.unwrap_err();
    let McpError::Unauthorized { challenge: Some(challenge), .. } = error else { panic!("{error:?}") };
    let login = McpLogin::builder(&closed, CALLBACK).challenge(challenge);
    let login = soon(login.begin(Arc::<Kept>::default())).await.unwrap();
    let resource = closed.replace(':', "%3A").replace('/', "%2F");
    assert!(login.url().contains(&format!("resource={resource}")), "{}", login.url());
    assert!(login.url().contains("scope=read+write"), "{}", login.url());
}

#[tokio::test]
async fn renewal_sends_the_secret_of_the_registration() {
    let behaviour = Behaviour { secret: Some("hunter2-hunter2"), life: Some(0), ..Behaviour::default() };
    let server = start(behaviour).await;
    let store = logged_in(&server).await;
    server.lock().unwrap().life = Some(3600);
    let client = connect(&server, &store).await.unwrap();
    assert!(ask(&client).await.starts_with("You said: Hello"));
    assert_eq!(grants(&server), ["authorization_code", "refresh_token"]);
    assert!(!format!("{:?}", store.tokens.lock().unwrap()).contains("hunter2"));
}

#[tokio::test]
async fn renewals_that_are_answered_with_another_status_of_success_are_saved() {
    let server = start(Behaviour { creates: true, ..Behaviour::default() }).await;
    let store = logged_in(&server).await;
    let client = connect(&server, &store).await.unwrap();
    for _ in 0..2 {
        server.lock().unwrap().valid.clear();
        assert!(ask(&client).await.starts_with("You said: Hello"));
    }
    assert_eq!(grants(&server), ["authorization_code", "refresh_token", "refresh_token"]);
}

#[tokio::test]
async fn registration_that_is_refused_fails_with_the_reason() {
    let server = start(Behaviour { refuses_registration: true, ..Behaviour::default() }).await;
    let error = begin(&server, &Arc::default()).await.unwrap_err();
    assert!(error.to_string().contains("registration failed"), "{error}");
}

#[tokio::test]
async fn token_store_that_fails_fails_the_login_and_the_connection_with_its_reason() {
    let server = start(Behaviour::default()).await;
    let store = Arc::<Kept>::default();
    let login = begin(&server, &store).await.unwrap();
    let redirect = agree(&server, &login);
    *store.is_broken.lock().unwrap() = true;
    let error = soon(login.finish(&redirect)).await.unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
    let error = connect(&server, &store).await.unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
}
