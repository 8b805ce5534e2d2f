//! Languages that people do not want: which file is written in which, by its ending.

use super::{ChangeAnomaly, FileChangeKind, TouchedFile};

/// Programming languages: the name that is shown, other names that people write, and the endings of files. All in small letters.
const LANGUAGES: &[(&str, &[&str], &[&str])] = &[
    ("bash", &["shell", "sh"], &["sh", "bash", "bats"]),
    ("c", &[], &["c"]),
    ("c#", &["csharp", "cs"], &["cs"]),
    ("c++", &["cpp", "cplusplus"], &["cc", "cpp", "cxx", "hh", "hpp", "hxx"]),
    ("clojure", &[], &["clj", "cljs", "cljc"]),
    ("crystal", &[], &["cr"]),
    ("css", &[], &["css", "scss", "sass", "less"]),
    ("dart", &[], &["dart"]),
    ("elixir", &[], &["ex", "exs"]),
    ("elm", &[], &["elm"]),
    ("erlang", &[], &["erl", "hrl"]),
    ("f#", &["fsharp"], &["fs", "fsx"]),
    ("go", &["golang"], &["go"]),
    ("groovy", &[], &["groovy"]),
    ("haskell", &[], &["hs"]),
    ("html", &[], &["html", "htm"]),
    ("java", &[], &["java"]),
    ("javascript", &["js", "ecmascript"], &["js", "jsx", "mjs", "cjs"]),
    ("julia", &[], &["jl"]),
    ("kotlin", &[], &["kt", "kts"]),
    ("lua", &[], &["lua"]),
    ("nim", &[], &["nim"]),
    ("objective-c", &["objc", "objectivec"], &["m", "mm"]),
    ("ocaml", &[], &["ml", "mli"]),
    ("perl", &[], &["pl", "pm"]),
    ("php", &[], &["php"]),
    ("powershell", &["pwsh"], &["ps1", "psm1"]),
    ("python", &["py"], &["py", "pyi", "ipynb"]),
    ("r", &[], &["r"]),
    ("ruby", &[], &["rb"]),
    ("rust", &[], &["rs"]),
    ("scala", &[], &["scala"]),
    ("sql", &[], &["sql"]),
    ("svelte", &[], &["svelte"]),
    ("swift", &[], &["swift"]),
    ("typescript", &["ts"], &["ts", "tsx", "mts", "cts"]),
    ("visual basic", &["vb"], &["vb"]),
    ("vue", &[], &["vue"]),
    ("zig", &[], &["zig"]),
];

/// The language of that name, however it is cased and spaced: its name here, and its endings.
fn find_language(name: &str) -> Option<(&'static str, &'static [&'static str])> {
    let name = name.trim().to_lowercase();
    LANGUAGES
        .iter()
        .find(|(known, others, _)| *known == name || others.contains(&name.as_str()))
        .map(|(known, _, endings)| (*known, *endings))
}

/// Whether files of that language are known by their endings.
pub fn is_known_language(name: &str) -> bool {
    find_language(name).is_some()
}

/// The new files of a change that are written in a language that nobody wants. Files that were there already may be changed. A name that is
/// no language here finds nothing: agents are told of it, and people judge.
pub fn find_disallowed_languages(
    touched: &[TouchedFile],
    disallowed: &[String],
) -> Vec<ChangeAnomaly> {
    let languages: Vec<_> = disallowed.iter().filter_map(|name| find_language(name)).collect();
    let added = touched.iter().filter(|file| file.how == FileChangeKind::Added);
    let written_in = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        let (_, ending) = name.rsplit_once('.')?;
        let ending = ending.to_ascii_lowercase();
        let found = languages.iter().find(|(_, endings)| endings.contains(&ending.as_str()));
        found.map(|(language, _)| (*language).to_owned())
    };
    added
        .filter_map(|file| {
            let language = written_in(&file.path)?;
            Some(ChangeAnomaly::LanguageDisallowed { path: file.path.clone(), language })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, how: FileChangeKind) -> TouchedFile {
        TouchedFile { path: path.into(), how, is: String::new(), compared: None }
    }

    fn found(touched: &[TouchedFile], disallowed: &[&str]) -> Vec<(String, String)> {
        let disallowed: Vec<String> = disallowed.iter().map(|&name| name.to_owned()).collect();
        let found = find_disallowed_languages(touched, &disallowed).into_iter();
        found
            .filter_map(|anomaly| match anomaly {
                ChangeAnomaly::LanguageDisallowed { path, language } => Some((path, language)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn new_files_of_a_language_that_nobody_wants_are_found_by_any_of_its_names() {
        let added = [
            file("src/main.rs", FileChangeKind::Added),
            file("tools/gen.PY", FileChangeKind::Added),
            file("web/app.mjs", FileChangeKind::Added),
            file("go.mod", FileChangeKind::Added),
            file("Makefile", FileChangeKind::Added),
            file("py", FileChangeKind::Added),
        ];
        let python = [("tools/gen.PY".to_owned(), "python".to_owned())];
        for name in ["python", "Python", " py "] {
            assert_eq!(found(&added, &[name]), python, "{name}");
        }
        assert_eq!(found(&added, &["js", "golang"]), [("web/app.mjs".into(), "javascript".into())]);
        assert_eq!(found(&added, &["cobol", ""]), []);
        assert_eq!(found(&added, &[]), []);
    }

    #[test]
    fn files_that_were_there_may_be_changed_and_removed() {
        let touched =
            [file("a.py", FileChangeKind::Changed), file("b.py", FileChangeKind::Removed)];
        assert_eq!(found(&touched, &["python"]), []);
    }

    #[test]
    fn no_name_and_no_ending_is_of_two_languages() {
        let mut names: Vec<&str> = Vec::new();
        let mut endings: Vec<&str> = Vec::new();
        for (known, others, own) in LANGUAGES {
            names.push(known);
            names.extend(*others);
            endings.extend(*own);
        }
        for mut all in [names, endings] {
            assert!(all.iter().all(|word| *word == word.to_lowercase()));
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }
}
