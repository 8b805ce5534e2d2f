//! Embedders: offline, deterministic, and as the seed has them.

use std::{io::Write, thread};

use cynode_memory::embedders::{
    Embedder, EmbedderFileError, FileEmbedder, Hashing64, Hashing4096, cosine,
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

const WORDS: &[u8] = b"3 2\ncat 1 0\nkitten 0.9 0.1\nHouse 0 1\n";

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of the bits of a vector.
fn fingerprint(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect();
    digest(&bytes)
}

#[test]
fn the_seeds_embedder_counts_words_in_64_dimensions() {
    // SHA-256 of `hello` begins with 2c, of `world` with 48.
    let vector = Hashing64.embed("Hello  WORLD\thello");
    assert_eq!((Hashing64.dimensions(), vector.len()), (64, 64), "B001-08");
    let length = 5.0_f32.sqrt();
    for (dimension, value) in vector.iter().enumerate() {
        let expected = match dimension {
            0x2c => 2.0 / length,
            0x08 => 1.0 / length,
            _ => 0.0,
        };
        assert!((value - expected).abs() < 1e-6, "B001-08: {dimension} is {value}");
    }
    assert_eq!(Hashing64.embed(""), vec![0.0; 64], "B001-08: empty text gives the zero vector");
    assert_eq!(Hashing64.embed(" \n"), vec![0.0; 64], "B001-08");
}

#[test]
fn vectors_are_the_same_bits_on_every_platform() {
    let text = "Retries wait 2^n seconds; MAX_RETRIES ends them. 再試行は待つ";
    let expected = [
        "846d38bddb89eb5e32b6094bf96998434c584eb46dbffef24dc1d8bbf8595b88",
        "c0a26aece41009a498470b0d6bd2f04f12cfa9cfe3a226b1327616a7df224ee6",
    ];
    let actual = [fingerprint(&Hashing64.embed(text)), fingerprint(&Hashing4096.embed(text))];
    assert_eq!(actual, expected, "S001-46");
}

#[test]
fn similar_texts_have_similar_vectors() {
    let query = Hashing4096.embed("configure the retry limit");
    let near =
        cosine(&query, &Hashing4096.embed("The limit of retries is configured by a setting"));
    let far = cosine(&query, &Hashing4096.embed("Markdown is cut at headings"));
    assert!(near > far + 0.2, "S001-78: {near} {far}");
    assert!(cosine(&query, &query) > 0.999_999);
    assert_eq!(cosine(&query, &[]), 0.0);
}

#[test]
fn a_file_of_word_vectors_is_an_embedder() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(WORDS).unwrap();
    let embedder = FileEmbedder::load(file.path(), &digest(WORDS)).unwrap();
    assert_eq!(embedder.dimensions(), 2);
    assert_eq!(embedder.embed("a CAT"), [1.0, 0.0]);
    assert_eq!(embedder.embed("house"), [0.0, 1.0]);
    assert_eq!(embedder.embed("nothing of it"), [0.0, 0.0]);
    let cat = embedder.embed("cat");
    assert!(cosine(&cat, &embedder.embed("kitten")) > cosine(&cat, &embedder.embed("house")));
    assert!(embedder.id().contains(&digest(WORDS)[..16]), "the id names the file");
}

#[test]
fn another_file_or_a_damaged_one_is_no_embedder() {
    let pinned = digest(WORDS);
    let other = FileEmbedder::from_bytes(b"cat 1 1\n", &pinned);
    assert!(matches!(other, Err(EmbedderFileError::OtherDigest { .. })), "{other:?}");
    for (bytes, line) in
        [(&b"cat 1 0\ndog 1\n"[..], 2), (b"cat x\n", 1), (b"cat NaN\n", 1), (b"\xff 1\n", 1)]
    {
        let refused = FileEmbedder::from_bytes(bytes, &digest(bytes));
        assert!(matches!(refused, Err(EmbedderFileError::Line(it)) if it == line), "{refused:?}");
    }
    for bytes in [&b""[..], b"cat\n"] {
        let refused = FileEmbedder::from_bytes(bytes, &digest(bytes));
        assert!(matches!(refused, Err(EmbedderFileError::Extent)), "{refused:?}");
    }
    let absent = FileEmbedder::load(std::path::Path::new("/nowhere/words.txt"), &pinned);
    assert!(matches!(absent, Err(EmbedderFileError::Unreadable(_))), "{absent:?}");
}

#[test]
fn nothing_here_can_send_a_request() {
    let manifest = include_str!("../../Cargo.toml");
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (dependencies, _) = dependencies.split_once("\n[dev-dependencies]\n").unwrap();
    let names: Vec<_> = dependencies
        .lines()
        .filter_map(|line| line.split('.').next())
        .filter(|it| !it.is_empty())
        .collect();
    let expected = [
        "sha2",
        "thiserror",
        "tree-sitter",
        "tree-sitter-go",
        "tree-sitter-javascript",
        "tree-sitter-python",
        "tree-sitter-rust",
        "tree-sitter-typescript",
        "unicode-normalization",
        "uuid",
    ];
    assert_eq!(names, expected, "S001-47: none of these opens a connection");
    for source in sources(concat!(env!("CARGO_MANIFEST_DIR"), "/src").as_ref()) {
        for word in ["std::net", "TcpStream", "UdpSocket", "UnixStream", "Command::new"] {
            assert!(!source.contains(word), "S001-47: {word}");
        }
    }
}

fn sources(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![std::fs::read_to_string(path).unwrap()]
            }
        })
        .collect()
}

proptest! {
    #[test]
    fn the_same_text_gives_the_same_vector_on_every_thread(text in any::<String>()) {
        let embedders: [&'static dyn Embedder; 2] = [&Hashing64, &Hashing4096];
        for embedder in embedders {
            let here = embedder.embed(&text);
            let threads: Vec<_> = (0..3).map(|_| {
                let text = text.clone();
                thread::spawn(move || embedder.embed(&text))
            }).collect();
            for thread in threads {
                prop_assert_eq!(fingerprint(&thread.join().unwrap()), fingerprint(&here), "S001-46");
            }
            let length: f64 = here.iter().map(|value| f64::from(value * value)).sum();
            prop_assert!(length == 0.0 || (length - 1.0).abs() < 1e-4, "B001-08: {}", length);
        }
    }

    #[test]
    fn any_file_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = FileEmbedder::from_bytes(&bytes, &digest(&bytes));
    }
}
