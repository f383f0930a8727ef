//! A server that does not answer. Every operation ends with an error that describes the missing answer, and the next
//! operation succeeds.

use std::{net::SocketAddr, time::Duration};

use omni_agent::store::{
    Owner, PostgresStore, Store, StoreError,
    custom::{Change, Write},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};

use super::{
    faults::free,
    schema,
    server::{FORGETFUL, Server, fresh, raw, url},
};
use crate::support::{create, id, says};

#[tokio::test]
async fn write_whose_statement_hangs_is_busy_after_its_limit_and_succeeds_later() {
    let Some(url) = url() else { return };
    let limit = Duration::from_millis(100);
    let store = fresh(url).connections(1).statement_timeout(limit).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let schema = schema(&store);
    let hang = format!(
        "CREATE FUNCTION {schema}.hang() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_sleep(60); RETURN new; END';
         CREATE TRIGGER hang BEFORE INSERT ON {schema}.nodes FOR EACH ROW EXECUTE FUNCTION {schema}.hang()"
    );
    let observer = raw(url).await;
    observer.batch_execute(&hang).await.unwrap();

    let write = Write::on(version);
    match store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await {
        Err(error @ StoreError::Busy { waited, .. }) => {
            assert_eq!(waited, limit);
            assert!(error.is_transient());
            assert!(error.to_string().starts_with("conversation a in the PostgreSQL database"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        store.load(&id("a")).await.unwrap().version,
        version,
        "the cancelled write left something behind"
    );
    observer.batch_execute(&format!("DROP TRIGGER hang ON {schema}.nodes")).await.unwrap();
    assert_eq!(store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap(), version.next());
}

/// The server process of the connection is stopped, so the server can't even cancel the statement.
#[tokio::test]
async fn write_to_a_frozen_process_is_unreachable_and_is_made_once_over_another_connection() {
    let Some(server) = Server::start(FORGETFUL) else { return };
    let limit = Duration::from_millis(500);
    let creator = fresh(&server.url()).open().await.unwrap();
    let version = create(&creator, &id("a")).await;
    let url = format!("{}?application_name=frozen", server.url());
    let store = PostgresStore::builder(&url)
        .schema(creator.schema())
        .connections(1)
        .statement_timeout(limit)
        .open()
        .await
        .unwrap();
    let observer = raw(&server.url()).await;
    let find = "SELECT pid FROM pg_stat_activity WHERE application_name = 'frozen'";
    let pid: i32 = observer.query_one(find, &[]).await.unwrap().get(0);
    let pid = Pid::from_raw(pid).unwrap();
    kill_process(pid, Signal::STOP).unwrap();

    let write = Write::on(version);
    let error = store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().ends_with(": it did not respond within 5.5s"), "{error}");

    // The store drops the connection instead of waiting for it, so a pool of one connection can open a new connection.
    let written = loop {
        match store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await {
            Err(StoreError::Busy { .. }) => {}
            done => break done.unwrap(),
        }
    };
    assert_eq!(written, version.next());
    // The server process continues, finds the old statement, and notices that the statement is too late.
    kill_process(pid, Signal::CONT).unwrap();
    let gone = "SELECT FROM pg_stat_activity WHERE pid = $1";
    while !observer.query(gone, &[&pid.as_raw_nonzero().get()]).await.unwrap().is_empty() {}
    let stored = creator.load(&id("a")).await.unwrap();
    assert_eq!((stored.version, stored.nodes.len()), (version.next(), 1));
}

/// An abandoned request to acquire a conversation must not take the conversation from a later owner with the same name.
#[tokio::test]
async fn acquire_that_resumes_after_another_owner_of_the_same_name_takes_nothing() {
    let Some(server) = Server::start(FORGETFUL) else { return };
    let builder = fresh(&server.url()).lock_wait(Duration::from_mins(1));
    let (frozen, store) = (builder.clone().open().await.unwrap(), builder.open().await.unwrap());
    create(&store, &id("a")).await;
    let mut other = raw(&server.url()).await;
    let transaction = other.transaction().await.unwrap();
    let lock = format!("SELECT FROM {}.conversations FOR UPDATE", schema(&store));
    transaction.execute(&lock, &[]).await.unwrap();
    let early = tokio::spawn(async move { frozen.acquire(&id("a"), &Owner::new("ann")).await });
    let observer = raw(&server.url()).await;
    let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let pid: i32 = loop {
        if let Some(row) = observer.query_opt(waits, &[]).await.unwrap() {
            break row.get(0);
        }
    };
    let pid = Pid::from_raw(pid).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    transaction.rollback().await.unwrap();

    let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    match early.await.unwrap() {
        Err(StoreError::Owned { owner, .. }) => assert_eq!(owner.name, "ann"),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.renew(&[(id("a"), lease)]).await.unwrap(), []);
}

/// Even if one connection stops answering, the client process must not lose its leases.
#[tokio::test]
async fn renewal_over_a_frozen_process_succeeds_over_another_connection() {
    let Some(server) = Server::start(FORGETFUL) else { return };
    let store = fresh(&server.url()).lease(Duration::from_secs(3)).open().await.unwrap();
    create(&store, &id("a")).await;
    let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
    let observer = raw(&server.url()).await;
    let find = "SELECT pid FROM pg_stat_activity WHERE application_name = 'omni-agent' AND query LIKE $1";
    for count in [1, 2] {
        let leases = vec![(id("a"), lease.clone()); count];
        // The query finds the connection of the leases by the statement that the connection executed last.
        assert_eq!(store.renew(&leases).await.unwrap(), []);
        let pids = observer.query(find, &[&"%SET expires = clock_timestamp()%"]).await.unwrap();
        assert_eq!(pids.len(), 1, "leases have a separate connection");
        let pid = Pid::from_raw(pids[0].get(0)).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        assert_eq!(store.renew(&leases).await.unwrap(), []);
        kill_process(pid, Signal::CONT).unwrap();
        let gone = "SELECT FROM pg_stat_activity WHERE pid = $1";
        while !observer.query(gone, &[&pid.as_raw_nonzero().get()]).await.unwrap().is_empty() {}
    }
}

/// Accepts connections, answers the first `answers` messages on each connection, and then never answers again.
async fn silent_after(answers: usize) -> SocketAddr {
    /// The messages `AuthenticationOk` and `ReadyForQuery` (see "Message Formats" in PostgreSQL's documentation).
    const WELCOME: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
    const READY: &[u8] = b"Z\0\0\0\x05I";
    let listener = TcpListener::bind(free()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut buffer = [0; 4096];
                for answer in [WELCOME, READY].into_iter().take(answers) {
                    let _ = client.read(&mut buffer).await;
                    let _ = client.write_all(answer).await;
                }
                // All further messages are read and never answered.
                while client.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
            });
        }
    });
    address
}

#[tokio::test]
async fn open_of_a_server_that_stops_answering_is_unreachable() {
    let silences = [
        // The three cases: the server stops answering before the login, before the session's settings, or before the
        // query of the schema version.
        (0, "no connection was established within 50ms"),
        (1, "no connection was established within 50ms"),
        (2, "it did not respond within 5.001s"),
    ];
    let opened = silences.map(|(answers, expected)| async move {
        let address = silent_after(answers).await;
        let error = PostgresStore::builder(format!("postgres://ada@{address}/app?target_session_attrs=any"))
            .connect_timeout(Duration::from_millis(50))
            .statement_timeout(Duration::from_millis(1))
            .open()
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{answers} answers: {error:?}");
        assert!(error.to_string().ends_with(&format!(": {expected}")), "{answers} answers: {error}");
    });
    futures_util::future::join_all(opened).await;
}
