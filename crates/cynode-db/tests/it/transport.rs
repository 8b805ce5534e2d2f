//! How the database is reached.

use cynode_db::is_protected_connection;

#[test]
fn a_database_elsewhere_is_reached_by_tls_that_verifies_its_name() {
    let protected = |url: &str| is_protected_connection(url).unwrap();
    for url in [
        "postgres://cynode@localhost/cynode",
        "postgres://cynode@127.0.0.1:5433/cynode",
        "postgres://cynode@[::1]/cynode",
        "postgres:///cynode?host=/var/run/postgresql",
        "postgres://cynode@db.example/cynode?sslmode=verify-full",
    ] {
        assert!(protected(url), "{url}");
    }
    for url in [
        "postgres://cynode@db.example/cynode",
        "postgres://cynode@10.0.0.7/cynode?sslmode=require",
        "postgres://cynode@db.example/cynode?sslmode=verify-ca",
        "postgres://cynode@localhost.example/cynode?sslmode=disable",
    ] {
        assert!(!protected(url), "{url}");
    }
    assert!(is_protected_connection("nowhere").is_err());
}
