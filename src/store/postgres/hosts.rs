//! Connects to one of several hosts.

use std::{net::IpAddr, time::Duration};

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use rand::seq::SliceRandom;
use tokio::{task::JoinHandle, time::timeout};
use tokio_postgres::{
    Client, Config, Error,
    config::{Host, LoadBalanceHosts, SslMode},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Connects to one host after another, each with its own time limit. The driver's own limit covers only the socket.
/// With that limit alone, a host that accepts the connection but does not respond, such as a stopped process, would
/// prevent all other hosts from being tried.
pub(super) struct InTurn {
    hosts: Vec<Config>,
    tls: MakeRustlsConnect,
    limit: Duration,
    in_any_order: bool,
}

impl InTurn {
    /// Returns a connector with the time limit `limit` for each host.
    pub(super) fn new(config: &Config, tls: MakeRustlsConnect, limit: Duration) -> Self {
        Self {
            hosts: (0..number(config)).map(|at| single(config, at)).collect(),
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
            // The last host needs no limit here. It gets the remaining time, because the pool's limit covers all hosts
            // together.
            let last = hosts.pop();
            for host in hosts {
                match timeout(self.limit, connect(host, self.tls.clone())).await {
                    Ok(Ok(connected)) => return Ok(connected),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, host = ?host.get_hosts(), "a host failed; trying the next");
                    }
                    Err(_) => tracing::debug!(host = ?host.get_hosts(), "no answer; trying the next host"),
                }
            }
            match last {
                Some(last) => connect(last, self.tls.clone()).await,
                // Without a host, connecting fails, and the driver's error names the missing setting.
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

/// Returns the number of hosts. Hosts are given by name, by address or by both.
pub(super) fn number(config: &Config) -> usize {
    config.get_hosts().len().max(config.get_hostaddrs().len())
}

/// Returns the display name of the host at this index.
pub(super) fn name(config: &Config, at: usize) -> String {
    let host = match (config.get_hosts().get(at), config.get_hostaddrs().get(at)) {
        (Some(Host::Tcp(name)), _) => name.clone(),
        #[cfg(unix)]
        (Some(Host::Unix(folder)), _) => folder.display().to_string(),
        (None, address) => address.map(ToString::to_string).unwrap_or_default(),
    };
    format!("{host}:{}", port(config, at).unwrap_or(5432))
}

fn port(config: &Config, at: usize) -> Option<u16> {
    config.get_ports().get(at).or(config.get_ports().first()).copied()
}

/// Returns whether the host at this index is this machine, both by its name and by its address, if it has both. If only
/// the address is local, the connection may be forwarded over a network.
fn is_local(config: &Config, at: usize) -> bool {
    let by_name = config.get_hosts().get(at).map(|host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    });
    let by_address = config.get_hostaddrs().get(at).map(IpAddr::is_loopback);
    by_name.or(by_address).is_some() && by_name.unwrap_or(true) && by_address.unwrap_or(true)
}

/// Returns the settings for the host at this index.
fn single(config: &Config, at: usize) -> Config {
    let mut single = Config::new();
    match (config.get_hosts().get(at), config.get_hostaddrs().get(at)) {
        (Some(Host::Tcp(name)), _) => drop(single.host(name)),
        #[cfg(unix)]
        (Some(Host::Unix(folder)), _) => drop(single.host_path(folder)),
        // The address is also set as the host, because the certificate is checked for the name of the host.
        (None, Some(address)) => drop(single.host(address.to_string())),
        (None, None) => {}
    }
    if let Some(address) = config.get_hostaddrs().get(at) {
        single.hostaddr(*address);
    }
    if let Some(port) = port(config, at) {
        single.port(port);
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
    // With the mode `prefer`, connections within this machine are not encrypted: they can't be overheard, and local
    // databases have no certificate that could be checked.
    let encryption = match config.get_ssl_mode() {
        SslMode::Prefer if is_local(config, at) => SslMode::Disable,
        mode => mode,
    };
    single
        .ssl_mode(encryption)
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle());
    single
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the TLS mode for each host of these settings.
    fn modes(settings: &str) -> Vec<SslMode> {
        let config: Config = settings.parse().expect("settings");
        (0..number(&config)).map(|at| single(&config, at).get_ssl_mode()).collect()
    }

    #[test]
    fn encryption_is_disabled_only_within_the_machine() {
        use SslMode::{Disable, Prefer, Require};

        for (settings, expected) in [
            ("host=localhost", vec![Disable]),
            ("host=127.0.0.2", vec![Disable]),
            ("host=::1", vec![Disable]),
            ("host=/tmp", vec![Disable]),
            ("host=db", vec![Prefer]),
            ("host=localhost,db", vec![Disable, Prefer]),
            ("hostaddr=10.1.2.3", vec![Prefer]),
            ("hostaddr=127.0.0.1,10.1.2.3", vec![Disable, Prefer]),
            ("host=localhost hostaddr=10.1.2.3", vec![Prefer]),
            ("host=/tmp hostaddr=10.1.2.3", vec![Prefer]),
            ("host=db hostaddr=127.0.0.1", vec![Prefer]),
            ("host=127.0.0.1 hostaddr=10.1.2.3", vec![Prefer]),
            ("host=localhost hostaddr=127.0.0.1", vec![Disable]),
            ("host=/tmp hostaddr=::1", vec![Disable]),
            ("host=localhost,db hostaddr=127.0.0.1,127.0.0.1", vec![Disable, Prefer]),
            ("host=localhost,db sslmode=require", vec![Require, Require]),
            ("host=db sslmode=disable", vec![Disable]),
            ("user=ada", vec![]),
        ] {
            assert_eq!(modes(settings), expected, "{settings}");
        }
    }

    #[test]
    fn host_with_only_an_address_is_named_by_the_address() {
        let config: Config = "hostaddr=10.1.2.3,10.1.2.4 port=1,2".parse().expect("settings");
        assert_eq!([name(&config, 0), name(&config, 1)], ["10.1.2.3:1", "10.1.2.4:2"]);
        // The host is set to the address, so that the certificate is checked for the address.
        assert_eq!(single(&config, 1).get_hosts(), [Host::Tcp("10.1.2.4".to_owned())]);
        let config: Config = "host=db hostaddr=10.1.2.3".parse().expect("settings");
        assert_eq!(name(&config, 0), "db:5432");
        assert_eq!(single(&config, 0).get_hosts(), [Host::Tcp("db".to_owned())]);
    }
}
