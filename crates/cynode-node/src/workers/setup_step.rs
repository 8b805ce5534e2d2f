//! Steps of a set-up, and what runs over an environment share with workers.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    time::Duration,
};

use cynode_core::nodes::JobEventData;
use tokio::{sync::mpsc, time::Instant};

use super::{
    SandboxRunner,
    command::describe_exit,
    process::{
        InstructionListener, ProgramEnd, ProgramSpec, StreamSearch, base_environment,
        is_file_access, run_to_completion,
    },
};
use crate::sandbox::{BindMount, SandboxError};

/// Maximum number of bytes of a step's output that are streamed as events.
const MAX_STREAMED_BYTES: usize = 1024 * 1024;
/// Number of bytes of the output's tail that are kept.
const OUTPUT_TAIL_BYTES: usize = 8 * 1024;

/// Outcome of a step.
#[derive(Debug)]
pub(crate) struct SetupStepOutcome {
    /// Exit code, if the step ended by itself.
    pub(crate) exit_code: Option<i32>,
    /// How it ended, such as `failed with exit code 1`.
    pub(crate) description: String,
    /// Tail of its output.
    pub(crate) tail: String,
    /// Duration of the step.
    pub(crate) took: Duration,
}

impl SetupStepOutcome {
    /// Returns whether the step succeeded.
    pub(crate) const fn is_success(&self) -> bool {
        matches!(self.exit_code, Some(0))
    }
}

/// Runs a step of a set-up to its end and forwards its output as events.
pub(crate) async fn run_setup_step(
    sandbox: &dyn SandboxRunner,
    argv: &[String],
    binds: &[BindMount],
    until: Instant,
    events: &mpsc::Sender<JobEventData>,
) -> Result<SetupStepOutcome, SandboxError> {
    let program = ProgramSpec {
        argv,
        binds,
        input: &[],
        until,
        most: MAX_STREAMED_BYTES,
        keep: OUTPUT_TAIL_BYTES,
        expect: None,
        report: None,
    };
    // Nobody gives instructions to a set-up. An abort drops it.
    let (_open, mut orders) = mpsc::channel(1);
    let mut ear = InstructionListener::new(&mut orders, events.clone());
    let finished = run_to_completion(sandbox, program, events, &mut ear).await?;
    Ok(SetupStepOutcome {
        exit_code: finished.ended.exit_code.filter(|_| finished.how == ProgramEnd::Itself),
        description: describe_exit(&finished),
        tail: finished.output,
        took: finished.took,
    })
}

/// Adds the variables of an environment. They win over the base environment and over nothing else.
pub(crate) fn add_variables(
    env: &mut BTreeMap<String, String>,
    variables: &BTreeMap<String, String>,
) {
    let base = base_environment();
    for (name, value) in variables {
        if env.get(name).is_none_or(|own| base.get(name) == Some(own)) {
            env.insert(name.clone(), value.clone());
        }
    }
}

/// Returns whether a command of a worker runs beside the services of the environment. Accesses to files by the node itself need none.
pub(crate) fn needs_services(argv: &[String]) -> bool {
    !is_file_access(argv)
}

/// Returns whether a stream contains one of the texts.
pub(crate) fn has_any_text(mut stream: impl Read, texts: &[String]) -> io::Result<bool> {
    let mut searches: Vec<_> = texts.iter().map(|text| StreamSearch::new(text)).collect();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(false);
        }
        let bytes = buffer.get(..length).unwrap_or_default();
        for search in &mut searches {
            search.feed_bytes(bytes);
            if search.is_match() {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn variables_win_over_the_base_and_not_over_what_an_agent_needs() {
        let mut env = base_environment();
        env.insert("MODEL_URL".to_owned(), "the agent's".to_owned());
        add_variables(&mut env, &pairs(&[("PATH", "/x"), ("MODEL_URL", "other"), ("NEW", "1")]));
        let names = ["PATH", "MODEL_URL", "NEW", "USER"];
        assert_eq!(names.map(|name| env[name].as_str()), ["/x", "the agent's", "1", "agent"]);
    }

    #[test]
    fn a_text_is_found_across_reads() {
        let texts = ["secret".to_owned(), "other".to_owned()];
        let long = format!("{}secret", "x".repeat(64 * 1024 - 3));
        assert!(has_any_text(long.as_bytes(), &texts).unwrap());
        assert!(!has_any_text("secre ot".as_bytes(), &texts).unwrap());
    }
}
