//! Skills: folders with a `SKILL.md` that say how something is done, in the open format that coding agents read.
//!
//! Reading one is total and bounded: whatever the text, it is a skill that every rule here allows, or an error that says which
//! rule it breaks. Nothing of a skill is executed here, and what it says of allowed tools permits nothing.

mod sanitize;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    ids::{ProjectId, SkillId, UserId},
    names::TaskName,
};

pub use sanitize::find_malicious_phrase;

/// The file of a folder that makes it a skill.
pub const SKILL_FILE_NAME: &str = "SKILL.md";

/// Maximum bytes of the instructions of a skill.
pub const MAX_SKILL_BODY_BYTES: usize = 64 * 1024;
/// Maximum characters of the description of a skill.
pub const MAX_SKILL_DESCRIPTION_CHARS: usize = 1000;
/// Maximum characters of the licence of a skill.
pub const MAX_SKILL_LICENSE_CHARS: usize = 200;
/// Maximum number of tools that a skill names.
pub const MAX_SKILL_TOOLS: usize = 64;
/// Maximum characters of the name of a tool in a skill.
pub const MAX_SKILL_TOOL_CHARS: usize = 500;
/// Maximum number of files beside `SKILL.md`.
pub const MAX_SKILL_FILES: usize = 32;
/// Maximum bytes of one file.
pub const MAX_SKILL_FILE_BYTES: usize = 64 * 1024;
/// Maximum bytes of all files beside `SKILL.md` together.
pub const MAX_SKILL_FILES_BYTES: usize = 256 * 1024;
/// Maximum characters of the path of a file, and maximum number of its parts.
const MAX_PATH_CHARS: usize = 200;
const MAX_PATH_PARTS: usize = 8;
/// Maximum bytes of the front matter of a `SKILL.md`.
const MAX_FRONT_MATTER_BYTES: usize = 8 * 1024;
/// Maximum number of nodes and maximum depth of the front matter.
const MAX_FRONT_MATTER_NODES: usize = 512;
const MAX_FRONT_MATTER_DEPTH: usize = 8;

/// To whom a skill belongs.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SkillScope {
    /// To the installation: agents of every project may be given it.
    Installation,
    /// To a project.
    #[default]
    Project,
    /// To a person: agents that work for this person may be given it.
    Person,
}

impl SkillScope {
    /// All of them, the widest first: of equal names the last one counts.
    pub const ALL: [Self; 3] = [Self::Installation, Self::Project, Self::Person];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Installation => "installation",
            Self::Project => "project",
            Self::Person => "person",
        }
    }

    /// The scope of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }
}

/// Whose skill it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkillOwner {
    /// The installation's.
    Installation,
    /// A project's.
    Project(ProjectId),
    /// A person's.
    Person(UserId),
}

impl SkillOwner {
    /// The scope.
    pub const fn scope(self) -> SkillScope {
        match self {
            Self::Installation => SkillScope::Installation,
            Self::Project(_) => SkillScope::Project,
            Self::Person(_) => SkillScope::Person,
        }
    }

    /// The project, if it is one's.
    pub const fn project(self) -> Option<ProjectId> {
        match self {
            Self::Project(project) => Some(project),
            Self::Installation | Self::Person(_) => None,
        }
    }

    /// The person, if it is one's.
    pub const fn person(self) -> Option<UserId> {
        match self {
            Self::Person(user) => Some(user),
            Self::Installation | Self::Project(_) => None,
        }
    }
}

/// A file of a skill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SkillFile {
    /// Its path below the folder of the skill, such as `scripts/check.sh`.
    pub path: String,
    /// What it says.
    pub text: String,
    /// Whether it can be run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// What a skill says, without its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillContent {
    /// When it is of use.
    pub description: String,
    /// The instructions.
    pub body: String,
    /// Under which licence it was published.
    pub license: Option<String>,
    /// The tools that its author says it needs. They permit nothing, and no agent is told.
    pub allowed_tools: Vec<String>,
    /// Its files beside `SKILL.md`.
    pub files: Vec<SkillFile>,
}

/// A folder with a `SKILL.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillFolder {
    /// What it is called.
    pub name: String,
    /// What it says.
    pub content: SkillContent,
}

/// A skill that an agent is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SelectedSkill {
    /// The skill.
    #[schema(value_type = String)]
    pub skill_id: SkillId,
    /// What it is called.
    pub name: String,
    /// When it is of use.
    pub description: String,
    /// Its version.
    pub version: i64,
    /// The instructions.
    pub body: String,
    /// Its files beside `SKILL.md`; none for whoever works without a sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SkillFile>,
    /// Whether an agent wrote this version, and a person has reviewed it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untrusted: bool,
}

/// Why a skill is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkillError {
    /// Its name is none.
    #[error("a skill's name has 1 to 63 of a-z, 0-9 and single `-`, and begins with a letter")]
    Name,
    /// It says too little or too much.
    #[error(
        "a skill's description has 1 to {MAX_SKILL_DESCRIPTION_CHARS} characters and its body at most {MAX_SKILL_BODY_BYTES} bytes"
    )]
    Size,
    /// Its licence or its list of tools is too long.
    #[error(
        "a skill's licence has at most {MAX_SKILL_LICENSE_CHARS} characters, and it names at most {MAX_SKILL_TOOLS} tools"
    )]
    Facts,
    /// It has too many files, or they are too large.
    #[error(
        "a skill has at most {MAX_SKILL_FILES} files beside `{SKILL_FILE_NAME}`, each of at most {MAX_SKILL_FILE_BYTES} bytes and together of at most {MAX_SKILL_FILES_BYTES}"
    )]
    Files,
    /// A path leads out of the folder, or could.
    #[error(
        "`{0}` cannot be a file of a skill: paths have parts of letters, digits, `.`, `_` and `-`, none of which begins with `.` or `-`"
    )]
    Path(String),
    /// Two files cannot be beside each other.
    #[error("the skill has two files for `{0}`")]
    SamePath(String),
    /// It holds what people cannot see.
    #[error("{0} holds characters that people cannot see")]
    Hidden(String),
    /// It looks as if it were to turn an agent against people.
    #[error("{place} looks malicious: {reason} (`{phrase}`)")]
    Malicious {
        /// Where.
        place: String,
        /// What it does.
        reason: &'static str,
        /// What was found.
        phrase: &'static str,
    },
    /// There is no `SKILL.md`.
    #[error("the folder has no file `{SKILL_FILE_NAME}`")]
    NoDocument,
    /// The front matter is missing, is not closed or is too large.
    #[error(
        "`{SKILL_FILE_NAME}` begins with a line `---`, then fields, then a line `---`: at most {MAX_FRONT_MATTER_BYTES} bytes"
    )]
    FrontMatter,
    /// The front matter is not simple YAML.
    #[error("the fields of `{SKILL_FILE_NAME}` cannot be read as YAML without anchors: {0}")]
    Yaml(String),
    /// A field is not one of the format.
    #[error(
        "`{SKILL_FILE_NAME}` has the field `{0}`: there are `name`, `description`, `license`, `allowed-tools`, `compatibility` and `metadata`"
    )]
    UnknownField(String),
    /// A field has a value of the wrong kind, or is missing.
    #[error("`{SKILL_FILE_NAME}` needs the field `{field}` as {wanted}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it takes.
        wanted: &'static str,
    },
}

/// Whether a path names a file below the folder of a skill, whatever the system. Hidden files and `SKILL.md` itself are none.
pub fn is_safe_skill_path(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    path.len() <= MAX_PATH_CHARS
        && path.split('/').count() <= MAX_PATH_PARTS
        && path.split('/').all(plain)
        && !path.eq_ignore_ascii_case(SKILL_FILE_NAME)
}

/// Checks the name of a skill.
pub fn validate_skill_name(name: &str) -> Result<(), SkillError> {
    name.parse::<TaskName>().map(drop).map_err(|_| SkillError::Name)
}

impl SkillContent {
    /// Checks that it can be stored and given to agents. The same rules hold for people and agents, and for what is imported.
    pub fn validate(&self) -> Result<(), SkillError> {
        let described = 1..=MAX_SKILL_DESCRIPTION_CHARS;
        if !described.contains(&self.description.chars().count())
            || self.body.len() > MAX_SKILL_BODY_BYTES
        {
            return Err(SkillError::Size);
        }
        let long = |text: &String| text.chars().count() > MAX_SKILL_TOOL_CHARS;
        let license = self.license.as_deref().unwrap_or_default();
        if license.chars().count() > MAX_SKILL_LICENSE_CHARS
            || self.allowed_tools.len() > MAX_SKILL_TOOLS
            || self.allowed_tools.iter().any(long)
        {
            return Err(SkillError::Facts);
        }
        self.validate_files()?;
        let facts = self.allowed_tools.join("\n");
        let whole = [self.description.as_str(), &self.body, license, &facts].join("\n");
        sanitize::check_text("the skill", &whole)?;
        for file in &self.files {
            sanitize::check_text(&format!("the file `{}`", file.path), &file.text)?;
        }
        Ok(())
    }

    fn validate_files(&self) -> Result<(), SkillError> {
        let together: usize = self.files.iter().map(|file| file.text.len()).sum();
        if self.files.len() > MAX_SKILL_FILES
            || together > MAX_SKILL_FILES_BYTES
            || self.files.iter().any(|file| file.text.len() > MAX_SKILL_FILE_BYTES)
        {
            return Err(SkillError::Files);
        }
        for (at, file) in self.files.iter().enumerate() {
            if !is_safe_skill_path(&file.path) {
                let shown = file.path.escape_debug().take(MAX_PATH_CHARS).collect();
                return Err(SkillError::Path(shown));
            }
            let path = file.path.to_ascii_lowercase();
            let clashes = |other: &SkillFile| {
                let other = other.path.to_ascii_lowercase();
                // A file cannot be a folder as well.
                other == path
                    || other.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/'))
                    || path.strip_prefix(&other).is_some_and(|rest| rest.starts_with('/'))
            };
            if self.files.iter().take(at).any(clashes) {
                return Err(SkillError::SamePath(file.path.clone()));
            }
        }
        Ok(())
    }
}

impl SkillFolder {
    /// Reads a folder from its files, of which one is `SKILL.md`.
    pub fn from_files(files: Vec<SkillFile>) -> Result<Self, SkillError> {
        let (documents, files): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.path == SKILL_FILE_NAME);
        let document = match documents.as_slice() {
            [] => return Err(SkillError::NoDocument),
            [one] => one,
            _ => return Err(SkillError::SamePath(SKILL_FILE_NAME.to_owned())),
        };
        let mut folder = Self::from_document(&document.text)?;
        folder.content.files = files;
        folder.content.validate()?;
        Ok(folder)
    }

    /// Reads a `SKILL.md`: front matter in YAML, then the instructions.
    pub fn from_document(text: &str) -> Result<Self, SkillError> {
        if text.len() > MAX_SKILL_BODY_BYTES + MAX_FRONT_MATTER_BYTES {
            return Err(SkillError::Size);
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
        let (front, body) = split_front_matter(&text)?;
        let mut fields = parse_front_matter(front)?;
        let name = fields
            .take_text("name")?
            .ok_or(SkillError::Field { field: "name", wanted: "a text" })?;
        validate_skill_name(&name)?;
        let description = fields
            .take_text("description")?
            .ok_or(SkillError::Field { field: "description", wanted: "a text" })?;
        let license = fields.take_text("license")?.filter(|text| !text.is_empty());
        let allowed_tools = fields.take_texts("allowed-tools")?;
        fields.require_known()?;
        let content = SkillContent {
            description: description.trim().to_owned(),
            body: body.trim_start_matches('\n').to_owned(),
            license,
            allowed_tools,
            files: Vec::new(),
        };
        content.validate()?;
        Ok(Self { name, content })
    }

    /// The files of the folder, `SKILL.md` first.
    pub fn to_files(&self) -> Vec<SkillFile> {
        let SkillContent { description, body, license, allowed_tools, files } = &self.content;
        let document =
            render_document(&self.name, description, license.as_deref(), allowed_tools, body);
        with_document(document, files)
    }
}

impl SelectedSkill {
    /// The files of its folder as an agent is given them: `SKILL.md` first, without a word of allowed tools, and no path that leads out.
    /// Nothing when its name cannot be that of a folder.
    pub fn folder_files(&self) -> Vec<SkillFile> {
        if validate_skill_name(&self.name).is_err() {
            return Vec::new();
        }
        let document = render_document(&self.name, &self.description, None, &[], &self.body);
        let mut files = with_document(document, &self.files);
        files.retain(|file| file.path == SKILL_FILE_NAME || is_safe_skill_path(&file.path));
        files
    }

    /// Its description in one line.
    pub fn one_line_description(&self) -> String {
        self.description.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn with_document(document: String, files: &[SkillFile]) -> Vec<SkillFile> {
    let path = SKILL_FILE_NAME.to_owned();
    let mut all = vec![SkillFile { path, text: document, executable: false }];
    all.extend(files.iter().cloned());
    all
}

/// Renders a `SKILL.md`. A JSON text is a quoted text of YAML too.
fn render_document(
    name: &str,
    description: &str,
    license: Option<&str>,
    allowed_tools: &[String],
    body: &str,
) -> String {
    let mut text = format!("---\nname: {name}\ndescription: {}\n", Value::from(description));
    if let Some(license) = license {
        let _ = writeln!(text, "license: {}", Value::from(license));
    }
    if !allowed_tools.is_empty() {
        let _ = writeln!(text, "allowed-tools: {}", Value::from(allowed_tools));
    }
    text.push_str("---\n\n");
    text.push_str(body);
    if !body.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Splits a document into its front matter and what follows.
fn split_front_matter(text: &str) -> Result<(&str, &str), SkillError> {
    let (first, rest) = text.split_once('\n').ok_or(SkillError::FrontMatter)?;
    if first.trim_end() != "---" {
        return Err(SkillError::FrontMatter);
    }
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            let front = rest.get(..at).unwrap_or_default();
            let body = rest.get(at + line.len()..).unwrap_or_default();
            return Ok((front, body));
        }
        at += line.len();
        if at > MAX_FRONT_MATTER_BYTES {
            break;
        }
    }
    Err(SkillError::FrontMatter)
}

/// The fields of a front matter.
struct FrontMatter(serde_json::Map<String, Value>);

fn parse_front_matter(front: &str) -> Result<FrontMatter, SkillError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_aliases: 0,
            max_anchors: 0,
            max_depth: MAX_FRONT_MATTER_DEPTH,
            max_nodes: MAX_FRONT_MATTER_NODES,
            max_total_scalar_bytes: MAX_FRONT_MATTER_BYTES,
        },
    };
    match serde_saphyr::from_str_with_options::<Value>(front, options) {
        Ok(Value::Object(fields)) => Ok(FrontMatter(fields)),
        Ok(_) => Err(SkillError::FrontMatter),
        Err(error) => {
            let told = error.to_string();
            let line: String = told.lines().next().unwrap_or_default().chars().take(200).collect();
            Err(SkillError::Yaml(line))
        }
    }
}

impl FrontMatter {
    fn take_text(&mut self, field: &'static str) -> Result<Option<String>, SkillError> {
        match self.0.remove(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(SkillError::Field { field, wanted: "a text" }),
        }
    }

    /// Takes a text as a list of one.
    fn take_texts(&mut self, field: &'static str) -> Result<Vec<String>, SkillError> {
        let wrong = SkillError::Field { field, wanted: "a text or a list of texts" };
        match self.0.remove(field) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => {
                let texts = items.into_iter().map(|item| match item {
                    Value::String(text) => Some(text),
                    _ => None,
                });
                texts.collect::<Option<Vec<_>>>().ok_or(wrong)
            }
            Some(_) => Err(wrong),
        }
    }

    /// Refuses fields that nobody reads. Two of the format are for people alone and are not kept.
    fn require_known(mut self) -> Result<(), SkillError> {
        self.0.remove("compatibility");
        self.0.remove("metadata");
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((field, _)) => {
                let shown = field.escape_debug().take(100).collect();
                Err(SkillError::UnknownField(shown))
            }
        }
    }
}

#[cfg(test)]
mod tests;
