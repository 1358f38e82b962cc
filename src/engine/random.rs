//! Random ids and marks, from the system.

use cocoon_model::id::{ID_LEN, Id};
use uuid::Uuid;

/// A fresh id.
pub(crate) fn id() -> Id {
    let (one, two) = (Uuid::new_v4(), Uuid::new_v4());
    // Version and variant of a UUID are not random: bytes 6 and 8 are left out.
    let random = |uuid: Uuid| {
        let bytes = uuid.into_bytes();
        bytes.into_iter().enumerate().filter(|(at, _)| *at != 6 && *at != 8).map(|(_, byte)| byte)
    };
    let mut bytes = [0; ID_LEN];
    for (to, from) in bytes.iter_mut().zip(random(one).chain(random(two))) {
        *to = from;
    }
    Id::from_random(bytes)
}

/// A fresh mark.
pub(crate) fn u64() -> u64 {
    let [high, low] = [Uuid::new_v4().as_u128() >> 80, Uuid::new_v4().as_u128() >> 80];
    // 32 random bits of each.
    u64::try_from(((high & 0xffff_ffff) << 32) | (low & 0xffff_ffff)).unwrap_or_default()
}

/// A locally administered, unicast MAC address.
pub(crate) fn mac() -> String {
    let bytes = u64().to_be_bytes();
    let tail: Vec<String> = bytes.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    format!("02:{}", tail.join(":"))
}
