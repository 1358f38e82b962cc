//! What an event is about.

use std::fmt;

use super::FrameError;

/// A short identifier such as `vm/01hzy...`: 1 to 40 printable ASCII characters, kept inline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    // Padded with zeroes, which no subject contains: the order of the arrays is that of the strings.
    bytes: [u8; Subject::MAX_LEN],
    len: u8,
}

impl Subject {
    /// Most bytes of a subject.
    pub const MAX_LEN: usize = 40;

    /// Checks and keeps `text`.
    ///
    /// # Errors
    ///
    /// [`FrameError::BadSubject`] unless it is 1 to 40 printable ASCII characters without spaces.
    pub fn new(text: impl AsRef<str>) -> Result<Self, FrameError> {
        let text = text.as_ref();
        Self::from_bytes(text.as_bytes())
            .ok_or_else(|| FrameError::BadSubject { subject: text.to_owned() })
    }

    pub(super) fn from_bytes(source: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LEN];
        if source.is_empty() || !source.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        bytes.get_mut(..source.len())?.copy_from_slice(source);
        Some(Self { bytes, len: u8::try_from(source.len()).ok()? })
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only printable ASCII gets in.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl AsRef<str> for Subject {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl std::str::FromStr for Subject {
    type Err = FrameError;

    fn from_str(text: &str) -> Result<Self, FrameError> {
        Self::new(text)
    }
}
