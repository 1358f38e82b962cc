//! What a redacted export shows of an event.

use cocoon::codec::{Redactor, decode, encode, event_json};
use cocoon_model::event::Event;

use crate::samples;

/// Texts of the samples that are nobody else's business.
const PRIVATE: [&str; 17] = [
    "web-1",
    "guest",
    "/run",
    "/var",
    "/images",
    "console=",
    "root=/dev",
    "5a5a",
    "aaaa",
    "02:00:00",
    "no space",
    "QEMU ended",
    "VMM lives",
    "panicked",
    "cannot be ended",
    "cccc",
    "dddd",
];

/// Every kind, and each alternative in it, is redacted, and is then still an event of this kind about the same subject.
#[test]
fn every_event_can_be_redacted_and_says_nothing_private() {
    let mut redactor = Redactor::default();
    for event in samples::events() {
        let mut entry = encode(&event).unwrap();
        let (kind, subject) = (entry.kind, entry.subject);
        redactor.entry(&mut entry);
        assert_eq!((entry.kind, entry.subject), (kind, subject));
        let redacted = decode(&entry).unwrap().unwrap();
        let text = event_json(&redacted).to_string();
        for private in PRIVATE {
            assert!(!text.contains(private), "{private:?} of {event:?} is in {text}");
            let body = String::from_utf8_lossy(&entry.body).into_owned();
            assert!(!body.contains(private), "{private:?} of {event:?} is in its bytes");
        }
    }
}

/// What was the same is the same, and what was not is not: who had which name and image can still be asked.
#[test]
fn the_same_text_has_the_same_placeholder() {
    let mut redactor = Redactor::default();
    let mut names = Vec::new();
    for event in samples::events() {
        let mut entry = encode(&event).unwrap();
        redactor.entry(&mut entry);
        if let (Event::Vm(..), Some(Event::Vm(_, redacted))) = (&event, decode(&entry).unwrap()) {
            let body = event_json(&Event::Vm(samples::vm_id(), redacted));
            if let Some(name) = body["name"].as_str() {
                names.push((name.to_owned(), body["spec"]["config"]["image"].clone()));
            }
        }
    }
    assert!(names.len() >= 3);
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
    assert_ne!(names[0].1, names[0].0.as_str(), "the image is another name");
}
