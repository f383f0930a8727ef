use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::WriteId;

/// The version of a conversation. Each write that takes effect increases it by one.
///
/// First versions are random (see [`Version::first`]). So if a writer still holds a version of a deleted conversation,
/// this version does not match a later conversation with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The version of a conversation. Each write that takes effect increases it by one."
    )
)]
#[serde(transparent)]
pub struct Version(u64);

impl Version {
    /// The number of random bits in a first version. It is large enough to avoid collisions, and small enough for
    /// readable versions.
    const FIRST_BITS: u32 = 40;

    /// Returns the random first version of a new conversation.
    pub fn first() -> Self {
        Self(rand::random::<u64>() >> (u64::BITS - Self::FIRST_BITS) | 1)
    }

    /// Returns the version with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the version's number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the version that follows this version.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The version, id and epoch that accompany the content of a write.
///
/// Create a new `Write` for each write. To repeat a write whose outcome is unknown, pass the same `Write` again.
///
/// ```
/// use omni_agent::store::custom::{Version, Write};
///
/// let write = Write::on(Version::new(7));
/// assert_eq!(write.base, Version::new(7));
/// assert_ne!(write.id, Write::on(Version::new(7)).id);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Write {
    /// The version on which the write is based. It does not matter for [`Change::Create`](super::Change::Create).
    pub base: Version,
    /// The id of the write.
    pub id: WriteId,
    /// The epoch of the writer's lease. `None` if the writer has not acquired the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

impl Write {
    /// Returns a new write with a new id, for the creation of a conversation.
    pub fn first() -> Self {
        Self::on(Version(0))
    }

    /// Returns a new write with a new id, based on this version.
    pub fn on(base: Version) -> Self {
        Self { base, id: WriteId::generate(), epoch: None }
    }

    crate::setters::setters! {
        /// Returns the same write with this id.
        pub fn with_id(self, id: WriteId) { self.id = id }

        /// Returns the same write, bound to this lease. The store rejects the write if the lease was released or has
        /// passed to another owner. An expired lease is enough, as long as no other owner has acquired the conversation.
        pub fn under(self, lease: &Lease) { self.epoch = Some(lease.epoch) }
    }
}

/// The owner of a conversation. Others that try to open the conversation can see its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Owner {
    /// The name of the owner. Two owners with the same name count as the same owner.
    pub name: String,
    /// The address of the owner. The application chooses the form of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl Owner {
    /// Returns an owner without an address.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), address: None }
    }

    /// Returns an owner with a unique name, which consists of the process id and a random number.
    pub fn unique() -> Self {
        Self::new(format!("{}-{:08x}", std::process::id(), rand::random::<u32>()))
    }

    /// Returns the same owner with this address.
    pub fn at(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.address {
            Some(address) => write!(f, " at {address}"),
            None => Ok(()),
        }
    }
}

/// A counter of the acquisitions of a conversation. Each acquisition has a higher epoch than all earlier acquisitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Ownership of a conversation for a limited time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The epoch of the lease, which each write of the owner contains.
    pub epoch: Epoch,
    /// The duration of the lease, counted from the moment when the lease was acquired or renewed. `None` in a store
    /// that relies on versions alone. In such a store, a lease never ends and excludes no other owner.
    pub lasts: Option<Duration>,
}

impl Lease {
    /// Returns the lease of a store that relies on versions alone.
    pub const fn unlimited() -> Self {
        Self { epoch: Epoch(0), lasts: None }
    }

    /// Returns a lease that ends after this duration unless it is renewed.
    pub const fn lasting(epoch: Epoch, lasts: Duration) -> Self {
        Self { epoch, lasts: Some(lasts) }
    }
}
