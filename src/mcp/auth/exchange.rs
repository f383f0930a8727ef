//! The requests to authorization servers.

use std::{
    env,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use reqwest::{
    Body, Client, Request, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use rmcp::transport::auth::{OAuthHttpClient, OAuthHttpClientFuture, OAuthHttpRequest};
use serde_json::{Map, Value, json};
use tokio::{net::lookup_host, time::timeout};

use super::{BoxError, LIMIT, SharedLogin, shown};
use crate::{
    mcp::http::body,
    provider::{ProviderError, http::resolving_client},
    sync::lock,
    text::clip,
};

/// The maximum size of an answer of an authorization server, in bytes.
const LONGEST: usize = 1 << 20;

/// Sends requests to authorization servers with a client that follows no redirect.
///
/// The addresses of these servers come from the MCP server, which may not be trusted. So a request to an address of a
/// private network or of this machine is refused, unless the MCP server itself is in such a network.
pub(super) struct AuthorizationHttpClient {
    client: Client,
    reach: Arc<AllowedAddressResolver>,
    /// Whether the MCP server is reached without encryption, as on this machine. Its authorization server may be, too.
    allows_http: bool,
    login: SharedLogin,
}

impl AuthorizationHttpClient {
    /// Returns the client for the login at the MCP server with this URL.
    pub(super) async fn new(server: &Url, login: SharedLogin) -> Result<Self, ProviderError> {
        let reach = Arc::new(AllowedAddressResolver::of(server).await);
        let client = resolving_client(server, LIMIT, Arc::<AllowedAddressResolver>::clone(&reach))?;
        Ok(Self { client, reach, allows_http: server.scheme() == "http", login })
    }

    async fn send(&self, mut request: Request) -> Result<http::Response<Vec<u8>>, BoxError> {
        if request.url().scheme() != "https" && !self.allows_http {
            return Err(format!("{} is not an `https` URL", shown(request.url().as_str())).into());
        }
        // The client connects to an address in a URL without its resolver.
        if let Some(address) = literal(request.url()) {
            self.reach.check(address)?;
        }
        let sent = request.body().and_then(Body::as_bytes).unwrap_or_default().to_vec();
        let named =
            lock(&self.login).as_ref().and_then(|login| with_resource(&sent, login.resource.as_deref()));
        if let Some(named) = named {
            *request.body_mut() = Some(named.into());
        }
        let mut response = self.client.execute(request).await?;
        let body = body(&mut response, LONGEST).await?;
        let body = body.ok_or_else(|| format!("the answer exceeds {LONGEST} bytes"))?;
        let status = response.status();
        let (status, body) = self.normalized(status, &body, &sent).unwrap_or((status, body));
        let mut answer = http::Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = std::mem::take(response.headers_mut());
        Ok(answer)
    }

    /// Returns an answer in the form that rmcp reads, and keeps the secret of a registration. Some servers send the time
    /// until a token expires as text, tokens with another status than 200, or the refusal of a renewal without a code.
    /// Some omit the kind of the token or the addresses that the request for a registration has named. Returns `None` if
    /// the answer is not an object.
    fn normalized(&self, status: StatusCode, answer: &[u8], request: &[u8]) -> Option<(StatusCode, Vec<u8>)> {
        let mut members: Map<String, Value> = serde_json::from_slice(answer).ok()?;
        let lacks = |members: &Map<String, Value>, name| members.get(name).is_none_or(Value::is_null);
        if !status.is_success() {
            let renewal = || form(request).contains(&("grant_type".to_owned(), "refresh_token".to_owned()));
            let is_refusal = matches!(status.as_u16(), 400 | 401 | 422) && renewal();
            if !is_refusal || members.get("error").is_some_and(Value::is_string) {
                return None;
            }
            let answer = Value::Object(members).to_string();
            let refusal = json!({ "error": "invalid_grant", "error_description": clip(&answer, 200) });
            return Some((status, refusal.to_string().into()));
        }
        let has_token = !lacks(&members, "access_token");
        if has_token {
            if lacks(&members, "token_type") {
                members.insert("token_type".to_owned(), "bearer".into());
            }
            if let Some(expiry) = members.shift_remove("expires_in") {
                let seconds = expiry.as_u64().or_else(|| expiry.as_str()?.trim().parse().ok());
                members.extend(seconds.map(|seconds| ("expires_in".to_owned(), seconds.into())));
            }
        }
        if !lacks(&members, "client_id")
            && let Ok(Value::Object(mut request)) = serde_json::from_slice(request)
        {
            let secret =
                members.get("client_secret").and_then(Value::as_str).filter(|secret| !secret.is_empty());
            if let Some(login) = &mut *lock(&self.login) {
                login.client_secret = secret.map(str::to_owned);
            }
            if lacks(&members, "redirect_uris") {
                members.extend(request.shift_remove_entry("redirect_uris"));
            }
        }
        let status = if has_token { StatusCode::OK } else { status };
        Some((status, serde_json::to_vec(&members).ok()?))
    }
}

/// Returns the names and values of a form.
fn form(body: &[u8]) -> Vec<(String, String)> {
    let query = Url::parse(&format!("form:?{}", String::from_utf8_lossy(body)));
    query.map(|query| query.query_pairs().into_owned().collect()).unwrap_or_default()
}

/// Returns a request for tokens with the resource of the login, because rmcp knows the resource only after it has found
/// the authorization server. Returns `None` if the request is not for tokens.
fn with_resource(request: &[u8], resource: Option<&str>) -> Option<String> {
    let members = form(request);
    members.iter().find(|(name, _)| name == "grant_type")?;
    let others = members.iter().filter(|(name, _)| name != "resource");
    let others = others.map(|(name, value)| (name.as_str(), value.as_str()));
    let members = others.chain(resource.map(|resource| ("resource", resource)));
    let query = Url::parse_with_params("form:", members).ok()?;
    query.query().map(str::to_owned)
}

impl OAuthHttpClient for AuthorizationHttpClient {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let limit = request.timeout.unwrap_or(LIMIT);
            let exchanged = timeout(limit, self.send(Request::try_from(request.request)?));
            exchanged.await.map_err(|_| format!("there was no answer within {limit:?}"))?
        })
    }
}

/// The kinds of networks to which an address can belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkKind {
    Public,
    Private,
    /// This machine.
    Loopback,
    /// Link-local addresses, which include the metadata services of clouds, and addresses with special meanings.
    Special,
}

impl NetworkKind {
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [127, ..] => Self::Loopback,
            // The second range is shared by the customers of a carrier (RFC 6598).
            [10, ..] | [100, 64..=127, ..] | [172, 16..=31, ..] | [192, 168, ..] => Self::Private,
            [0 | 224..=255, ..] | [169, 254, ..] | [192, 0, 0, _] | [198, 18 | 19, ..] => Self::Special,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 1] => Self::Loopback,
            // These addresses stand for an IPv4 address: mapped, compatible, NAT64 and 6to4.
            [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
            | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
            | [0x2002, high, low, ..] => Self::of_v4(((u32::from(high) << 16) | u32::from(low)).into()),
            [0xfc00..=0xfdff, ..] => Self::Private,
            // Public addresses are in this range. Teredo addresses contain another address, so they are excluded.
            [first @ 0x2000..=0x3fff, second, ..] if (first, second) != (0x2001, 0) => Self::Public,
            _ => Self::Special,
        }
    }
}

/// The addresses to which requests may be sent. As the resolver of the client, this returns only these addresses.
#[derive(Clone, Debug)]
struct AllowedAddressResolver {
    /// The networks of the MCP server.
    own: Vec<NetworkKind>,
    /// The names of proxies. The application's environment names them, so their addresses are not checked.
    proxies: Vec<String>,
}

impl AllowedAddressResolver {
    async fn of(server: &Url) -> Self {
        let addresses = match (literal(server), server.host_str()) {
            (Some(address), _) => vec![address],
            (None, Some(host)) => lookup(host.to_owned()).await.unwrap_or_default(),
            (None, None) => Vec::new(),
        };
        let own = addresses.into_iter().map(NetworkKind::of).collect();
        let variables = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
        let values = variables.into_iter().flat_map(|name| [env::var(name), env::var(name.to_lowercase())]);
        let urls = values.flatten().filter_map(|value| {
            let value = if value.contains("://") { value } else { format!("http://{value}") };
            Url::parse(&value).ok()
        });
        Self { own, proxies: urls.filter_map(|url| url.host_str().map(str::to_owned)).collect() }
    }

    fn check(&self, address: IpAddr) -> Result<(), BoxError> {
        let network = NetworkKind::of(address);
        match network {
            NetworkKind::Public => Ok(()),
            NetworkKind::Private | NetworkKind::Loopback if self.own.contains(&network) => Ok(()),
            _ => {
                Err(format!("the address {address} is not public, and the MCP server is not in its network")
                    .into())
            }
        }
    }

    async fn addresses(&self, host: String) -> Result<Vec<IpAddr>, BoxError> {
        let is_proxy = self.proxies.contains(&host);
        let mut addresses = lookup(host).await?;
        let refusal = addresses.iter().find_map(|address| self.check(*address).err());
        addresses.retain(|address| is_proxy || self.check(*address).is_ok());
        match refusal {
            Some(refusal) if addresses.is_empty() => Err(refusal),
            _ => Ok(addresses),
        }
    }
}

impl Resolve for AllowedAddressResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.clone();
        Box::pin(async move {
            let addresses = reach.addresses(name.as_str().to_owned()).await?;
            Ok(Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

async fn lookup(host: String) -> Result<Vec<IpAddr>, BoxError> {
    Ok(lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
}

/// Returns the address in a URL, if the URL contains an address and not a name.
fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

#[cfg(test)]
mod tests {
    use reqwest::Method;

    use super::*;

    /// Sends a request to a port on which nothing listens, and returns the error.
    async fn refusal(server: &str, target: &str) -> String {
        let exchanges = AuthorizationHttpClient::new(&server.parse().unwrap(), Arc::default()).await.unwrap();
        let scheme = server.split(':').next().unwrap();
        let request = Request::new(Method::GET, format!("{scheme}://{target}:9/").parse().unwrap());
        let refused = timeout(LIMIT, exchanges.send(request)).await.unwrap();
        crate::error_chain(&*refused.unwrap_err())
    }

    #[tokio::test]
    async fn send_to_this_machine_is_refused_unless_the_server_is_on_it() {
        for target in ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"] {
            let refused = refusal("https://203.0.113.7/mcp", target).await;
            assert!(refused.contains("is not public"), "{target}: {refused}");
        }
        for (server, target) in [("http://127.0.0.1/mcp", "localhost"), ("http://localhost/mcp", "127.0.0.1")]
        {
            let tried = refusal(server, target).await;
            assert!(!tried.contains("is not public"), "{server}: {tried}");
        }
    }

    #[tokio::test]
    async fn send_without_encryption_is_refused_if_the_server_is_encrypted() {
        let exchanges =
            AuthorizationHttpClient::new(&"https://127.0.0.1/mcp".parse().unwrap(), Arc::default())
                .await
                .unwrap();
        let request = Request::new(Method::GET, "http://user:hunter2@127.0.0.1:9/".parse().unwrap());
        let refused = exchanges.send(request).await.unwrap_err().to_string();
        assert_eq!(refused, "http://127.0.0.1:9/ is not an `https` URL");
    }

    #[test]
    fn check_refuses_addresses_outside_the_servers_networks() {
        let reach = |own: &[NetworkKind]| AllowedAddressResolver { own: own.to_vec(), proxies: Vec::new() };
        let allows =
            |reach: &AllowedAddressResolver, address: &str| reach.check(address.parse().unwrap()).is_ok();
        for address in
            ["10.0.0.9", "192.168.1.1", "100.64.0.1", "fd00::1", "::ffff:10.0.0.9", "64:ff9b::a00:9"]
        {
            assert!(!allows(&reach(&[NetworkKind::Public, NetworkKind::Loopback]), address), "{address}");
            assert!(allows(&reach(&[NetworkKind::Private]), address), "{address}");
        }
        let everywhere =
            reach(&[NetworkKind::Public, NetworkKind::Private, NetworkKind::Loopback, NetworkKind::Special]);
        for address in
            ["169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "2001::1"]
        {
            assert!(!allows(&everywhere, address), "{address}");
        }
        for address in ["203.0.113.7", "1.1.1.1", "2606:4700::1111", "2002:101:101::1"] {
            assert!(allows(&reach(&[]), address), "{address}");
        }
    }
}
