//! The conversations, and what each of the nine pairs makes of them.

use std::{collections::BTreeSet, fs, path::Path};

use cynode_models::{
    dialect::{
        Dialect, DialectCodec as _, ProviderCapabilities, ResponseContext,
        canonical::{CanonicalRequest, CanonicalResponse, ContentPart, ReasoningPart},
    },
    tools::ToolRestorer,
};
use serde_json::{Map, Value, json};

use crate::{
    errors, losses,
    support::{
        Said, dialect, gather, lines, name, pairs, parse, read_stream, refused, restored, stream,
        write_stream,
    },
};

const CREATED: u64 = 1_700_000_000;

fn conversations() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let read = |path: &Path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(path).unwrap();
        let value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{name} of the corpus is not JSON: {error}"));
        (name, value)
    };
    files.iter().map(|path| read(path)).collect()
}

#[test]
fn every_pair_of_dialects_says_what_the_golden_files_say() {
    let conversations = conversations();
    assert!(conversations.len() >= 60, "there are {} conversations", conversations.len());
    let mut used = BTreeSet::new();
    for (name, conversation) in &conversations {
        let golden = golden(name, conversation, &mut used);
        insta::with_settings!({
            snapshot_path => "../golden",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            description => conversation["about"].as_str().unwrap(),
        }, {
            insta::assert_json_snapshot!(name.as_str(), golden);
        });
    }
    let unused: Vec<_> =
        losses::TABLE.iter().map(|loss| loss.what).filter(|what| !used.contains(what)).collect();
    assert_eq!(unused, Vec::<&str>::new(), "no conversation shows these losses");
}

fn golden(name: &str, conversation: &Value, used: &mut BTreeSet<&'static str>) -> Value {
    let mut golden = Map::new();
    let mut asked = CanonicalRequest::default();
    if let Some(request) = conversation.get("request") {
        let (said, read) = requests(request);
        golden.insert("requests".into(), said);
        asked = read.unwrap_or_default();
    }
    if let Some(answer) = conversation.get("answer") {
        golden.extend(answers(name, &asked, answer, used));
    }
    if let Some(error) = conversation.get("error") {
        golden.insert("errors".into(), errors::golden(name, error));
    }
    Value::Object(golden)
}

/// What each provider is asked, whatever the client speaks.
fn requests(native: &Value) -> (Value, Option<CanonicalRequest>) {
    let (spoken, body) = (dialect(native), &native["body"]);
    let request = match spoken.decode_request(body) {
        Ok(request) => request,
        Err(error) => return (refused(&error), None),
    };
    let target = ProviderCapabilities::default();
    let mut said = Said::default();
    for (client, provider) in pairs() {
        let asked = if client == spoken {
            Ok(body.clone())
        } else {
            client.encode_request(&request, &target)
        };
        // What a client's dialect cannot say, no client says.
        let Ok(asked) = asked else { continue };
        let read = client.decode_request(&asked).unwrap();
        let written =
            provider.encode_request(&read, &target).unwrap_or_else(|error| refused(&error));
        said.add(self::name(client, provider), written);
    }
    (said.into_value(), Some(request))
}

/// What each client is answered, whatever the provider speaks, whole and piece by piece.
fn answers(
    name: &str,
    request: &CanonicalRequest,
    native: &Value,
    used: &mut BTreeSet<&'static str>,
) -> Map<String, Value> {
    let (spoken, body) = (dialect(native), native.get("body"));
    // A provider always says what was used; a client of Chat that wants pieces has to ask for it.
    let provided = ResponseContext {
        include_usage: true,
        ..ResponseContext::for_request(request, CREATED, "gen_1")
    };
    let include_usage = request.include_usage || !request.stream;
    let reply = ResponseContext { include_usage, ..provided.clone() };
    let streamed = native.get("stream").map(stream);
    let first = match (body, &streamed) {
        (Some(body), _) => spoken.decode_response(body),
        (None, Some(events)) => gather(&read_stream(spoken, events)),
        (None, None) => panic!("{name} has neither an answer nor a stream"),
    };
    let (mut whole, mut pieces) = (Said::default(), Said::default());
    for (client, provider) in pairs() {
        let pair = self::name(client, provider);
        let restore = ToolRestorer::new(request, provider);
        let told = Told { name, client, restore: &restore, reply: &reply };
        if let Ok(first) = &first {
            let body = match body.filter(|_| provider == spoken) {
                Some(body) => Ok(body.clone()),
                None => provider.encode_response(&as_said_by(provider, first), &provided),
            };
            // What a provider's dialect cannot say, no provider says.
            let Ok(body) = body else { continue };
            let answer = provider.decode_response(&body).unwrap();
            whole.add(pair.clone(), told.whole(answer, used));
        } else if provider != spoken {
            continue;
        }
        let events = match (&streamed, &first) {
            (Some(streamed), _) if provider == spoken => streamed.clone(),
            (_, Ok(first)) => {
                parse(&write_stream(provider, as_said_by(provider, first).to_events(), &provided))
            }
            (_, Err(_)) => continue,
        };
        pieces.add(pair, told.pieces(provider, &events, used));
    }
    if let (Some(events), Some(_), Ok(first)) = (&streamed, body, &first) {
        let pieces = gather(&read_stream(spoken, events)).unwrap();
        assert_eq!(&pieces, first, "{name}: the stream says something else than the answer");
    }
    let mut golden = Map::new();
    if body.is_some() {
        golden.insert("answers".into(), whole.into_value());
    }
    golden.insert("streams".into(), pieces.into_value());
    golden
}

/// The same answer of another provider, which puts its own seals on its thoughts.
fn as_said_by(provider: Dialect, answer: &CanonicalResponse) -> CanonicalResponse {
    let mut answer = answer.clone();
    for part in &mut answer.parts {
        if let ContentPart::Reasoning(ReasoningPart { seal: Some(seal), .. }) = part {
            seal.by = provider;
            seal.id = (provider == Dialect::Responses).then(|| "rs_b".to_owned());
            seal.redacted &= provider == Dialect::Messages;
        }
    }
    answer
}

/// One client that is told an answer.
struct Told<'a> {
    name: &'a str,
    client: Dialect,
    restore: &'a ToolRestorer,
    reply: &'a ResponseContext,
}

impl Told<'_> {
    fn whole(&self, mut answer: CanonicalResponse, used: &mut BTreeSet<&'static str>) -> Value {
        self.restore.restore_response(&mut answer);
        match self.client.encode_response(&answer, self.reply) {
            Ok(body) => {
                let back = self.client.decode_response(&body).unwrap();
                self.same(&back, answer, used);
                body
            }
            Err(error) => refused(&error),
        }
    }

    fn pieces(
        &self,
        provider: Dialect,
        events: &[cynode_net::sse::SseEvent],
        used: &mut BTreeSet<&'static str>,
    ) -> Value {
        let said = restored(read_stream(provider, events), self.restore);
        let answer = gather(&said);
        let told = parse(&write_stream(self.client, said, self.reply));
        let back = gather(&read_stream(self.client, &told));
        match (back, answer) {
            (Ok(back), Ok(mut answer)) => {
                // Chat tells what was used in pieces only if the client asks.
                if self.client == Dialect::Chat && !self.reply.include_usage {
                    answer.usage = None;
                }
                self.same(&back, answer, used);
            }
            (Err(back), Err(error)) => {
                assert_eq!(
                    (back.kind, &back.message),
                    (error.kind, &error.message),
                    "{}",
                    self.name
                );
            }
            (back, answer) => panic!("{}: {back:?} is not {answer:?}", self.name),
        }
        lines(&told)
    }

    /// Nothing is lost but what the table says.
    fn same(
        &self,
        back: &CanonicalResponse,
        mut answer: CanonicalResponse,
        used: &mut BTreeSet<&'static str>,
    ) {
        if *back == answer {
            return;
        }
        for loss in losses::TABLE.iter().filter(|loss| loss.client == self.client) {
            let before = answer.clone();
            (loss.apply)(&mut answer);
            if before != answer {
                used.insert(loss.what);
            }
        }
        assert_eq!(*back, answer, "{} for a client of {}", self.name, self.client);
    }
}

#[test]
fn every_conversation_says_what_it_is_about() {
    for (name, conversation) in conversations() {
        assert!(conversation["about"].as_str().is_some_and(|about| !about.is_empty()), "{name}");
        let fields: Vec<_> = conversation.as_object().unwrap().keys().cloned().collect();
        let known = json!(["about", "request", "answer", "error"]);
        assert!(
            fields.iter().all(|field| known.as_array().unwrap().contains(&json!(field))),
            "{name}: {fields:?}"
        );
    }
}
