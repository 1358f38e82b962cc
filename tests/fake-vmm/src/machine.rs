//! The virtual machine as a state machine: commands and time in, answers and outputs out. No I/O.
//!
//! ```text
//!   prelaunch --cont--> running <--cont/stop--> paused
//!       |                  | power button heeded, exit-after, panic
//!       +------- quit -----+-----> shutdown: the process exits
//! ```

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What the guest does, and what the VMM does wrongly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// The guest never heeds the power button.
    pub ignores_power_button: bool,
    /// How many presses are lost before one is heeded.
    pub loses_presses: u32,
    /// The guest powers off that long after it is up.
    pub exit_after: Option<Duration>,
    /// The guest panics as soon as it is up.
    pub panics: bool,
    /// How long the guest needs to be up.
    pub boot_time: Duration,
    /// The VMM exits before it opens a socket.
    pub crashes_at_start: bool,
    /// The VMM listens and never answers.
    pub hangs: bool,
    /// Commands that fail.
    pub refuses: Vec<String>,
    /// Commands that are done and not answered.
    pub mutes: Vec<String>,
    /// Commands that kill the VMM on the spot.
    pub dies_at: Vec<String>,
}

/// What the outside has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Tell all monitors.
    Event(&'static str, Value),
    /// Write to the guest's console.
    Console(String),
    /// Write to the log, as a trace point does.
    Trace(String),
    /// Remove the sockets and exit with 0.
    Exit,
    /// Be gone at once, as by SIGKILL.
    Die,
}

/// How a command is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// With a value.
    Return(Value),
    /// With an error of a class, and words.
    Error(&'static str, String),
    /// Not at all.
    Silence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Prelaunch,
    Running,
    Paused,
    Shutdown,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Prelaunch => "prelaunch",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Shutdown => "shutdown",
        }
    }

    /// QEMU's number for the state in trace points.
    fn number(self) -> u8 {
        match self {
            Self::Paused => 4,
            Self::Prelaunch => 6,
            Self::Running => 9,
            Self::Shutdown => 11,
        }
    }
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    state: State,
    script: Script,
    guest_up: bool,
    button_latched: bool,
    migrating: bool,
    jobs: Vec<String>,
    up_at: Option<Instant>,
    off_at: Option<Instant>,
}

impl Machine {
    /// A machine whose guest has not run.
    #[must_use]
    pub fn new(script: Script) -> Self {
        Self {
            state: State::Prelaunch,
            script,
            guest_up: false,
            button_latched: false,
            migrating: false,
            jobs: Vec::new(),
            up_at: None,
            off_at: None,
        }
    }

    /// Runs a QMP command.
    pub fn command(
        &mut self,
        name: &str,
        arguments: &Value,
        now: Instant,
        out: &mut Vec<Output>,
    ) -> Answer {
        let listed = |list: &[String]| list.iter().any(|word| word == name);
        if listed(&self.script.dies_at) {
            out.push(Output::Die);
            return Answer::Silence;
        }
        if listed(&self.script.refuses) {
            return Answer::Error("GenericError", format!("{name} is refused by the script"));
        }
        let muted = listed(&self.script.mutes);
        let answer = self.perform(name, arguments, now, out);
        if muted { Answer::Silence } else { answer }
    }

    fn perform(
        &mut self,
        name: &str,
        arguments: &Value,
        now: Instant,
        out: &mut Vec<Output>,
    ) -> Answer {
        let text = |key| arguments.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        match name {
            "query-status" => {
                let running = self.state == State::Running;
                return Answer::Return(json!({
                    "status": self.state.word(), "running": running, "singlestep": false,
                }));
            }
            "query-migrate" if self.migrating => {
                return Answer::Return(json!({ "status": "active" }));
            }
            "query-migrate" => {}
            "query-block-jobs" => {
                let job =
                    |device| json!({ "device": device, "type": "backup", "status": "running" });
                return Answer::Return(self.jobs.iter().map(job).collect());
            }
            "cont" => self.resume(now, out),
            "stop" => self.pause(out),
            "system_powerdown" => self.press_power_button(out),
            "quit" => self.shut_down(Some(2), "host-qmp-quit", false, out),
            "migrate" => self.migrating = true,
            "migrate_cancel" => self.migrating = false,
            "drive-backup" => self.jobs.push(text("device")),
            "block-job-cancel" => {
                let device = text("device");
                let Some(at) = self.jobs.iter().position(|job| *job == device) else {
                    return Answer::Error(
                        "DeviceNotActive",
                        format!("No active block job on '{device}'"),
                    );
                };
                self.jobs.remove(at);
            }
            _ => {
                return Answer::Error(
                    "CommandNotFound",
                    format!("The command {name} has not been found"),
                );
            }
        }
        Answer::Return(json!({}))
    }

    /// SIGTERM and its like.
    pub fn signal(&mut self, out: &mut Vec<Output>) {
        self.shut_down(None, "host-signal", false, out);
    }

    /// Lets the guest do what is due.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<Output>) {
        if self.state != State::Running {
            return;
        }
        if self.up_at.is_some_and(|at| at <= now) {
            self.up_at = None;
            self.come_up(now, out);
        }
        if self.state == State::Running && self.off_at.is_some_and(|at| at <= now) {
            self.shut_down(Some(6), "guest-shutdown", true, out);
        }
    }

    /// When [`Self::tick`] has something to do.
    #[must_use]
    pub fn next_tick(&self) -> Option<Instant> {
        let due = [self.up_at, self.off_at].into_iter().flatten().min();
        due.filter(|_| self.state == State::Running)
    }

    fn resume(&mut self, now: Instant, out: &mut Vec<Output>) {
        if self.state == State::Prelaunch {
            self.up_at = Some(now + self.script.boot_time);
        }
        if matches!(self.state, State::Prelaunch | State::Paused) {
            self.enter(State::Running, out);
            out.push(Output::Event("RESUME", Value::Null));
            if std::mem::take(&mut self.button_latched) {
                self.heed_power_button(out);
            }
        }
        self.tick(now, out);
    }

    fn pause(&mut self, out: &mut Vec<Output>) {
        if self.state == State::Running {
            self.enter(State::Paused, out);
            out.push(Output::Event("STOP", Value::Null));
        }
    }

    fn come_up(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.guest_up = true;
        out.push(Output::Console("GUEST-UP\r\n".to_owned()));
        self.off_at = self.script.exit_after.map(|after| now + after);
        if self.script.panics {
            out.push(Output::Console(
                "Kernel panic - not syncing: sysrq triggered crash\r\n".to_owned(),
            ));
            out.push(Output::Event("GUEST_PANICKED", json!({ "action": "poweroff" })));
            self.shut_down(Some(8), "guest-panic", true, out);
        }
    }

    fn press_power_button(&mut self, out: &mut Vec<Output>) {
        out.push(Output::Trace("qemu_system_powerdown_request ".to_owned()));
        out.push(Output::Event("POWERDOWN", Value::Null));
        match self.state {
            State::Running => self.heed_power_button(out),
            State::Paused => self.button_latched = true,
            State::Prelaunch | State::Shutdown => {}
        }
    }

    fn heed_power_button(&mut self, out: &mut Vec<Output>) {
        if self.script.loses_presses > 0 {
            self.script.loses_presses -= 1;
        } else if self.guest_up && !self.script.ignores_power_button {
            out.push(Output::Console("init: power button\r\n".to_owned()));
            self.shut_down(Some(6), "guest-shutdown", true, out);
        }
    }

    /// A signal has no cause in the trace, as with QEMU.
    fn shut_down(&mut self, cause: Option<u8>, reason: &str, guest: bool, out: &mut Vec<Output>) {
        if self.state == State::Shutdown {
            return;
        }
        if let Some(cause) = cause {
            out.push(Output::Trace(format!("qemu_system_shutdown_request reason={cause}")));
        }
        out.push(Output::Event("SHUTDOWN", json!({ "guest": guest, "reason": reason })));
        self.enter(State::Shutdown, out);
        out.push(Output::Exit);
    }

    fn enter(&mut self, next: State, out: &mut Vec<Output>) {
        let (from, to) = (self.state, next);
        out.push(Output::Trace(format!(
            "runstate_set current_run_state {} ({}) new_state {} ({})",
            from.number(),
            from.word(),
            to.number(),
            to.word()
        )));
        self.state = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(machine: &mut Machine, commands: &[&str]) -> (Vec<Answer>, Vec<Output>) {
        let now = Instant::now();
        let mut out = Vec::new();
        let answers = commands
            .iter()
            .map(|command| machine.command(command, &Value::Null, now, &mut out))
            .collect();
        (answers, out)
    }

    fn exits(out: &[Output]) -> bool {
        out.contains(&Output::Exit)
    }

    #[test]
    fn a_guest_that_heeds_the_button_goes() {
        let (_, out) = run(&mut Machine::new(Script::default()), &["cont", "system_powerdown"]);
        assert!(exits(&out), "{out:?}");
    }

    #[test]
    fn a_guest_that_is_not_up_or_ignores_the_button_stays() {
        let slow = Script { boot_time: Duration::from_secs(9), ..Script::default() };
        let deaf = Script { ignores_power_button: true, ..Script::default() };
        for script in [slow, deaf] {
            let (_, out) = run(&mut Machine::new(script), &["cont", "system_powerdown"]);
            assert!(!exits(&out), "{out:?}");
        }
    }

    #[test]
    fn a_press_while_paused_is_heeded_when_resumed() {
        let mut machine = Machine::new(Script::default());
        let (_, out) = run(&mut machine, &["cont", "stop", "system_powerdown"]);
        assert!(!exits(&out));
        let (_, out) = run(&mut machine, &["cont"]);
        assert!(exits(&out));
    }

    #[test]
    fn a_timer_runs_out_only_while_the_guest_runs() {
        let script = Script { exit_after: Some(Duration::from_secs(1)), ..Script::default() };
        let mut machine = Machine::new(script);
        run(&mut machine, &["cont", "stop"]);
        let later = Instant::now() + Duration::from_secs(2);
        let mut out = Vec::new();
        machine.tick(later, &mut out);
        assert_eq!((machine.next_tick(), out.len()), (None, 0));
        machine.command("cont", &Value::Null, later, &mut out);
        assert!(exits(&out));
    }

    #[test]
    fn commands_can_be_refused_muted_or_deadly() {
        let word = |name: &str| vec![name.to_owned()];
        let script = Script {
            refuses: word("stop"),
            mutes: word("cont"),
            dies_at: word("quit"),
            ..Script::default()
        };
        let (answers, out) = run(&mut Machine::new(script), &["stop", "cont", "quit"]);
        assert!(matches!(answers[0], Answer::Error("GenericError", _)));
        assert_eq!(answers[1..], [Answer::Silence, Answer::Silence]);
        assert!(out.contains(&Output::Event("RESUME", Value::Null)));
        assert_eq!(out.last(), Some(&Output::Die));
    }
}
