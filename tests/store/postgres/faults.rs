//! Faults of the server and of the network. Acknowledged writes are neither lost nor duplicated, errors describe what
//! happened, and the store recovers automatically.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use omni_agent::store::{
    Owner, PostgresStore, Store, StoreError,
    custom::{Change, Version, Write},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, UnixStream},
    task::{JoinHandle, JoinSet},
};

use super::{
    schema,
    server::{FORGETFUL, Server, fresh, raw, url},
};
use crate::support::{commit, create, id, says};

#[tokio::test]
async fn write_after_the_server_crashed_and_came_back_succeeds() {
    let Some(server) = Server::start(FORGETFUL) else { return };
    let store = fresh(&server.url()).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "before").await;

    server.stop("immediate");
    let write = Write::on(version);
    for failed in [
        store.write(&id("a"), &write, &Change::Commit(says(2, "after"))).await.map(drop),
        store.load(&id("a")).await.map(drop),
    ] {
        let error = failed.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        assert!(error.is_transient());
    }

    server.restart();
    assert_eq!(
        store.write(&id("a"), &write, &Change::Commit(says(2, "after"))).await.unwrap(),
        version.next()
    );
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 2);
}

/// Commits the nodes from 1 to `goal`. Repeats each commit until it is acknowledged.
async fn insist(
    store: PostgresStore,
    name: &'static str,
    mut version: Version,
    goal: u64,
    done: Arc<AtomicU64>,
) {
    for number in 1..=goal {
        let write = Write::on(version);
        version = loop {
            match store.write(&id(name), &write, &Change::Commit(says(number, name))).await {
                Ok(version) => break version,
                Err(error) => assert!(error.is_transient(), "{name} {number}: {error:?}"),
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(version, write.base.next());
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until the writers have made this many commits.
async fn reach(done: &AtomicU64, number: u64, writers: &[JoinHandle<()>]) {
    while done.load(Ordering::Relaxed) < number {
        assert!(!writers.iter().all(JoinHandle::is_finished), "the writers have failed");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_during_server_crashes_and_lost_sessions_are_neither_lost_nor_duplicated() {
    const GOAL: u64 = 150;
    let Some(server) = Server::start(FORGETFUL) else { return };
    let server = Arc::new(server);
    let store = fresh(&server.url()).open().await.unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let names = ["a", "b", "c"];
    let mut writers = Vec::new();
    for name in names {
        let version = create(&store, &id(name)).await;
        writers.push(tokio::spawn(insist(store.clone(), name, version, GOAL, Arc::clone(&done))));
    }
    for round in 1..=6 {
        reach(&done, round * 60, &writers).await;
        if round % 2 == 0 {
            let server = Arc::clone(&server);
            let crash = move || {
                server.stop("immediate");
                server.restart();
            };
            tokio::task::spawn_blocking(crash).await.unwrap();
        } else {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'omni-agent'";
            raw(&server.url()).await.execute(cut, &[]).await.unwrap();
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    for name in names {
        let nodes = store.load(&id(name)).await.unwrap().nodes;
        assert!(nodes.iter().map(|node| node.id().get()).eq(1..=GOAL), "{name}: {} nodes", nodes.len());
    }
}

#[tokio::test]
async fn operation_without_a_free_connection_is_busy_and_leases_are_renewed() {
    let Some(url) = url() else { return };
    let store = fresh(url).connections(1).pool_wait(Duration::from_millis(50)).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    create(&store, &id("b")).await;
    let lease = store.acquire(&id("b"), &Owner::new("ann")).await.unwrap();
    let mut other = raw(url).await;
    let transaction = other.transaction().await.unwrap();
    let lock = format!("SELECT FROM {}.conversations WHERE id = 'a' FOR UPDATE", schema(&store));
    transaction.execute(&lock, &[]).await.unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.write(&id("a"), &Write::on(version), &Change::Commit(says(1, "Hi"))).await }
    });
    // Wait until the store's only connection is waiting for the lock.
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let query = format!("%{}%", schema(&store));
    let observer = raw(url).await;
    while observer.query(waits, &[&query]).await.unwrap().is_empty() {}

    match store.load(&id("b")).await {
        Err(error @ StoreError::Busy { .. }) => {
            assert!(error.to_string().starts_with("the pool of 1 connections to"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.renew(&[(id("b"), lease)]).await.unwrap(), []);
    transaction.rollback().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), version.next());
    store.load(&id("b")).await.unwrap();
}

/// The idle connections are as after a failover to a server to which only new connections lead.
#[tokio::test]
async fn write_with_ten_read_only_idle_connections_uses_a_new_connection() {
    const NUMBER: usize = 10;
    let Some(server) = Server::start(FORGETFUL) else { return };
    let first = fresh(&server.url()).open().await.unwrap();
    let version = create(&first, &id("a")).await;
    let mut other = raw(&server.url()).await;
    other
        .batch_execute("CREATE ROLE r SUPERUSER LOGIN; ALTER ROLE r SET default_transaction_read_only = on")
        .await
        .unwrap();
    let url = format!("{}?target_session_attrs=any", server.url().replace("postgres@", "r@"));
    let store = PostgresStore::builder(&url).schema(first.schema()).connections(NUMBER).open().await.unwrap();
    // All loads wait for a lock, so each has a connection of its own.
    let transaction = other.transaction().await.unwrap();
    let lock = format!("LOCK TABLE {}.conversations IN ACCESS EXCLUSIVE MODE", schema(&first));
    transaction.execute(&lock, &[]).await.unwrap();
    let mut loads = JoinSet::new();
    for _ in 0..NUMBER {
        let store = store.clone();
        loads.spawn(async move { store.load(&id("a")).await.map(drop) });
    }
    let observer = raw(&server.url()).await;
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = 'r'";
    while observer.query(waits, &[]).await.unwrap().len() < NUMBER {}
    transaction.rollback().await.unwrap();
    while let Some(loaded) = loads.join_next().await {
        loaded.unwrap().unwrap();
    }

    observer.batch_execute("ALTER ROLE r RESET default_transaction_read_only").await.unwrap();
    let write = Write::on(version);
    let written = store.write(&id("a"), &write, &Change::Commit(says(1, "after"))).await;
    assert_eq!(written.unwrap(), version.next());
}

#[tokio::test]
async fn open_of_a_single_host_that_refuses_writes_is_unreachable() {
    let Some(server) = Server::start("-c fsync=off -c default_transaction_read_only=on") else { return };
    let error = fresh(&server.url()).open().await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.is_transient());
}

/// An address that forwards connections to the server. When it is stopped, all its connections are closed.
struct Proxy(JoinHandle<()>);

impl Proxy {
    async fn start(address: SocketAddr, socket: PathBuf) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        Self(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let mut server = UnixStream::connect(&socket).await.unwrap();
                connections.spawn(async move { copy_bidirectional(&mut client, &mut server).await });
            }
        }))
    }

    async fn stop(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

/// Returns an address that has no server and that no other test has received.
pub(crate) fn free() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());

    // The tests of other programs use ports outside of this range.
    let ports = (27_000..32_000)
        .step_by(7)
        .skip(usize::from(*omni_agent::store::custom::WriteId::generate().as_bytes().first().unwrap()));
    let mut addresses = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let mut given = GIVEN.lock().unwrap();
    addresses.find(|address| std::net::TcpListener::bind(address).is_ok() && given.insert(*address)).unwrap()
}

#[tokio::test]
async fn write_after_a_failover_of_the_address_goes_to_the_other_host() {
    let Some(server) = Server::start(FORGETFUL) else { return };
    let first = free();
    let proxy = Proxy::start(first, server.socket()).await;
    let second = free();
    let url = format!("postgres://postgres@{first},{second}/postgres");
    let store = fresh(&url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "by the first").await;

    proxy.stop().await;
    let write = Write::on(version);
    let failed = store.write(&id("a"), &write, &Change::Commit(says(2, "by the second"))).await.unwrap_err();
    assert!(matches!(failed, StoreError::Unreachable { .. }), "{failed:?}");
    let text = failed.to_string();
    assert!(text.contains(&first.to_string()) && text.contains(&second.to_string()), "{text}");

    let _proxy = Proxy::start(second, server.socket()).await;
    assert_eq!(
        store.write(&id("a"), &write, &Change::Commit(says(2, "by the second"))).await.unwrap(),
        version.next()
    );
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 2);
}

/// The first host behaves as if its server process were stopped: the kernel still accepts connections.
#[tokio::test]
async fn open_with_a_first_host_that_never_answers_uses_the_next() {
    let Some(server) = Server::start(FORGETFUL) else { return };
    let first = free();
    let silent = TcpListener::bind(first).await.unwrap();
    let second = free();
    let _proxy = Proxy::start(second, server.socket()).await;
    let url = format!("postgres://postgres@{first},{second}/postgres");
    let limit = Duration::from_millis(300);
    let store = fresh(&url).connections(2).connect_timeout(limit).open().await.unwrap();
    create(&store, &id("a")).await;
    drop(silent);
    create(&store, &id("b")).await;
}
