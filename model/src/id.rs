//! Names of things: ids that are never reused, and names that people choose.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Letters and digits of an id (RFC 4648 base32, lower case).
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Characters of an id: 26 times 5 bits.
pub const ID_LEN: usize = 26;

/// A text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an id; an id has {ID_LEN} characters out of a-z and 2-7")]
pub struct NotAnId(pub String);

/// 26 base32 characters, chosen at random once and never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id([u8; ID_LEN]);

/// The id of a VM.
pub type VmId = Id;

/// The id of an image.
pub type ImageId = Id;

impl Id {
    /// Spells 26 random bytes as an id; of each byte only the low five bits count.
    #[must_use]
    pub fn from_random(bytes: [u8; ID_LEN]) -> Self {
        Self(bytes.map(|byte| ALPHABET[usize::from(byte & 31)]))
    }

    /// The id of slot `slot` in a simulated world.
    #[must_use]
    pub fn from_slot(slot: u8) -> Self {
        let mut text = [ALPHABET[0]; ID_LEN];
        text[0] = ALPHABET[usize::from(slot & 31)];
        text[1] = ALPHABET[usize::from(slot >> 5)];
        Self(text)
    }

    /// The 26 characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only letters and digits of ALPHABET are ever stored, so the fallback is never taken.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl FromStr for Id {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let bytes: [u8; ID_LEN] =
            text.as_bytes().try_into().map_err(|_| NotAnId(text.to_owned()))?;
        if bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')) {
            Ok(Self(bytes))
        } else {
            Err(NotAnId(text.to_owned()))
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The id of one operation: everything that one command, or one recovery, does to one subject. It fences: only the
/// operation that a record names may write the record's outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OperationId(pub u128);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&uuid_text(self.0))
    }
}

impl Serialize for OperationId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        uuid::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for OperationId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        uuid::deserialize(deserializer).map(Self)
    }
}

/// 128 bits in the usual spelling of a UUID.
fn uuid_text(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| hex.get(part).unwrap_or_default());
    parts.join("-")
}

/// 128 bits as a number where bytes are written, and as a UUID where people read (JSON has no such numbers).
pub(crate) mod uuid {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bits: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&super::uuid_text(*bits))
        } else {
            serializer.serialize_u128(*bits)
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u128, D::Error> {
        if !deserializer.is_human_readable() {
            return u128::deserialize(deserializer);
        }
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom(format!("`{text}` is not a UUID"));
        let hex: String = text.chars().filter(|letter| *letter != '-').collect();
        if hex.len() != 32 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        u128::from_str_radix(&hex, 16).map_err(|_| wrong())
    }
}

/// A random mark of one launch of a VMM, chosen before the launch.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct LaunchToken(pub u64);

/// A name that cannot be given to a VM or an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Not a VM name.
    #[error(
        "`{0}` cannot be a VM name; use 1 to 63 letters, digits, `.`, `_` or `-`, beginning with a letter or digit"
    )]
    Vm(String),
    /// Not an image name.
    #[error(
        "`{0}` cannot be an image name; use 1 to 128 letters, digits, `.`, `_`, `-`, `/`, `:` or `@`, beginning with a letter or digit"
    )]
    Image(String),
}

/// Checks a VM name: `[A-Za-z0-9][A-Za-z0-9._-]{0,62}`.
///
/// # Errors
/// [`BadName::Vm`] if it does not fit.
pub fn check_vm_name(name: &str) -> Result<(), BadName> {
    if fits(name, 63, b"._-") { Ok(()) } else { Err(BadName::Vm(name.to_owned())) }
}

/// Checks an image name: `[A-Za-z0-9][A-Za-z0-9._/:@-]{0,127}`.
///
/// # Errors
/// [`BadName::Image`] if it does not fit.
pub fn check_image_name(name: &str) -> Result<(), BadName> {
    if fits(name, 128, b"._-/:@") { Ok(()) } else { Err(BadName::Image(name.to_owned())) }
}

fn fits(name: &str, longest: usize, also: &[u8]) -> bool {
    let bytes = name.as_bytes();
    bytes.len() <= longest
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || also.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_spell_and_parse() {
        let id = Id::from_random(std::array::from_fn(|i| u8::try_from(i * 9).unwrap()));
        assert_eq!(id.as_str().len(), ID_LEN);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("UPPERCASEUPPERCASEUPPERCAS".parse::<Id>().is_err());
        assert!("short".parse::<Id>().is_err());
        assert_ne!(Id::from_slot(1), Id::from_slot(33));
    }

    #[test]
    fn names_are_checked() {
        for good in ["a", "web-1", "A.b_c-9", &"x".repeat(63)] {
            assert_eq!(check_vm_name(good), Ok(()), "{good}");
        }
        for bad in ["", "-a", ".a", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(check_vm_name(bad).is_err(), "{bad}");
        }
        assert_eq!(check_image_name("registry/ns/app:v1"), Ok(()));
        assert!(check_image_name("/etc").is_err());
    }
}
