//! The files of the page, and its security headers.

use std::{fs, io, path::Path};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use omni_agent::provider::Model;
use serde_json::json;

macro_rules! files {
    ($($path:literal = $file:literal),+ $(,)?) => { [$(($path, include_bytes!($file).as_slice())),+] };
}

const FILES: [(&str, &[u8]); 15] = files![
    "/" = "page/index.html",
    "/app.js" = "page/app.js",
    "/client.js" = "page/client.js",
    "/composer.js" = "page/composer.js",
    "/dom.js" = "page/dom.js",
    "/files.js" = "page/files.js",
    "/format.js" = "page/format.js",
    "/icon.svg" = "page/icon.svg",
    "/markdown.js" = "page/markdown.js",
    "/messages.js" = "page/messages.js",
    "/outline.js" = "page/outline.js",
    "/questions.js" = "page/questions.js",
    "/sidebar.js" = "page/sidebar.js",
    "/style.css" = "page/style.css",
    "/tools.js" = "page/tools.js",
];

const LEXER: &[u8] = include_bytes!("vendor/marked.esm.js");

/// The page loads nothing from elsewhere, and no text can become a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

/// What the libraries of a built front end need in addition.
const BUILT: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; \
                     font-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of the page.
pub fn router(models: &[Model]) -> Router {
    let models: Vec<_> = models
        .iter()
        .map(|model| {
            let context = model.info().and_then(|info| info.context_window);
            json!({ "name": model.name(), "context": context })
        })
        .collect();
    let settings = json!({ "models": models }).to_string();
    let mut router = Router::new()
        .route("/settings.json", get(async move || file("settings.json", settings, POLICY)))
        .route("/vendor/marked.esm.js", get(async || file("marked.esm.js", LEXER, POLICY)));
    for (path, content) in FILES {
        router = router.route(path, get(async move || file(path, content, POLICY)));
    }
    router
}

/// Returns the routes of a front end that a bundler has built: the files of a folder, as they are at the start.
pub fn built(folder: &Path) -> io::Result<Router> {
    let mut router = Router::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (Ok(name), true) = (entry.file_name().into_string(), entry.file_type()?.is_file()) else {
            continue;
        };
        let content = Bytes::from(fs::read(entry.path())?);
        let path = if name == "index.html" { "/".to_owned() } else { format!("/{name}") };
        router = router.route(&path, get(async move || file(&name, content, BUILT)));
    }
    Ok(router)
}

fn file(path: &str, content: impl IntoResponse, policy: &'static str) -> Response {
    let media_type = match path.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        _ => "text/html; charset=utf-8",
    };
    let mut response = content.into_response();
    let headers: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
