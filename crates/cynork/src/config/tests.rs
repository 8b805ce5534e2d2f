use super::*;

fn environment(directory: &Path) -> CliEnvironment {
    CliEnvironment { directory: Some(directory.join("deep/cynork")), ..CliEnvironment::default() }
}

#[test]
fn what_is_kept_is_read_back_and_nobody_else_may_read_it() {
    let place = tempfile::tempdir().unwrap();
    let environment = environment(place.path());
    let mut file = ConfigFile::load_config(None, &environment).unwrap();
    assert_eq!(file.kept, StoredConfig::default());
    file.kept.url = Some("http://somewhere".into());
    file.store_token(Some(&SecretString::from("a secret"))).unwrap();
    let again = ConfigFile::load_config(None, &environment).unwrap();
    assert_eq!(again.kept, file.kept);
    assert_eq!(again.load_token().unwrap().unwrap().expose_secret(), "a secret");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(file.file_path()), mode(file.file_path().parent().unwrap())), (0o600, 0o700));
}

#[test]
fn a_file_that_others_may_read_is_not_used() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("config.toml");
    fs::write(&path, "token = 'x'\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let failure =
        ConfigFile::load_config(Some(path.clone()), &CliEnvironment::default()).unwrap_err();
    assert_eq!(failure.fix.unwrap(), format!("chmod 600 {}", path.display()));
}

#[test]
fn a_helper_keeps_the_session_in_place_of_the_file() {
    let place = tempfile::tempdir().unwrap();
    let kept = place.path().join("kept");
    let script = format!(
        "read line; case $line in *get*) cat {0} ;; *) echo \"$line\" | sed 's/.*\"secret\"/{{\"secret\"/' > {0} ;; esac",
        kept.display()
    );
    let mut file = ConfigFile::load_config(None, &environment(place.path())).unwrap();
    file.kept.credential_helper = Some(vec!["sh".into(), "-c".into(), script]);
    file.store_token(Some(&SecretString::from("a secret"))).unwrap();
    assert!(!fs::read_to_string(file.file_path()).unwrap().contains("a secret"));
    assert_eq!(file.load_token().unwrap().unwrap().expose_secret(), "a secret");
}
