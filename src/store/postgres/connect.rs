//! Connects to the hosts of a URL, with TLS by rustls and ring. Certificates are always checked.
//!
//! Without `sslmode`, TLS is required unless the host is local as it is written in the URL. Names are not looked up. In
//! the mode `prefer`, a failed check of the certificate is an error, unlike in `libpq`, because every certificate is
//! checked.

use std::{net::IpAddr, sync::Arc, time::Duration};

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use rand::seq::SliceRandom;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::time::timeout;
use tokio_postgres::{
    Config,
    config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    error::{not_connected, unreachable},
    server::PostgresLimits,
};
use crate::store::StoreError;

/// A connection of a pool.
pub(super) type PgConnection = deadpool::managed::Object<PostgresHostConnector>;

/// Connects to one host after another, each with its own time limit. The driver's own limit covers only the socket.
/// With that limit alone, a host that accepts the connection but does not respond, such as a stopped process, would
/// prevent all other hosts from being tried.
#[derive(Clone)]
pub(super) struct PostgresHostConnector {
    /// The hosts with their settings.
    hosts: Vec<(String, Config)>,
    /// The location of the database for error messages, without the password.
    pub(super) place: String,
    tls: MakeRustlsConnect,
    limits: PostgresLimits,
}

impl PostgresHostConnector {
    /// Returns a connector to the hosts of this URL. It trusts these certificates (PEM), or else the platform's.
    pub(super) fn new(
        url: &str,
        trusted: Option<&[u8]>,
        mut limits: PostgresLimits,
    ) -> Result<Self, StoreError> {
        let hosts =
            hosts(url, &limits).map_err(|error| StoreError::misconfigured("the PostgreSQL URL", error))?;
        let names: Vec<_> = hosts.iter().map(|(name, _)| &**name).collect();
        let first = hosts.first().map(|(_, config)| config);
        let database = first.and_then(|config| config.get_dbname().or(config.get_user())).unwrap_or_default();
        let place = format!("the PostgreSQL database {database:?} at {}", names.join(", "));
        limits.connect = first.and_then(Config::get_connect_timeout).copied().unwrap_or(limits.connect);
        Ok(Self { hosts, place, tls: connector(trusted)?, limits })
    }

    async fn connect(&self, host: &Config) -> Result<ClientWrapper, tokio_postgres::Error> {
        let (client, connection) = host.connect(self.tls.clone()).await?;
        let served = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to PostgreSQL has ended");
            }
        });
        let client = ClientWrapper::new(client, served);
        client.batch_execute(&setup(&self.limits)).await?;
        Ok(client)
    }
}

impl Manager for PostgresHostConnector {
    type Type = ClientWrapper;
    type Error = StoreError;

    async fn create(&self) -> Result<ClientWrapper, StoreError> {
        let mut hosts: Vec<_> = self.hosts.iter().collect();
        if hosts.iter().any(|(_, host)| host.get_load_balance_hosts() == LoadBalanceHosts::Random) {
            hosts.shuffle(&mut rand::rng());
        }
        let mut failure = None;
        let limit = self.limits.connect;
        for (name, host) in hosts {
            let error = match timeout(limit, self.connect(host)).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(error)) => not_connected(&self.place, &self.limits, name, error),
                Err(_) => unreachable(&self.place, format!("no connection was established within {limit:?}")),
            };
            tracing::debug!(%error, host = name, "a host failed");
            failure = Some(error);
        }
        Err(failure.expect("a URL without a host is invalid"))
    }

    /// Detects an ended connection without sending a query.
    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> RecycleResult<StoreError> {
        if client.is_closed() { Err(RecycleError::message("it has ended")) } else { Ok(()) }
    }
}

/// Returns the statements that are executed first on a new connection.
fn setup(limits: &PostgresLimits) -> String {
    let millis = |limit: Duration| limit.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
    let (statement, lock) = (millis(limits.statement), millis(limits.lock_wait));
    format!(
        "SET statement_timeout = {statement};
         SET lock_timeout = {lock};
         SET idle_in_transaction_session_timeout = {statement};
         SET jit = off;
         SET default_transaction_isolation = 'read committed';
         SELECT set_config('synchronous_commit', 'on', false)
         WHERE current_setting('synchronous_commit') = 'off'"
    )
}

/// The problem with a URL. It does not contain the text, which may contain a password.
#[derive(Debug, thiserror::Error)]
enum PostgresUrlError {
    #[error("it is not a valid URL such as `postgres://user:password@host:port/database`")]
    Syntax(#[source] Option<tokio_postgres::Error>),
    #[error("it names no host")]
    NoHost,
    #[error("the numbers of its hosts, addresses and ports differ")]
    Numbers,
    #[error("`sslmode` must be `disable`, `prefer`, `require`, `verify-ca` or `verify-full`")]
    SslMode,
}

/// Reads a URL, or a text with pairs of keys and values. Returns each host, as `name:port`, with its settings.
fn hosts(text: &str, limits: &PostgresLimits) -> Result<Vec<(String, Config)>, PostgresUrlError> {
    let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| text.starts_with(scheme));
    let (login, address, settings) = match scheme {
        None => ("", "", pairs(text)),
        Some(scheme) => {
            // The address begins after the password, because a password may contain a question mark too.
            let (login, rest) = text.split_at(text.find('@').map_or(scheme.len(), |at| at + 1));
            let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
            let parts = query.split('&').filter(|part| !part.is_empty());
            (login, address, parts.map(|part| part.split_once('=').unwrap_or((part, ""))).collect())
        }
    };
    // The driver's error would contain the beginning of a URL with another scheme, with the password.
    if settings.iter().any(|(key, _)| key.contains("://")) {
        return Err(PostgresUrlError::Syntax(None));
    }
    // The driver neither knows all modes of TLS nor reports whether a setting is missing. So it reads the text without
    // `sslmode`, and after the store's own defaults.
    let defaults = [("application_name", "omni-agent"), ("keepalives_idle", "30")];
    let without = |address: &str, keys: &[&str]| -> Result<Config, PostgresUrlError> {
        let kept = defaults.iter().chain(&settings).filter(|(key, _)| !keys.contains(key));
        // The driver decodes the keys of a URL, so an encoded key must not become one of these keys.
        let kept: Vec<_> = kept.map(|(key, value)| format!("{}={value}", key.replace('%', "%25"))).collect();
        let (begin, separator) = if scheme.is_some() { ("?", "&") } else { ("", " ") };
        format!("{login}{address}{begin}{}", kept.join(separator))
            .parse()
            .map_err(|error| PostgresUrlError::Syntax(Some(error)))
    };
    let all = without(address, &["sslmode"])?;
    let path = address.find('/').map_or("", |at| &address[at..]);
    let mut common = without(path, &["sslmode", "host", "hostaddr", "port"])?;
    let sslmode = settings.iter().rfind(|(key, _)| *key == "sslmode").map(|(_, value)| {
        Ok(match value.trim_matches('\'') {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            // Every mode with TLS checks the certificate and the name of the host.
            "require" | "verify-ca" | "verify-full" => SslMode::Require,
            _ => return Err(PostgresUrlError::SslMode),
        })
    });
    let sslmode = sslmode.transpose()?;
    if common.get_connect_timeout().is_none() {
        common.connect_timeout(limits.connect);
    }
    if common.get_tcp_user_timeout().is_none() {
        common.tcp_user_timeout(limits.answer());
    }
    // A host is given by its name, its address or both.
    let (names, addresses, ports) = (all.get_hosts(), all.get_hostaddrs(), all.get_ports());
    let number = names.len().max(addresses.len());
    if number == 0 {
        return Err(PostgresUrlError::NoHost);
    }
    let fits = |given: usize| given <= 1 || given == number;
    if !fits(ports.len()) || (!names.is_empty() && !addresses.is_empty() && names.len() != addresses.len()) {
        return Err(PostgresUrlError::Numbers);
    }
    // A password with a character that is not encoded would be split, and its end would be taken for a host.
    let is_strange = |name: &str| name.contains(|c: char| "@;=?&/".contains(c) || c.is_whitespace());
    let user = common.get_user().unwrap_or_default();
    if names.iter().any(|host| matches!(host, Host::Tcp(name) if is_strange(name)))
        || scheme.is_some() && login.contains('@') && user.contains(['/', '?'])
    {
        return Err(PostgresUrlError::Syntax(None));
    }
    // The store uses a host that accepts writes. After a failover, an address can still lead to the former primary, whose
    // conversations are old.
    let is_given = settings.iter().any(|(key, _)| *key == "target_session_attrs");
    if (number > 1 || !is_given) && common.get_target_session_attrs() == TargetSessionAttrs::Any {
        common.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    let host = |at: usize| {
        let address = addresses.get(at);
        let name = match names.get(at) {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(folder)) => folder.display().to_string(),
            // The certificate is checked for the address.
            None => address.map(ToString::to_string).unwrap_or_default(),
        };
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let mut config = common.clone();
        config.host(&name).port(port).ssl_mode(mode(sslmode, &name, address));
        if let Some(address) = address {
            config.hostaddr(*address);
        }
        (format!("{name}:{port}"), config)
    };
    Ok((0..number).map(host).collect())
}

/// Returns the mode of TLS for a host with this name, and with this address if it is given.
fn mode(sslmode: Option<SslMode>, name: &str, address: Option<&IpAddr>) -> SslMode {
    let is_socket = name.starts_with('/');
    let is_local =
        is_socket || name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    match sslmode {
        // PostgreSQL has no TLS over a Unix socket.
        _ if is_socket && address.is_none() => SslMode::Disable,
        Some(mode) => mode,
        // A local address with a remote name belongs to a tunnel.
        None if is_local && address.is_none_or(IpAddr::is_loopback) => SslMode::Disable,
        None => SslMode::Require,
    }
}

/// Splits pairs such as `key = 'a value'`. A backslash escapes the next character.
fn pairs(mut text: &str) -> Vec<(&str, &str)> {
    let mut pairs = Vec::new();
    while !text.trim().is_empty() {
        let (key, rest) = text.split_once('=').unwrap_or((text, ""));
        let rest = rest.trim_start();
        let quote = usize::from(rest.starts_with('\''));
        let mut escaped = false;
        let ends = |next: char| {
            let ends = !escaped && if quote == 1 { next == '\'' } else { next.is_whitespace() };
            escaped = !escaped && next == '\\';
            ends
        };
        let end = rest[quote..].find(ends).map_or(rest.len(), |length| quote + length + quote);
        pairs.push((key.trim(), &rest[..end]));
        text = &rest[end..];
    }
    pairs
}

/// Returns a connector that trusts these certificates (PEM). If none are given, it trusts the certificates that the
/// platform trusts.
fn connector(trusted: Option<&[u8]>) -> Result<MakeRustlsConnect, StoreError> {
    let failed = |error| StoreError::failed("setting up TLS for PostgreSQL", error);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let config = match trusted {
        None => match builder.clone().with_platform_verifier() {
            Ok(builder) => builder.with_no_client_auth(),
            // Even if this machine has no certificates, connections without TLS must work. In that case, connections
            // with TLS fail because no certificate is trusted.
            Err(_) => builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
        },
        Some(pem) => builder.with_root_certificates(roots(pem)?).with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(pem: &[u8]) -> Result<RootCertStore, StoreError> {
    #[derive(Debug, thiserror::Error)]
    #[error("it contains no valid certificate in PEM form")]
    struct NoValidCertificateError;

    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| refused(NoValidCertificateError))?;
        roots.add(certificate).map_err(refused)?;
    }
    if roots.is_empty() { Err(refused(NoValidCertificateError)) } else { Ok(roots) }
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::misconfigured("the list of trusted certificates", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PostgresLimits = PostgresLimits {
        connections: 1,
        connect: Duration::from_secs(5),
        pool_wait: Duration::from_secs(1),
        lock_wait: Duration::from_secs(1),
        statement: Duration::from_secs(1),
        lease: Duration::from_secs(1),
    };

    fn read(text: &str) -> Vec<(String, Config)> {
        hosts(text, &LIMITS).expect(text)
    }

    #[test]
    fn sslmode_applies_to_all_hosts_but_sockets_and_each_host_has_a_default() {
        use SslMode::{Disable, Prefer, Require};

        for (text, expected) in [
            ("host=localhost", vec![Disable]),
            ("host=127.0.0.2", vec![Disable]),
            ("host=::1", vec![Disable]),
            ("postgres://[::1]:1/db", vec![Disable]),
            ("postgres://%31%32%37.0.0.1/db", vec![Disable]),
            ("postgres://%2Ftmp,db/db", vec![Disable, Require]),
            ("host=/tmp", vec![Disable]),
            ("host=db", vec![Require]),
            ("host=127.1", vec![Require]),
            ("host=localhost.example.com", vec![Require]),
            ("host=localhost,db", vec![Disable, Require]),
            ("hostaddr=10.1.2.3", vec![Require]),
            ("hostaddr=127.0.0.1,10.1.2.3", vec![Disable, Require]),
            ("host=localhost hostaddr=10.1.2.3", vec![Require]),
            ("host=/tmp hostaddr=10.1.2.3", vec![Require]),
            ("host=db hostaddr=127.0.0.1", vec![Require]),
            ("host=127.0.0.1 hostaddr=10.1.2.3", vec![Require]),
            ("host=localhost hostaddr=127.0.0.1", vec![Disable]),
            ("host=/tmp hostaddr=::1", vec![Disable]),
            ("host=localhost,db hostaddr=127.0.0.1,127.0.0.1", vec![Disable, Require]),
            ("host=localhost,db sslmode=require", vec![Require, Require]),
            ("host=/tmp,localhost,db sslmode=prefer", vec![Disable, Prefer, Prefer]),
            ("host=/tmp hostaddr=::1 sslmode=require", vec![Require]),
            ("host=localhost,db sslmode=disable", vec![Disable, Disable]),
            ("sslmode=require host=db sslmode=disable", vec![Disable]),
            ("sslmode = 'verify-ca' host = localhost", vec![Require]),
            ("password='x'sslmode=verify-full host=localhost", vec![Require]),
            ("password=it's sslmode=verify-full host=localhost", vec![Require]),
            ("postgres://ada:who?@localhost/db?sslmode=verify-full&", vec![Require]),
            ("postgresql://localhost?application_name=a&sslmode=verify-ca&connect_timeout=3", vec![Require]),
            ("postgres://ada:sslmode=disable@db/db", vec![Require]),
            ("postgres://localhost,db/db?sslmode=prefer", vec![Prefer, Prefer]),
        ] {
            let modes: Vec<_> = read(text).iter().map(|(_, config)| config.get_ssl_mode()).collect();
            assert_eq!(modes, expected, "{text}");
        }
    }

    #[test]
    fn invalid_sslmode_lists_the_valid_ones() {
        for text in [
            "host=a sslmode=allow",
            "host=a sslmode='prefer password=hunter2",
            "postgres://host/db?sslmode=",
            "postgres://host/db?sslmode",
            "postgres://host/db?sslmode=hunter2",
        ] {
            let error = hosts(text, &LIMITS).unwrap_err().to_string();
            let valid = "`disable`, `prefer`, `require`, `verify-ca` or `verify-full`";
            assert_eq!(error, format!("`sslmode` must be {valid}"), "{text}");
        }
    }

    #[test]
    fn password_that_looks_like_a_setting_is_kept() {
        for (text, password) in [
            ("postgres://ada:sslmode=verify-full@host/db", "sslmode=verify-full"),
            ("postgres://ada:sslmode=verify-full@host/db?sslmode=verify-ca", "sslmode=verify-full"),
            ("postgres://ada:a/b?@host", "a/b?"),
            ("host=a password=sslmode=verify-full", "sslmode=verify-full"),
            ("password='sslmode=verify-full' host=a sslmode=verify-full", "sslmode=verify-full"),
            (r"password='it\'s sslmode=no host=b' host=a", "it's sslmode=no host=b"),
            (r"password=a\ sslmode=no\\ host=a", r"a sslmode=no\"),
        ] {
            let hosts = read(text);
            assert_eq!(hosts.len(), 1, "{text}");
            assert_eq!(hosts[0].1.get_password(), Some(password.as_bytes()), "{text}");
        }
    }

    #[test]
    fn settings_of_the_url_replace_the_defaults_of_the_store() {
        for (text, name, idle, timeout) in [
            ("postgres://host/db?keepalives_idle=7200", "omni-agent", 7200, 5),
            ("postgres://keepalives_idle=7:keepalives_idle=7@host/db", "omni-agent", 30, 5),
            ("host=a keepalives_idle = 7200 application_name='b c'", "b c", 7200, 5),
            ("postgres://a,b,c/db?connect_timeout=7", "omni-agent", 30, 7),
            ("postgres://a/db?connect_timeout=0&application_name=b%26c", "b&c", 30, 5),
        ] {
            for (_, config) in read(text) {
                assert_eq!(config.get_application_name(), Some(name), "{text}");
                assert_eq!(config.get_keepalives_idle(), Duration::from_secs(idle), "{text}");
                assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(timeout)), "{text}");
                assert_eq!(config.get_tcp_user_timeout(), Some(&LIMITS.answer()), "{text}");
            }
        }
    }

    #[test]
    fn each_host_has_its_name_address_and_port_and_all_other_settings() {
        for (text, expected) in [
            ("hostaddr=10.1.2.3,10.1.2.4 port=1,2", "10.1.2.3:1 10.1.2.3, 10.1.2.4:2 10.1.2.4"),
            ("host=a,b hostaddr=10.1.2.3,10.1.2.4", "a:5432 10.1.2.3, b:5432 10.1.2.4"),
            ("postgres://a:1,b/c?hostaddr=10.1.2.3,10.1.2.4", "a:1 10.1.2.3, b:5432 10.1.2.4"),
            ("postgres://%2Frun%2Fpg,[fe80::1]:7/c?host=d&port=8", "/run/pg:5432, fe80::1:7, d:8"),
            ("host=a,b port=7", "a:7, b:7"),
        ] {
            let hosts = read(&text.replace('?', "?options=-c&"));
            let shown: Vec<_> = hosts
                .iter()
                .map(|(name, config)| {
                    assert_eq!((config.get_hosts().len(), config.get_ports().len()), (1, 1), "{text}");
                    assert_eq!(config.get_options().is_some(), text.contains('?'), "{text}");
                    assert_eq!(config.get_dbname(), text.contains("/c").then_some("c"), "{text}");
                    config
                        .get_hostaddrs()
                        .iter()
                        .fold(name.clone(), |name, address| format!("{name} {address}"))
                })
                .collect();
            assert_eq!(shown.join(", "), expected, "{text}");
        }
    }

    #[test]
    fn hosts_without_other_settings_must_accept_writes() {
        for (text, wanted) in [
            ("host=a", TargetSessionAttrs::ReadWrite),
            ("host=a target_session_attrs=any", TargetSessionAttrs::Any),
            ("postgres://a/b?target_session_attrs=any", TargetSessionAttrs::Any),
            ("host=a,b", TargetSessionAttrs::ReadWrite),
            ("host=a,b target_session_attrs=any", TargetSessionAttrs::ReadWrite),
            ("hostaddr=10.1.2.3", TargetSessionAttrs::ReadWrite),
            ("hostaddr=10.1.2.3,10.1.2.4", TargetSessionAttrs::ReadWrite),
        ] {
            assert_eq!(read(text)[0].1.get_target_session_attrs(), wanted, "{text}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected_without_a_panic() {
        for text in [
            "",
            "host",
            "host=",
            "host='a",
            "a=b\\",
            "=",
            " = ",
            "é=é é",
            "host = 'ö\\",
            "user=ada",
            "host=a junk",
            "postgres://",
            "postgres:///db?ssl%6dode=prefer",
            "postgres://host/db?ssl%6dode=prefer",
            "postgres://host/db?%=&&=é",
        ] {
            hosts(text, &LIMITS).unwrap_err();
        }
    }
}
