//! Encrypted connections. Only certificates that were explicitly configured are trusted.

use std::net::SocketAddr;

use omni_agent::store::{PostgresStore, StoreError};

use super::{
    faults::free,
    server::{FORGETFUL, Server, raw},
};
use crate::{
    skip::skip,
    support::{create, id},
};

/// Starts a server with a self-signed certificate for its address. Returns the server, the address and the certificate.
/// If there is no server or no `openssl`, prints the reason and returns `None`.
async fn with_certificate() -> Option<(Server, SocketAddr, String)> {
    let address = free();
    let listening = format!("{FORGETFUL} -c listen_addresses={} -c port={}", address.ip(), address.port());
    let server = Server::start(&listening)?;
    let database = raw(&format!("postgres://postgres@{address}/postgres")).await;
    // The server itself creates the certificate, because the file of the key must belong to the server's user.
    let make = format!(
        "COPY (SELECT 1) TO PROGRAM 'openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=omni-agent \
             -addext subjectAltName=IP:{} -addext basicConstraints=critical,CA:FALSE \
             -keyout server.key -out server.crt 2>openssl.log'",
        address.ip()
    );
    if let Err(error) = database.batch_execute(&make).await {
        skip(&format!("the server could not make a certificate with openssl: {error:?}"));
        return None;
    }
    database.batch_execute("ALTER SYSTEM SET ssl = on").await.unwrap();
    database.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let shown = async || database.query_one("SHOW ssl", &[]).await.unwrap().get::<_, String>(0);
    while shown().await != "on" {}
    let certificate = database.query_one("SELECT pg_read_file('server.crt')", &[]).await.unwrap().get(0);
    Some((server, address, certificate))
}

/// Returns the number of connections with this application name, and how many of them are encrypted.
async fn encrypted(address: SocketAddr, application: &str) -> (i64, i64) {
    let plain = raw(&format!("postgres://postgres@{address}/postgres")).await;
    let encrypted =
        "SELECT count(*), count(*) FILTER (WHERE ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
         WHERE application_name = $1";
    let row = plain.query_one(encrypted, &[&application]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Returns the settings for the server at this address under the name `host`, with an application name.
fn settings(host: &str, address: SocketAddr, application: &str) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!(
        "host={host} hostaddr={ip} port={port} user=postgres dbname=postgres application_name={application}"
    )
}

#[tokio::test]
async fn open_with_tls_trusts_only_the_configured_certificates() {
    let Some((_server, address, certificate)) = with_certificate().await else { return };
    let url = format!("postgres://postgres@{address}/postgres?sslmode=require");
    let store = PostgresStore::builder(&url).root_certificates(certificate.clone()).open().await.unwrap();
    create(&store, &id("a")).await;
    let (all, with_tls) = encrypted(address, "omni-agent").await;
    assert!(all > 0);
    assert_eq!(with_tls, all);

    // The platform does not trust the certificate, and the URL does not name it.
    let error = PostgresStore::open(&url).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("UnknownIssuer"), "the error must name the reason: {error:?}");
    // The server can also be reached by another name, for which the certificate is not valid. All modes detect this.
    for mode in ["require", "verify-ca", "verify-full", "prefer"] {
        let url = format!("postgres://postgres@localhost:{}/postgres?sslmode={mode}", address.port());
        let refused = PostgresStore::builder(url).root_certificates(certificate.clone()).open().await;
        let error = refused.unwrap_err();
        assert!(format!("{error:?}").contains("not valid for name"), "{error:?}");
    }

    for nonsense in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let error = PostgresStore::builder(&url).root_certificates(nonsense).open().await.unwrap_err();
        assert!(matches!(error, StoreError::Misconfigured { .. }) && !error.is_transient(), "{error:?}");
        assert!(error.to_string().contains("trusted certificates"), "{error}");
    }
}

#[tokio::test]
async fn open_of_several_hosts_needs_no_certificate_of_a_local_one() {
    let Some((_server, address, _)) = with_certificate().await else { return };
    // The first host is local, so its certificate need not be trusted. The second host is remote, and is never
    // contacted.
    let url = format!("postgres://postgres@{address},db.invalid:5432/postgres");
    let store = PostgresStore::open(url).await.unwrap();
    create(&store, &id("a")).await;
    let of = |host: &str| PostgresStore::open(settings(host, address, "a"));
    of("localhost").await.unwrap();
    // The host name is remote and the address is local. A local address may forward to a remote host, so the
    // certificate is checked.
    let error = of("db.invalid").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
}

#[tokio::test]
async fn open_with_prefer_never_continues_after_an_invalid_certificate() {
    let Some((_server, address, certificate)) = with_certificate().await else { return };
    // The local host has no TLS only by default.
    for host in ["localhost", "db.invalid", &address.ip().to_string()] {
        let url = format!("{} sslmode=prefer", settings(host, address, "prefer"));
        let error = PostgresStore::open(&url).await.unwrap_err();
        assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
    }
    assert_eq!(encrypted(address, "prefer").await, (0, 0));
    let url = format!("{} sslmode=prefer", settings(&address.ip().to_string(), address, "prefer"));
    let _store = PostgresStore::builder(&url).root_certificates(certificate).open().await.unwrap();
    assert_eq!(encrypted(address, "prefer").await, (1, 1));
    let url = format!("{} sslmode=disable", settings("db.invalid", address, "disable"));
    let _store = PostgresStore::open(&url).await.unwrap();
    assert_eq!(encrypted(address, "disable").await, (1, 0));
}

#[tokio::test]
async fn open_of_a_server_without_tls_fails_unless_the_host_is_local_or_sslmode_allows_it() {
    let address = free();
    let listening = format!("{FORGETFUL} -c listen_addresses={} -c port={}", address.ip(), address.port());
    let Some(server) = Server::start(&listening) else { return };
    let port = address.port();
    let remedy = "add `sslmode=disable` if this connection may stay unencrypted";
    for (host, mode) in [
        ("db", ""),
        ("db", "sslmode=require"),
        ("db", "sslmode=verify-full"),
        ("localhost", "sslmode=require"),
    ] {
        let url = format!("{} {mode}", settings(host, address, "a"));
        let error = PostgresStore::open(url).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        let expected = format!(": {host}:{port} offers no TLS; {remedy}");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    for (host, mode) in
        [("db", "sslmode=disable"), ("db", "sslmode=prefer"), ("localhost", ""), ("127.0.0.7", "")]
    {
        PostgresStore::open(format!("{} {mode}", settings(host, address, "a"))).await.unwrap();
    }
    // A Unix socket has no TLS, so `sslmode` does not concern it.
    let folder = server.socket().parent().unwrap().display().to_string();
    for mode in ["disable", "prefer", "require", "verify-full"] {
        let url = format!("host={folder} port={port} user=postgres dbname=postgres sslmode={mode}");
        PostgresStore::open(url).await.unwrap();
    }
    // The error names the host that was tried last.
    let url = format!(
        "host=localhost,db hostaddr={ip},{ip} port={},{port} user=postgres",
        free().port(),
        ip = address.ip()
    );
    let error = PostgresStore::open(url).await.unwrap_err();
    assert!(error.to_string().ends_with(&format!(": db:{port} offers no TLS; {remedy}")), "{error}");
}
