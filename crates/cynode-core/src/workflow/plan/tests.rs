use proptest::prelude::*;

use super::*;

fn unit(key: &str, depends_on: &[&str]) -> PlannedUnit {
    PlannedUnit {
        key: key.parse().unwrap(),
        title: key.parse().unwrap(),
        depends_on: depends_on.iter().map(|key| key.parse().unwrap()).collect(),
        payload: Value::Null,
    }
}

fn plan(steps: Vec<PlannedUnit>) -> Result<Plan, String> {
    Plan::try_from(PlanText { steps, assumptions: Vec::new() }).map_err(|error| error.to_string())
}

#[test]
fn a_plan_without_a_circle_is_taken() {
    let steps = vec![unit("a", &[]), unit("b", &["a"]), unit("c", &["a", "b"])];
    assert_eq!(plan(steps.clone()).unwrap().planned_units(), steps);
}

#[test]
fn a_plan_that_does_not_hold_together_is_refused_with_the_place() {
    let refused = |steps| plan(steps).unwrap_err();
    assert_eq!(refused(vec![]), "a plan has 1 to 50 units, got 0");
    let many = (0..51).map(|n| unit(&format!("u{n}"), &[])).collect();
    assert_eq!(refused(many), "a plan has 1 to 50 units, got 51");
    let twice = vec![unit("a", &[]), unit("a", &[])];
    assert_eq!(refused(twice), "the plan has two units called `a`");
    let missing = vec![unit("a", &["b"])];
    let told = "unit `a` depends on `b`, which is not in the plan";
    assert_eq!(refused(missing), told, "B004-34");
    let circle = vec![unit("a", &[]), unit("b", &["d", "a"]), unit("c", &["b"]), unit("d", &["c"])];
    let told = "units depend on each other in a circle: b → d → c → b";
    assert_eq!(refused(circle), told, "B004-34: the path of the circle is named");
    let itself = vec![unit("a", &["a"])];
    let told = "units depend on each other in a circle: a → a";
    assert_eq!(refused(itself), told, "B004-34, B004-38: no unit depends on itself");
}

#[test]
fn every_ready_unit_is_sent_while_places_are_free() {
    use UnitState::{Cancelled, Collected, Dispatched, Done, Failed, Pending};
    let plan =
        plan(vec![unit("a", &[]), unit("b", &[]), unit("c", &["a"]), unit("d", &[])]).unwrap();
    let with = |states: [UnitState; 4], max| {
        let standing: Vec<_> = plan
            .planned_units()
            .iter()
            .zip(states)
            .map(|(unit, state)| UnitStatus { key: &unit.key, depends_on: &unit.depends_on, state })
            .collect();
        match decide_dispatch(&standing, max) {
            DispatchDecision::Send(keys) => {
                keys.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" ")
            }
            DispatchDecision::Await => "await".into(),
            DispatchDecision::Done => "done".into(),
            DispatchDecision::Stuck(key) => format!("stuck at {key}"),
        }
    };
    assert_eq!(with([Pending, Pending, Pending, Pending], 4), "a b d", "S004-145");
    assert_eq!(with([Pending, Pending, Pending, Pending], 2), "a b");
    assert_eq!(with([Dispatched, Dispatched, Pending, Pending], 2), "await");
    assert_eq!(with([Done, Dispatched, Pending, Pending], 2), "c");
    assert_eq!(with([Collected, Done, Pending, Done], 2), "await");
    assert_eq!(with([Done, Done, Done, Done], 2), "done", "B004-11");
    assert_eq!(with([Done, Done, Done, Dispatched], 2), "await", "B004-11: not before the last");
    assert_eq!(with([Done, Done, Done, Cancelled], 2), "done");
    assert_eq!(with([Failed, Done, Pending, Done], 2), "stuck at a");
    assert_eq!(with([Cancelled, Done, Pending, Done], 2), "stuck at c");
}

/// A plan in which each unit may depend on earlier ones.
fn plans() -> impl Strategy<Value = Plan> {
    prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..4), 1..20)
        .prop_map(|dependencies| {
            let steps = dependencies
                .iter()
                .enumerate()
                .map(|(n, picks)| {
                    let names: BTreeSet<_> =
                        picks.iter().filter(|_| n > 0).map(|pick| pick.index(n)).collect();
                    let names: Vec<_> = names.iter().map(|n| format!("u{n}")).collect();
                    unit(&format!("u{n}"), &names.iter().map(String::as_str).collect::<Vec<_>>())
                })
                .collect();
            plan(steps).unwrap()
        })
}

proptest! {
    #[test]
    fn whatever_the_plan_and_the_order_of_results_every_unit_is_sent_once_after_its_dependencies(
        plan in plans(),
        max in 1_u32..6,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let mut states: BTreeMap<UnitKey, UnitState> =
            plan.planned_units().iter().map(|unit| (unit.key.clone(), UnitState::Pending)).collect();
        let mut picks = picks.into_iter();
        let mut sent = BTreeSet::new();
        loop {
            let standing: Vec<_> = plan
                .planned_units()
                .iter()
                .map(|unit| UnitStatus {
                    key: &unit.key,
                    depends_on: &unit.depends_on,
                    state: states[&unit.key],
                })
                .collect();
            let send: Vec<UnitKey> = match decide_dispatch(&standing, max) {
                DispatchDecision::Send(keys) => keys.into_iter().cloned().collect(),
                DispatchDecision::Await => Vec::new(),
                DispatchDecision::Done => break,
                DispatchDecision::Stuck(key) => panic!("stuck at {key}"),
            };
            for key in send {
                let unit = plan.planned_units().iter().find(|unit| unit.key == key).unwrap();
                let ready = unit.depends_on.iter().all(|key| states[key] == UnitState::Done);
                prop_assert!(
                    ready,
                    "S001-21, S001-59, S004-136, S004-165, B004-09, B004-34: {key} was sent before what it depends on"
                );
                prop_assert!(
                    sent.insert(key.clone()),
                    "S004-136, S004-165, B004-63: {key} was sent twice"
                );
                states.insert(key, UnitState::Dispatched);
            }
            let out: Vec<_> = states
                .iter()
                .filter(|(_, state)| **state == UnitState::Dispatched)
                .map(|(key, _)| key.clone())
                .collect();
            prop_assert!(!out.is_empty() && out.len() <= max as usize);
            let finished = picks.next().unwrap().get(&out).clone();
            states.insert(finished, UnitState::Done);
        }
        prop_assert_eq!(sent.len(), plan.planned_units().len());
    }
}
