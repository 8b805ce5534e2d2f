//! Instructions of people to a running task.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{StepVerdict, WorkflowStep, plan::PlanFeedback, waits::WaitResolution};

/// Maximum number of questions that one pause asks. Further ones are ignored.
const MAX_PAUSE_QUESTIONS: usize = 10;

/// Length of a pause's questions in bytes from which further ones are ignored.
const MAX_PAUSE_QUESTION_BYTES: usize = 4000;

/// The kind of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstructionKind {
    /// Stop at the next step and wait.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Give the task up.
    Abort,
    /// Make the plan anew with this feedback.
    Revise,
    /// Do this too.
    ExpandScope,
    /// Leave this out.
    ReduceScope,
}

/// What an instruction does to a run, once it is taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionEffect {
    /// The run waits until it is told to go on.
    Pause,
    /// A pause ends.
    Resume,
    /// The run goes back to planning with the text as feedback.
    Replan,
    /// The task is stopped at once.
    Stop,
}

impl InstructionKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Pause,
        Self::Resume,
        Self::Abort,
        Self::Revise,
        Self::ExpandScope,
        Self::ReduceScope,
    ];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Abort => "abort",
            Self::Revise => "revise",
            Self::ExpandScope => "expand_scope",
            Self::ReduceScope => "reduce_scope",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// What it does.
    pub const fn instruction_effect(self) -> InstructionEffect {
        match self {
            Self::Pause => InstructionEffect::Pause,
            Self::Resume => InstructionEffect::Resume,
            Self::Abort => InstructionEffect::Stop,
            Self::Revise | Self::ExpandScope | Self::ReduceScope => InstructionEffect::Replan,
        }
    }

    /// Whether it says nothing without a text.
    pub const fn requires_text(self) -> bool {
        matches!(self.instruction_effect(), InstructionEffect::Replan)
    }
}

/// The activity of a run between two steps, before pending instructions are applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunActivity {
    /// The run goes on to its next step.
    Running,
    /// The run waits for something other than a person who resumes it.
    Waiting,
    /// A person paused the run.
    Paused {
        /// The questions of the pause. Empty: it asks nothing.
        question: String,
    },
}

/// The decision about all pending instructions of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstructionDecision {
    /// Nothing changes: there were no instructions, or they cancelled each other out.
    Continue,
    /// The pause ends, and nothing else changes.
    Resume,
    /// The run returns to planning.
    Replan {
        /// Feedback for the new plan, oldest first. Never empty.
        feedback: Vec<PlanFeedback>,
    },
    /// A new pause begins. It replaces the pause or the wait that the run is in.
    Pause {
        /// The questions of the pause. Empty: it asks nothing.
        question: String,
        /// Feedback for the plan, oldest first. If there is any, the run returns to planning before it pauses.
        feedback: Vec<PlanFeedback>,
    },
    /// The pause that the run is in goes on unchanged.
    StayPaused,
}

impl InstructionDecision {
    /// Decides about pending instructions, oldest first, each with its text.
    pub fn decide<'a>(
        activity: &RunActivity,
        instructions: impl IntoIterator<Item = (InstructionKind, &'a str)>,
    ) -> Self {
        let mut pause = match activity {
            RunActivity::Paused { question } => Some(question.clone()),
            RunActivity::Running | RunActivity::Waiting => None,
        };
        let mut feedback = Vec::new();
        for (kind, text) in instructions {
            match kind.instruction_effect() {
                InstructionEffect::Pause => append_question(pause.get_or_insert_default(), text),
                InstructionEffect::Resume => pause = None,
                InstructionEffect::Replan => {
                    feedback.push(PlanFeedback { kind, text: text.to_owned() });
                }
                // A stop took effect when it was given.
                InstructionEffect::Stop => {}
            }
        }
        Self::from_parts(activity, pause, feedback)
    }

    /// Decides by the questions of the pause that the instructions leave, if they leave one, and by their feedback.
    fn from_parts(
        activity: &RunActivity,
        pause: Option<String>,
        feedback: Vec<PlanFeedback>,
    ) -> Self {
        match (activity, pause) {
            // A pause with another question is a new one, so that people are notified of the question.
            (RunActivity::Paused { question: old }, Some(new))
                if *old == new && feedback.is_empty() =>
            {
                Self::StayPaused
            }
            (_, Some(question)) => Self::Pause { question, feedback },
            (_, None) if !feedback.is_empty() => Self::Replan { feedback },
            (RunActivity::Paused { .. }, None) => Self::Resume,
            (RunActivity::Running | RunActivity::Waiting, None) => Self::Continue,
        }
    }

    /// Feedback for the plan. If there is any, the run returns to planning.
    pub fn feedback(&self) -> &[PlanFeedback] {
        match self {
            Self::Replan { feedback } | Self::Pause { feedback, .. } => feedback,
            Self::Continue | Self::Resume | Self::StayPaused => &[],
        }
    }

    /// How the open wait of the run ends, if it has one and the decision ends it.
    pub const fn wait_resolution(&self, activity: &RunActivity) -> Option<WaitResolution> {
        match (self, activity) {
            (Self::Continue | Self::StayPaused, _) | (_, RunActivity::Running) => None,
            (Self::Resume | Self::Replan { .. }, RunActivity::Paused { .. }) => {
                Some(WaitResolution::Resumed)
            }
            (Self::Resume | Self::Replan { .. }, RunActivity::Waiting)
            | (Self::Pause { .. }, RunActivity::Waiting | RunActivity::Paused { .. }) => {
                Some(WaitResolution::Cancelled)
            }
        }
    }
}

/// The verdict and the next step of a run that returns to planning. Before the context is loaded there is nothing to replan: the
/// feedback is kept for the first plan.
pub const fn replan_transition(next: WorkflowStep) -> (StepVerdict, WorkflowStep) {
    match next {
        WorkflowStep::LoadTaskContext => (StepVerdict::Redo, WorkflowStep::LoadTaskContext),
        _ => (StepVerdict::Revise, WorkflowStep::PlanSteps),
    }
}

/// Appends a question to those of a pause. Ignores a repeated one, and any beyond the maximum.
fn append_question(questions: &mut String, text: &str) {
    let text = text.trim();
    if questions.is_empty() {
        text.clone_into(questions);
        return;
    }
    let is_full = questions.split("\n\n").count() >= MAX_PAUSE_QUESTIONS
        || questions.len() >= MAX_PAUSE_QUESTION_BYTES;
    if !text.is_empty() && !is_full && !questions.contains(text) {
        questions.push_str("\n\n");
        questions.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused(question: &str) -> RunActivity {
        RunActivity::Paused { question: question.to_owned() }
    }

    fn feedback(text: &str) -> Vec<PlanFeedback> {
        vec![PlanFeedback { kind: InstructionKind::Revise, text: text.to_owned() }]
    }

    fn pause(question: &str, feedback: Vec<PlanFeedback>) -> InstructionDecision {
        InstructionDecision::Pause { question: question.to_owned(), feedback }
    }

    #[test]
    fn there_are_six_kinds_of_instructions_and_no_other() {
        use InstructionEffect::{Pause, Replan, Resume, Stop};
        let kinds = InstructionKind::ALL
            .map(|kind| (kind.as_str(), kind.instruction_effect(), kind.requires_text()));
        let six = [
            ("pause", Pause, false),
            ("resume", Resume, false),
            ("abort", Stop, false),
            ("revise", Replan, true),
            ("expand_scope", Replan, true),
            ("reduce_scope", Replan, true),
        ];
        assert_eq!(kinds, six, "S004-072, S004-075: six, and a revision needs its feedback");
        let other = serde_json::from_value::<InstructionKind>("explode".into()).unwrap_err();
        let expected = six.map(|(name, ..)| format!("`{name}`")).join(", ");
        let refusal = format!("unknown variant `explode`, expected one of {expected}");
        assert_eq!(other.to_string(), refusal, "S004-072: there is no seventh");
    }

    #[test]
    fn every_activity_pause_and_feedback_has_one_decision_and_one_end_of_the_wait() {
        use InstructionDecision::{Continue, Replan, Resume, StayPaused};
        use WaitResolution::{Cancelled, Resumed};
        let (running, waiting) = (RunActivity::Running, RunActivity::Waiting);
        let (none, some) = (Vec::new, || feedback("smaller"));
        let replan = || Replan { feedback: some() };
        let table = [
            (running.clone(), None, none(), Continue, None),
            (running.clone(), None, some(), replan(), None),
            (running.clone(), Some(""), none(), pause("", none()), None),
            (running.clone(), Some(""), some(), pause("", some()), None),
            (running.clone(), Some("Which?"), none(), pause("Which?", none()), None),
            (running, Some("Which?"), some(), pause("Which?", some()), None),
            (waiting.clone(), None, none(), Continue, None),
            (waiting.clone(), None, some(), replan(), Some(Cancelled)),
            (waiting.clone(), Some(""), none(), pause("", none()), Some(Cancelled)),
            (waiting.clone(), Some(""), some(), pause("", some()), Some(Cancelled)),
            (waiting.clone(), Some("Which?"), none(), pause("Which?", none()), Some(Cancelled)),
            (waiting, Some("Which?"), some(), pause("Which?", some()), Some(Cancelled)),
            (paused("Which?"), None, none(), Resume, Some(Resumed)),
            (paused("Which?"), None, some(), replan(), Some(Resumed)),
            (paused("Which?"), Some("Which?"), none(), StayPaused, None),
            (paused("Which?"), Some("Which?"), some(), pause("Which?", some()), Some(Cancelled)),
            (paused("Which?"), Some("Where?"), none(), pause("Where?", none()), Some(Cancelled)),
            (paused("Which?"), Some("Where?"), some(), pause("Where?", some()), Some(Cancelled)),
            (paused(""), None, none(), Resume, Some(Resumed)),
            (paused(""), None, some(), replan(), Some(Resumed)),
            (paused(""), Some(""), none(), StayPaused, None),
            (paused(""), Some(""), some(), pause("", some()), Some(Cancelled)),
            (paused(""), Some("Which?"), none(), pause("Which?", none()), Some(Cancelled)),
            (paused(""), Some("Which?"), some(), pause("Which?", some()), Some(Cancelled)),
        ];
        for (activity, question, feedback, decision, resolution) in table {
            let decided = InstructionDecision::from_parts(
                &activity,
                question.map(str::to_owned),
                feedback.clone(),
            );
            assert_eq!(decided, decision, "{activity:?} {question:?} {feedback:?}");
            assert_eq!(decided.wait_resolution(&activity), resolution, "{activity:?} {decided:?}");
            assert_eq!(decided.feedback(), feedback, "{activity:?} {decided:?}");
        }
    }

    #[test]
    fn instructions_are_applied_in_their_order() {
        use InstructionDecision::{Continue, Replan, Resume, StayPaused};
        use InstructionKind::{Abort, Pause, Revise};
        let go_on = (InstructionKind::Resume, "");
        let decide = |activity: &RunActivity, instructions: &[(InstructionKind, &'static str)]| {
            InstructionDecision::decide(activity, instructions.iter().copied())
        };
        for activity in [RunActivity::Running, RunActivity::Waiting] {
            assert_eq!(decide(&activity, &[]), Continue);
            assert_eq!(decide(&activity, &[(Abort, "")]), Continue);
            assert_eq!(decide(&activity, &[go_on]), Continue);
            assert_eq!(decide(&activity, &[(Pause, "Which?"), go_on]), Continue);
            assert_eq!(decide(&activity, &[(Pause, " Which? ")]), pause("Which?", Vec::new()));
            assert_eq!(decide(&activity, &[go_on, (Pause, "")]), pause("", Vec::new()));
            let both = [(Pause, "Which?"), (Revise, " smaller ")];
            assert_eq!(decide(&activity, &both), pause("Which?", feedback(" smaller ")));
            let replan = Replan { feedback: feedback("smaller") };
            assert_eq!(decide(&activity, &[(Pause, ""), (Revise, "smaller"), go_on]), replan);
        }
        let activity = paused("Which?");
        assert_eq!(decide(&activity, &[]), StayPaused);
        assert_eq!(decide(&activity, &[(Abort, "")]), StayPaused);
        assert_eq!(decide(&activity, &[(Pause, "Which?")]), StayPaused);
        assert_eq!(decide(&activity, &[(Pause, "")]), StayPaused);
        assert_eq!(decide(&activity, &[go_on, (Pause, "Which?")]), StayPaused);
        assert_eq!(decide(&activity, &[go_on, (Pause, "")]), pause("", Vec::new()));
        let more = [(Pause, "Where?")];
        assert_eq!(decide(&activity, &more), pause("Which?\n\nWhere?", Vec::new()));
        assert_eq!(decide(&activity, &[(Pause, "Where?"), go_on]), Resume);
        let replan = [(Revise, "smaller")];
        assert_eq!(decide(&activity, &replan), pause("Which?", feedback("smaller")));
    }

    #[test]
    fn a_run_returns_to_planning_unless_its_context_is_not_loaded() {
        for step in WorkflowStep::ALL {
            let expected = match step {
                WorkflowStep::LoadTaskContext => (StepVerdict::Redo, step),
                _ => (StepVerdict::Revise, WorkflowStep::PlanSteps),
            };
            assert_eq!(replan_transition(step), expected);
        }
    }

    #[test]
    fn what_is_asked_again_in_a_pause_is_nothing_new_and_what_is_asked_has_an_end() {
        let mut questions = String::new();
        append_question(&mut questions, "");
        assert_eq!(questions, "");
        for text in ["Which key?", "Which key?", "key", " And where? ", ""] {
            append_question(&mut questions, text);
        }
        assert_eq!(questions, "Which key?\n\nAnd where?");
        for number in 0..100 {
            append_question(&mut questions, &format!("Still there? ({number})"));
        }
        assert_eq!(questions.split("\n\n").count(), MAX_PAUSE_QUESTIONS);
        let mut questions = "a".repeat(MAX_PAUSE_QUESTION_BYTES);
        append_question(&mut questions, "b");
        assert_eq!(questions.len(), MAX_PAUSE_QUESTION_BYTES);
    }
}
