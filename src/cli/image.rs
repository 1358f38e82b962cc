//! `cocoon image`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use cocoon_model::record::{ImageContent, ImageRecord};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::args::{Format, LockTimeout, OutputArg};
use super::vm::batch::Batch;
use super::vm_object::{human_size, rfc3339};
use super::{CliError, Global, later, output};
use crate::engine::Caller;
use crate::engine::image::ImageSource;
use crate::host::vmm::DIRECT_CMDLINE;

#[derive(Debug, Subcommand)]
pub(super) enum ImageCommand {
    /// Import a disk (qcow2 or raw), or a kernel with its initrd
    Import(ImportArgs),
    /// List images
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one image as JSON
    Inspect(InspectArgs),
    /// Remove images that no VM uses
    Rm(RmArgs),
    /// Pull an image from a registry (not there yet)
    #[command(hide = true)]
    Pull(later::LaterArgs),
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Name of the image
    name: String,
    /// A bootable disk, qcow2 or raw; told apart by its content
    #[arg(value_name = "FILE", conflicts_with_all = ["kernel", "initrd"], required_unless_present = "kernel")]
    disk: Option<PathBuf>,
    /// A Linux kernel to boot directly
    #[arg(long, value_name = "FILE", requires = "initrd")]
    kernel: Option<PathBuf>,
    /// Its initrd
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// A root disk, qcow2 or raw
    #[arg(long, value_name = "FILE", requires = "kernel")]
    rootfs: Option<PathBuf>,
    /// Kernel command line
    #[arg(
        long,
        value_name = "TEXT",
        requires = "kernel",
        default_value = DIRECT_CMDLINE
    )]
    cmdline: String,
    #[command(flatten)]
    lock: LockTimeout,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// Name or id
    image: String,
}

#[derive(Debug, Args)]
pub(super) struct RmArgs {
    /// Names or ids
    #[arg(required = true)]
    images: Vec<String>,
    #[command(flatten)]
    lock: LockTimeout,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(command: ImageCommand, global: Global) -> Result<(), CliError> {
    match command {
        ImageCommand::Import(args) => import(&args, global),
        ImageCommand::List(args) => list(&args, global),
        ImageCommand::Inspect(args) => {
            let image = global.reading_engine()?.0.image(&args.image)?;
            output::json(&object(&image))
        }
        ImageCommand::Rm(args) => remove(&args, global),
        ImageCommand::Pull(_) => Err(later::missing(
            "image pull",
            "pulling from a registry is not there yet; import files with `cocoon image import`",
        )),
    }
}

fn source(args: &ImportArgs) -> Result<ImageSource, CliError> {
    match (&args.disk, &args.kernel, &args.initrd) {
        (Some(disk), None, None) => Ok(ImageSource::Disk(disk.clone())),
        (None, Some(kernel), Some(initrd)) => Ok(ImageSource::Direct {
            kernel: kernel.clone(),
            initrd: initrd.clone(),
            rootfs: args.rootfs.clone(),
            cmdline: args.cmdline.clone(),
        }),
        // clap lets nothing else through.
        _ => Err(CliError::Usage("give a disk, or --kernel with --initrd".to_owned())),
    }
}

fn import(args: &ImportArgs, global: Global) -> Result<(), CliError> {
    let source = source(args)?;
    let engine = global.engine()?;
    let caller = Caller::new("image import", Some(args.lock.timeout))?;
    let mut bar = Bar::default();
    let image = engine.import_image(&args.name, &source, &caller, &mut |path, done, total| {
        bar.show(path, done, total);
    })?;
    bar.clear();
    match args.output.format {
        Format::Json => output::json(&object(&image))?,
        Format::Table => {
            output::say(&format!("image imported: {} (id: {})", image.core.name, image.core.id));
        }
    }
    crate::cli::tend(engine);
    Ok(())
}

/// Progress of copies, where a terminal shows it.
#[derive(Default)]
struct Bar(Option<(PathBuf, ProgressBar)>);

impl Bar {
    fn show(&mut self, path: &Path, done: u64, total: u64) {
        if !output::is_animated() {
            return;
        }
        if self.0.as_ref().is_none_or(|(shown, _)| shown != path) {
            self.clear();
            let bar = ProgressBar::new(total);
            let style = ProgressStyle::with_template(
                "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}",
            );
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar.set_message(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            self.0 = Some((path.to_owned(), bar));
        }
        if let Some((_, bar)) = &self.0 {
            bar.set_position(done);
        }
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

fn image_type(image: &ImageRecord) -> &'static str {
    match image.content {
        ImageContent::Direct { .. } => "direct",
        ImageContent::Disk { .. } => "cloudimg",
    }
}

fn size(image: &ImageRecord) -> u64 {
    image.content.blobs().iter().map(|blob| blob.size).sum()
}

fn object(image: &ImageRecord) -> serde_json::Value {
    let blobs: Vec<_> = image
        .content
        .blobs()
        .iter()
        .map(|blob| json!({ "digest": format!("blake3:{}", blob.hash), "size": blob.size }))
        .collect();
    let mut object = json!({
        "id": image.core.id,
        "name": image.core.name,
        "type": image_type(image),
        "digest": image.core.digest,
        "size": size(image),
        "blobs": blobs,
        "created_at": rfc3339(image.created_us),
    });
    match &image.content {
        ImageContent::Direct { cmdline, .. } => object["cmdline"] = json!(cmdline),
        ImageContent::Disk { format, virtual_size, .. } => {
            object["format"] = json!(format.as_str());
            object["virtual_size"] = json!(virtual_size);
        }
    }
    object
}

fn list(args: &ListArgs, global: Global) -> Result<(), CliError> {
    let images = global.reading_engine()?.0.images()?;
    match args.output.format {
        Format::Json => output::json(&images.iter().map(|image| object(image)).collect::<Vec<_>>()),
        Format::Table => {
            let row = |image: &ImageRecord| {
                vec![
                    image.core.id.to_string(),
                    image.core.name.clone(),
                    image_type(image).to_owned(),
                    human_size(size(image)),
                    rfc3339(image.created_us),
                ]
            };
            let rows = images.iter().map(|image| row(image)).collect();
            output::table(&["ID", "NAME", "TYPE", "SIZE", "CREATED"], rows)
        }
    }
}

fn remove(args: &RmArgs, global: Global) -> Result<(), CliError> {
    let engine = global.engine()?;
    let mut batch = Batch::new("deleted", args.output.format);
    for reference in &args.images {
        let removed = engine.image(reference).and_then(|image| {
            engine
                .remove_image(image.core.id, &Caller::new("image rm", Some(args.lock.timeout))?)?;
            Ok(image.core.id.to_string())
        });
        batch.add(reference, removed);
    }
    let done = batch.finish();
    crate::cli::tend(engine);
    done
}
