//! The API.

use std::os::unix::fs::PermissionsExt as _;

use crate::root::{NEVER, Root, birth};

#[test]
fn health_vms_and_metrics() {
    let root = Root::new();
    let pid = root.vm("a");
    root.ok(&birth("create", "b"));
    let daemon = root.daemon_with(&["--api-socket-mode", "0600"], &[]);
    let socket = root.root_dir().join("run/cocoond.sock");
    assert_eq!(std::fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
    let health = daemon.get_json("/healthz");
    assert_eq!(
        (&health["ok"], &health["degraded"], &health["vms"]),
        (&true.into(), &0.into(), &2.into())
    );
    assert!(health["last_pass"].is_string());
    let vms = daemon.vms();
    let (a, b) = (&vms["a"], &vms["b"]);
    assert_eq!(
        (&a["state"], &a["live"], &a["watched_pid"]),
        (&"running".into(), &true.into(), &pid.into())
    );
    assert_eq!((&b["state"], &b["live"]), (&"created".into(), &false.into()));
    assert!(b.get("watched_pid").is_none());
    for field in [
        "backend",
        "id",
        "transition_generation",
        "last_transition_reason",
        "last_transition_at",
        "verified_at",
    ] {
        assert!(a.get(field).is_some(), "{field}");
    }
    let (_, metrics) = daemon.get("/metrics");
    for line in [
        "cocoon_vms{state=\"running\"} 1",
        "cocoon_vms{state=\"created\"} 1",
        "cocoon_vmms_watched 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    assert!(daemon.get("/v1/vm").0.contains("404"));
    assert!(daemon.get("/v1/events?since=soon").0.contains("400"));
    daemon.stop();
}

#[test]
fn a_socket_that_somebody_removed_is_made_anew_and_connections_stay() {
    let root = Root::new();
    let daemon =
        root.daemon_with(&["--reconcile-interval", "100ms", "--api-socket-mode", "0600"], &[]);
    let events = daemon.events(None);
    events.next();
    let socket = root.root_dir().join("run/cocoond.sock");
    std::fs::remove_file(&socket).unwrap();
    daemon.running.err.until("it is there again");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(daemon.get_json("/healthz")["ok"], true);
    root.ok(&birth("create", "a"));
    events.until("ADDED", "a");
    daemon.stop();
}

#[test]
fn events_go_on_where_a_client_left_off_whatever_happened_to_the_daemon() {
    let root = Root::new();
    root.vm("a");
    let daemon = root.daemon(NEVER);
    let sync = daemon.events(None).next();
    assert_eq!((sync.name.as_str(), &sync.data["vms"][0]["name"]), ("sync", &"a".into()));
    daemon.kill();
    root.vm("b");
    root.ok(&["vm", "stop", "b"]);
    root.ok(&["vm", "rm", "b"]);
    let daemon = root.daemon(NEVER);
    let changes = daemon.events(Some(sync.id)).until("DELETED", "b");
    let told: Vec<&str> = changes.iter().map(|(_, told)| told.as_str()).collect();
    let expected = [
        "ADDED b creating",
        "MODIFIED b created",
        "MODIFIED b running",
        "MODIFIED b stopped",
        "DELETED b stopped",
    ];
    assert_eq!(told, expected);
    assert!(changes.windows(2).all(|pair| pair[0].0 < pair[1].0) && changes[0].0 > sync.id);
    // From every place in between, exactly the rest.
    for (number, (id, _)) in changes.iter().enumerate().take(changes.len() - 1) {
        let rest = daemon.events(Some(*id)).until("DELETED", "b");
        assert_eq!(rest, changes[number + 1..]);
    }
    let again = daemon.events(Some(u64::MAX)).next();
    assert_eq!(again.name, "sync", "a place that is not there begins afresh");
    daemon.stop();
}
