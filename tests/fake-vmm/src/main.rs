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
    let script = std::env::var("COCOON_FAKE_SCRIPT").unwrap_or_default();
    match Options::parse(&arguments, &script).and_then(|options| server::run(&options)) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("qemu-system-x86_64: {message}");
            ExitCode::FAILURE
        }
    }
}
