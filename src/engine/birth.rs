//! Creating a VM, and starting it in the same breath.

use std::path::Path;
use std::sync::Arc;

use cocoon_model::command::Command;
use cocoon_model::decide::Refusal;
use cocoon_model::id::{VmId, check_vm_name};
use cocoon_model::record::{
    BackendKind, Boot, Disk, DiskFormat, DiskRole, ImageContent, ImageRecord, ImageType, Nic,
    OperationKind, VmConfig, VmRecord, VmSpec,
};

use super::caller::Caller;
use super::drive::{Haste, Rest};
use super::{Engine, EngineError, random};
use crate::host::lock::OpsGuard;
use crate::host::vmm::RuntimePaths;
use crate::settings::processors;

/// The most memory that a guest may have, bytes: what a processor of today can address.
const MOST_MEMORY: u64 = 64 << 40;
/// The least memory, bytes.
pub const LEAST_MEMORY: u64 = 64 << 20;
/// The least size of a disk, bytes.
pub const LEAST_DISK: u64 = 16 << 20;

/// What a user wants a VM to be.
#[derive(Debug, Clone)]
pub struct BirthRequest {
    /// The image, by name or id.
    pub image: String,
    /// The name; `cocoon-<image>` if none.
    pub name: Option<String>,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory, bytes.
    pub memory: u64,
    /// Size of the root disk, bytes.
    pub storage: u64,
    /// Network cards, 0 or 1.
    pub nics: u8,
    /// Descriptors a network queue; 0 leaves it to the backend.
    pub queue_size: u32,
    /// Descriptors a disk queue; 0 leaves it to the backend.
    pub disk_queue_size: u32,
    /// Use the page cache of the host for disks.
    pub no_direct_io: bool,
}

impl Engine {
    /// Creates a VM, and starts it if `run`.
    ///
    /// # Errors
    /// What is wrong with the request, a refusal, or the step that failed; then what was made is taken back.
    pub fn create(
        &self,
        request: &BirthRequest,
        run: bool,
        caller: &Caller,
    ) -> Result<Arc<VmRecord>, EngineError> {
        request.check()?;
        self.require_confirmed()?;
        let id = random::id();
        let (image, spec) = self.plan_birth(request, id)?;
        let guard = self.locks().ops(id.as_str(), &caller.holder()?, caller.deadline())?;
        let kind = if run { OperationKind::Run } else { OperationKind::Create };
        let name = request.name(&image.core.name)?;
        let command =
            Command::Prereserve { id, name, image: image.core.id, kind, spec: Box::new(spec) };
        let born = self
            .prereserve(&guard, caller, &command)
            .and_then(|()| self.drive(&guard, caller, id, Haste::None))
            .inspect_err(|_| self.sweep_if_gone(&guard, id));
        match born? {
            Rest::There(record) => Ok(record),
            Rest::Gone => Err(EngineError::Host(format!(
                "vm {id} was taken away while it was being created; was its lock file removed by hand?"
            ))),
        }
    }

    /// Reserves. If the name is held by what a dead operation left (a placeholder, a removal), that is finished first, once.
    fn prereserve(
        &self,
        guard: &OpsGuard,
        caller: &Caller,
        command: &Command,
    ) -> Result<(), EngineError> {
        let (holder, name) = match self.submit_locked(guard, caller, command) {
            Ok(_) => return Ok(()),
            Err(EngineError::Refused(Refusal::NameTaken { holder, name })) => (holder, name),
            Err(error) => return Err(error),
        };
        let interrupted = self.vm(holder)?.is_some_and(|record| record.core.operation.is_some());
        if interrupted {
            self.settle(holder, &caller.another())?;
            if self.vm(holder)?.is_none() {
                tracing::warn!(
                    "the name \"{name}\" was held by {holder}, of which a command that died had left a part; it was cleared away"
                );
            }
        }
        self.submit_locked(guard, caller, command).map(|_| ())
    }

    fn plan_birth(
        &self,
        request: &BirthRequest,
        id: VmId,
    ) -> Result<(Arc<ImageRecord>, VmSpec), EngineError> {
        let image = self.image_to_use(&request.image)?;
        self.place_blobs(&image)?;
        let name = request.name(&image.core.name)?;
        check_vm_name(&name)?;
        let run_dir = self.settings().run_dir.join(BackendKind::Qemu.as_str()).join(id.as_str());
        let log_dir = self.settings().log_dir.join(BackendKind::Qemu.as_str()).join(id.as_str());
        RuntimePaths::new(&run_dir, &log_dir)
            .map_err(|error| EngineError::Invalid(error.to_string()))?;
        let (boot, disks) = self.boot_of(&image, request, &run_dir)?;
        let image_type = match image.content {
            ImageContent::Direct { .. } => ImageType::Direct,
            ImageContent::Disk { .. } => ImageType::Cloudimg,
        };
        let config = VmConfig {
            cpu: request.cpu,
            memory: request.memory,
            storage: request.storage,
            queue_size: request.queue_size,
            disk_queue_size: request.disk_queue_size,
            image: image.core.name.clone(),
            image_digest: image.core.digest.clone(),
            image_type,
            no_direct_io: request.no_direct_io,
        };
        let nics = (0..request.nics).map(|_| Nic { mac: random::mac() }).collect();
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let spec = VmSpec {
            backend: BackendKind::Qemu,
            config,
            boot,
            disks,
            nics,
            run_dir: text(&run_dir),
            log_dir: text(&log_dir),
        };
        Ok((image, spec))
    }

    fn boot_of(
        &self,
        image: &ImageRecord,
        request: &BirthRequest,
        run_dir: &Path,
    ) -> Result<(Boot, Vec<Disk>), EngineError> {
        let blob = |hash: &str| self.blob_path(hash).to_string_lossy().into_owned();
        let (boot, base) = match &image.content {
            ImageContent::Direct { kernel, initrd, rootfs, cmdline } => {
                let boot = Boot::Direct {
                    kernel: blob(&kernel.hash),
                    initrd: blob(&initrd.hash),
                    cmdline: cmdline.clone(),
                };
                (boot, rootfs.as_ref().map(|(disk, format, size)| (disk, *format, *size)))
            }
            ImageContent::Disk { disk, format, virtual_size } => {
                (Boot::Disk, Some((disk, *format, *virtual_size)))
            }
        };
        let least = base.map_or(0, |(_, _, size)| size);
        if request.storage < least {
            return Err(EngineError::Invalid(format!(
                "--storage {} is smaller than the disk of image \"{}\" ({least} bytes); give at least that",
                request.storage, image.core.name
            )));
        }
        let (name, format) = match base {
            Some(_) => ("overlay.qcow2", DiskFormat::Qcow2),
            None => ("cow.raw", DiskFormat::Raw),
        };
        let disk = Disk {
            path: run_dir.join(name).to_string_lossy().into_owned(),
            format,
            base: base.map(|(disk, format, _)| (blob(&disk.hash), format)),
            size: request.storage,
            serial: "root".to_owned(),
            role: DiskRole::Cow,
        };
        Ok((boot, vec![disk]))
    }
}

impl BirthRequest {
    fn name(&self, image: &str) -> Result<String, EngineError> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let mut name: String = "cocoon-".chars().chain(image.chars().map(plain)).collect();
        name.truncate(63);
        check_vm_name(&name)?;
        Ok(name)
    }

    fn check(&self) -> Result<(), EngineError> {
        let refuse = |what: String| Err(EngineError::Invalid(what));
        let host = processors();
        if self.cpu == 0 || usize::try_from(self.cpu).is_ok_and(|cpu| cpu > host) {
            return refuse(format!("--cpu {} cannot be; this host has 1 to {host}", self.cpu));
        }
        if self.memory < LEAST_MEMORY || !self.memory.is_multiple_of(1 << 20) {
            return refuse(format!(
                "--memory {} bytes cannot be; give whole MiB, at least 64M",
                self.memory
            ));
        }
        if self.memory > MOST_MEMORY {
            return refuse(format!("--memory {} bytes cannot be; give at most 64T", self.memory));
        }
        if self.storage < LEAST_DISK || !self.storage.is_multiple_of(512) {
            return refuse(format!(
                "--storage {} bytes cannot be; give at least 16M, in whole sectors of 512 bytes",
                self.storage
            ));
        }
        if self.nics > 1 {
            return refuse(format!(
                "--nics {} cannot be yet; user-mode networking gives 0 or 1",
                self.nics
            ));
        }
        self.name.as_deref().map_or(Ok(()), check_vm_name).map_err(EngineError::from)
    }
}
