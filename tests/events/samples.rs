//! At least one event of each kind, and one of each alternative within it: bytes tell alternatives by their order.

use cocoon_model::event::image::{Imported, RemoveBegan, Removed};
use cocoon_model::event::root::{RootAdopted, RootUnconfirmed};
use cocoon_model::event::supervisor;
use cocoon_model::event::vm::{
    Adopted, Committed, DeleteBegan, DeleteStepDone, Deleted, ExitObserved, LaunchBegan,
    LaunchFailed, Launched, OperationAbandoned, OperationTakenOver, Prereserved, ReclaimBegan,
    Running, StepFailed, StopBegan, StopFailed, Stopped, StoragePrepared, TombstoneRolledBack,
    Tombstoned,
};
use cocoon_model::event::{Event, ImageEvent, RootEvent, SupervisorEvent, VmEvent};
use cocoon_model::id::{Id, ImageId, LaunchToken, OperationId, VmId};
use cocoon_model::record::{
    Accelerator, BackendKind, Blob, Boot, DeleteStep, Disk, DiskFormat, DiskRole, Doubt,
    ImageContent, ImageCore, ImageRecord, ImageType, Launch, LaunchPhase, Nic, Operation,
    OperationKind, Place, ProcessIdentity, Reason, Removal, RemovalKind, RemovalPhase, RootRecord,
    StopMode, SupervisorRecord, Tombstone, VmConfig, VmCore, VmNotes, VmRecord, VmSpec, VmState,
};

pub(crate) fn vm_id() -> VmId {
    Id::from_random(std::array::from_fn(|at| u8::try_from(at).unwrap()))
}

pub(crate) fn image_id() -> ImageId {
    Id::from_random(std::array::from_fn(|at| u8::try_from(31 - at).unwrap()))
}

const OPERATION: OperationId = OperationId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

fn identity() -> ProcessIdentity {
    ProcessIdentity {
        pid: 4_000_000,
        start_time: 123_456_789,
        boot_id: 0xfedc_ba98_7654_3210_0123_4567_89ab_cdef,
        pid_namespace: 4_026_531_836,
    }
}

fn disk(format: DiskFormat, base: Option<(String, DiskFormat)>) -> Disk {
    Disk {
        path: "/run/cocoon/qemu/a/cow".to_owned(),
        format,
        base,
        size: 10 << 30,
        serial: "root".to_owned(),
        role: DiskRole::Cow,
    }
}

fn spec(backend: BackendKind, image_type: ImageType, boot: Boot, disks: Vec<Disk>) -> VmSpec {
    VmSpec {
        backend,
        config: VmConfig {
            cpu: 2,
            memory: 512 << 20,
            storage: 10 << 30,
            queue_size: 256,
            disk_queue_size: 0,
            image: "guest".to_owned(),
            image_digest: format!("blake3:{}", "5a".repeat(32)),
            image_type,
            no_direct_io: true,
        },
        boot,
        disks,
        nics: vec![Nic { mac: "02:00:00:00:00:01".to_owned() }],
        run_dir: "/run/cocoon/qemu/a".to_owned(),
        log_dir: "/var/log/cocoon/qemu/a".to_owned(),
    }
}

fn direct() -> Boot {
    Boot::Direct {
        kernel: "/images/k".to_owned(),
        initrd: "/images/i".to_owned(),
        cmdline: "console=ttyS0".to_owned(),
    }
}

fn reservations() -> Vec<VmEvent> {
    let based = || Some(("/images/base".to_owned(), DiskFormat::Qcow2));
    let reserved = |operation, spec| {
        let spec = Box::new(spec);
        Prereserved { name: "web-1".to_owned(), image: image_id(), operation, spec }.into()
    };
    vec![
        reserved(
            OperationKind::Run,
            spec(BackendKind::Qemu, ImageType::Direct, direct(), vec![disk(DiskFormat::Raw, None)]),
        ),
        reserved(
            OperationKind::Create,
            spec(
                BackendKind::CloudHypervisor,
                ImageType::Cloudimg,
                Boot::Disk,
                vec![disk(DiskFormat::Qcow2, based())],
            ),
        ),
        reserved(
            OperationKind::Create,
            spec(BackendKind::Firecracker, ImageType::Oci, direct(), Vec::new()),
        ),
    ]
}

fn stops() -> Vec<VmEvent> {
    let kinds = [
        OperationKind::Stop(StopMode::Graceful { timeout_ms: 30_000 }),
        OperationKind::Stop(StopMode::Kill),
        OperationKind::Delete { force: true },
        OperationKind::Create,
        OperationKind::Run,
        OperationKind::Start,
        OperationKind::Reclaim,
    ];
    kinds.into_iter().map(|operation| StopBegan { operation }.into()).collect()
}

fn removals() -> Vec<VmEvent> {
    let removal = Removal {
        run_dir: "/run/cocoon/qemu/a".to_owned(),
        log_dir: "/var/log/cocoon/qemu/a".to_owned(),
    };
    let kinds = [
        RemovalKind::Delete,
        RemovalKind::ForcedDelete,
        RemovalKind::Rollback,
        RemovalKind::Reclaim,
    ];
    let tombstones =
        kinds.map(|kind| Tombstoned { kind, removal: removal.clone() }.into()).into_iter();
    let steps = DeleteStep::ALL.map(|step| DeleteStepDone { step }.into()).into_iter();
    tombstones
        .chain([
            TombstoneRolledBack { reason: "its VMM lives".to_owned() }.into(),
            DeleteBegan {}.into(),
        ])
        .chain(steps)
        .chain([Deleted {}.into()])
        .collect()
}

fn vm_events() -> Vec<VmEvent> {
    let launch = |accelerator| LaunchBegan { token: LaunchToken(0xabcd), accelerator }.into();
    let mut events = reservations();
    events.extend([
        StoragePrepared {}.into(),
        Committed {}.into(),
        launch(Accelerator::Kvm),
        launch(Accelerator::Tcg),
        Launched { identity: identity() }.into(),
        Running { identity: identity() }.into(),
        LaunchFailed { reason: "QEMU ended with 1".to_owned() }.into(),
    ]);
    events.extend(stops());
    events.extend([
        Stopped {}.into(),
        StopFailed { reason: "the VMM cannot be ended".to_owned() }.into(),
        ExitObserved { generation: 300, evidence: None }.into(),
        ExitObserved { generation: 2, evidence: Some("the guest panicked".to_owned()) }.into(),
    ]);
    events.extend(removals());
    events.extend([
        StepFailed { step: "prepare-storage".to_owned(), reason: "no space".to_owned() }.into(),
        ReclaimBegan { previous: OPERATION }.into(),
        OperationTakenOver { previous: OPERATION }.into(),
        OperationAbandoned { previous: OPERATION }.into(),
        adopted(None),
        adopted(Some(identity())),
    ]);
    events
}

fn adopted(identity: Option<ProcessIdentity>) -> VmEvent {
    let disks = vec![disk(DiskFormat::Raw, None)];
    let found = Adopted {
        name: "web-1".to_owned(),
        image: image_id(),
        spec: Box::new(spec(BackendKind::Qemu, ImageType::Direct, direct(), disks)),
        generation: 300,
        first_booted: identity.is_some(),
        identity,
    };
    found.into()
}

fn contents() -> Vec<ImageContent> {
    let blob = |digit: &str, size| Blob { hash: digit.repeat(64), size };
    vec![
        ImageContent::Direct {
            kernel: blob("a", 8_000_000),
            initrd: blob("b", 30_000_000),
            rootfs: None,
            cmdline: "console=ttyS0".to_owned(),
        },
        ImageContent::Direct {
            kernel: blob("a", 8_000_000),
            initrd: blob("b", 30_000_000),
            rootfs: Some((blob("c", 1 << 20), DiskFormat::Raw, 1 << 30)),
            cmdline: "root=/dev/vda".to_owned(),
        },
        ImageContent::Disk {
            disk: blob("d", 1 << 30),
            format: DiskFormat::Qcow2,
            virtual_size: 10 << 30,
        },
    ]
}

fn image_events() -> Vec<ImageEvent> {
    let digest = format!("blake3:{}", "5a".repeat(32));
    let imported = |content| {
        Imported { name: "ns/guest:v1".to_owned(), digest: digest.clone(), content }.into()
    };
    contents().into_iter().map(imported).chain([RemoveBegan {}.into(), Removed {}.into()]).collect()
}

fn supervisor_events() -> Vec<SupervisorEvent> {
    let started = |previous_alive_until_us| {
        supervisor::Started { version: "0.1.0".to_owned(), previous_alive_until_us }.into()
    };
    vec![started(None), started(Some(1_796_058_874_313_262)), supervisor::Stopped {}.into()]
}

/// All samples.
pub(crate) fn events() -> Vec<Event> {
    let vms = vm_events().into_iter().map(|event| Event::Vm(vm_id(), event));
    let images = image_events().into_iter().map(|event| Event::Image(image_id(), event));
    let supervisor = supervisor_events().into_iter().map(Event::Supervisor);
    vms.chain(images).chain(supervisor).chain(root_events().into_iter().map(Event::Root)).collect()
}

/// Records of VMs in checkpoints: one with everything in it, and one for each alternative that events do not have.
pub(crate) fn vm_records() -> Vec<VmRecord> {
    let states =
        [VmState::Creating, VmState::Created, VmState::Running, VmState::Stopped, VmState::Error];
    let phases =
        [LaunchPhase::Began, LaunchPhase::Spawned, LaunchPhase::Interrupted, LaunchPhase::Up];
    let reasons = [
        Reason::Create,
        Reason::Boot,
        Reason::Restart,
        Reason::StopUser,
        Reason::Error,
        Reason::UnexpectedExit,
        Reason::Adopted,
    ];
    let records = reasons.iter().enumerate().map(|(at, reason)| {
        let phase = phases.get(at).copied();
        vm_record(states[at % states.len()], *reason, phase)
    });
    records.collect()
}

fn vm_record(state: VmState, reason: Reason, phase: Option<LaunchPhase>) -> VmRecord {
    let removal = Removal { run_dir: "/run/a".to_owned(), log_dir: "/log/a".to_owned() };
    let tombstone = |phase| Tombstone {
        kind: RemovalKind::Delete,
        phase,
        done: DeleteStep::ALL.to_vec(),
        removal: removal.clone(),
    };
    let core = VmCore {
        id: vm_id(),
        name: "web-1".to_owned(),
        image: image_id(),
        state,
        generation: 77,
        operation: phase.map(|_| Operation { id: OPERATION, kind: OperationKind::Start }),
        storage_prepared: true,
        launch: phase.map(|phase| Launch {
            token: LaunchToken(0xabcd),
            phase,
            identity: Some(identity()),
        }),
        tombstone: match state {
            VmState::Stopped => Some(tombstone(RemovalPhase::Leased)),
            VmState::Error => Some(tombstone(RemovalPhase::Deleting)),
            _ => None,
        },
        first_booted: true,
        interval_open: false,
        failure: Some("prepare-storage: no space".to_owned()),
    };
    let spec =
        spec(BackendKind::Qemu, ImageType::Direct, direct(), vec![disk(DiskFormat::Raw, None)]);
    let notes = VmNotes {
        created_us: 1,
        updated_us: -2,
        started_us: Some(3),
        stopped_us: None,
        transition_us: Some(4),
        transition_reason: Some(reason),
        accelerator: Some(Accelerator::Tcg),
        first_seq: 5,
        last_seq: 600,
        operation_us: Some(7),
        ..VmNotes::default()
    };
    VmRecord { core, spec, notes }
}

/// Records of images in checkpoints.
pub(crate) fn image_records() -> Vec<ImageRecord> {
    let record = |(content, removing)| ImageRecord {
        core: ImageCore {
            id: image_id(),
            name: "guest".to_owned(),
            digest: "blake3:5a".to_owned(),
            removing,
        },
        content,
        created_us: 1_796_058_874_313_262,
    };
    contents().into_iter().zip([None, Some(OPERATION), None]).map(record).collect()
}

/// What checkpoints keep of the daemon.
pub(crate) fn supervisor_record() -> SupervisorRecord {
    SupervisorRecord {
        instance: OPERATION,
        running: true,
        started_us: 1,
        stopped_us: Some(2),
        previous_alive_until_us: Some(3),
    }
}

fn place() -> Place {
    Place {
        machine: Some("0123456789abcdef0123456789abcdef".to_owned()),
        device: 0x0801,
        file_system: 0xfedc_ba98_7654_3210,
        inode: 131_072,
        born_ns: Some(1_796_058_874_313_262_000),
        path: "/var/lib/cocoon".to_owned(),
    }
}

fn root_events() -> Vec<RootEvent> {
    let nowhere = Place { machine: None, born_ns: None, ..place() };
    vec![
        RootUnconfirmed { reason: "the journal ends at event 4".to_owned() }.into(),
        RootAdopted { place: place() }.into(),
        RootAdopted { place: nowhere }.into(),
    ]
}

/// What checkpoints keep of the root.
pub(crate) fn root_records() -> [RootRecord; 2] {
    let doubt = Doubt { seq: 9, reason: "the journal was imported".to_owned() };
    [
        RootRecord::default(),
        RootRecord { doubt: Some(doubt), place: Some(place()), adopted_us: Some(-7) },
    ]
}
