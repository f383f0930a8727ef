//! Builds the parts of the request that an endpoint sends: address, headers, body.

use reqwest::{
    Url,
    header::{
        ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
        TRANSFER_ENCODING,
    },
};
use serde_json::{Map, Value, json};

use super::{Endpoint, EndpointFormat};
use crate::{
    message::{Content, History, Role},
    provider::{
        Extent, ProviderError, ProviderErrorKind, Request, Secret,
        dialect::{Dialect, Encoded, Framing},
        http::origin,
    },
};

impl Endpoint {
    /// Returns the address of a request.
    pub(super) fn url(&self, dialect: &dyn Dialect, request: &Request) -> Result<Url, ProviderError> {
        let bad = |why: &str| {
            let message = format!("the base URL of {:?} {why}", self.name);
            ProviderError::new(ProviderErrorKind::InvalidRequest, message)
        };
        let base = Url::parse(self.base_url.trim()).map_err(|error| bad("is invalid").with_source(error))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(bad("must begin with http:// or https:// and name a host"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(bad("contains a user name or a password; send them in a header"));
        }
        let origin = base.origin().ascii_serialization();
        let root = base.path().trim_end_matches('/');
        let version = self.version.trim_matches('/');
        let slash = if version.is_empty() || ends_in_version(root, version) { "" } else { "/" };
        let version = if slash.is_empty() { "" } else { version };
        let path = dialect.path(request);
        let path = path.trim_start_matches('/');
        let mut url = Url::parse(&format!("{origin}{root}{slash}{version}/{path}"))
            .map_err(|error| bad("and the path don't form a valid address").with_source(error))?;
        if let Some(query) = base.query() {
            let query = match url.query() {
                Some(own) => format!("{query}&{own}"),
                None => query.to_owned(),
            };
            url.set_query(Some(&query));
        }
        Ok(url)
    }

    /// Returns the headers of a request, and the secret values among them. The headers that the request's body requires
    /// are not included.
    pub(super) fn headers(
        &self,
        format: &EndpointFormat,
        request: &Request,
    ) -> Result<(HeaderMap, Vec<(Secret, Extent)>), ProviderError> {
        let mut headers = HeaderMap::new();
        let accept = match format.dialect.framing() {
            Framing::Sse => "text/event-stream, application/json",
            Framing::NdJson => "application/x-ndjson, application/json",
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        // Without `accept-encoding`, the service would be allowed to use any compression (RFC 9110, section 12.5.3).
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.plain {
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| unfit(name))?;
            headers.insert(header_name(name)?, value);
        }
        let mut secrets = Vec::new();
        let own = self.headers.iter().map(|(name, value)| (name, value));
        for (name, value) in own.chain(request.options.headers().into_iter().flatten()) {
            let name = header_name(name)?;
            secrets.push((value.clone(), extent(&name)));
            headers.insert(name.clone(), header_value(name.as_str(), value)?);
        }
        let Some(name) = format.auth.header() else {
            return Ok((headers, secrets));
        };
        let name = header_name(name)?;
        // If the user sets the authentication header explicitly, the key is not added.
        if headers.contains_key(&name) {
            return Ok((headers, secrets));
        }
        if let Some(key) = self.keys.find(&self.name, request)? {
            let value = header_value(name.as_str(), &format.auth.value(&key)).map_err(|_| {
                let message = format!(
                    "the API key for {:?} contains characters that are not allowed in a header, such as a line end",
                    self.name
                );
                ProviderError::new(ProviderErrorKind::Auth, message)
            })?;
            secrets.push((key, Extent::Parts));
            headers.insert(name, value);
        }
        Ok((headers, secrets))
    }

    /// Returns the JSON body of a request, with warnings about options that the body can't express.
    pub(super) fn encode(&self, dialect: &dyn Dialect, request: &Request) -> Result<Encoded, ProviderError> {
        check_conversation(&request.history)?;
        let request = &*origin::for_service(request, &self.name, dialect.name());
        let mut encoded = dialect.encode(request)?;
        for hook in &self.body_hooks {
            hook(&mut encoded.body, request)?;
        }
        if let Some(extra) = request.options.extra() {
            let Encoded { body, warnings } = &mut encoded;
            let name = &self.name;
            merge(body, extra, "", &mut |member: &str| {
                warnings.push(format!("`extra` replaces `{member}`: {name} gets only the value of `extra`"));
            });
        }
        Ok(encoded)
    }
}

/// Rejects an empty prompt, because the services' errors rarely name the reason.
fn check_conversation(history: &History) -> Result<(), ProviderError> {
    match history.last() {
        Some(last) if last.role == Role::User && last.content.iter().all(is_blank) => {
            let index = history.len() - 1;
            let message = format!("message {index}: the prompt is empty; give it text or an attachment");
            Err(ProviderError::new(ProviderErrorKind::InvalidRequest, message))
        }
        _ => Ok(()),
    }
}

fn is_blank(block: &Content) -> bool {
    matches!(block, Content::Text(text) if text.text.trim().is_empty())
}

/// The only header of a wire format whose value is a list. The user's items are joined with the items that the body
/// requires.
const LIST: &str = "anthropic-beta";

/// Adds the headers that the wire format requires for this body to the other headers of the request.
pub(super) fn demand(
    headers: &mut HeaderMap,
    dialect: &dyn Dialect,
    body: &Map<String, Value>,
) -> Result<(), ProviderError> {
    for (name, value) in dialect.headers(body) {
        let key = header_name(name)?;
        let joined = match headers.get(&key) {
            None => HeaderValue::from_static(value),
            Some(own) if name == LIST && !lists(own, value) => {
                let joined = [own.as_bytes(), b",", value.as_bytes()].concat();
                let mut joined = HeaderValue::from_bytes(&joined).map_err(|_| unfit(name))?;
                joined.set_sensitive(own.is_sensitive());
                joined
            }
            Some(_) => continue,
        };
        headers.insert(key, joined);
    }
    Ok(())
}

/// Returns whether this comma-separated list contains this item.
fn lists(list: &HeaderValue, item: &str) -> bool {
    list.as_bytes().split(|byte| *byte == b',').any(|one| one.trim_ascii() == item.as_bytes())
}

/// Returns whether the last segment of `path` is `version`, or looks like a version.
fn ends_in_version(path: &str, version: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    let looks = last.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    looks || path.strip_suffix(version).is_some_and(|root| root.ends_with('/'))
}

/// Returns the header's name, if it is valid and may be set.
fn header_name(name: &str) -> Result<HeaderName, ProviderError> {
    let refused = |why| {
        let name: String = name.chars().take(64).collect();
        ProviderError::new(ProviderErrorKind::InvalidRequest, format!("header {name:?} {why}"))
    };
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused("is not a valid header name"))?;
    if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
        return Err(refused("belongs to the framing of the request and can't be set"));
    }
    Ok(name)
}

fn header_value(name: &str, value: &Secret) -> Result<HeaderValue, ProviderError> {
    let mut header = HeaderValue::from_str(value.reveal()).map_err(|_| unfit(name))?;
    // A sensitive value is kept out of the debug output of the HTTP stack and out of header compression tables.
    header.set_sensitive(true);
    Ok(header)
}

/// Returns whether every part of a header's value is replaced in errors, or only the whole value. If parts of an
/// ordinary word or URL were replaced, harmless text would be replaced too.
fn extent(name: &HeaderName) -> Extent {
    if names_credentials(name.as_str()) { Extent::Parts } else { Extent::Whole }
}

fn names_credentials(name: &str) -> bool {
    let words = ["auth", "key", "token", "secret", "cookie", "password", "credential", "signature"];
    let name = name.to_ascii_lowercase();
    words.iter().any(|word| name.contains(word))
}

/// Returns the credentials in the query of a URL.
pub(super) fn query_secrets(url: &Url) -> Vec<(Secret, Extent)> {
    let credentials = url.query_pairs().filter(|(name, _)| names_credentials(name));
    credentials.map(|(_, value)| (Secret::new(&*value), Extent::Parts)).collect()
}

/// Returns the error for a header with this name whose value can't be sent.
fn unfit(name: &str) -> ProviderError {
    let message =
        format!("the value of header {name:?} contains characters that are not allowed in a header");
    ProviderError::new(ProviderErrorKind::InvalidRequest, message)
}

/// Merges `over` into `body`: objects are merged, tools follow the tools of the body, and all other values are replaced.
/// `path` is the path of `body`. Calls `replaced` with the path of each member that had another value.
fn merge(
    body: &mut Map<String, Value>,
    over: &Map<String, Value>,
    path: &str,
    replaced: &mut dyn FnMut(&str),
) {
    for (key, value) in over {
        let place = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match (body.get_mut(key), value) {
            (Some(Value::Object(inner)), Value::Object(over)) => merge(inner, over, &place, replaced),
            (Some(Value::Array(tools)), Value::Array(more)) if place == "tools" => {
                append(tools, more, replaced);
            }
            (Some(old), value) if old == value => {}
            (Some(old), value) => {
                *old = value.clone();
                replaced(&place);
            }
            (None, value) => {
                body.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Appends tools. A tool replaces the earlier tool of the same name, and a function inside a tool replaces the earlier
/// function of the same name, because services reject two tools with one name.
fn append(tools: &mut Vec<Value>, more: &[Value], replaced: &mut dyn FnMut(&str)) {
    for tool in more {
        for name in tool[FUNCTIONS].as_array().into_iter().flatten().filter_map(tool_name) {
            for own in tools.iter_mut().filter_map(|own| own.get_mut(FUNCTIONS)?.as_array_mut()) {
                let old = own.extract_if(.., |function| tool_name(function) == Some(name));
                old.for_each(|_| replaced(&format!("tools.{name}")));
            }
        }
        tools.retain(|own| *own != json!({FUNCTIONS: []}));
        let name = tool_name(tool);
        match tools.iter_mut().find(|own| name.is_some() && tool_name(own) == name) {
            Some(own) => {
                // Without this mark, the prompt would no longer be cached up to this tool. Anthropic rejects the mark for
                // a tool that is loaded later.
                let mark = own.get_mut("cache_control").map(Value::take);
                let mark = mark.filter(|_| tool["defer_loading"] != true);
                *own = tool.clone();
                if let (Some(mark), Value::Object(own)) = (mark, own) {
                    own.entry("cache_control").or_insert(mark);
                }
                replaced(&format!("tools.{}", name.unwrap_or_default()));
            }
            None => tools.push(tool.clone()),
        }
    }
}

/// The member with the functions of a tool in Gemini's format, which has one object for several functions.
const FUNCTIONS: &str = "functionDeclarations";

/// Returns the name of a tool in the formats that have one object per tool.
fn tool_name(tool: &Value) -> Option<&str> {
    tool.get("name").or_else(|| tool.get("function")?.get("name"))?.as_str()
}
