use prices::parse;

#[test]
fn a_price_without_cents() {
    assert_eq!(parse("1,250"), Some(125_000));
}

#[test]
fn what_is_no_price() {
    assert_eq!(parse("free"), None);
}
