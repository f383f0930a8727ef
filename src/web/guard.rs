//! Checks the host and the origin of each request before access control, and adds the headers of every response.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{Problem, Web, proxy::ProxyRequestAttempt};

/// The methods and headers that a page of another origin may use.
const CORS: [(HeaderName, &str); 3] = [
    (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
    (
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        "authorization, content-type, last-event-id, mcp-method, mcp-name, mcp-protocol-version, mcp-session-id, \
         user-agent, x-omni-conversation",
    ),
    (header::ACCESS_CONTROL_MAX_AGE, "600"),
];

/// The headers that a page of another origin may read.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("location, mcp-session-id, retry-after, www-authenticate");

/// Adds the checks to a router that is not one of [`Web`]'s own, such as the router of the MCP server.
#[cfg(feature = "mcp-server")]
pub(crate) fn guarded(router: axum::Router, web: &Web) -> axum::Router {
    router.layer(axum::middleware::from_fn_with_state(web.clone(), guard))
}

pub(super) async fn guard(State(web): State<Web>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let proxied = ProxyRequestAttempt::take(&web, &mut parts.headers);
    let origin = match check(&web, &parts) {
        Ok(origin) => origin,
        Err(problem) => return secured(problem.into_response(), None),
    };
    let is_preflight =
        parts.method == Method::OPTIONS && parts.headers.contains_key("access-control-request-method");
    let response = if is_preflight && origin.is_some() {
        let mut response = StatusCode::NO_CONTENT.into_response();
        for (name, value) in CORS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    } else {
        if let Some(proxied) = proxied {
            parts.extensions.insert(proxied);
        }
        ProxyRequestAttempt::finish(proxied, next.run(Request::from_parts(parts, body)).await)
    };
    let mut response = secured(response, origin);
    if !web.0.origins.is_empty() {
        response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// Adds the headers of every response. `origin` is the origin of the request, if it is one of the allowed origins.
fn secured(mut response: Response, origin: Option<HeaderValue>) -> Response {
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin {
        // Each page without an origin of its own has the origin `null`, so none of them may send cookies.
        if origin != "null" {
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    response
}

/// Checks the host and the origin of a request. Returns the origin if it is one of the allowed origins.
fn check(web: &Web, parts: &Parts) -> Result<Option<HeaderValue>, Problem> {
    let host = host(parts);
    if let Some(hosts) = &web.0.hosts
        && !host.as_ref().is_some_and(|host| hosts.contains(host))
    {
        let problem =
            Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong-host", "The host is not served here.");
        return Err(problem);
    }
    let cross_origin =
        || Problem::new(StatusCode::FORBIDDEN, "cross-origin", "Requests of other sites are not accepted.");
    if let Some(origin) = parts.headers.get(header::ORIGIN) {
        let text = origin.to_str().map_err(|_| cross_origin())?;
        if web.0.origins.contains(text) {
            return Ok(Some(origin.clone()));
        }
        let own = text.split_once("://").map(|(_, rest)| rest.to_ascii_lowercase());
        if own.is_none() || own != host {
            return Err(cross_origin());
        }
    }
    match text(&parts.headers, "sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(None),
        Some(_) => Err(cross_origin()),
    }
}

/// Returns the host of a request in lower case, with its port.
fn host(parts: &Parts) -> Option<String> {
    let host = text(&parts.headers, "host")
        .or_else(|| parts.uri.authority().map(axum::http::uri::Authority::as_str));
    host.map(str::to_ascii_lowercase)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
