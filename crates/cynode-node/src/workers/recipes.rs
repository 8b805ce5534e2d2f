//! Recipes: how each coding agent is installed, started and configured. They are data, and a node may add more.

use std::{collections::BTreeMap, fs, path::Path};

use cynode_core::skills::{SelectedSkill, SkillFile};
use serde::Deserialize;

use super::{AGENTS_DIR, HOME_DIR, MODELS_URL, PLACEHOLDER_KEY, TOOLS_URL, WORKSPACE_DIR};

/// Recipe: how one agent is installed and started.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentRecipe {
    /// Unique name of the agent.
    pub name: String,
    /// Display name of the agent.
    pub title: String,
    /// License of the agent.
    pub licence: String,
    /// Model API dialect of the agent.
    pub dialect: AgentDialect,
    /// npm packages, each with its exact version.
    pub packages: BTreeMap<String, String>,
    /// Platform packages, of which only the one for this machine is installed.
    #[serde(default)]
    pub native: BTreeMap<String, String>,
    /// Program and arguments inside the sandbox.
    pub program: Vec<String>,
    /// Command inside the sandbox that prints the version.
    pub version: Vec<String>,
    /// Environment variables in addition to the base environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Files in the agent's home directory, by path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Directory in the agent's home directory where it looks for skills, a folder each. Without it skills are part of the prompt.
    #[serde(default)]
    pub skills: Option<String>,
    /// Settings for acting without permission requests.
    #[serde(default)]
    pub free: AskingMode,
    /// Settings for asking permission before acting.
    #[serde(default)]
    pub asking: AskingMode,
    /// Known pitfalls, for maintainers of the recipe.
    #[serde(default)]
    pub traps: Vec<String>,
    /// npm lock file with a digest of each package; without it only versions are pinned.
    #[serde(skip)]
    pub lock: Option<String>,
}

/// Model API dialect of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentDialect {
    /// Chat Completions API.
    Chat,
    /// Responses API.
    Responses,
    /// Messages API.
    Messages,
}

/// Settings that make an agent ask for permission, or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskingMode {
    /// Session mode to select.
    pub mode: Option<String>,
    /// Environment variables of the mode.
    pub env: BTreeMap<String, String>,
}

/// Error of a recipe.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Cause of the failure.
        error: std::io::Error,
    },
    /// The file is not a valid recipe.
    #[error("{path}: {error}")]
    Malformed {
        /// Path of the file.
        path: String,
        /// Parse error.
        error: Box<toml::de::Error>,
    },
    /// A value of the recipe is invalid.
    #[error("{path}: {why}")]
    Wrong {
        /// Path of the file.
        path: String,
        /// Reason why it is invalid.
        why: String,
    },
}

/// All recipes of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRecipes(BTreeMap<String, AgentRecipe>);

macro_rules! built_in {
    ($($name:literal),*) => {
        [$((
            concat!($name, ".toml"),
            include_str!(concat!("../../recipes/", $name, ".toml")),
            include_str!(concat!("../../recipes/", $name, ".lock.json")),
        )),*]
    };
}

impl AgentRecipes {
    /// Loads the built-in recipes.
    pub fn built_in() -> Result<Self, RecipeError> {
        let recipes =
            built_in!["claude", "codex", "goose", "opencode"].map(|(path, text, lock)| {
                let recipe = parse_recipe(path, text, Some(lock.to_owned()))?;
                Ok((recipe.name.clone(), recipe))
            });
        Ok(Self(recipes.into_iter().collect::<Result<_, RecipeError>>()?))
    }

    /// Adds the recipes of a directory: `NAME.toml` and optionally `NAME.lock.json`. They override built-in ones of the same name.
    pub fn with_folder(mut self, folder: &Path) -> Result<Self, RecipeError> {
        let unreadable = |path: &Path| {
            let path = path.display().to_string();
            move |error| RecipeError::Unreadable { path, error }
        };
        for entry in fs::read_dir(folder).map_err(unreadable(folder))? {
            let path = entry.map_err(unreadable(folder))?.path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(unreadable(&path))?;
            let beside = path.with_extension("lock.json");
            let lock = match fs::read_to_string(&beside) {
                Ok(lock) => Some(lock),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => return Err(unreadable(&beside)(error)),
            };
            let recipe = parse_recipe(&path.display().to_string(), &text, lock)?;
            self.0.insert(recipe.name.clone(), recipe);
        }
        Ok(self)
    }

    /// Returns the recipe with that name.
    pub fn get(&self, name: &str) -> Option<&AgentRecipe> {
        self.0.get(name)
    }

    /// Iterates over all recipes, by name.
    pub fn iter(&self) -> impl Iterator<Item = &AgentRecipe> {
        self.0.values()
    }
}

/// Parses and validates a recipe.
fn parse_recipe(path: &str, text: &str, lock: Option<String>) -> Result<AgentRecipe, RecipeError> {
    let malformed =
        |error| RecipeError::Malformed { path: path.to_owned(), error: Box::new(error) };
    let recipe = AgentRecipe { lock, ..toml::from_str(text).map_err(malformed)? };
    match recipe.validation_error() {
        Some(why) => Err(RecipeError::Wrong { path: path.to_owned(), why }),
        None => Ok(recipe),
    }
}

impl AgentRecipe {
    fn validation_error(&self) -> Option<String> {
        let plain = |name: &str| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        // npm also accepts ranges, URLs and directories as versions; a recipe must not contain them.
        let exact = |version: &&String| {
            version.starts_with(|first: char| first.is_ascii_digit())
                && version
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte))
        };
        if !plain(&self.name) {
            return Some(format!("`{}` cannot be a name", self.name));
        }
        if self.packages.is_empty() || self.program.is_empty() || self.version.is_empty() {
            return Some("`packages`, `program` and `version` must say something".into());
        }
        let loose =
            self.packages.values().chain(self.native.values()).find(|version| !exact(version));
        if let Some(loose) = loose {
            return Some(format!("`{loose}` is not an exact version"));
        }
        let outside = |path: &&String| {
            path.starts_with('/') || path.split('/').any(|part| part.is_empty() || part == "..")
        };
        let outside = self.files.keys().chain(&self.skills).find(outside);
        outside.map(|path| format!("the file `{path}` is not in the home"))
    }

    /// Returns the program and its arguments, for a model.
    pub(super) fn program_argv(&self, model: &str) -> Vec<String> {
        self.program.iter().map(|word| self.fill_placeholders(word, model)).collect()
    }

    /// Returns the command that prints the version.
    pub(super) fn version_argv(&self) -> Vec<String> {
        self.version.iter().map(|word| self.fill_placeholders(word, "")).collect()
    }

    /// Returns the additional environment variables, for a model.
    pub(super) fn agent_environment(&self, model: &str, asking: bool) -> BTreeMap<String, String> {
        let all = self.env.iter().chain(&self.asking_mode(asking).env);
        all.map(|(name, value)| (name.clone(), self.fill_placeholders(value, model))).collect()
    }

    /// Returns the files of the home directory, for a model and with skills or without: their paths inside the sandbox and their contents.
    pub(super) fn home_files(&self, model: &str, has_skills: bool) -> Vec<(String, String)> {
        let fill = |text: &str| {
            let text = text.replace("{skills}", if has_skills { "true" } else { "false" });
            self.fill_placeholders(&text, model)
        };
        let all = self.files.iter();
        all.map(|(path, text)| (format!("{HOME_DIR}/{path}"), fill(text))).collect()
    }

    /// Returns the directory inside the sandbox where the agent looks for skills.
    pub(super) fn skills_dir(&self) -> Option<String> {
        self.skills.as_ref().map(|path| format!("{HOME_DIR}/{path}"))
    }

    /// Returns the files of skills in the directory where the agent looks for them, with their paths inside the sandbox. Nothing of them is
    /// filled in.
    pub(super) fn skill_files(&self, skills: &[SelectedSkill]) -> Vec<SkillFile> {
        let Some(directory) = self.skills_dir() else { return Vec::new() };
        let below = |skill: &SelectedSkill| {
            let folder = format!("{directory}/{}", skill.name);
            let files = skill.folder_files().into_iter();
            files.map(move |file| SkillFile { path: format!("{folder}/{}", file.path), ..file })
        };
        skills.iter().flat_map(below).collect()
    }

    /// Returns the mode that asks for permission, or the one that does not.
    pub(super) fn asking_mode(&self, asking: bool) -> &AskingMode {
        if asking { &self.asking } else { &self.free }
    }

    /// Fills in the placeholders of a text. A model name is plain, so that it cannot break out of a quoted string.
    fn fill_placeholders(&self, text: &str, model: &str) -> String {
        [
            ("{agent}", format!("{AGENTS_DIR}/{}", self.name).as_str()),
            ("{cpu}", npm_cpu()),
            ("{home}", HOME_DIR),
            ("{work}", WORKSPACE_DIR),
            ("{models}", MODELS_URL),
            ("{tools}", TOOLS_URL),
            ("{key}", PLACEHOLDER_KEY),
            ("{model}", model),
        ]
        .into_iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// Returns whether a model name is safe in every text of a recipe.
pub(super) fn is_plain_model(model: &str) -> bool {
    !model.is_empty()
        && model.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:/@+-".contains(&byte))
}

/// Returns this machine's processor architecture in npm's notation.
pub(super) const fn npm_cpu() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        title = "Small"
        licence = "MIT"
        dialect = "chat"
        program = ["{agent}/small", "--model", "{model}"]
        version = ["{agent}/small", "--version"]
        packages = { small = "1.0.0" }
    "#;

    fn wrong(change: (&str, &str)) -> String {
        parse_recipe("small.toml", &SMALL.replace(change.0, change.1), None)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_recipes_that_come_with_the_program_can_be_read_and_pin_what_their_locks_pin() {
        let recipes = AgentRecipes::built_in().unwrap();
        let names: Vec<_> = recipes.iter().map(|recipe| recipe.name.as_str()).collect();
        assert_eq!(names, ["claude", "codex", "goose", "opencode"]);
        for recipe in recipes.iter() {
            let lock: serde_json::Value =
                serde_json::from_str(recipe.lock.as_deref().unwrap()).unwrap();
            for (package, version) in recipe.packages.iter().chain(&recipe.native) {
                let locked = &lock["packages"][format!("node_modules/{package}")];
                assert_eq!(locked["version"], version.as_str(), "{package}");
            }
            let all =
                lock["packages"].as_object().unwrap().iter().filter(|(path, _)| !path.is_empty());
            for (path, locked) in all {
                assert!(locked["integrity"].as_str().unwrap().starts_with("sha512-"), "{path}");
                assert_eq!(locked.get("resolved"), None, "{path}");
            }
        }
    }

    #[test]
    fn no_recipe_leaves_a_place_unfilled() {
        for recipe in AgentRecipes::built_in().unwrap().iter() {
            let files = [true, false]
                .into_iter()
                .flat_map(|has_skills| recipe.home_files("m", has_skills))
                .map(|(_, text)| text);
            let env = [true, false]
                .into_iter()
                .flat_map(|asking| recipe.agent_environment("m", asking).into_values());
            let texts = recipe
                .program_argv("m")
                .into_iter()
                .chain(recipe.version_argv())
                .chain(files)
                .chain(env);
            for text in texts {
                for word in [
                    "{agent}", "{cpu}", "{home}", "{work}", "{models}", "{tools}", "{key}",
                    "{model}", "{skills}",
                ] {
                    assert!(!text.contains(word), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_recipe_is_filled_in() {
        let small = parse_recipe("small.toml", SMALL, None).unwrap();
        assert_eq!(small.program_argv("gpt"), ["/opt/agents/small/small", "--model", "gpt"]);
    }

    fn skill(name: &str) -> SelectedSkill {
        SelectedSkill {
            skill_id: cynode_core::ids::SkillId::from_uuid(uuid::Uuid::nil()),
            name: name.into(),
            description: "d".into(),
            version: 1,
            body: "For {model}.".into(),
            files: vec![SkillFile {
                path: "scripts/check.sh".into(),
                text: "true\n".into(),
                executable: true,
            }],
            untrusted: false,
        }
    }

    #[test]
    fn every_agent_that_comes_with_the_program_has_a_directory_of_skills_in_its_home() {
        for recipe in AgentRecipes::built_in().unwrap().iter() {
            let files = recipe.skill_files(&[skill("run-the-tests"), skill("../../work")]);
            let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
            let folder = format!("{}/run-the-tests", recipe.skills_dir().unwrap());
            assert!(folder.starts_with("/home/agent/."), "{folder}");
            let expected = [format!("{folder}/SKILL.md"), format!("{folder}/scripts/check.sh")];
            assert_eq!(paths, expected, "a name that is no folder gives no file");
            assert!(files[0].text.contains("For {model}."), "a skill is not filled in");
            assert!(files[1].executable);
        }
        let small = parse_recipe("small.toml", SMALL, None).unwrap();
        assert_eq!((small.skills_dir(), small.skill_files(&[skill("a")])), (None, Vec::new()));
    }

    #[test]
    fn goose_loads_its_skills_only_when_it_has_some() {
        let recipes = AgentRecipes::built_in().unwrap();
        let config = |has_skills| {
            let files = recipes.get("goose").unwrap().home_files("m", has_skills);
            files.into_iter().map(|(_, text)| text).collect::<String>()
        };
        let line = |enabled| {
            format!(
                "skills: {{type: platform, name: skills, description: \"\", enabled: {enabled}}}"
            )
        };
        assert!(config(true).contains(&line(true)) && config(false).contains(&line(false)));
    }

    #[test]
    fn a_recipe_that_makes_no_sense_is_refused_with_the_reason() {
        assert_eq!(
            wrong((r#""1.0.0""#, r#""^1.0.0""#)),
            "small.toml: `^1.0.0` is not an exact version"
        );
        assert_eq!(
            wrong((r#""1.0.0""#, r#""file:/etc""#)),
            "small.toml: `file:/etc` is not an exact version"
        );
        assert_eq!(
            wrong((r#"name = "small""#, r#"name = "../small""#)),
            "small.toml: `../small` cannot be a name"
        );
        let file = "packages = { small = \"1.0.0\" }\nfiles = { \"../x\" = \"\" }";
        assert_eq!(
            wrong((r#"packages = { small = "1.0.0" }"#, file)),
            "small.toml: the file `../x` is not in the home"
        );
        let skills = "packages = { small = \"1.0.0\" }\nskills = \"../x\"";
        assert_eq!(
            wrong((r#"packages = { small = "1.0.0" }"#, skills)),
            "small.toml: the file `../x` is not in the home"
        );
        assert!(wrong(("title", "tittle")).contains("tittle"));
    }

    #[test]
    fn the_recipes_of_a_folder_go_before_ours() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("goose.toml"), SMALL.replace("\"small\"", "\"goose\""))
            .unwrap();
        fs::write(folder.path().join("notes.txt"), "").unwrap();
        let recipes = AgentRecipes::built_in().unwrap().with_folder(folder.path()).unwrap();
        assert_eq!(recipes.get("goose").unwrap().title, "Small");
        assert_eq!(recipes.iter().count(), 4);
    }

    #[test]
    fn a_model_with_a_name_that_could_break_out_of_a_quoted_text_is_not_plain() {
        assert!(is_plain_model("openai/gpt-5.1:free"));
        for wrong in ["", "a\"b", "a b", "a\nb", "{key}"] {
            assert!(!is_plain_model(wrong), "{wrong}");
        }
    }
}
