use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::WriteId;

/// Which state of a conversation a write builds on: each write that takes effect is one version further.
///
/// The first version is random, see [`Version::first`], so that a writer who still holds a version of a
/// deleted conversation can't take a later one with the same id for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(u64);

impl Version {
    /// Random bits of a first version: too many to meet by chance, few enough to read.
    const FIRST_BITS: u32 = 40;

    /// The version of a conversation that is just being created.
    pub fn first() -> Self {
        Self(rand::random::<u64>() >> (u64::BITS - Self::FIRST_BITS) | 1)
    }

    /// The version with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The version's number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The version after this one.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What every write to an existing conversation carries beside its content.
///
/// Make one for each write, and give the same one again when the write is repeated because nobody knows what
/// became of it.
///
/// ```
/// use omni_agent::store::{Version, Write};
///
/// let write = Write::on(Version::new(7));
/// assert_eq!(write.base, Version::new(7));
/// assert_ne!(write.id, Write::on(Version::new(7)).id);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Write {
    /// The version that the writer knows, and builds on.
    pub base: Version,
    /// Names the write.
    pub id: WriteId,
    /// The ownership that the writer has, if it acquired any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

impl Write {
    /// A new write, on this version, with an id of its own.
    pub fn on(base: Version) -> Self {
        Self { base, id: WriteId::generate(), epoch: None }
    }

    /// The same write with this id.
    pub fn with_id(mut self, id: WriteId) -> Self {
        self.id = id;
        self
    }

    /// The same write, to be refused once this ownership has passed to another.
    pub fn under(mut self, lease: &Lease) -> Self {
        self.epoch = Some(lease.epoch);
        self
    }
}

/// Who has a conversation open, for others to see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Owner {
    /// Tells owners apart; the same name again is the same owner.
    pub name: String,
    /// Where the owner can be reached, in the application's own terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl Owner {
    /// An owner with no address.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), address: None }
    }

    /// An owner that nobody else is: its name is made of this process's number and of chance.
    pub fn unique() -> Self {
        Self::new(format!("{}-{:08x}", std::process::id(), rand::random::<u32>()))
    }

    /// The same owner, to be reached at this address.
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

/// Counts the owners of a conversation: each that takes over has a higher one than all before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Ownership of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// Goes with every write.
    pub epoch: Epoch,
    /// How long it lasts from when it was given, unless it is renewed. `None` in a store that leaves
    /// ownership to versions alone: it never ends, and keeps nobody out.
    pub lasts: Option<Duration>,
}

impl Lease {
    /// The lease of a store that leaves ownership to versions.
    pub const fn unlimited() -> Self {
        Self { epoch: Epoch(0), lasts: None }
    }

    /// A lease that ends unless it is renewed.
    pub const fn lasting(epoch: Epoch, lasts: Duration) -> Self {
        Self { epoch, lasts: Some(lasts) }
    }
}
