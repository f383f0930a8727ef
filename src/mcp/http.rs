//! The HTTP transport.

use reqwest::{
    Client, Url,
    header::{HeaderName, HeaderValue},
};
use rmcp::transport::{
    StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
};

use super::{
    McpError,
    settings::{HttpTarget, Settings},
};
use crate::provider::http::shared_client;

pub(super) fn transport(
    target: &HttpTarget,
    settings: &Settings,
) -> Result<StreamableHttpClientTransport<Client>, McpError> {
    let wrong = |reason: String| McpError::Misconfigured {
        server: settings.name.clone(),
        reason: settings.secrets.removed(reason),
    };
    let url = Url::parse(&target.url).map_err(|error| wrong(format!("the URL is invalid: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("the URL must start with `http://` or `https://`".to_owned()));
    }
    let mut headers = std::collections::HashMap::new();
    for (name, value) in &target.headers {
        let parsed = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
        let Some((header, mut value)) = parsed else {
            return Err(wrong(format!("the header {name:?} has an invalid name or value")));
        };
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    let client = shared_client(&url, settings.connect_limit).map_err(|error| McpError::Unreachable {
        server: settings.name.clone(),
        reason: crate::error_chain(&error),
    })?;
    let config = StreamableHttpClientTransportConfig::with_uri(target.url.as_str()).custom_headers(headers);
    Ok(StreamableHttpClientTransport::with_client(client, config))
}
