//! Settings: where things are and how long they may take.
//!
//! Each comes from the command line, else from the environment (`COCOON_*`), else from the TOML file, else from a default.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

pub use crate::host::qemu::probe::AcceleratorChoice;

/// Settings as the user gave them, each perhaps absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Given {
    /// Where records, images and locks live.
    pub root_dir: Option<PathBuf>,
    /// Where disks and sockets of VMs live.
    pub run_dir: Option<PathBuf>,
    /// Where logs of VMs live.
    pub log_dir: Option<PathBuf>,
    /// How much is told on stderr: `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: Option<String>,
    /// The QEMU binary.
    pub qemu_binary: Option<PathBuf>,
    /// How the accelerator is chosen.
    pub accelerator: Option<AcceleratorChoice>,
    /// How long a guest may take to power off, seconds.
    pub stop_timeout_seconds: Option<u64>,
    /// How long a VMM may take to open its API socket, seconds.
    pub socket_wait_timeout_seconds: Option<u64>,
    /// How long a VMM may take to end on SIGTERM, seconds.
    pub terminate_grace_period_seconds: Option<u64>,
    /// VMs that a batch verb works on at once.
    pub pool_size: Option<usize>,
    /// Bytes that a log of a running VM may have before the daemon cuts it.
    pub log_cap_bytes: Option<u64>,
}

/// Room for days of a chatty guest, and little beside its disks.
const DEFAULT_LOG_CAP: u64 = 64 << 20;
/// Less would cut away what tells why a VMM did not start.
const SMALLEST_LOG_CAP: u64 = 64 << 10;

/// Keys that the file may have.
const KEYS: [&str; 11] = [
    "root_dir",
    "run_dir",
    "log_dir",
    "log_level",
    "qemu_binary",
    "accelerator",
    "stop_timeout_seconds",
    "socket_wait_timeout_seconds",
    "terminate_grace_period_seconds",
    "pool_size",
    "log_cap_bytes",
];

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}; correct its permissions or name another with --config", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// No file, or far more than settings.
    #[error("the configuration file {path} {problem}; name another with --config", path = path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        problem: &'static str,
    },
    /// The file cannot be understood.
    #[error("the configuration file {path} cannot be understood: {what}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        what: String,
    },
    /// A variable cannot be understood.
    #[error("the environment variable {name}={value} cannot be understood; it takes {wanted}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it takes.
        wanted: &'static str,
    },
    /// There is no home to put data into.
    #[error(
        "cannot choose a root directory: neither XDG_DATA_HOME nor HOME is set; name one with --root-dir"
    )]
    NoHome,
}

/// Settings in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where records, images and locks live.
    pub root_dir: PathBuf,
    /// Where disks and sockets of VMs live.
    pub run_dir: PathBuf,
    /// Where logs of VMs live.
    pub log_dir: PathBuf,
    /// How much is told on stderr.
    pub log_level: String,
    /// The QEMU binary.
    pub qemu_binary: PathBuf,
    /// How the accelerator is chosen.
    pub accelerator: AcceleratorChoice,
    /// How long a guest may take to power off.
    pub stop_timeout: Duration,
    /// How long a VMM may take to open its API socket.
    pub socket_wait: Duration,
    /// How long a VMM may take to end on SIGTERM.
    pub terminate_grace: Duration,
    /// VMs that a batch verb works on at once.
    pub pool_size: usize,
    /// Bytes that a log of a running VM may have before the daemon cuts it, keeping the last half.
    pub log_cap: u64,
    /// Keys of the file that mean nothing here.
    pub unknown_keys: Vec<String>,
}

impl Settings {
    /// Puts the settings together.
    ///
    /// # Errors
    /// [`SettingsError`]: the file or a variable cannot be understood.
    pub fn load(flags: Given, config: Option<&Path>) -> Result<Self, SettingsError> {
        let (file, unknown_keys) = match config.map(Path::to_owned).or_else(default_file) {
            Some(path) => read_file(&path)?,
            None => (Given::default(), Vec::new()),
        };
        let given = flags.or(environment()?).or(file);
        let mut settings = given.fill()?;
        settings.unknown_keys = unknown_keys;
        Ok(settings)
    }
}

impl Given {
    fn or(self, other: Self) -> Self {
        Self {
            root_dir: self.root_dir.or(other.root_dir),
            run_dir: self.run_dir.or(other.run_dir),
            log_dir: self.log_dir.or(other.log_dir),
            log_level: self.log_level.or(other.log_level),
            qemu_binary: self.qemu_binary.or(other.qemu_binary),
            accelerator: self.accelerator.or(other.accelerator),
            stop_timeout_seconds: self.stop_timeout_seconds.or(other.stop_timeout_seconds),
            socket_wait_timeout_seconds: self
                .socket_wait_timeout_seconds
                .or(other.socket_wait_timeout_seconds),
            terminate_grace_period_seconds: self
                .terminate_grace_period_seconds
                .or(other.terminate_grace_period_seconds),
            pool_size: self.pool_size.or(other.pool_size),
            log_cap_bytes: self.log_cap_bytes.or(other.log_cap_bytes),
        }
    }

    fn fill(self) -> Result<Settings, SettingsError> {
        let own_root = self.root_dir.is_some();
        let root_dir = match self.root_dir {
            Some(root) => std::path::absolute(&root).unwrap_or(root),
            None => default_root()?,
        };
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let default_log = if own_root || !is_root() {
            root_dir.join("log")
        } else {
            PathBuf::from("/var/log/cocoon")
        };
        let seconds = |given: Option<u64>, default| Duration::from_secs(given.unwrap_or(default));
        Ok(Settings {
            run_dir: self.run_dir.map_or_else(|| root_dir.join("run"), absolute),
            log_dir: self.log_dir.map_or(default_log, absolute),
            root_dir,
            log_level: self.log_level.unwrap_or_else(|| "info".to_owned()),
            // A bare name is looked for in PATH; a VMM has `/` as its working directory.
            qemu_binary: match self.qemu_binary {
                None => "qemu-system-x86_64".into(),
                Some(name) if name.components().count() == 1 => name,
                Some(path) => absolute(path),
            },
            accelerator: self.accelerator.unwrap_or_default(),
            stop_timeout: seconds(self.stop_timeout_seconds, 30),
            socket_wait: seconds(self.socket_wait_timeout_seconds, 5),
            terminate_grace: seconds(self.terminate_grace_period_seconds, 5),
            pool_size: self.pool_size.unwrap_or_else(processors).max(1),
            log_cap: self.log_cap_bytes.unwrap_or(DEFAULT_LOG_CAP).max(SMALLEST_LOG_CAP),
            unknown_keys: Vec::new(),
        })
    }
}

/// Processors of this host.
#[must_use]
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn default_root() -> Result<PathBuf, SettingsError> {
    if is_root() {
        return Ok(PathBuf::from("/var/lib/cocoon"));
    }
    xdg("XDG_DATA_HOME", ".local/share").ok_or(SettingsError::NoHome)
}

fn default_file() -> Option<PathBuf> {
    let path = if is_root() {
        PathBuf::from("/etc/cocoon/config.toml")
    } else {
        xdg("XDG_CONFIG_HOME", ".config")?.join("config.toml")
    };
    path.exists().then_some(path)
}

/// The directory `cocoon` in an XDG base directory.
fn xdg(variable: &str, below_home: &str) -> Option<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set(variable).or_else(|| Some(set("HOME")?.join(below_home)))?;
    Some(base.join("cocoon"))
}

fn read_file(path: &Path) -> Result<(Given, Vec<String>), SettingsError> {
    let text = read_text(path)?;
    let malformed = |error: toml::de::Error| SettingsError::Malformed {
        path: path.to_owned(),
        what: error.to_string(),
    };
    let table: toml::Table = text.parse().map_err(malformed)?;
    let unknown = table.keys().filter(|key| !KEYS.contains(&key.as_str())).cloned().collect();
    let given = table.try_into().map_err(malformed)?;
    Ok((given, unknown))
}

/// The most that a file of settings may have, bytes.
const FILE_LIMIT: u64 = 1 << 20;

/// Reads a file, and neither waits for what is none nor reads without end.
fn read_text(path: &Path) -> Result<String, SettingsError> {
    let unreadable = |source| SettingsError::Unreadable { path: path.to_owned(), source };
    let no_file = |problem| SettingsError::NoFile { path: path.to_owned(), problem };
    // Opening a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() && path != Path::new("/dev/null") {
        return Err(no_file("is not a file"));
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    file.take(FILE_LIMIT + 1).read_to_string(&mut text).map_err(|source| match source.kind() {
        std::io::ErrorKind::InvalidData => no_file("is not text"),
        _ => unreadable(source),
    })?;
    if text.len() as u64 > FILE_LIMIT {
        return Err(no_file("has more than a mebibyte, so it is none"));
    }
    Ok(text)
}

fn environment() -> Result<Given, SettingsError> {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let accelerator = match text("COCOON_ACCELERATOR") {
        None => None,
        Some(value) => {
            Some(<AcceleratorChoice as clap::ValueEnum>::from_str(&value, true).map_err(|_| {
                SettingsError::Variable {
                    name: "COCOON_ACCELERATOR",
                    value,
                    wanted: "auto, kvm or tcg",
                }
            })?)
        }
    };
    Ok(Given {
        root_dir: path("COCOON_ROOT_DIR"),
        run_dir: path("COCOON_RUN_DIR"),
        log_dir: path("COCOON_LOG_DIR"),
        log_level: text("COCOON_LOG_LEVEL"),
        qemu_binary: path("COCOON_QEMU_BINARY"),
        accelerator,
        stop_timeout_seconds: number("COCOON_STOP_TIMEOUT_SECONDS")?,
        socket_wait_timeout_seconds: number("COCOON_SOCKET_WAIT_TIMEOUT_SECONDS")?,
        terminate_grace_period_seconds: number("COCOON_TERMINATE_GRACE_PERIOD_SECONDS")?,
        pool_size: number("COCOON_POOL_SIZE")?,
        log_cap_bytes: number("COCOON_LOG_CAP_BYTES")?,
    })
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: std::str::FromStr>(name: &'static str) -> Result<Option<T>, SettingsError> {
    text(name)
        .map(|value| {
            value.parse().map_err(|_| SettingsError::Variable {
                name,
                value,
                wanted: "a whole number",
            })
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_source_wins_and_a_root_of_ones_own_keeps_its_logs() {
        let flags = Given { root_dir: Some("/r".into()), ..Given::default() };
        let file = Given {
            root_dir: Some("/other".into()),
            stop_timeout_seconds: Some(7),
            ..Given::default()
        };
        let settings = flags.or(file).fill().unwrap();
        assert_eq!(settings.root_dir, Path::new("/r"));
        assert_eq!(settings.run_dir, Path::new("/r/run"));
        assert_eq!(settings.log_dir, Path::new("/r/log"));
        assert_eq!(settings.stop_timeout, Duration::from_secs(7));
    }

    #[test]
    fn a_binary_is_a_name_or_an_absolute_path() {
        let binary = |name: &str| {
            let given = Given {
                root_dir: Some("/r".into()),
                qemu_binary: Some(name.into()),
                ..Given::default()
            };
            given.fill().unwrap().qemu_binary
        };
        assert_eq!(binary("qemu"), Path::new("qemu"));
        assert!(binary("./build/qemu").is_absolute());
    }

    #[test]
    fn a_file_tells_its_unknown_keys_and_its_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, "stop_timeout_seconds = 3\ncolour = 'red'\n").unwrap();
        let (given, unknown) = read_file(&path).unwrap();
        assert_eq!(given.stop_timeout_seconds, Some(3));
        assert_eq!(unknown, ["colour"]);
        std::fs::write(&path, "stop_timeout_seconds = 'soon'").unwrap();
        assert!(matches!(read_file(&path), Err(SettingsError::Malformed { .. })));
    }

    #[test]
    fn what_is_no_file_of_settings_is_refused_without_end_and_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let huge = dir.path().join("huge.toml");
        std::fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
        let binary = dir.path().join("binary.toml");
        std::fs::write(&binary, [0xff; 9]).unwrap();
        for (path, words) in [
            (Path::new("/dev/zero"), "is not a file"),
            (dir.path(), "is not a file"),
            (&fifo, "is not a file"),
            (&huge, "more than a mebibyte"),
            (&binary, "is not text"),
        ] {
            let error = read_file(path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(error.contains("--config"), "{error}");
        }
        assert_eq!(read_file(Path::new("/dev/null")).unwrap().0, Given::default());
    }
}
