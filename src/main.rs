//! The `cocoon` command.

fn main() -> std::process::ExitCode {
    cocoon::cli::main()
}
