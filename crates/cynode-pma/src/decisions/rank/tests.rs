use proptest::prelude::*;

use super::*;

/// Tools to be ranked.
const SAMPLE_TOOLS: &[RankableTool<'static>] = &[
    RankableTool {
        name: "git.tree",
        description: "Lists the files and directories of the repository.",
    },
    RankableTool {
        name: "git.read",
        description: "Reads a file of the repository: code, pages, settings, documentation, tests.",
    },
    RankableTool {
        name: "git.status",
        description: "Says on which branch and commit the work on a task stands.",
    },
    RankableTool { name: "db.task.get", description: "Reads a task with its acceptance criteria." },
    RankableTool { name: "db.task.list", description: "Lists the tasks of the project." },
    RankableTool { name: "db.task.create", description: "Creates another task in the project." },
    RankableTool { name: "db.project.get", description: "Reads what the project is for." },
    RankableTool {
        name: "db.preference.effective",
        description: "Reads the preferences and standards that hold.",
    },
    RankableTool {
        name: "db.work_unit.list",
        description: "Lists the work units of a task and how far they are.",
    },
    RankableTool {
        name: "node.list",
        description: "Lists the machines that run jobs, with their labels.",
    },
    RankableTool {
        name: "artifact.list",
        description: "Lists the artifacts and reports that agents left.",
    },
    RankableTool {
        name: "web.fetch",
        description: "Reads a web page or an API document from the internet.",
    },
    RankableTool { name: "web.search", description: "Searches the web and the internet." },
    RankableTool { name: "skills.list", description: "Lists the skills that are written down." },
    RankableTool {
        name: "schedule.list",
        description: "Lists the schedules and when they are due, daily, weekly or nightly.",
    },
    RankableTool {
        name: "help.overview",
        description: "Explains how things are done in this system.",
    },
];

fn told(goal: &str, most: usize) -> Vec<&'static str> {
    rank_tools(goal, SAMPLE_TOOLS, most).into_iter().map(|tool| tool.name).collect()
}

#[test]
fn a_goal_selects_the_tools_it_is_about_and_no_others() {
    assert_eq!(told("Search the web for a page", 5), ["web.fetch", "web.search", "git.read"]);
    assert_eq!(told("read file", 1), ["git.read"]);
}

#[test]
fn a_goal_of_stop_words_or_about_something_else_selects_nothing() {
    for goal in ["", "the and of", "please do it for me now", "!!! ???", "Zebra crossing"] {
        assert_eq!(told(goal, 50), [""; 0], "{goal}");
    }
}

#[test]
fn equal_scores_are_in_the_order_of_the_names_whatever_the_order_of_the_tools() {
    let tools = ["b.make", "a.make", "c.make"].map(|name| RankableTool { name, description: "" });
    let names: Vec<_> = rank_tools("make", &tools, 3).into_iter().map(|tool| tool.name).collect();
    assert_eq!(names, ["a.make", "b.make", "c.make"], "S001-28: the name breaks a tie");
}

#[test]
fn punctuation_case_and_endings_do_not_matter() {
    let tools = [RankableTool { name: "echo.say", description: "Repeating texts." }];
    for goal in ["Echo!", "ECHO", "repeats", "a (repeated) text", "texts"] {
        assert_eq!(rank_tools(goal, &tools, 1).len(), 1, "B001-25: {goal}");
    }
    assert!(rank_tools("ech", &tools, 1).is_empty());
}

#[test]
fn a_score_is_the_share_of_the_goals_words_and_the_highest_comes_first() {
    let tools = [
        RankableTool { name: "b.write", description: "Writes." },
        RankableTool { name: "files.read", description: "Reads files, and reads them again." },
        RankableTool { name: "c.other", description: "Something else." },
    ];
    let ranked = rank_tools("Read and write the files, read them", &tools, 3);
    let wanted = [
        RankedTool { name: "files.read", score: 2.0 / 3.0 },
        RankedTool { name: "b.write", score: 1.0 / 3.0 },
    ];
    assert_eq!(ranked, wanted, "B001-02");
}

#[test]
fn punctuation_and_stop_words_select_no_tool() {
    let tools = [
        RankableTool { name: "echo.say", description: "Says the text. And what of it?" },
        RankableTool { name: "web.open", description: "Opens a page: the one in the text." },
    ];
    for goal in ["!", "?! .", "..."] {
        assert_eq!(rank_tools(goal, &tools, 2), [], "B001-25: {goal} matches nothing");
    }
    for goal in ["the", "and what of it", "in the one"] {
        assert_eq!(rank_tools(goal, &tools, 2), [], "B001-26: {goal} selects no tool");
    }
}

#[test]
fn the_planner_never_returns_all_tools_for_a_goal_that_is_not_about_all() {
    // Even a goal made of the whole catalogue's favourite words leaves some out.
    let goal = "List the files of the project and read the task";
    let all = SAMPLE_TOOLS.len();
    let selected = rank_tools(goal, SAMPLE_TOOLS, all);
    assert!(!selected.is_empty() && selected.len() < all, "S001-77: {selected:?}");
}

#[test]
fn the_stop_words_are_sorted_so_that_they_are_found() {
    assert!(STOP_WORDS.is_sorted());
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-e]{1,3}", Just("the".to_owned()), Just("of".to_owned())]
}

fn sentence() -> impl Strategy<Value = String> {
    prop::collection::vec(word(), 0..6).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn only_tools_that_share_a_word_are_selected_and_in_order(
        goal in sentence(),
        tools in prop::collection::btree_map("[a-z]{1,4}\\.[a-z]{1,4}", sentence(), 0..12),
        most in 0_usize..15,
    ) {
        let tools: Vec<RankableTool<'_>> =
            tools.iter().map(|(name, description)| RankableTool { name, description }).collect();
        let ranked = rank_tools(&goal, &tools, most);
        prop_assert!(ranked.len() <= most);
        for pair in ranked.windows(2) {
            prop_assert!((pair[1].score, pair[0].name) < (pair[0].score, pair[1].name)
                || pair[0].score > pair[1].score, "S001-28: {:?}", pair);
        }
        let goal_words = stemmed_words(&goal);
        let related = |tool: &RankableTool<'_>| {
            let mut known = stemmed_words(tool.name);
            known.extend(stemmed_words(tool.description));
            known.intersection(&goal_words).next().is_some()
        };
        let matching = tools.iter().filter(|tool| related(tool)).count();
        prop_assert_eq!(ranked.len(), matching.min(most), "S001-27");
        for tool in &ranked {
            prop_assert!(tool.score > 0.0 && tool.score <= 1.0);
        }
        // Never all, unless each one is about the goal.
        if tools.len() > 1 && matching < tools.len() {
            prop_assert!(ranked.len() < tools.len());
        }
    }

    #[test]
    fn the_order_of_the_tools_does_not_matter(goal in sentence(), seed in 0_usize..50) {
        let mut tools: Vec<RankableTool<'_>> = SAMPLE_TOOLS.to_vec();
        let turn = seed % tools.len();
        tools.rotate_left(turn);
        prop_assert_eq!(rank_tools(&goal, &tools, 5), rank_tools(&goal, SAMPLE_TOOLS, 5));
    }
}
