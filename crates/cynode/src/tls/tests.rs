use std::os::unix::fs::PermissionsExt as _;

use super::{
    PortProtection::{Acme, Files, Loopback, Own, Proxy},
    *,
};
use crate::config::ConfigSources;

fn config(flags: &[(&str, &str)], storage: Option<&std::path::Path>) -> CynodeConfig {
    let mut flags: std::collections::BTreeMap<String, String> =
        flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    if let Some(storage) = storage {
        flags.insert("storage.directory".to_owned(), storage.display().to_string());
    }
    CynodeConfig::load_from(ConfigSources { flags, ..ConfigSources::default() }).unwrap().config
}

#[test]
fn a_port_beyond_loopback_speaks_tls_or_a_proxy_does() {
    let ports = |flags: &[(&str, &str)]| {
        let config = config(flags, None);
        (PortProtection::of_user_port(&config), PortProtection::of_internal_port(&config))
    };
    assert_eq!(ports(&[]), (Loopback, Loopback));
    let beyond = ("server.listen", "0.0.0.0:12080");
    assert_eq!(ports(&[beyond]), (Own, Loopback));
    let proxy = [beyond, ("server.behind_proxy", "true"), ("server.trusted_proxies", "10.0.0.1")];
    assert_eq!(ports(&proxy), (Proxy, Loopback));
    let internal = ("server.internal_listen", "0.0.0.0:12082");
    let both = [proxy[0], proxy[1], proxy[2], internal];
    assert_eq!(ports(&both), (Proxy, Own), "nodes show certificates on the internal port");
    let files = [beyond, ("tls.certificate_file", "/c"), ("tls.key_file", "/k")];
    assert_eq!(ports(&files), (Files, Loopback));
    let acme = [("tls.acme_domains", "cynode.example"), ("tls.loopback", "true")];
    assert_eq!(ports(&acme), (Acme, Own));
}

#[test]
fn without_an_authority_a_port_beyond_loopback_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let environment = AppEnvironment::from_system();
    let open = config(&[("server.internal_listen", "0.0.0.0:12082")], Some(dir.path()));
    let refused = PortsTls::open(&open, &environment).err().unwrap().to_string();
    let place = dir.path().join("tls");
    assert!(refused.contains("nothing encrypts it"), "{refused}");
    let command = format!("`cynode admin certificate-authority {}`", place.display());
    assert!(refused.contains(&command) && refused.contains("server.behind_proxy"), "{refused}");
    create_authority(&AuthorityFiles::in_directory(&place), &environment).unwrap();
    let ports = PortsTls::open(&open, &environment).unwrap();
    assert!(ports.internal.is_some() && ports.user.is_none());
}

#[test]
fn the_keys_of_the_authority_are_closed_to_others_and_it_is_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let environment = AppEnvironment::from_system();
    let place = dir.path().join("tls");
    let files = AuthorityFiles::in_directory(&place);
    create_authority(&files, &environment).unwrap();
    let pin = open_authority(&files).unwrap().facts().pin;
    create_authority(&files, &environment).unwrap();
    assert_eq!(open_authority(&files).unwrap().facts().pin, pin);
    let mode = |name: &str| {
        let found = std::fs::metadata(place.join(name)).unwrap();
        found.permissions().mode() & 0o777
    };
    assert_eq!((mode("ca.key"), mode("ca.pem"), mode(".")), (0o600, 0o644, 0o700));
    std::fs::set_permissions(place.join("ca.key"), std::fs::Permissions::from_mode(0o640)).unwrap();
    let refused = open_authority(&files).unwrap_err().to_string();
    assert!(refused.contains("chmod 600"), "{refused}");
}

#[test]
fn the_certificate_of_the_ports_holds_their_names_and_is_kept_while_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let environment = AppEnvironment::from_system();
    let files = AuthorityFiles::in_directory(&dir.path().join("tls"));
    create_authority(&files, &environment).unwrap();
    let serial = |names: &str| {
        let flags = [("tls.loopback", "true"), ("tls.names", names)];
        let ports = PortsTls::open(&config(&flags, Some(dir.path())), &environment).unwrap();
        let served = ports.keys.list_served();
        assert_eq!(served.len(), 2);
        assert!(served.iter().all(|served| served.uncovered_names.is_empty()));
        served[0].facts.clone().unwrap().serial
    };
    let first = serial("cynode.example");
    assert_eq!(serial("cynode.example"), first);
    assert_ne!(serial("cynode.example, 10.0.0.7"), first);
}

#[test]
fn a_certificate_of_the_ports_that_does_not_fit_its_key_is_issued_again() {
    let dir = tempfile::tempdir().unwrap();
    let environment = AppEnvironment::from_system();
    let place = dir.path().join("tls");
    create_authority(&AuthorityFiles::in_directory(&place), &environment).unwrap();
    let config = config(&[("tls.loopback", "true")], Some(dir.path()));
    let serial = || {
        let ports = PortsTls::open(&config, &environment).unwrap();
        ports.keys.list_served()[0].facts.clone().unwrap().serial
    };
    let first = serial();
    // As another process leaves it that renewed at the same time.
    let other = tempfile::tempdir().unwrap();
    let files = AuthorityFiles::in_directory(other.path());
    create_authority(&files, &environment).unwrap();
    files
        .renew_server_key(&open_authority(&files).unwrap(), &environment, &own_names(&config))
        .unwrap();
    std::fs::copy(other.path().join("server.key"), place.join("server.key")).unwrap();
    let second = serial();
    assert_ne!(second, first);
    assert_eq!(serial(), second);
}

#[test]
fn browsers_are_at_home_under_the_first_name_of_the_port() {
    let url = |flags: &[(&str, &str)]| browser_url(&config(flags, None));
    assert_eq!(url(&[]), None, "a port without TLS");
    let beyond = ("server.listen", "0.0.0.0:443");
    let named = [beyond, ("tls.names", "cynode.example, 10.0.0.7")];
    assert_eq!(url(&named).as_deref(), Some("https://cynode.example:443"));
    let address = [beyond, ("tls.names", "2001:db8::7")];
    assert_eq!(url(&address).as_deref(), Some("https://[2001:db8::7]:443"));
    let acme = [("tls.acme_domains", "acme.example"), ("tls.names", "other.example")];
    assert_eq!(url(&acme).as_deref(), Some("https://acme.example:12080"));
}

#[test]
fn an_address_of_all_interfaces_is_reached_from_this_machine_by_loopback() {
    let flags = [("server.listen", "0.0.0.0:1"), ("server.internal_listen", "0.0.0.0:2")];
    let config = config(&flags, None);
    assert_eq!(user_port_url(&config), "https://127.0.0.1:1");
    assert_eq!(internal_port_url(&config), "https://127.0.0.1:2");
    assert_eq!(browser_url(&config).as_deref(), Some("https://127.0.0.1:1"));
}

#[test]
fn a_port_of_all_addresses_is_reached_over_loopback() {
    for (listen, reached) in [
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:1", "[::1]:1"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("192.0.2.7:1", "192.0.2.7:1"),
    ] {
        assert_eq!(reachable_address(listen.parse().unwrap()).to_string(), reached);
    }
}
