//! What is known of the root itself.

use serde::{Deserialize, Serialize};

/// Where a root is: enough to tell it from its copies, and from itself at another place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Id of the machine, 32 hex digits, where it has one.
    pub machine: Option<String>,
    /// Device number of its file system.
    pub device: u64,
    /// Id of its file system.
    pub file_system: u64,
    /// Inode number of its directory.
    pub inode: u64,
    /// When that inode was made, nanoseconds since 1970, where the file system says.
    pub born_ns: Option<i64>,
    /// Its absolute path.
    pub path: String,
}

/// Why a root is unconfirmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// The event that says so.
    pub seq: u64,
    /// What it says, as the end of the sentence "this root is unconfirmed: ...".
    pub reason: String,
}

/// What is known of the root itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootRecord {
    /// Why it is unconfirmed, if the journal says so.
    pub doubt: Option<Doubt>,
    /// Where it was when it was last adopted.
    pub place: Option<Place>,
    /// When it was last adopted, microseconds since 1970.
    pub adopted_us: Option<i64>,
}
