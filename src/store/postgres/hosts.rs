//! Several hosts, of which one takes writes.

use std::time::Duration;

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use rand::seq::SliceRandom;
use tokio::{task::JoinHandle, time::timeout};
use tokio_postgres::{
    Client, Config, Error,
    config::{Host, LoadBalanceHosts},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Connects to one host after another, each in its own time. The driver's own limit ends with the socket: a host that
/// took the connection and says nothing, as one whose process stands still, would keep all others from being asked.
pub(super) struct InTurn {
    hosts: Vec<Config>,
    tls: MakeRustlsConnect,
    limit: Duration,
    in_any_order: bool,
}

impl InTurn {
    /// `limit` is for each host.
    pub(super) fn new(config: &Config, tls: MakeRustlsConnect, limit: Duration) -> Self {
        let number = config.get_hosts().len().max(config.get_hostaddrs().len());
        Self {
            hosts: (0..number).map(|at| single(config, at)).collect(),
            tls,
            limit,
            in_any_order: config.get_load_balance_hosts() == LoadBalanceHosts::Random,
        }
    }
}

impl Connect for InTurn {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        Box::pin(async {
            let mut hosts: Vec<_> = self.hosts.iter().collect();
            if self.in_any_order {
                hosts.shuffle(&mut rand::rng());
            }
            // The last one has what is left: the pool's limit is for all.
            let last = hosts.pop();
            for host in hosts {
                match timeout(self.limit, connect(host, self.tls.clone())).await {
                    Ok(Ok(connected)) => return Ok(connected),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, host = ?host.get_hosts(), "the next host is asked");
                    }
                    Err(_) => tracing::debug!(host = ?host.get_hosts(), "no answer: the next host is asked"),
                }
            }
            match last {
                Some(last) => connect(last, self.tls.clone()).await,
                // The driver says what is missing.
                None => connect(&Config::new(), self.tls.clone()).await,
            }
        })
    }
}

async fn connect(host: &Config, tls: MakeRustlsConnect) -> Result<(Client, JoinHandle<()>), Error> {
    let (client, connection) = host.connect(tls).await?;
    let served = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to PostgreSQL has ended");
        }
    });
    Ok((client, served))
}

/// The settings for the host in this place.
fn single(config: &Config, at: usize) -> Config {
    let mut single = Config::new();
    match config.get_hosts().get(at) {
        Some(Host::Tcp(name)) => drop(single.host(name)),
        #[cfg(unix)]
        Some(Host::Unix(folder)) => drop(single.host_path(folder)),
        None => {}
    }
    if let Some(address) = config.get_hostaddrs().get(at) {
        single.hostaddr(*address);
    }
    if let Some(port) = config.get_ports().get(at).or(config.get_ports().first()) {
        single.port(*port);
    }
    if let Some(user) = config.get_user() {
        single.user(user);
    }
    if let Some(password) = config.get_password() {
        single.password(password);
    }
    if let Some(name) = config.get_dbname() {
        single.dbname(name);
    }
    if let Some(options) = config.get_options() {
        single.options(options);
    }
    if let Some(name) = config.get_application_name() {
        single.application_name(name);
    }
    if let Some(limit) = config.get_connect_timeout() {
        single.connect_timeout(*limit);
    }
    if let Some(limit) = config.get_tcp_user_timeout() {
        single.tcp_user_timeout(*limit);
    }
    if let Some(pause) = config.get_keepalives_interval() {
        single.keepalives_interval(pause);
    }
    if let Some(number) = config.get_keepalives_retries() {
        single.keepalives_retries(number);
    }
    single
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle());
    single
}
