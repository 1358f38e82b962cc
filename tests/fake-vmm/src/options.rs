//! The command line, accepted as strictly as the backend writes it: what QEMU would refuse must not pass here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::machine::Script;

/// What the command line said.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The QMP sockets, in their order.
    pub monitors: Vec<PathBuf>,
    /// The console's socket.
    pub console_socket: PathBuf,
    /// The console's log.
    pub console_log: PathBuf,
    /// Files that must be there: kernel and initrd.
    pub payload: Vec<PathBuf>,
    /// Disk images, and whether each is read-only.
    pub disks: Vec<(PathBuf, bool)>,
    /// Whether the guest waits for `cont`.
    pub held: bool,
    /// What the guest does.
    pub script: Script,
}

/// Options that take no value.
const FLAGS: [&str; 4] = ["-nodefaults", "-no-user-config", "-no-reboot", "-S"];

/// Options that take a value which changes nothing here.
const IGNORED: [&str; 10] =
    ["-name", "-machine", "-accel", "-cpu", "-smp", "-m", "-display", "-sandbox", "-msg", "-boot"];

/// Options that are read.
const READ: [&str; 10] = [
    "-chardev",
    "-mon",
    "-serial",
    "-kernel",
    "-initrd",
    "-append",
    "-blockdev",
    "-device",
    "-netdev",
    "-trace",
];

const DEVICES: [&str; 4] = ["virtio-rng-pci", "pvpanic-pci", "virtio-blk-pci", "virtio-net-pci"];

impl Options {
    /// Reads the arguments, without the program's name. `script` adds words to those of `-append`.
    pub fn parse(arguments: &[String], script: &str) -> Result<Self, String> {
        let (flags, values) = split(arguments)?;
        let all = |name: &'static str| values.all(name);
        let last = |name: &'static str| all(name).next_back().cloned();
        let chardevs = chardevs(all("-chardev"))?;
        let chardev =
            |id: &str| chardevs.get(id).cloned().ok_or(format!("Device '{id}' not found"));
        let mut monitors = Vec::new();
        for value in all("-mon") {
            let monitor = list(value);
            let id = monitor.get("chardev").ok_or("-mon: Parameter 'chardev' is missing")?;
            monitors.push(field(&chardev(id)?, "path")?);
        }
        let serial = last("-serial").ok_or("no -serial")?;
        let console =
            chardev(serial.strip_prefix("chardev:").ok_or("-serial: expected chardev:ID")?)?;
        all("-device").try_for_each(|value| check_device(value))?;
        let words = format!("{} {script}", last("-append").unwrap_or_default());
        Ok(Self {
            monitors,
            console_socket: field(&console, "path")?,
            console_log: field(&console, "logfile")?,
            payload: all("-kernel").chain(all("-initrd")).map(PathBuf::from).collect(),
            disks: all("-blockdev").map(|value| disk(value)).collect::<Result<_, _>>()?,
            held: flags.iter().any(|flag| flag == "-S"),
            script: read_script(&words)?,
        })
    }
}

/// Options with their values, in their order.
#[derive(Default)]
struct Values(Vec<(String, String)>);

impl Values {
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a String> {
        self.0.iter().filter(move |(flag, _)| flag == name).map(|(_, value)| value)
    }
}

fn split(arguments: &[String]) -> Result<(Vec<String>, Values), String> {
    let (mut flags, mut values) = (Vec::new(), Values::default());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if FLAGS.contains(&argument.as_str()) {
            flags.push(argument.clone());
        } else if IGNORED.contains(&argument.as_str()) || READ.contains(&argument.as_str()) {
            let value = rest.next().ok_or(format!("{argument}: requires an argument"))?;
            values.0.push((argument.clone(), value.clone()));
        } else {
            return Err(format!("{argument}: invalid option"));
        }
    }
    Ok((flags, values))
}

/// `kind,key=value,...` as a map; the kind is under the empty key.
fn list(text: &str) -> BTreeMap<String, String> {
    let pair = |part: &str| match part.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None => (String::new(), part.to_owned()),
    };
    text.split(',').map(pair).collect()
}

fn chardevs<'a>(
    values: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, BTreeMap<String, String>>, String> {
    values
        .map(|value| {
            let chardev = list(value);
            let is =
                |key: &str, wanted: &str| chardev.get(key).is_some_and(|value| value == wanted);
            if !(is("", "socket") && is("server", "on") && is("wait", "off")) {
                return Err(format!(
                    "-chardev {value}: only waiting-free server sockets are known"
                ));
            }
            let id = chardev.get("id").ok_or("-chardev: Parameter 'id' is missing")?;
            Ok((id.clone(), chardev))
        })
        .collect()
}

fn field(options: &BTreeMap<String, String>, key: &str) -> Result<PathBuf, String> {
    options.get(key).map(PathBuf::from).ok_or(format!("Parameter '{key}' is missing"))
}

fn check_device(value: &str) -> Result<(), String> {
    let device = value.split(',').next().unwrap_or_default();
    if DEVICES.contains(&device) {
        return Ok(());
    }
    Err(format!("-device {value}: '{device}' is not a valid device model name"))
}

fn disk(value: &str) -> Result<(PathBuf, bool), String> {
    let invalid = || format!("-blockdev {value}: Invalid parameter");
    let node: Value = serde_json::from_str(value).map_err(|_| invalid())?;
    let file = node.pointer("/file/filename").and_then(Value::as_str).ok_or_else(invalid)?;
    let read_only = node.get("read-only").and_then(Value::as_bool).ok_or_else(invalid)?;
    Ok((file.into(), read_only))
}

fn read_script(words: &str) -> Result<Script, String> {
    let mut script = Script::default();
    for word in words.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "cocoon.ignore-power-button" => script.ignores_power_button = true,
            "cocoon.fake.lose-presses" => {
                script.loses_presses =
                    value.parse().map_err(|_| format!("{word}: not a number"))?;
            }
            "cocoon.exit-after" => script.exit_after = Some(seconds(word, value)?),
            "cocoon.panic" => script.panics = true,
            "cocoon.fake.boot" => script.boot_time = seconds(word, value)?,
            "cocoon.fake.crash-at-start" => script.crashes_at_start = true,
            "cocoon.fake.hang" => script.hangs = true,
            "cocoon.fake.refuse" => script.refuses.push(value.to_owned()),
            "cocoon.fake.mute" => script.mutes.push(value.to_owned()),
            "cocoon.fake.die" => script.dies_at.push(value.to_owned()),
            _ if name.starts_with("cocoon.fake.") => {
                return Err(format!("unknown script word {word}"));
            }
            _ => {}
        }
    }
    Ok(script)
}

fn seconds(word: &str, value: &str) -> Result<Duration, String> {
    let seconds: f64 = value.parse().map_err(|_| format!("{word}: not a number"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{word}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(extra: &[&str]) -> Vec<String> {
        let mut line = vec![
            "-S",
            "-chardev",
            "socket,id=a,path=/a,server=on,wait=off",
            "-mon",
            "chardev=a,mode=control",
            "-chardev",
            "socket,id=c,path=/c,server=on,wait=off,logfile=/l,logappend=on",
            "-serial",
            "chardev:c",
        ];
        line.extend_from_slice(extra);
        line.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn sockets_and_script_are_read() {
        let append = "console=ttyS0 cocoon.exit-after=0.25 cocoon.fake.die=cont";
        let options = Options::parse(&line(&["-append", append]), "cocoon.panic").unwrap();
        assert_eq!(options.monitors, [PathBuf::from("/a")]);
        assert_eq!(options.console_log, PathBuf::from("/l"));
        assert!(options.held && options.script.panics);
        assert_eq!(options.script.exit_after, Some(Duration::from_millis(250)));
        assert_eq!(options.script.dies_at, ["cont"]);
    }

    #[test]
    fn what_qemu_refuses_is_refused() {
        for extra in [
            &["-nonsense"][..],
            &["-device", "virtio-teapot-pci"],
            &["-mon", "chardev=nobody,mode=control"],
            &["-blockdev", "{}"],
            &["-m"],
            &["-append", "cocoon.fake.unknown"],
            &["-append", "cocoon.exit-after=-1"],
        ] {
            assert!(Options::parse(&line(extra), "").is_err(), "{extra:?}");
        }
    }
}
