use prices::total;

#[test]
fn the_total_of_several_prices() {
    assert_eq!(total(&["1,250", "3.5"]), Some(125_350));
}

#[test]
fn the_total_with_something_that_is_no_price() {
    assert_eq!(total(&["1", "free"]), None);
}
