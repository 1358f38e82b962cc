//! Bodies of the events of an image.

use serde::{Deserialize, Serialize};

use crate::record::ImageContent;

/// The files are in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// The name.
    pub name: String,
    /// Content digest of the whole.
    pub digest: String,
    /// The files.
    pub content: ImageContent,
}

/// The files go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveBegan {}

/// The record is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {}
