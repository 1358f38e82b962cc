//! Bytes to an event: the first two choose a kind and a version near those that there are, the rest is the body.

#![no_main]

use cocoon::codec;
use cocoon_journal::{Entry, Subject};
use cocoon_model::event::Event;
use libfuzzer_sys::fuzz_target;

const SUBJECTS: [&str; 3] =
    ["vm/aaaaaaaaaaaaaaaaaaaaaaaaaa", "image/aaaaaaaaaaaaaaaaaaaaaaaaaa", "supervisor"];

fuzz_target!(|bytes: &[u8]| {
    let [which, version, body @ ..] = bytes else { return };
    let kinds: Vec<_> = Event::kinds().collect();
    let info = kinds[usize::from(*which) % kinds.len()];
    let version = if *version < 250 { info.version } else { u16::from(*version) };
    for subject in SUBJECTS {
        let subject = Subject::new(subject).expect("a subject");
        let entry = Entry { kind: info.kind, version, subject, body: body.to_vec() };
        if let Ok(Some(event)) = codec::decode(&entry) {
            let again = codec::encode(&event).expect("what was read can be written");
            assert_eq!(codec::decode(&again).expect("and read again"), Some(event));
        }
    }
});
