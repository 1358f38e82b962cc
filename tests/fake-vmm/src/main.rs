//! The binary; the library's page says what it does.

use std::process::ExitCode;

use cocoon_fake_vmm::options::Options;
use cocoon_fake_vmm::server;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--version"] {
        println!("QEMU emulator version 7.2.22 (cocoon-fake-vmm)");
        return ExitCode::SUCCESS;
    }
    let script = script();
    match Options::parse(&arguments, &script).and_then(|options| server::run(&options)) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("qemu-system-x86_64: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Words that are not on the command line: those of the environment, and of the file beside the program's name.
fn script() -> String {
    let of_environment = std::env::var("COCOON_FAKE_SCRIPT").unwrap_or_default();
    let program = std::env::args().next().unwrap_or_default();
    let of_file = std::fs::read_to_string(format!("{program}.script")).unwrap_or_default();
    format!("{of_environment} {of_file}")
}
