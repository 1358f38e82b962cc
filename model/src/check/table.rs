//! A table from 128-bit hashes to small numbers, and the hash itself.
//!
//! The same input gives the same hash on every machine and in every build: two runs of a search are equal byte by byte.
//! With 20 million states the chance that two of them share a hash is below 10^-24.

use std::hash::{Hash, Hasher};

/// Hashes a value to 128 bits.
pub(crate) fn hash_of(value: &impl Hash) -> u128 {
    let (low, high) = (0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
    let mut lanes = Lanes { low, high, rest: 0, bytes: 0 };
    value.hash(&mut lanes);
    lanes.mix(lanes.rest ^ (u64::from(lanes.bytes) << 60));
    (u128::from(avalanche(lanes.high)) << 64) | u128::from(avalanche(lanes.low ^ lanes.high >> 29))
}

/// Two multiplicative lanes with different constants, fed with words of eight bytes.
struct Lanes {
    low: u64,
    high: u64,
    /// Bytes that do not fill a word yet, and how many.
    rest: u64,
    bytes: u32,
}

impl Lanes {
    fn push(&mut self, byte: u8) {
        self.rest |= u64::from(byte) << (self.bytes * 8);
        self.bytes += 1;
        if self.bytes == 8 {
            self.mix(self.rest);
            (self.rest, self.bytes) = (0, 0);
        }
    }

    fn mix(&mut self, word: u64) {
        self.low = (self.low ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        self.high = (self.high.rotate_left(23) ^ word).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        self.high ^= self.low >> 31;
    }
}

fn avalanche(mut word: u64) -> u64 {
    word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ (word >> 29)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 32)
}

impl Hasher for Lanes {
    fn finish(&self) -> u64 {
        self.low ^ self.high
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.push(*byte));
    }

    fn write_u8(&mut self, value: u8) {
        self.push(value);
    }

    /// Of an enum: which of its variants. None here has more than 255.
    fn write_isize(&mut self, value: isize) {
        self.push(u8::try_from(value).unwrap_or(u8::MAX));
    }
}

/// A set of hashes, open-addressed: 16 bytes a place, of which three eighths to three quarters are used.
#[derive(Debug, Clone)]
pub(crate) struct Set {
    /// 0 marks a free place.
    places: Vec<u128>,
    used: usize,
}

impl Default for Set {
    fn default() -> Self {
        Self { places: vec![0; 1 << 10], used: 0 }
    }
}

impl Set {
    /// How many it holds.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Bytes that it occupies.
    pub(crate) fn bytes(&self) -> usize {
        self.places.len() * size_of::<u128>()
    }

    /// Takes a hash in; says whether it was new.
    pub(crate) fn insert(&mut self, hash: u128) -> bool {
        let hash = hash.max(1);
        let at = self.place(hash);
        if self.places[at] == hash {
            return false;
        }
        self.places[at] = hash;
        self.used += 1;
        if self.used * 4 > self.places.len() * 3 {
            self.grow();
        }
        true
    }

    /// Where a hash is, or would be.
    fn place(&self, hash: u128) -> usize {
        let mask = self.places.len() - 1;
        let mut at = (hash as usize) & mask;
        while self.places[at] != 0 && self.places[at] != hash {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let larger = vec![0; self.places.len() * 2];
        for hash in std::mem::replace(&mut self.places, larger) {
            if hash != 0 {
                let at = self.place(hash);
                self.places[at] = hash;
            }
        }
    }
}

/// An open-addressed table; grows by halves of its load of three quarters.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// `(hash, value + 1)`; a value of 0 marks a free place.
    places: Vec<(u128, u32)>,
    used: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self { places: vec![(0, 0); 1 << 10], used: 0 }
    }
}

impl Table {
    /// Bytes that it occupies.
    pub(crate) fn bytes(&self) -> usize {
        self.places.len() * size_of::<(u128, u32)>()
    }

    /// What is stored under a hash.
    pub(crate) fn get(&self, hash: u128) -> Option<u32> {
        let (_, value) = self.places[self.place(hash)];
        value.checked_sub(1)
    }

    /// Stores a value unless there is one; says whether it was new.
    pub(crate) fn insert(&mut self, hash: u128, value: u32) -> bool {
        let at = self.place(hash);
        if self.places[at].1 != 0 {
            return false;
        }
        self.places[at] = (hash, value + 1);
        self.used += 1;
        if self.used * 4 > self.places.len() * 3 {
            self.grow();
        }
        true
    }

    /// Where a hash is, or would be.
    fn place(&self, hash: u128) -> usize {
        let mask = self.places.len() - 1;
        let mut at = (hash as usize) & mask;
        while self.places[at].1 != 0 && self.places[at].0 != hash {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let larger = vec![(0, 0); self.places.len() * 2];
        for (hash, value) in std::mem::replace(&mut self.places, larger) {
            if value != 0 {
                let at = self.place(hash);
                self.places[at] = (hash, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_is_found_and_nothing_else() {
        let mut table = Table::default();
        for value in 0..10_000_u32 {
            assert!(table.insert(hash_of(&value), value));
        }
        for value in 0..10_000_u32 {
            assert!(!table.insert(hash_of(&value), 7));
            assert_eq!(table.get(hash_of(&value)), Some(value));
        }
        assert_eq!(table.get(hash_of(&10_000_u32)), None);
    }

    #[test]
    fn a_set_knows_what_it_holds() {
        let mut set = Set::default();
        assert!((0..5_000_u32).all(|value| set.insert(hash_of(&value))));
        assert!(!(0..5_000_u32).any(|value| set.insert(hash_of(&value))));
        assert_eq!(set.len(), 5_000);
    }

    #[test]
    fn near_values_are_told_apart() {
        let near = |a: u8, b: u8| hash_of(&[a, b, 0, 0, 0, 0, 0, 0]);
        let mut table = Table::default();
        for a in 0..=255 {
            for b in 0..=255 {
                assert!(table.insert(near(a, b), 0), "{a} {b}");
            }
        }
    }
}
