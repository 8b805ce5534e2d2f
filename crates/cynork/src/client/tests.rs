use super::*;
use crate::operations;

#[test]
fn values_take_their_places_and_are_written_so_that_they_stay_one_word() {
    let call = Call::to(operations::SET_MODEL, ["qwen/0.5 b"])
        .query("project", Some("a&b"))
        .query("state", None::<&str>);
    assert_eq!(call.target(), "/v1/model-registry/qwen%2F0.5%20b?project=a%26b");
}

#[test]
fn events_are_read_one_by_one_and_remarks_are_nothing() {
    let bytes = b": hello\n\nid: 1.2\nevent: task.created\ndata: {\"a\":1}\ndata: 2\n\nid: 3";
    let (block, behind) = split(bytes).unwrap();
    assert_eq!(read(&bytes[..block]), Heard::default());
    let (block, _) = split(&bytes[behind..]).unwrap();
    let heard = read(&bytes[behind..behind + block]);
    let wanted =
        Heard { id: "1.2".into(), event: "task.created".into(), data: "{\"a\":1}\n2".into() };
    assert_eq!(heard, wanted);
    assert_eq!(split(b"id: 3"), None);
}
