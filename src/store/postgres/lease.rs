//! Leases, which are measured by the database's clock.
//!
//! The lease is in the row of its conversation, which both a write and a take-over lock. Clocks can be set back, so a
//! lease also counts as expired if its end is more than twice its length in the future.

use std::time::Duration;

use super::{
    connect::PgConnection,
    error::PostgresOperationError,
    server::PostgresPools,
    write::{TRIES, restless},
};
use crate::{
    store::{ConversationId, Epoch, Lease, Owner, StoreError, rows},
    subscription::EventId,
};

/// Returns a duration in the form that the database expects. The duration is limited, so that the resulting date is
/// valid.
fn seconds(lasts: Duration) -> f64 {
    /// 30 years.
    const LONGEST: f64 = 1e9;

    lasts.as_secs_f64().min(LONGEST)
}

/// Returns the random part of an epoch, below 2^20. If a server takes over from another server in the same millisecond,
/// it does not assign the same epoch to a new owner.
fn step() -> i64 {
    i64::from(rand::random::<u32>() >> 12)
}

pub(super) async fn acquire(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    owner: &Owner,
) -> Result<Lease, PostgresOperationError> {
    let lasts = server.limits.lease;
    let mut first = None;
    for _ in 0..TRIES {
        let other = connection.prepare_cached(&server.sql.owner).await?;
        let row = connection.query_opt(&other, &[&id.as_str()]).await?;
        let row = row.ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
        let epoch: i64 = row.try_get(0)?;
        let first = *first.get_or_insert(epoch);
        // `owner` returns `None` if the lease expired or was released. If an owner of the same name acquired the
        // conversation during this loop, that acquisition is newer than this call, so this call fails.
        if let Some(other) = rows::owner(&row, 1)?
            && (other.name != owner.name || epoch != first)
        {
            return Err(StoreError::Owned { id: id.clone(), owner: other }.into());
        }
        let acquire = connection.prepare_cached(&server.sql.acquire).await?;
        let (name, address, lasts_secs) = (&owner.name, &owner.address, seconds(lasts));
        let acquired = connection
            .query_opt(&acquire, &[&id.as_str(), name, address, &lasts_secs, &epoch, &step()])
            .await?;
        if let Some(row) = acquired {
            return Ok(Lease::lasting(Epoch(row.try_get::<_, i64>(0)?.cast_unsigned()), lasts));
        }
    }
    Err(restless(id).into())
}

/// Renews leases, and returns the conversations whose leases are lost. A single lease waits for the lock of its row.
pub(super) async fn renew(
    connection: &PgConnection,
    server: &PostgresPools,
    leases: &[(ConversationId, Lease)],
) -> Result<Vec<ConversationId>, PostgresOperationError> {
    if let [(id, lease)] = leases {
        let lasts = seconds(lease.lasts.unwrap_or(server.limits.lease));
        let renew = connection.prepare_cached(&server.sql.renew).await?;
        let epoch = lease.epoch.0.cast_signed();
        let renewed = connection.execute(&renew, &[&id.as_str(), &epoch, &lasts]).await?;
        return Ok(if renewed == 0 { vec![id.clone()] } else { Vec::new() });
    }
    let ids: Vec<_> = leases.iter().map(|(id, _)| id.as_str()).collect();
    let epochs: Vec<_> = leases.iter().map(|(_, lease)| lease.epoch.0.cast_signed()).collect();
    let lasts: Vec<_> =
        leases.iter().map(|(_, lease)| seconds(lease.lasts.unwrap_or(server.limits.lease))).collect();
    let renew = connection.prepare_cached(&server.sql.renew_all).await?;
    let lost = connection.query(&renew, &[&ids, &epochs, &lasts]).await?;
    let lost = lost.iter().map(|row| row.try_get::<_, &str>(0)).collect::<Result<Vec<_>, _>>()?;
    let named = leases.iter().map(|(id, _)| id).filter(|id| lost.contains(&id.as_str()));
    Ok(named.cloned().collect())
}

pub(super) async fn release(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    lease: &Lease,
    mark: Option<EventId>,
) -> Result<(), PostgresOperationError> {
    let release = connection.prepare_cached(&server.sql.release).await?;
    let mark = mark.map(|mark| mark.to_string());
    connection.execute(&release, &[&id.as_str(), &lease.epoch.0.cast_signed(), &mark]).await?;
    Ok(())
}
