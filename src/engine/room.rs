//! Which commands go on when the disk is full.
//!
//! The journal keeps a reserve for events that end something, free space, or record what has already happened in the
//! world. What begins something new is refused when only the reserve is left.

use cocoon_journal::{Entry, Proposal};
use cocoon_model::command::Command;
use cocoon_model::step::{Outcome, Step};

/// Proposes the entries that the commands were accepted with.
pub(super) fn propose<'a, T>(
    commands: impl IntoIterator<Item = &'a Command>,
    entries: Vec<Entry>,
    answer: T,
) -> Proposal<T> {
    if commands.into_iter().all(may_use_reserve) {
        Proposal::AppendFromReserve(entries, answer)
    } else {
        Proposal::Append(entries, answer)
    }
}

/// Whether a command is one of those that the reserve is kept for.
fn may_use_reserve(command: &Command) -> bool {
    match command {
        Command::Prereserve { .. }
        | Command::Start { .. }
        | Command::ImportImage { .. }
        | Command::TakeIn { .. } => false,
        Command::Report { step, outcome, .. } => report_may(*step, outcome),
        Command::TakeOver { .. }
        | Command::Stop { .. }
        | Command::Delete { .. }
        | Command::Adopt { .. }
        | Command::ObserveExit { .. }
        | Command::RemoveImage { .. }
        | Command::FinishImageRemoval { .. }
        | Command::StartSupervising { .. }
        | Command::Doubt { .. }
        | Command::AdoptRoot { .. }
        | Command::StopSupervising => true,
    }
}

/// A creation that goes well, and a launch that has not begun, can as well be refused; what follows a launch is about
/// a process that is there, and a failure gives room back.
fn report_may(step: Step, outcome: &Outcome) -> bool {
    match step {
        Step::PrepareStorage => *outcome != Outcome::Done,
        Step::ChooseLaunch => !matches!(outcome, Outcome::Chosen(..)),
        Step::SpawnVmm
        | Step::AwaitVmm
        | Step::SettleLaunch
        | Step::StopVmm(_)
        | Step::ProveVmmDead { .. }
        | Step::Remove(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use cocoon_model::id::{ImageId, VmId};

    use super::*;

    fn kept_for(commands: &[Command]) -> bool {
        matches!(propose(commands, Vec::new(), ()), Proposal::AppendFromReserve(..))
    }

    #[test]
    fn the_reserve_is_kept_for_what_ends_things() {
        let vm = VmId::from_slot(1);
        let image = ImageId::from_slot(2);
        let report = |step, outcome| Command::Report { id: vm, step, outcome };
        let exit = Command::ObserveExit { id: vm, generation: 1, evidence: None };
        let failed = || Outcome::Failed("no space".to_owned());
        let begins = report(Step::PrepareStorage, Outcome::Done);
        assert!(!kept_for(std::slice::from_ref(&begins)));
        assert!(!kept_for(&[exit.clone(), begins]), "all of a frame must be such");
        assert!(kept_for(&[
            exit,
            Command::RemoveImage { id: image },
            Command::TakeOver { id: vm }
        ]));
        assert!(kept_for(&[report(Step::PrepareStorage, failed())]));
        assert!(kept_for(&[report(Step::ChooseLaunch, failed())]));
    }
}
