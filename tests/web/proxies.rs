//! Several processes behind a trusted proxy: what the proxy learns, what clients see, and nginx with the configuration of
//! the guide. Each process is a manager with its own listener, and all of them share one store with leases.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, request::Parts},
    middleware::{Next, from_fn},
};
use omni_agent::{
    access::{Action, Permissions, Principal},
    async_trait,
    manager::{Manager, Shutdown, Titles},
    store::{ConversationId, Labels, Owner, StoreError},
    subscription::EndReason,
    testing::{Gate, Step},
    web::{Access, Challenge, WebBuilder},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    faulty::{FaultyStore, Operation},
    killed_server::Response,
    leasing::LeasingStore,
    ports,
    problems::closed,
    skip::skip,
    support::{Answer, App, Users, prompt, request, run_input, submit},
};

const SECRET: &str = "a long random secret";

/// The time limit for everything that the tests wait for.
const LIMIT: Duration = Duration::from_mins(1);

fn id(text: &str) -> ConversationId {
    ConversationId::new(text).unwrap()
}

// ---- what the proxy learns ----

/// An application whose conversation is open in another process.
struct Misdirected {
    app: App,
    path: String,
}

impl Misdirected {
    /// The owner has this address.
    async fn new(address: Option<&str>, set_up: impl FnOnce(WebBuilder) -> WebBuilder) -> Self {
        let store = FaultyStore::default();
        let manager = Manager::builder(Arc::new(store.clone())).titles(Titles::Off).build();
        let app = App::over(manager, [], set_up);
        let path = format!("/agent/conversations/{}", closed(&app).await);
        let owner = address.map_or(Owner::new("two"), |address| Owner::new("two").at(address));
        store.fail(Operation::Load, StoreError::Owned { id: id("talk"), owner });
        Self { app, path }
    }

    async fn get(&self, headers: &[(&'static str, &str)]) -> Answer {
        self.app.answer(with(request(Method::GET, "ann", &self.path, None), headers)).await
    }
}

fn with(
    mut request: axum::http::Request<Body>,
    headers: &[(&'static str, &str)],
) -> axum::http::Request<Body> {
    for (name, value) in headers {
        request.headers_mut().append(*name, HeaderValue::from_str(value).unwrap());
    }
    request
}

/// Returns the status, the code, and the owner that an answer names.
fn told(answer: &Answer) -> (u16, String, Option<&str>) {
    (answer.status.as_u16(), answer.code(), answer.header("x-omni-owner"))
}

#[tokio::test(start_paused = true)]
async fn owner_is_named_to_the_proxy_alone() {
    let process = Misdirected::new(Some("10.0.3.7:8080"), |web| web.proxy_secret(SECRET)).await;
    let named = (421, "open-elsewhere".to_owned(), Some("10.0.3.7:8080"));
    let hidden = (421, "open-elsewhere".to_owned(), None);
    let (proxy, replayed) = (("x-omni-proxy", SECRET), ("x-omni-replayed", "1"));
    let answer = process.get(&[proxy]).await;
    assert_eq!(told(&answer), named);
    assert!(!answer.text.contains("10.0.3.7"), "the body is for the client: {}", answer.text);
    let longer = format!("{SECRET}.");
    for headers in [
        &[][..],
        &[("x-omni-proxy", "")],
        &[("x-omni-proxy", "a guess")],
        &[("x-omni-proxy", &longer)],
        &[("x-omni-proxy", &SECRET[1..])],
        &[proxy, proxy],
        &[("x-omni-proxy", "a guess"), proxy],
        &[proxy, ("x-omni-proxy", "a guess")],
        &[replayed],
        &[("x-omni-proxy", "a guess"), replayed],
    ] {
        let answer = process.get(headers).await;
        assert_eq!(told(&answer), hidden, "{headers:?}");
        assert!(!format!("{answer:?}").contains("10.0.3.7"), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_request_of_the_proxy_is_unreachable() {
    let process = Misdirected::new(Some("10.0.3.7:8080"), |web| web.proxy_secret(SECRET)).await;
    for replayed in [&["1"][..], &[""], &["1", "1"]] {
        let mut headers = vec![("x-omni-proxy", SECRET)];
        headers.extend(replayed.iter().map(|value| ("x-omni-replayed", *value)));
        let answer = process.get(&headers).await;
        assert_eq!(told(&answer), (503, "unreachable".to_owned(), None), "{headers:?}");
        assert_eq!(answer.header("retry-after"), Some("2"));
        assert!(!format!("{answer:?}").contains("10.0.3.7"), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn owner_is_named_to_the_proxy_on_all_routers() {
    let process = Misdirected::new(Some("10.0.3.7:8080"), |web| web.proxy_secret(SECRET)).await;
    let path = &process.path;
    let talk = path.rsplit_once('/').unwrap().1;
    let (get, post) = (Method::GET, Method::POST);
    for (method, path, body) in [
        (&get, path.clone(), None),
        (&get, format!("{path}/events"), None),
        (&post, format!("{path}/commands"), Some(prompt("Hi"))),
        (&post, "/api/chat".to_owned(), Some(submit(talk, "u1", "Hi"))),
        (&get, format!("/api/chat/{talk}/messages"), None),
        (&post, "/ag-ui".to_owned(), Some(run_input(talk, "r1", "Hi"))),
    ] {
        let request =
            || with(request(method.clone(), "ann", &path, body.clone()), &[("x-omni-proxy", SECRET)]);
        let answer = process.app.answer(request()).await;
        assert_eq!(told(&answer), (421, "open-elsewhere".to_owned(), Some("10.0.3.7:8080")), "{path}");
        let answer = process.app.answer(with(request(), &[("x-omni-replayed", "1")])).await;
        assert_eq!(told(&answer), (503, "unreachable".to_owned(), None), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn address_is_sent_unchanged_unless_a_header_cannot_contain_it() {
    for (address, sent) in [
        (Some("http://10.0.3.7:8080/base"), Some("http://10.0.3.7:8080/base")),
        (Some("unix:/run/two.sock"), Some("unix:/run/two.sock")),
        (Some("10.0.3.7:8080\r\nset-cookie: a=b"), None),
        (Some("10.0.3.7:8080\n"), None),
        (None, None),
    ] {
        let process = Misdirected::new(address, |web| web.proxy_secret(SECRET)).await;
        let answer = process.get(&[("x-omni-proxy", SECRET)]).await;
        assert_eq!(told(&answer), (421, "open-elsewhere".to_owned(), sent), "{address:?}");
        assert_eq!(answer.header("set-cookie"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn secret_is_compared_without_the_spaces_around_it_and_an_empty_secret_never_matches() {
    let process = Misdirected::new(Some("10.0.3.7:8080"), |web| web.proxy_secret("from a file\n")).await;
    let answer = process.get(&[("x-omni-proxy", "from a file")]).await;
    assert_eq!(answer.header("x-omni-owner"), Some("10.0.3.7:8080"));
    for empty in ["", " \n"] {
        let process = Misdirected::new(Some("10.0.3.7:8080"), |web| web.proxy_secret(empty)).await;
        let answer = process.get(&[("x-omni-proxy", "")]).await;
        assert_eq!(told(&answer), (421, "open-elsewhere".to_owned(), None), "{empty:?}");
    }
}

/// An access hook that keeps the headers of all requests.
#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<HeaderMap>>>);

impl Permissions for Recording {
    fn permits(&self, principal: &Principal, action: Action, labels: &Labels) -> bool {
        Users.permits(principal, action, labels)
    }
}

#[async_trait]
impl Access for Recording {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        self.0.lock().unwrap().push(request.headers.clone());
        Users.principal(request).await
    }
}

#[tokio::test(start_paused = true)]
async fn secret_reaches_no_hook_and_no_debug_output() {
    let hook = Recording::default();
    let manager = Manager::builder(Arc::new(FaultyStore::default())).titles(Titles::Off).build();
    let app = App::guarded(manager, hook.clone(), [], |web| web.proxy_secret(SECRET));
    let headers = [("x-omni-proxy", SECRET), ("x-omni-replayed", "1")];
    let created = request(Method::POST, "ann", "/agent/conversations", Some(json!({})));
    assert_eq!(app.answer(with(created, &headers)).await.status, StatusCode::CREATED);
    let seen = hook.0.lock().unwrap().clone();
    assert!(!seen.is_empty());
    for headers in seen {
        assert!(headers.contains_key("x-user") && !format!("{headers:?}").contains("x-omni"), "{headers:?}");
    }
    assert!(!format!("{:?}", app.web).contains(SECRET));
}

#[tokio::test]
async fn list_names_the_owner_only_if_it_is_revealed() {
    let store = LeasingStore::new();
    let manager = |name: &str| {
        let owner = Owner::new(name).at("10.0.3.7:8080");
        Manager::builder(store.as_dyn()).owner(owner).titles(Titles::Off).build()
    };
    let owner = App::over(manager("one"), [], |web| web);
    owner.create("ann").await;
    let hiding = App::over(manager("two"), [], |web| web.proxy_secret(SECRET));
    let revealing = App::over(manager("three"), [], WebBuilder::reveal_owner);
    let expected = json!({ "name": "one", "address": "10.0.3.7:8080" });
    for (app, expected) in [(&hiding, Value::Null), (&revealing, expected)] {
        let list = app.get("boss", "/agent/conversations").await.json();
        let item = &list["items"][0];
        assert_eq!((&item["presence"], &item["summary"]["owner"]), (&json!("elsewhere"), &expected));
    }
}

#[tokio::test(start_paused = true)]
async fn server_is_ready_until_it_drains_or_its_manager_is_shut_down() {
    let (drained, shut) = (App::new([]), App::new([]));
    assert!(drained.web.is_ready() && shut.web.is_ready());
    drained.web.drain();
    assert!(!drained.web.is_ready());
    shut.manager.shutdown(Shutdown::within(Duration::from_secs(5))).await.unwrap();
    assert!(!shut.web.is_ready());
    let handed = App::new([]);
    handed.manager.hand_over(Shutdown::within(Duration::from_secs(5))).await.unwrap();
    assert!(!handed.web.is_ready());

    let store = FaultyStore::default();
    let app = crate::problems::over(&store, []);
    store.fail(Operation::Summary, StoreError::failed("reading", std::io::Error::other("gone")));
    assert!(app.web.is_ready(), "all processes would become unready together");
}

// ---- nginx ----

/// A request as it has arrived at a process.
#[derive(Clone, Debug, PartialEq)]
struct Arrival {
    path: String,
    /// The values of `x-omni-proxy`.
    secrets: Vec<String>,
    is_replayed: bool,
}

impl Arrival {
    fn of(request: &Request) -> Self {
        let secrets = request.headers().get_all("x-omni-proxy").iter();
        Self {
            path: request.uri().path().to_owned(),
            secrets: secrets.map(|value| value.to_str().unwrap().to_owned()).collect(),
            is_replayed: request.headers().contains_key("x-omni-replayed"),
        }
    }

    /// A request that comes from the proxy.
    fn proxied(path: &str, is_replayed: bool) -> Self {
        Self { path: path.to_owned(), secrets: vec![SECRET.to_owned()], is_replayed }
    }
}

/// A process that shares the store.
struct Process {
    app: App,
    address: String,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    server: JoinHandle<()>,
}

/// Returns a listener at a port that no other listener of this program has had.
async fn listener() -> TcpListener {
    const SIZE: u16 = 100;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        assert!(number < SIZE, "no port is free");
        let port = ports::block(&ports::PROXIES, SIZE) + number;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return listener;
        }
    }
}

impl Process {
    async fn start(store: &LeasingStore, name: &str, script: impl IntoIterator<Item = Step>) -> Self {
        let listener = listener().await;
        let address = listener.local_addr().unwrap().to_string();
        // A decision that waits for the owner would never end.
        let manager = Manager::builder(store.as_dyn()).titles(Titles::Off).decide_timeout(Duration::MAX);
        let manager = manager.owner(Owner::new(name).at(&*address)).build();
        let app = App::over(manager, script, |web| web.proxy_secret(SECRET));
        let arrivals = Arc::<Mutex<Vec<Arrival>>>::default();
        let seen = Arc::clone(&arrivals);
        let record = move |request: Request, next: Next| {
            seen.lock().unwrap().push(Arrival::of(&request));
            next.run(request)
        };
        let router = app.router().layer(from_fn(record));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { app, address, arrivals, server }
    }

    /// Returns the requests that have arrived since the last call.
    fn arrived(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.arrivals.lock().unwrap())
    }

    /// Gives the conversation to an owner that never renews its lease and has the address of this process, as if this
    /// process had been restarted.
    async fn loses(&self, store: &LeasingStore, talk: &str) {
        let session = self.app.manager.get(&id(talk)).unwrap();
        store.take(&id(talk), &Owner::new("gone").at(&*self.address));
        assert_eq!(timeout(LIMIT, session.ended()).await.unwrap().reason, EndReason::LostPlace);
    }

    async fn stop(mut self) {
        self.server.abort();
        assert!((&mut self.server).await.unwrap_err().is_cancelled());
    }
}

/// A running nginx with the configuration of the guide.
struct Nginx {
    port: u16,
    folder: PathBuf,
    _process: Child,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the configuration in the guide on web services.
fn configuration() -> &'static str {
    let guide = include_str!("../../docs/web.md");
    let (_, rest) = guide.split_once("```nginx\n").unwrap();
    rest.split_once("```").unwrap().0
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the guide has no {from:?}");
    text.replace(from, to)
}

impl Nginx {
    /// Starts nginx before these two processes. If it is not installed, prints the reason and returns `None`.
    async fn start(processes: [&Process; 2]) -> Option<Self> {
        let folders = env::var_os("PATH").unwrap_or_default();
        let folders = env::split_paths(&folders).chain([PathBuf::from("/usr/sbin")]);
        let Some(program) = folders.map(|folder| folder.join("nginx")).find(|path| path.is_file()) else {
            skip("nginx is not installed (it is neither in PATH nor in /usr/sbin)");
            return None;
        };
        let folder = env::temp_dir().join(format!("omni-nginx-{}", ConversationId::generate()));
        fs::create_dir(&folder).unwrap();
        let [one, two] = processes.map(|process| process.address.as_str());
        let site = replaced(configuration(), "10.0.3.7:8080", one);
        let site = replaced(&site, "10.0.3.8:8080", two);
        let site = replaced(&site, "\"a long random secret\"", &format!("\"{SECRET}\""));
        let path = |name: &str| folder.join(name).display().to_string();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|name| format!("{name}_temp_path {};\n", path(name))).concat();
        let text = format!(
            "daemon off;\nmaster_process off;\npid {};\nerror_log stderr notice;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}{site}}}\n",
            path("pid")
        );
        // Another program can take the port before nginx does.
        let (port, process) = loop {
            let port = listener().await.local_addr().unwrap().port();
            let text = replaced(&text, "listen 80;", &format!("listen 127.0.0.1:{port};"));
            fs::write(folder.join("nginx.conf"), text).unwrap();
            match Self::spawn(&program, &folder).await {
                Ok(process) => break (port, process),
                Err(text) => assert!(text.contains("Address already in use"), "nginx did not start: {text}"),
            }
        };
        Some(Self { port, folder, _process: process })
    }

    /// Starts the program and waits until it listens. If the program ends, returns its log.
    async fn spawn(program: &Path, folder: &Path) -> Result<Child, String> {
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf")).args(["-e", "stderr"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut text = String::new();
        // It logs its version when its sockets are open.
        while !text.contains("[notice]") || !text.contains("nginx/") {
            let Some(line) = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap() else {
                return Err(text);
            };
            text += &line;
        }
        // The rest is read, so that nginx is never blocked on writing.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(process)
    }

    /// Sends a request of Ann. Each further header ends with a line break.
    async fn send(&self, method: Method, path: &str, headers: &str, body: Option<Value>) -> Response {
        Response::to(self.port, method, path, headers, body).await
    }

    /// Sends a request and returns the whole response, in which no owner is named.
    async fn answer(&self, method: Method, path: &str, headers: &str, body: Option<Value>) -> String {
        let (text, _) = self.send(method, path, headers, body).await.end().await;
        assert!(!text.to_lowercase().contains("x-omni"), "{text}");
        text
    }

    async fn get(&self, path: &str) -> String {
        self.answer(Method::GET, path, "", None).await
    }

    /// Creates a conversation of the process `owner` whose requests are sent to `other` first. Returns its id.
    async fn misrouted(&self, owner: &Process, other: &Process) -> String {
        for _ in 0..64 {
            let talk = owner.app.create("ann").await;
            let answer = self.get(&native(&talk)).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            let (own, others) = (owner.arrived(), other.arrived());
            let path = native(&talk);
            if others.is_empty() {
                assert_eq!(own, [Arrival::proxied(&path, false)]);
                continue;
            }
            assert_eq!(others, [Arrival::proxied(&path, false)]);
            assert_eq!(own, [Arrival::proxied(&path, true)]);
            return talk;
        }
        panic!("all conversations are sent to one process");
    }
}

fn native(talk: &str) -> String {
    format!("/agent/conversations/{talk}")
}

fn is_unreachable(answer: &str) -> bool {
    let lower = answer.to_lowercase();
    answer.starts_with("HTTP/1.1 503")
        && answer.contains("urn:omni-agent:unreachable")
        && lower.contains("\r\nretry-after: ")
        && lower.contains("\r\ncontent-type: application/problem+json")
}

#[tokio::test]
async fn request_at_the_wrong_process_is_repeated_at_the_owner() {
    let store = LeasingStore::new();
    let owner = Process::start(&store, "one", [Step::text("Hello!")]).await;
    let other = Process::start(&store, "two", []).await;
    let Some(nginx) = Nginx::start([&owner, &other]).await else { return };
    let talk = nginx.misrouted(&owner, &other).await;
    let commands = format!("{}/commands", native(&talk));
    // The body is larger than the memory that nginx uses for it.
    let question = "Hi. ".repeat(100_000);
    let answer = nginx.answer(Method::POST, &commands, "", Some(prompt(&question))).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"started\""), "{answer}");
    assert_eq!(other.arrived(), [Arrival::proxied(&commands, false)]);
    assert_eq!(owner.arrived(), [Arrival::proxied(&commands, true)]);
    owner.app.idle(&talk).await;
    let answer = nginx.get(&native(&talk)).await;
    assert!(answer.contains("Hello!") && answer.contains(&question), "{answer}");
    assert_eq!(owner.app.provider.requests().len(), 1);
    let deleted = nginx.answer(Method::DELETE, &native(&talk), "", None).await;
    assert!(deleted.starts_with("HTTP/1.1 204"), "{deleted}");
    let answer = nginx.get(&native(&talk)).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[tokio::test]
async fn stream_at_the_wrong_process_is_repeated_at_the_owner_and_not_buffered() {
    let store = LeasingStore::new();
    let gates = [Gate::new(), Gate::new()];
    let script =
        gates.clone().map(|gate| Step::new().then_text(["Half"]).gate(&gate).then_text(["way."]).stop());
    let owner = Process::start(&store, "one", script).await;
    let other = Process::start(&store, "two", []).await;
    let Some(nginx) = Nginx::start([&owner, &other]).await else { return };
    let talk = nginx.misrouted(&owner, &other).await;
    let mut events = nginx.send(Method::GET, &format!("{}/events", native(&talk)), "", None).await;
    events.until("\"resync\"").await;
    // The id in the body is repeated in a header, which nginx reads.
    let header = format!("x-omni-conversation: {talk}\r\n");
    let posts = [("/api/chat", submit(&talk, "u1", "Go")), ("/ag-ui", run_input(&talk, "r1", "Go on"))];
    other.arrived();
    owner.arrived();
    for ((path, body), gate) in posts.into_iter().zip(&gates) {
        let mut answer = nginx.send(Method::POST, path, &header, Some(body)).await;
        answer.until("\"Half\"").await;
        gate.open();
        let (text, is_complete) = answer.end().await;
        assert!(is_complete && text.contains("\"way.\""), "{text}");
        assert!(text.starts_with("HTTP/1.1 200") && !text.to_lowercase().contains("x-omni"), "{text}");
        assert_eq!(other.arrived(), [Arrival::proxied(path, false)]);
        assert_eq!(owner.arrived(), [Arrival::proxied(path, true)]);
        events.until("\"way.\"").await;
        owner.app.idle(&talk).await;
    }
}

#[tokio::test]
async fn headers_of_a_client_are_replaced_by_those_of_the_proxy() {
    let store = LeasingStore::new();
    let owner = Process::start(&store, "one", []).await;
    let other = Process::start(&store, "two", []).await;
    let Some(nginx) = Nginx::start([&owner, &other]).await else { return };
    let talk = nginx.misrouted(&owner, &other).await;
    let path = native(&talk);
    let forged = format!(
        "X-Omni-Proxy: a guess\r\nx-omni-proxy: {SECRET}\r\nX-OMNI-REPLAYED: 1\r\nx-omni-replayed: 1\r\n\
         x-omni-owner: {}\r\n",
        other.address
    );
    let answer = nginx.answer(Method::GET, &path, &forged, None).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(other.arrived(), [Arrival::proxied(&path, false)]);
    assert_eq!(owner.arrived(), [Arrival::proxied(&path, true)]);
    // Without the proxy, the same client learns nothing.
    let port = other.address.rsplit_once(':').unwrap().1.parse().unwrap();
    let (answer, _) = Response::to(port, Method::GET, &path, &forged, None).await.end().await;
    assert!(answer.starts_with("HTTP/1.1 421") && answer.contains("open-elsewhere"), "{answer}");
    assert!(!answer.to_lowercase().contains("x-omni") && !answer.contains(&owner.address), "{answer}");
}

#[tokio::test]
async fn owner_that_the_proxy_does_not_know_is_not_contacted() {
    let store = LeasingStore::new();
    let one = Process::start(&store, "one", []).await;
    let two = Process::start(&store, "two", []).await;
    let stranger = Process::start(&store, "stranger", []).await;
    let Some(nginx) = Nginx::start([&one, &two]).await else { return };
    let path = native(&stranger.app.create("ann").await);
    let answer = nginx.get(&path).await;
    assert!(is_unreachable(&answer), "{answer}");
    assert_eq!(stranger.arrived(), []);
    let arrived = [one.arrived(), two.arrived()].concat();
    assert_eq!(arrived, [Arrival::proxied(&path, false), Arrival::proxied(&path, true)]);
}

#[tokio::test]
async fn repeated_request_that_finds_another_owner_is_not_repeated_again() {
    let store = LeasingStore::new();
    let owner = Process::start(&store, "one", []).await;
    let other = Process::start(&store, "two", []).await;
    let Some(nginx) = Nginx::start([&owner, &other]).await else { return };
    let talk = nginx.misrouted(&owner, &other).await;
    owner.loses(&store, &talk).await;
    let path = native(&talk);
    let answer = nginx.get(&path).await;
    assert!(is_unreachable(&answer), "{answer}");
    assert_eq!(other.arrived(), [Arrival::proxied(&path, false)]);
    assert_eq!(owner.arrived(), [Arrival::proxied(&path, true)]);
    store.run_out(&id(&talk));
    let answer = nginx.get(&path).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn owner_that_has_crashed_is_unreachable_until_its_lease_ends() {
    let store = LeasingStore::new();
    let owner = Process::start(&store, "one", []).await;
    let other = Process::start(&store, "two", [Step::text("Hello!")]).await;
    let Some(nginx) = Nginx::start([&owner, &other]).await else { return };
    let talk = nginx.misrouted(&owner, &other).await;
    owner.loses(&store, &talk).await;
    owner.stop().await;
    let commands = format!("{}/commands", native(&talk));
    let answer = nginx.answer(Method::POST, &commands, "", Some(prompt("Hi"))).await;
    assert!(is_unreachable(&answer), "{answer}");
    let arrived = [Arrival::proxied(&commands, false), Arrival::proxied(&commands, true)];
    assert_eq!(other.arrived(), arrived);
    store.run_out(&id(&talk));
    let answer = nginx.answer(Method::POST, &commands, "", Some(prompt("Hi"))).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    other.app.idle(&talk).await;
    assert_eq!(other.app.provider.requests().len(), 1);
}

#[tokio::test]
async fn owner_that_breaks_off_a_request_is_not_replaced_by_another_process() {
    let store = LeasingStore::new();
    let owner = Process::start(&store, "one", []).await;
    let other = Process::start(&store, "two", []).await;
    let Some(nginx) = Nginx::start([&owner, &other]).await else { return };
    let talk = nginx.misrouted(&owner, &other).await;
    owner.loses(&store, &talk).await;
    let address = owner.address.clone();
    owner.stop().await;
    // A server that reads the beginning of each request, and then closes the connection.
    let listener = TcpListener::bind(&address).await.unwrap();
    let breaking = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut piece = [0; 16];
        tokio::io::AsyncReadExt::read(&mut connection, &mut piece).await.unwrap()
    });
    let commands = format!("{}/commands", native(&talk));
    let answer = nginx.answer(Method::POST, &commands, "", Some(prompt("Hi"))).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(timeout(LIMIT, breaking).await.unwrap().unwrap() > 0);
    assert_eq!(other.arrived(), [Arrival::proxied(&commands, false)]);
}

#[tokio::test]
async fn decision_at_the_wrong_process_is_sent_to_the_owner_at_once() {
    let store = LeasingStore::new();
    let call = Step::tool_use("call-1", "lookup", json!({ "what": "a fact" }));
    let owner = Process::start(&store, "one", [call, Step::text("Done.")]).await;
    let other = Process::start(&store, "two", []).await;
    let Some(nginx) = Nginx::start([&owner, &other]).await else { return };
    let talk = nginx.misrouted(&owner, &other).await;
    let commands = format!("{}/commands", native(&talk));
    let mut stream = owner.app.stream("ann", &format!("{}/events", native(&talk)), None).await;
    owner.app.post("ann", &commands, prompt("Look")).await;
    let frames = stream.until(|frame| frame.data["update"]["event"]["event"]["status"] == "paused").await;
    let turn = &frames.last().unwrap().data["update"]["event"]["event"]["pauses"][0]["turn"];
    // The owner has not stored the turn, so the other process does not know about the tool use.
    let decision = json!({ "type": "decide", "turn": turn, "decisions": [["call-1", "execute"]] });
    let answer = timeout(LIMIT, nginx.answer(Method::POST, &commands, "", Some(decision))).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"done\""), "{answer}");
    assert_eq!(other.arrived(), [Arrival::proxied(&commands, false)]);
    assert_eq!(owner.arrived(), [Arrival::proxied(&commands, true)]);
    owner.app.idle(&talk).await;
    let answer = nginx.get(&native(&talk)).await;
    assert!(answer.contains("Done."), "{answer}");
}
